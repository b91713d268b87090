// The work that a measurement asks of each server, here for Node.js alone: no package is needed.
import http from "node:http";
import { connect } from "node:net";

const { CPU_STEPS, DATABASE_URL, PORT, QUERIES_MAX, QUERY_SECONDS, REMOTE_URL } = process.env;
const QUERY = `SELECT pg_sleep(${Number(QUERY_SECONDS)})`;

// As much of PostgreSQL's protocol as a trusted user needs to ask one thing after the other.
class Connection {
  #bytes = Buffer.alloc(0);
  #done = null;

  constructor({ hostname, port, username, pathname }) {
    this.socket = connect({ host: hostname, port: Number(port), noDelay: true });
    const words = ["user", username, "database", pathname.slice(1), ""].map((word) => `${word}\0`);
    const body = Buffer.concat([Buffer.from([0, 3, 0, 0]), Buffer.from(words.join(""))]);
    this.socket.write(Buffer.concat([length(body), body]));
    this.socket.on("data", (more) => this.#read(more));
    this.socket.on("error", (error) => this.#done?.reject(error));
    this.ready = this.#until();
  }

  async ask(text) {
    await this.ready;
    const body = Buffer.from(`${text}\0`);
    this.socket.write(Buffer.concat([Buffer.from("Q"), length(body), body]));
    this.ready = this.#until();
    return this.ready;
  }

  #until() {
    return new Promise((resolve, reject) => {
      this.#done = { resolve, reject };
    });
  }

  #read(more) {
    this.#bytes = Buffer.concat([this.#bytes, more]);
    while (this.#bytes.length >= 5 && this.#bytes.length > this.#bytes.readUInt32BE(1)) {
      const kind = String.fromCharCode(this.#bytes[0]);
      const message = this.#bytes.subarray(5, this.#bytes.readUInt32BE(1) + 1);
      this.#bytes = this.#bytes.subarray(this.#bytes.readUInt32BE(1) + 1);
      if (kind === "Z") this.#done.resolve();
      if (kind === "E") this.#done.reject(new Error(message.toString()));
    }
  }
}

function length(body) {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(body.length + 4);
  return bytes;
}

// As many connections to the database as there may be, each made when it is first wanted.
const free = Array(Number(QUERIES_MAX)).fill(null);
const waiting = [];

async function query() {
  let connection = free.length > 0 ? free.pop() : await new Promise((turn) => waiting.push(turn));
  connection ??= new Connection(new URL(DATABASE_URL));
  try {
    await connection.ask(QUERY);
    return "done\n";
  } finally {
    const next = waiting.shift();
    if (next) next(connection);
    else free.push(connection);
  }
}

async function remote() {
  const pieces = [];
  const answer = await new Promise((resolve, reject) => {
    http.get(REMOTE_URL, { agent: false }, resolve).on("error", reject);
  });
  for await (const piece of answer) pieces.push(piece);
  return Buffer.concat(pieces);
}

// The same sum in each language, within 32 bits.
const steps = Number(CPU_STEPS);

function compute() {
  let sum = 0;
  for (let step = 0; step < steps; step++) sum = (Math.imul(sum, 31) + step) >>> 0;
  return `${sum}\n`;
}

const WORK = { "/short": () => "Hi!\n", "/query": query, "/remote": remote, "/cpu": compute };

http
  .createServer(async (request, response) => {
    try {
      const body = await WORK[request.url]?.();
      response.writeHead(body === undefined ? 404 : 200, {
        "content-type": "text/plain",
        "content-length": Buffer.byteLength(body ?? ""),
      });
      response.end(body);
    } catch (error) {
      console.error(error);
      response.writeHead(500, { "content-length": 0 });
      response.end();
    }
  })
  .listen(Number(PORT), "127.0.0.1");
