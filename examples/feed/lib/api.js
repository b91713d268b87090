// The one interface, for the page and for every other client: JSON in, JSON out.
import { randomBytes } from "node:crypto";
import { query, transaction, FOREIGN_KEY_VIOLATION, UNIQUE_VIOLATION } from "./database.js";
import { busIsThere, publish } from "./bus.js";
import { liveClients } from "./feeder.js";
import { answer, parseJson, readBody, Refusal, textOf } from "./http.js";
import { file, removeLater, upload } from "./images.js";
import { mailman, notifier } from "./mailman.js";
import { place } from "./places.js";
import { settings } from "./settings.js";
import { signer } from "./signing.js";

const NAME = /^[\p{L}\p{N}_.-]{2,30}$/u;
const TITLE_MAX = 120;
const UPLOADS_MAX = 4;
const PAGE = 24;
const REMINDER_MAX_S = 365 * 24 * 3600;
const KEY_BYTES = 32;
const FOREVER = "public, max-age=31536000, immutable";

const open = [];
const signed = [];
const on = (list, method, pattern, act) => list.push({ method, pattern, act });

// The server's own time needs nothing and waits for nothing.
on(open, "GET", /^\/time$/, () => ({ time: Date.now() }));
on(open, "GET", /^\/health$/, () => ({
  instance: settings.instance,
  bus: busIsThere(),
  clients: liveClients(),
}));

on(open, "POST", /^\/users$/, async ({ body }) => {
  const name = textOf(body, "name", 30, NAME);
  const email = body.email === undefined ? null : textOf(body, "email", 200, /^\S+@\S+$/);
  // This spares the usual case a failed write. Two at once get by; the index decides between them.
  const taken = await query("SELECT 1 FROM users WHERE lower(name) = lower($1)", [name]);
  if (taken.length > 0) throw new Refusal(409, "this name is taken");
  const key = randomBytes(KEY_BYTES).toString("hex");
  try {
    const [user] = await query(
      `WITH made AS (INSERT INTO users (name, email, key) VALUES ($1, $2, $3) RETURNING id, name),
         mail AS (INSERT INTO mails (recipient, subject)
                  SELECT $2, 'Welcome, ' || $1 WHERE $2::text IS NOT NULL)
       SELECT id, name FROM made`,
      [name, email, key],
    );
    if (email) mailman.tell("post");
    return { status: 201, value: { ...user, key } };
  } catch (error) {
    if (error.code === UNIQUE_VIOLATION) throw new Refusal(409, "this name is taken");
    throw error;
  }
});

const PICTURE = `
  SELECT pictures.id, pictures.title, pictures.likes, pictures.album, albums.title AS "albumTitle",
    users.name AS owner,
    '/files/' || file || '/small' AS small, '/files/' || file || '/full' AS full
  FROM pictures JOIN albums ON albums.id = album JOIN users ON users.id = owner`;

on(open, "GET", /^\/pictures$/, async ({ url }) => {
  const before = url.searchParams.get("before");
  if (before !== null && !/^\d{1,18}$/.test(before))
    throw new Refusal(400, '"before" is no number');
  const sql = `${PICTURE} WHERE pictures.id < $1 ORDER BY pictures.id DESC LIMIT ${PAGE}`;
  return { pictures: await query(sql, [before ?? "999999999999999999"]) };
});

on(open, "GET", /^\/pictures\/(\d{1,18})$/, async ({ parts: [id] }) => {
  const [picture] = await query(`${PICTURE} WHERE pictures.id = $1`, [id]);
  if (!picture) throw new Refusal(404, "there is no such picture");
  return picture;
});

on(open, "GET", /^\/albums\/(\d{1,18})$/, async ({ parts: [id] }) => {
  const [album] = await query("SELECT id, title FROM albums WHERE id = $1", [id]);
  if (!album) throw new Refusal(404, "there is no such album");
  const sql = `${PICTURE} WHERE album = $1 ORDER BY pictures.id`;
  return { ...album, pictures: await query(sql, [id]) };
});

on(open, "GET", /^\/files\/([0-9a-f-]{36})\/(small|full)$/, async ({ parts: [id, size] }) => {
  const found = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(id) && (await file(id, size));
  if (!found) throw new Refusal(404, "there is no such file");
  const headers = { "content-type": found.type, "cache-control": FOREVER };
  return { status: 200, value: found.bytes, headers };
});

on(signed, "GET", /^\/me$/, async ({ user }) => {
  const sql = "SELECT id, title FROM albums WHERE owner = $1 ORDER BY id DESC LIMIT 100";
  return { ...user, albums: await query(sql, [user.id]) };
});

on(signed, "GET", /^\/notifications$/, async ({ user }) => {
  const sql = "SELECT id, text, created_at FROM notifications WHERE person = $1";
  return { notifications: await query(`${sql} ORDER BY id DESC LIMIT 50`, [user.id]) };
});

on(signed, "POST", /^\/albums$/, async ({ user, body }) => {
  const title = textOf(body, "title", TITLE_MAX);
  const sql = "INSERT INTO albums (owner, title) VALUES ($1, $2) RETURNING id, title";
  return { status: 201, value: (await query(sql, [user.id, title]))[0] };
});

// The answer comes as soon as nobody can see the album; its files go later, which may take long.
on(signed, "DELETE", /^\/albums\/(\d{1,18})$/, async ({ user, parts: [id] }) => {
  await transaction(async (query) => {
    const sql = "SELECT id FROM albums WHERE id = $1 AND owner = $2 FOR UPDATE";
    if ((await query(sql, [id, user.id])).length === 0) {
      throw new Refusal(404, "you have no such album");
    }
    await query("INSERT INTO removals SELECT file FROM pictures WHERE album = $1", [id]);
    await query("DELETE FROM albums WHERE id = $1", [id]);
  });
  return { deleted: id };
});

// All uploads of a request run side by side; it is answered when the last is through.
on(signed, "POST", /^\/albums\/(\d{1,18})\/pictures$/, async ({ user, body, parts: [id] }) => {
  const given = uploadsOf(body);
  const mine = await query("SELECT 1 FROM albums WHERE id = $1 AND owner = $2", [id, user.id]);
  if (mine.length === 0) throw new Refusal(404, "you have no such album");

  const done = await Promise.allSettled(given.map(({ bytes }) => upload(bytes)));
  const files = done.filter((one) => one.status === "fulfilled").map((one) => one.value);
  const failed = done.find((one) => one.status === "rejected");
  try {
    if (failed) throw failed.reason;
    const pictures = await query(
      `INSERT INTO pictures (album, title, file)
       SELECT $1, * FROM unnest($2::text[], $3::uuid[]) RETURNING id`,
      [id, given.map(({ title }) => title), files],
    );
    const ids = pictures.map((picture) => picture.id);
    const value = { pictures: await query(`${PICTURE} WHERE pictures.id = ANY($1)`, [ids]) };
    for (const picture of value.pictures) publish(`/picture/${picture.id}/added`, { picture });
    return { status: 201, value };
  } catch (error) {
    await removeLater(files);
    // The album was deleted meanwhile.
    if (error.code === FOREIGN_KEY_VIOLATION) throw new Refusal(404, "you have no such album");
    throw error;
  }
});

function uploadsOf(body) {
  const list = body.pictures;
  if (!Array.isArray(list) || list.length < 1 || list.length > UPLOADS_MAX) {
    throw new Refusal(400, `"pictures" has to be a list of 1 to ${UPLOADS_MAX}`);
  }
  return list.map((one) => {
    if (one === null || typeof one !== "object") throw new Refusal(400, "a picture is an object");
    if (typeof one.image !== "string") throw new Refusal(400, '"image" is base64');
    return { title: textOf(one, "title", TITLE_MAX), bytes: Buffer.from(one.image, "base64") };
  });
}

on(signed, "POST", /^\/pictures\/(\d{1,18})\/likes$/, async ({ user, parts: [id] }) => {
  const picture = await like(id, user);
  if (picture.isNew) {
    publish(`/picture/${id}/likes`, {
      user: user.name,
      title: picture.title,
      likes: picture.likes,
    });
    if (picture.owner !== user.id) {
      notifier.tell({ person: picture.owner, text: `${user.name} likes “${picture.title}”` });
    }
  }
  return { status: picture.isNew ? 201 : 200, value: { likes: picture.likes } };
});

async function like(id, user) {
  try {
    const [made] = await query(
      `WITH made AS (INSERT INTO likes (picture, person) VALUES ($1, $2)
                     ON CONFLICT DO NOTHING RETURNING picture)
       UPDATE pictures SET likes = likes + 1 FROM made, albums
       WHERE pictures.id = made.picture AND albums.id = pictures.album
       RETURNING likes, pictures.title, owner`,
      [id, user.id],
    );
    if (made) return { ...made, isNew: true };
  } catch (error) {
    if (error.code !== FOREIGN_KEY_VIOLATION) throw error;
  }
  const [there] = await query("SELECT likes FROM pictures WHERE id = $1", [id]);
  if (!there) throw new Refusal(404, "there is no such picture");
  return { ...there, isNew: false };
}

on(signed, "POST", /^\/reminders$/, async ({ user, body }) => {
  const text = textOf(body, "text", TITLE_MAX);
  const seconds = body.in_seconds;
  if (typeof seconds !== "number" || !(seconds >= 0 && seconds <= REMINDER_MAX_S)) {
    throw new Refusal(400, '"in_seconds" is missing or not valid');
  }
  await query(
    `INSERT INTO reminders (person, text, due_at)
     VALUES ($1, $2, now() + $3::float * interval '1 s')`,
    [user.id, text, seconds],
  );
  return { status: 201, value: { text, in_seconds: seconds } };
});

on(signed, "GET", /^\/places\/([^/]{1,200})$/, ({ parts: [name] }) => {
  try {
    return place(decodeURIComponent(name));
  } catch {
    throw new Refusal(400, "the name of the place is not valid");
  }
});

// Answers what is of this interface; says whether it was.
export async function api(request, response, url) {
  const found = match(request.method, url.pathname);
  if (!found) return false;
  const { act, parts, needsUser } = found;
  const bytes = await readBody(request);
  const user = needsUser ? await signer(request, bytes) : undefined;
  // A like or a deletion says all in its path.
  const body = request.method === "POST" && bytes.length > 0 ? parseJson(bytes) : {};
  const result = await act({ user, body, parts, url });
  if (Buffer.isBuffer(result.value) || result.status) {
    answer(response, result.status, result.value, result.headers);
  } else {
    answer(response, 200, result);
  }
  return true;
}

function match(method, path) {
  const wanted = method === "HEAD" ? "GET" : method;
  const methods = new Set();
  for (const list of [open, signed]) {
    for (const { method, pattern, act } of list) {
      const parts = pattern.exec(path);
      if (!parts) continue;
      if (method === wanted) return { act, parts: parts.slice(1), needsUser: list === signed };
      methods.add(method);
    }
  }
  if (methods.size === 0) return undefined;
  const refusal = new Refusal(405, `this takes ${[...methods].join(", ")}`);
  refusal.headers = { allow: [...methods].join(", ") };
  throw refusal;
}
