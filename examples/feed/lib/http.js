// What every request needs: a body within bounds, an answer as JSON, a refusal with its status.

// Four pictures of 2 MB, as base64 in JSON.
const BODY_MAX_BYTES = 12 << 20;

export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function readBody(request) {
  const pieces = [];
  let size = 0;
  for await (const piece of request) {
    size += piece.length;
    if (size > BODY_MAX_BYTES) throw new Refusal(413, "at most 12 MB in one request");
    pieces.push(piece);
  }
  return Buffer.concat(pieces);
}

export function parseJson(bytes) {
  let value;
  try {
    value = JSON.parse(bytes.toString("utf8"));
  } catch {
    throw new Refusal(400, "the body is no JSON");
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) {
    throw new Refusal(400, "the body is no JSON object");
  }
  return value;
}

export function textOf(body, name, max, pattern = /\S/) {
  const value = body[name];
  const good = typeof value === "string" && value.length <= max && !value.includes("\0");
  if (!good || !pattern.test(value)) throw new Refusal(400, `"${name}" is missing or not valid`);
  return value.trim();
}

export function answer(response, status, value, headers = {}) {
  const bytes = Buffer.isBuffer(value) ? value : Buffer.from(`${JSON.stringify(value)}\n`);
  response.writeHead(status, {
    "content-type": "application/json; charset=utf-8",
    "content-length": bytes.length,
    "x-content-type-options": "nosniff",
    ...headers,
  });
  response.end(bytes);
}
