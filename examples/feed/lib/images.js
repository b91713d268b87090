// Images: converted by a program outside, at most two at once on this instance, and kept in the
// database, which all instances of all nodes reach.
import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { query } from "./database.js";
import { Refusal } from "./http.js";
import { settings } from "./settings.js";

// Converting takes a core each; more at once would only make each slower, and requests with them.
const CONVERSIONS_MAX = 2;
const CONVERSIONS_WAITING_MAX = 100;
const CONVERT_TIME_MAX_MS = 20_000;
const RESULT_MAX_BYTES = 8 << 20;
export const IMAGE_MAX_BYTES = 2 << 20;

// The program is told what it reads: left to itself it would also run scripts and fetch addresses.
const KINDS = [
  ["png", "image/png", Buffer.from("89504e470d0a1a0a", "hex")],
  ["jpeg", "image/jpeg", Buffer.from("ffd8ff", "hex")],
  ["gif", "image/gif", Buffer.from("GIF8")],
];
const LIMITS = ["-limit", "memory", "128MiB", "-limit", "map", "256MiB", "-limit", "disk", "0"];
const SIZES = ["-limit", "width", "12KP", "-limit", "height", "12KP", "-limit", "thread", "1"];

let converting = 0;
const waiting = [];

async function inTurn(work) {
  if (converting >= CONVERSIONS_MAX) {
    if (waiting.length >= CONVERSIONS_WAITING_MAX) throw new Refusal(503, "too many pictures wait");
    await new Promise((go) => waiting.push(go));
  } else {
    converting += 1;
  }
  try {
    return await work();
  } finally {
    const next = waiting.shift();
    if (next) next();
    else converting -= 1;
  }
}

function convert(kind, bytes) {
  return new Promise((resolve, reject) => {
    const shape = ["-auto-orient", "-strip", "-resize", "960x960>", "-quality", "82", "jpeg:-"];
    const child = spawn(settings.convert, [...LIMITS, ...SIZES, `${kind}:-[0]`, ...shape], {
      stdio: ["pipe", "pipe", "ignore"],
      timeout: CONVERT_TIME_MAX_MS,
      killSignal: "SIGKILL",
    });
    const pieces = [];
    let size = 0;
    child.on("error", reject);
    child.stdout.on("data", (piece) => {
      size += piece.length;
      if (size > RESULT_MAX_BYTES) child.kill("SIGKILL");
      else pieces.push(piece);
    });
    // A program that ends early does not read all; its exit says what was wrong.
    child.stdin.on("error", () => {});
    child.stdin.end(bytes);
    child.on("close", (code) => {
      if (code === 0 && size > 0) resolve(Buffer.concat(pieces));
      else reject(new Refusal(422, "this image could not be converted"));
    });
  });
}

// Returns the name under which both sizes of the image are kept.
export async function upload(bytes) {
  const found = KINDS.find(([, , magic]) => bytes.subarray(0, magic.length).equals(magic));
  if (!found) throw new Refusal(422, "only PNG, JPEG and GIF images are taken");
  if (bytes.length > IMAGE_MAX_BYTES) throw new Refusal(413, "an image has at most 2 MB");
  const [kind, type] = found;
  const small = await inTurn(() => convert(kind, bytes));
  const id = randomUUID();
  await query(
    `INSERT INTO files (id, size, type, bytes)
     VALUES ($1, 'full', $2, $3), ($1, 'small', 'image/jpeg', $4)`,
    [id, type, bytes, small],
  );
  return id;
}

export async function file(id, size) {
  const sql = "SELECT type, bytes FROM files WHERE id = $1 AND size = $2";
  return (await query(sql, [id, size]))[0];
}

export async function removeLater(files) {
  if (files.length === 0) return;
  const sql = "INSERT INTO removals (file) SELECT unnest($1::uuid[]) ON CONFLICT DO NOTHING";
  await query(sql, [files]);
}

// Deletes the files that nothing shows any more, some at a time. Instances do not meet: each
// skips the rows that another one holds.
export async function removeSome() {
  const gone = await query(
    `WITH taken AS (
       DELETE FROM removals WHERE file IN
         (SELECT file FROM removals LIMIT 20 FOR UPDATE SKIP LOCKED)
       RETURNING file)
     DELETE FROM files USING taken WHERE files.id = taken.file RETURNING 1`,
  );
  return gone.length;
}
