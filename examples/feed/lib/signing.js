// Signed requests. A client asks `/time`, signs method, path, time and body with the key that it
// got when it registered, and is heard within half a minute. What changes something is heard once:
// the database remembers signatures for as long as they would be valid.
import { createHash, createHmac, timingSafeEqual } from "node:crypto";
import { query, UNIQUE_VIOLATION } from "./database.js";
import { Refusal } from "./http.js";

export const VALID_MS = 30_000;
const HEX = /^[0-9a-f]{64}$/;

export function sign(key, method, path, time, body) {
  const digest = createHash("sha256").update(body).digest("hex");
  return createHmac("sha256", key).update(`${method}\n${path}\n${time}\n${digest}`).digest("hex");
}

export async function signer(request, body) {
  const user = request.headers["x-user"];
  const time = request.headers["x-time"];
  const given = request.headers["x-signature"];
  if (!user || !time || !given) throw new Refusal(401, "this request has to be signed");
  if (!/^\d{1,18}$/.test(user) || !/^\d{1,15}$/.test(time) || !HEX.test(given)) {
    throw new Refusal(401, "the signature is not valid");
  }
  if (Math.abs(Date.now() - Number(time)) > VALID_MS) {
    throw new Refusal(401, "the signature is too old or too new: ask /time");
  }
  const [found] = await query("SELECT id, name, email, key FROM users WHERE id = $1", [user]);
  const right = sign(found?.key ?? "", request.method, request.url, time, body);
  if (!found || !timingSafeEqual(Buffer.from(right), Buffer.from(given))) {
    throw new Refusal(401, "the signature is not valid");
  }
  if (request.method !== "GET") await useOnce(given);
  return { id: found.id, name: found.name, email: found.email };
}

async function useOnce(signature) {
  try {
    await query("INSERT INTO used_signatures (signature) VALUES ($1)", [signature]);
  } catch (error) {
    if (error.code === UNIQUE_VIOLATION) throw new Refusal(401, "this signature was used before");
    throw error;
  }
}
