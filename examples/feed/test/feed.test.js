import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { connect } from "node:net";
import { IS_TWIN, png, startAll, until } from "./support.js";

let all, a, b, ann, ben, album;
const IMAGE = png();

before(async () => {
  all = await startAll();
  ({ a, b } = all);
  ann = await a.join("Ann", { email: "ann@example.org" });
  ben = await b.join("Ben");
  album = (await ann.ask("POST", "/albums", { title: "Summer" })).value.id;
});
after(() => all?.stop());

const upload = (client, album, ...titles) =>
  client.ask("POST", `/albums/${album}/pictures`, {
    pictures: titles.map((title) => ({ title, image: IMAGE })),
  });
const picture = async (title) => (await upload(ann, album, title)).value.pictures[0].id;

test("a taken name is refused with 409 in any case of letters", async () => {
  assert.equal((await b.ask("POST", "/users", { name: "ann" })).status, 409);
});

test("one of many users of one name at once is made, by the guard of the database", async () => {
  const asked = Array.from({ length: 20 }, (_, n) =>
    (n % 2 ? a : b).ask("POST", "/users", { name: "Same" }),
  );
  const statuses = (await Promise.all(asked)).map(({ status }) => status);
  assert.deepEqual(statuses.sort(), [201, ...Array(19).fill(409)]);
  const [{ n }] = await all.query("SELECT count(*)::int AS n FROM users WHERE name = 'Same'");
  assert.equal(n, 1);
});

test("a user whom the database cannot take is answered with 500 and no detail", async () => {
  await all.query(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'secret detail'; END $$`);
  await all.query(`CREATE TRIGGER refuse BEFORE INSERT ON users FOR EACH ROW
    WHEN (new.name = 'Trouble') EXECUTE FUNCTION refuse()`);
  const { status, value } = await a.ask("POST", "/users", { name: "Trouble" });
  assert.equal(status, 500);
  assert.doesNotMatch(JSON.stringify(value), /secret/);
});

test("bad input is a clear 4xx", async () => {
  const cases = [
    ["POST", "/users", "{", 400],
    ["POST", "/users", "[]", 400],
    ["POST", "/users", { name: "x" }, 400],
    ["POST", "/users", { name: "a\u0000b" }, 400],
    ["POST", "/users", { name: 7 }, 400],
    ["GET", "/pictures?before=x", undefined, 400],
    ["GET", "/pictures/999999", undefined, 404],
    ["GET", "/pictures/99999999999999999999", undefined, 404],
    ["GET", "/files/------------------------------------/full", undefined, 404],
    ["DELETE", "/time", undefined, 405],
    ["GET", "/nothing", undefined, 404],
    ["POST", "/albums", { title: "x" }, 401],
  ];
  for (const [method, path, body, status] of cases) {
    const got = await a.ask(method, path, body);
    assert.equal(got.status, status, `${method} ${path} ${JSON.stringify(body)}`);
    assert.equal(typeof got.value.error, "string");
  }
  const image = (image) => ({ pictures: [{ title: "x", image }] });
  const uploads = [
    [{ pictures: [] }, 400],
    [{ pictures: [null] }, 400],
    [image(5), 400],
    [image(Buffer.from("push graphic-context").toString("base64")), 422],
    [image(Buffer.from("89504e470d0a1a0a00", "hex").toString("base64")), 422],
    [{ pictures: "x".repeat(13 << 20) }, 413],
  ];
  for (const [body, status] of uploads) {
    const got = await ann.ask("POST", `/albums/${album}/pictures`, body).catch(() => "cut");
    if (status === 413 && got === "cut") continue;
    assert.equal(got.status, status, JSON.stringify(body).slice(0, 80));
  }
  assert.equal((await a.ask("GET", "/time")).status, 200);
});

test("a signed request is heard by the server's time, once, and for what it says", async () => {
  const { time } = (await a.ask("GET", "/time")).value;
  assert.ok(Math.abs(time - Date.now()) < 5000);
  assert.equal((await ann.ask("GET", "/me")).value.name, "Ann");

  const body = JSON.stringify({ title: "Signed" });
  const headers = ann.signed("POST", "/albums", body, time);
  assert.equal((await a.ask("POST", "/albums", body, headers)).status, 201);
  // Replayed, on the other instance too.
  assert.equal((await a.ask("POST", "/albums", body, headers)).status, 401);
  assert.equal((await b.ask("POST", "/albums", body, headers)).status, 401);

  const fresh = ann.signed("POST", "/albums", body, time + 1);
  const other = await a.ask("POST", "/albums", JSON.stringify({ title: "Forged" }), fresh);
  assert.equal(other.status, 401);
  for (const wrong of [time - 31_000, time + 40_000]) {
    const old = ann.signed("POST", "/albums", body, wrong);
    assert.equal((await a.ask("POST", "/albums", body, old)).status, 401);
  }
  const strangers = { ...headers, "x-user": ben.user.id };
  assert.equal((await a.ask("POST", "/albums", body, strangers)).status, 401);
});

test("two uploads of one request run at the same time; the answer has both", async () => {
  // The converter waits until two of it run: one after the other would never get past it.
  writeFileSync(join(all.root, "together"), "");
  const started = Date.now();
  const { status, value } = await upload(ann, album, "One", "Two");
  rmSync(join(all.root, "together"));
  assert.equal(status, 201);
  assert.ok(Date.now() - started < 9000, "neither waited for the other");
  assert.deepEqual(value.pictures.map(({ title }) => title).sort(), ["One", "Two"]);
  for (const { small, full } of value.pictures) {
    const got = await b.ask("GET", small);
    assert.equal(got.response.headers.get("content-type"), "image/jpeg");
    assert.equal(got.value.subarray(0, 3).toString("hex"), "ffd8ff");
    assert.equal((await b.ask("GET", full)).value.toString("base64"), IMAGE);
  }
});

test("at most two images are converted at once, and short requests go on meanwhile", async () => {
  const uploads = Array.from({ length: 4 }, (_, n) => upload(ann, album, `a${n}`, `b${n}`));
  let quick = 0;
  let done = false;
  const answers = Promise.all(uploads).finally(() => (done = true));
  while (!done) {
    if ((await a.ask("GET", "/time")).status === 200) quick += 1;
  }
  assert.deepEqual(
    (await answers).map(({ status }) => status),
    [201, 201, 201, 201],
  );
  assert.equal(all.conversions().atOnceMax, 2);
  assert.ok(quick > 10, `${quick} short requests`);
});

test("a failed upload leaves no picture, and the other one's file goes", async () => {
  const pictures = [
    { title: "good", image: IMAGE },
    { title: "bad", image: Buffer.from("no image").toString("base64") },
  ];
  const { status } = await ann.ask("POST", `/albums/${album}/pictures`, { pictures });
  assert.equal(status, 422);
  const sql = `SELECT count(*)::int AS n FROM files
    WHERE id NOT IN (SELECT file FROM pictures)`;
  await until("no file is left over", async () => (await all.query(sql))[0].n === 0);
});

test("an album is gone at once and its files later", async () => {
  const { id } = (await ann.ask("POST", "/albums", { title: "Short" })).value;
  const { small } = (await upload(ann, id, "Gone")).value.pictures[0];
  assert.equal((await ben.ask("DELETE", `/albums/${id}`)).status, 404);
  // Whoever deletes the files has to wait for this lock; the answer does not.
  const release = await all.hold("SELECT 1 FROM files WHERE id = $1 FOR UPDATE", [
    small.split("/")[2],
  ]);
  assert.equal((await ann.ask("DELETE", `/albums/${id}`)).status, 200);
  assert.equal((await b.ask("GET", `/albums/${id}`)).status, 404);
  assert.equal((await b.ask("GET", small)).status, 200);
  await release();
  await until("the files are gone", async () => (await b.ask("GET", small)).status === 404);
});

test("a token is renewed on the schedule before it ends, by one instance for both", async () => {
  await all.query("UPDATE access_tokens SET renew_at = now()");
  const before = all.services.tokens;
  await until("a new token", () => all.services.tokens > before);
  await until(
    "it is in use",
    async () => (await ann.ask("GET", "/places/here")).value.token === `Bearer token-${before + 1}`,
  );
  const [{ left }] = await all.query(
    "SELECT extract(epoch FROM renew_at - now())::int AS left FROM access_tokens",
  );
  assert.ok(left > 1700 && left <= 1800, `${left} s, half of an hour`);
  assert.equal(all.services.tokens, before + 1);
});

test("a reminder comes once, when it is due, by mail", async () => {
  await ann.ask("POST", "/reminders", { text: "later", in_seconds: 3600 });
  await ann.ask("POST", "/reminders", { text: "water the plants", in_seconds: 0.3 });
  const mine = () => all.services.mails.filter(({ subject }) => subject.includes("plants"));
  await until("the mail", () => mine().length > 0);
  assert.equal(mine()[0].recipient, "ann@example.org");
  const sql = "SELECT text FROM reminders ORDER BY id";
  assert.deepEqual(await all.query(sql), [{ text: "later" }]);
  const [{ n }] = await all.query("SELECT count(*)::int AS n FROM mails WHERE subject ~ 'plants'");
  assert.equal(n, 1);
  assert.equal(mine().length, 1);
});

test("a mail that cannot be sent is tried again, and the registration does not wait", async () => {
  all.services.mailFails = true;
  await a.join("Cleo", { email: "cleo@example.org" });
  const sql = "SELECT tries FROM mails WHERE recipient = 'cleo@example.org'";
  await until("a try", async () => (await all.query(sql))[0].tries > 0);
  all.services.mailFails = false;
  await all.query("UPDATE mails SET next_try = now() WHERE sent_at IS NULL");
  await until("the mail", () =>
    all.services.mails.some((mail) => mail.recipient.startsWith("cleo")),
  );
});

// The twin has a thread for each of its requests, and no more threads than these wait with.
const SLOW = 40;
const HELD_MAX = IS_TWIN ? 32 : SLOW;
const holds = IS_TWIN ? "holds up whoever comes after the last thread" : "holds up nobody";
test(`a slow service of somebody else's ${holds}`, async () => {
  await until("a token", async () => (await ann.ask("GET", "/places/there")).status === 200);
  all.services.holds = true;
  const slow = Array.from({ length: SLOW }, (_, n) => ann.ask("GET", `/places/${n}`));
  await until("they wait", () => all.services.held.length === HELD_MAX);
  const other = a.ask("GET", "/pictures").then(({ status }) => status);
  const bound = new Promise((go) => setTimeout(go, 1000, "held up"));
  assert.equal(await Promise.race([other, bound]), IS_TWIN ? "held up" : 200);
  all.services.holds = false;
  const done = Promise.all(slow);
  let open = true;
  done.finally(() => (open = false));
  while (open) {
    all.services.held.splice(0).forEach((reply) => reply());
    await new Promise((go) => setTimeout(go, 10));
  }
  assert.ok((await done).every(({ status }) => status === 200));
});

test("a like counts once, tells the owner and reaches listeners on both instances", async () => {
  const id = await picture("Liked");
  const listeners = [
    await a.listen(`/picture/${id}/likes`),
    await b.listen("/picture/*/likes"),
    await b.listen(`/picture/${id}/likes`, "/picture/*/likes"),
  ];
  const elsewhere = await b.listen(`/picture/${Number(id) + 1000}/likes`);
  assert.deepEqual(
    await ben.ask("POST", `/pictures/${id}/likes`).then(({ status, value }) => [status, value]),
    [201, { likes: 1 }],
  );
  for (const listener of listeners) {
    await until("the like", () => listener.news.length > 0);
    const { channel, user, likes, instance } = listener.news[0];
    assert.deepEqual([channel, user, likes, instance], [`/picture/${id}/likes`, "Ben", 1, "web.2"]);
  }
  // Again: no second count, no second news.
  assert.equal((await ben.ask("POST", `/pictures/${id}/likes`)).status, 200);
  await ann.ask("POST", `/pictures/${id}/likes`);
  await until("the next like", () => listeners.every(({ news }) => news.length > 1));
  assert.deepEqual(
    listeners.map(({ news }) => news.map(({ likes }) => likes)),
    [
      [1, 2],
      [1, 2],
      [1, 2],
    ],
  );
  assert.equal(elsewhere.news.length, 0);
  const told = await until("the owner", async () =>
    (await ann.ask("GET", "/notifications")).value.notifications.find(({ text }) =>
      text.includes("Liked"),
    ),
  );
  assert.equal(told.text, "Ben likes “Liked”");
  await until("the telephone", () => all.services.pushed.some(({ text }) => text === told.text));
  [...listeners, elsewhere].forEach((socket) => socket.close());
});

test("new pictures are news too, and feeds that do not exist are refused", async () => {
  const listener = await b.listen("/picture/*/added");
  const id = await picture("Fresh");
  await until("the picture", () => listener.news.length > 0);
  assert.equal(listener.news[0].picture.id, id);
  listener.close();
  for (const feed of ["/picture/*/secrets", "", "/picture/x/likes"]) {
    await assert.rejects(a.listen(feed));
  }
  await assert.rejects(a.listen());
});

test("parallel likes by many users end in the right count", async () => {
  const id = await picture("Popular");
  const people = await Promise.all(
    Array.from({ length: 20 }, (_, n) => (n % 2 ? a : b).join(`fan${n}`)),
  );
  await Promise.all(people.map((person) => person.ask("POST", `/pictures/${id}/likes`)));
  assert.equal((await a.ask("GET", `/pictures/${id}`)).value.likes, 20);
});

test("broken frames and connections end themselves, never the server", async () => {
  const { port } = new URL(a.url);
  const key = "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Version: 13\r\n";
  const head =
    `GET /live?feed=/picture/*/likes HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n` +
    `Upgrade: websocket\r\n${key}\r\n`;
  for (const bytes of [Buffer.from("ffffffff", "hex"), Buffer.alloc(5000, 0x81), Buffer.alloc(0)]) {
    const socket = connect(port, "127.0.0.1");
    socket.on("error", () => {});
    socket.write(head);
    await new Promise((go) => socket.once("data", go));
    socket.end(bytes);
    await new Promise((go) => socket.once("close", go));
  }
  await until("none is left", async () => (await a.ask("GET", "/health")).value.clients === 0);
});

test("an instance that stops ends its clients in order, and the other goes on", async () => {
  const listener = await b.listen("/picture/*/likes");
  const { child } = all.instances[1];
  const closed = new Promise((done) => listener.once("close", done));
  const ended = new Promise((done) => child.once("exit", done));
  child.kill("SIGTERM");
  assert.equal(await closed, 1001);
  assert.equal(await ended, 0);
  assert.equal((await a.ask("GET", "/pictures")).status, 200);
});
