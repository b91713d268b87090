// What a run of tests needs, all of it private to the run: a PostgreSQL server, a bus, the services
// of others, and two instances of the server. FEED_SERVER=twin tests the twin instead.
import { spawn, execFileSync } from "node:child_process";
import { createHash, createHmac } from "node:crypto";
import { chownSync, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { createServer as createTcp } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import pg from "pg";
import WebSocket from "ws";

const HERE = dirname(fileURLToPath(import.meta.url));
const ROOT = dirname(HERE);
const START_TIME_MAX_MS = 30_000;
export const IS_TWIN = process.env.FEED_SERVER === "twin";

export async function until(what, look, timeMs = 10_000) {
  const deadline = Date.now() + timeMs;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (Date.now() > deadline) throw new Error(`not seen in ${timeMs} ms: ${what}`);
    await new Promise((done) => setTimeout(done, 20));
  }
}

export function freePort() {
  return new Promise((resolve) => {
    const server = createTcp().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

export async function startAll() {
  const root = mkdtempSync(join(tmpdir(), "feed-test-"));
  const children = [];
  const run = (command, args, env = {}) => {
    const child = spawn(command, args, { env: { ...process.env, ...env }, cwd: ROOT });
    child.text = "";
    for (const stream of [child.stdout, child.stderr]) {
      stream.on("data", (piece) => (child.text += piece));
    }
    children.push(child);
    return child;
  };

  // A run that breaks off leaves nothing behind either.
  const kill = () => children.forEach((child) => child.kill(child.quit ?? "SIGKILL"));
  process.once("exit", kill);

  const stop = async () => {
    // The database comes last: what ends in order still writes.
    for (const child of children.reverse()) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      const ended = new Promise((done) => child.once("exit", done));
      child.kill(child.quit ?? "SIGTERM");
      await ended;
    }
    services.server.closeAllConnections();
    services.server.close();
    rmSync(root, { recursive: true, force: true });
  };

  const database = await startPostgres(root, run);
  const services = await startServices();
  const busPort = await freePort();
  run("redis-server", ["--port", busPort, "--bind", "127.0.0.1", "--save", "", "--dir", root]);
  execFileSync("node", ["migrate.js"], {
    cwd: ROOT,
    env: { ...process.env, DATABASE_URL: database },
  });

  const converter = join(root, "convert");
  mkdirSync(join(root, "running"));
  writeFileSync(converter, CONVERTER, { mode: 0o755 });
  const env = {
    DATABASE_URL: database,
    CORTEX_BUS_URL: `redis://127.0.0.1:${busPort}`,
    HOST: "127.0.0.1",
    CONVERT: converter,
    REAL_CONVERT: existsSync("/usr/bin/convert") ? "/usr/bin/convert" : "convert",
    CONVERTER_ROOT: root,
    PLACES_URL: services.url,
    MAIL_URL: `${services.url}/mails`,
    PUSH_URL: `${services.url}/push`,
    TICK_MS: "100",
    CORTEX_PROCESS: "web",
  };
  const instances = [];
  for (const slot of ["1", "2"]) {
    const port = await freePort();
    const own = { ...env, PORT: port, CORTEX_SLOT: slot };
    const start = () =>
      IS_TWIN
        ? run("puma", ["-q", "-C", "twin/puma.rb", "twin/config.ru"], own)
        : run("node", ["server.js"], own);
    instances.push({ url: `http://127.0.0.1:${port}`, child: start(), start });
  }
  try {
    for (const { url, child } of instances) {
      const look = async () => {
        if (child.exitCode !== null) throw new Error(child.text);
        return (
          await fetch(`${url}/health`)
            .then((r) => r.json())
            .catch(() => ({}))
        ).bus;
      };
      await until(`${url} with its bus`, look, START_TIME_MAX_MS);
    }
  } catch (error) {
    await stop();
    throw error;
  }
  const pool = new pg.Pool({ connectionString: database });
  pool.on("error", () => {});
  return {
    stop: async () => {
      await pool.end();
      await stop();
    },
    root,
    services,
    a: new Client(instances[0].url),
    b: new Client(instances[1].url),
    instances,
    query: async (text, values) => (await pool.query(text, values)).rows,
    // Runs a statement and keeps its locks until the returned function is called.
    hold: async (text, values) => {
      const client = await pool.connect();
      await client.query("BEGIN");
      await client.query(text, values);
      return async () => {
        await client.query("COMMIT");
        client.release();
      };
    },
    // How many conversions there were, and how many of them at once at most.
    conversions: () => {
      const path = join(root, "converted");
      const lines = existsSync(path) ? readFileSync(path, "utf8").trim().split("\n") : [];
      return { count: lines.length, atOnceMax: Math.max(0, ...lines.map(Number)) };
    },
  };
}

// Counts how many run at once, waits until `together` says that enough have come, then converts.
const CONVERTER = `#!/bin/sh
touch "$CONVERTER_ROOT/running/$$"
deadline=$(($(date +%s) + 10))
while [ -e "$CONVERTER_ROOT/together" ]; do
  [ "$(ls "$CONVERTER_ROOT/running" | wc -l)" -ge 2 ] && break
  [ "$(date +%s)" -gt "$deadline" ] && break
  sleep 0.02
done
sleep 0.05
ls "$CONVERTER_ROOT/running" | wc -l >> "$CONVERTER_ROOT/converted"
"$REAL_CONVERT" "$@"
status=$?
rm "$CONVERTER_ROOT/running/$$"
exit $status
`;

async function startPostgres(root, run) {
  const versions = readdirSync("/usr/lib/postgresql").sort((a, b) => a - b);
  const bin = `/usr/lib/postgresql/${versions.at(-1)}/bin`;
  const data = join(root, "postgres");
  mkdirSync(data);
  // It refuses to run as root.
  const isRoot = process.getuid() === 0;
  if (isRoot) {
    const id = (what) => Number(execFileSync("id", [what, "postgres"]).toString());
    chownSync(data, id("-u"), id("-g"));
    execFileSync("chmod", ["o+x", root]);
  }
  const how = isRoot
    ? ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    : ["env"];
  const port = await freePort();
  const init = [`${bin}/initdb`, "-D", data, "-U", "feed", "-A", "trust", "-N", "-E", "UTF8"];
  execFileSync(how[0], [...how.slice(1), ...init], { cwd: data });
  const child = run(how[0], [
    ...how.slice(1),
    `${bin}/postgres`,
    "-D",
    data,
    "-p",
    String(port),
    "-k",
    data,
    "-c",
    "fsync=off",
    "-h",
    "127.0.0.1",
  ]);
  child.quit = "SIGINT";
  const url = `postgres://feed@127.0.0.1:${port}/postgres`;
  const look = async () => {
    if (child.exitCode !== null) throw new Error(child.text);
    const client = new pg.Client({ connectionString: url });
    return client
      .connect()
      .then(() => client.end())
      .then(
        () => true,
        () => false,
      );
  };
  await until("PostgreSQL", look, START_TIME_MAX_MS);
  return url;
}

// Somebody else's services: places that answer when they are told to, mails, push messages.
async function startServices() {
  const state = {
    tokens: 0,
    lifeSeconds: 3600,
    mails: [],
    pushed: [],
    held: [],
    holds: false,
    delayMs: 0,
  };
  const server = createServer(async (request, response) => {
    const pieces = [];
    for await (const piece of request) pieces.push(piece);
    const body = pieces.length > 0 ? JSON.parse(Buffer.concat(pieces)) : {};
    const answer = (status, value) => {
      response.writeHead(status, { "content-type": "application/json" });
      response.end(JSON.stringify(value));
    };
    if (request.url === "/token") {
      state.tokens += 1;
      return answer(200, { token: `token-${state.tokens}`, expires_in: state.lifeSeconds });
    }
    if (request.url === "/mails") {
      if (state.mailFails) return answer(500, {});
      state.mails.push(body);
      return answer(200, {});
    }
    if (request.url === "/push") {
      state.pushed.push(body);
      return answer(200, {});
    }
    const reply = () => answer(200, { place: request.url, token: request.headers.authorization });
    if (state.holds) state.held.push(reply);
    else setTimeout(reply, state.delayMs);
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  return Object.assign(state, { server, url: `http://127.0.0.1:${server.address().port}` });
}

export class Client {
  constructor(url, user) {
    this.url = url;
    this.user = user;
  }

  as(user) {
    return new Client(this.url, user);
  }

  async join(name, more = {}) {
    const { status, value } = await this.ask("POST", "/users", { name, ...more });
    if (status !== 201) throw new Error(`${status} ${value.error}`);
    return this.as(value);
  }

  signed(method, path, body, time) {
    const digest = createHash("sha256").update(body).digest("hex");
    const signature = createHmac("sha256", this.user.key)
      .update(`${method}\n${path}\n${time}\n${digest}`)
      .digest("hex");
    return { "x-user": this.user.id, "x-time": String(time), "x-signature": signature };
  }

  async ask(method, path, value, headers = {}) {
    const body =
      value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value);
    const own =
      this.user && !headers["x-signature"]
        ? this.signed(method, path, body, headers["x-time"] ?? Date.now())
        : {};
    const response = await fetch(this.url + path, {
      method,
      headers: { "content-type": "application/json", ...own, ...headers },
      body: body || undefined,
    });
    const bytes = Buffer.from(await response.arrayBuffer());
    const isJson = response.headers.get("content-type")?.startsWith("application/json");
    return { status: response.status, value: isJson ? JSON.parse(bytes) : bytes, response };
  }

  // A listener of the live feed, ready when this resolves; what it hears is in `news`.
  async listen(...feeds) {
    const search = feeds.map((feed) => `feed=${encodeURIComponent(feed)}`).join("&");
    const socket = new WebSocket(`${this.url.replace("http", "ws")}/live?${search}`);
    socket.news = [];
    await new Promise((resolve, reject) => {
      socket.on("error", reject);
      socket.on("message", (data) => {
        const news = JSON.parse(data);
        if (news.ready) resolve();
        else socket.news.push(news);
      });
    });
    return socket;
  }
}

// A PNG, made here; `what` is an image in ImageMagick's words, such as `xc:teal`.
export function png(what = "xc:teal", size = "64x48") {
  const program = existsSync("/usr/bin/convert") ? "/usr/bin/convert" : "convert";
  return execFileSync(program, ["-size", size, what, "png:-"]).toString("base64");
}
