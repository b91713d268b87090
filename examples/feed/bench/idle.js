// Measures what an idle WebSocket costs in the router:
// node bench/idle.js [--clients 10000] [--idle 15] --pid NODE [--pid2 NODE] URL…
// Each connection says one word and hears it, then is idle; all say a word again at the end.
import { readFileSync } from "node:fs";
import WebSocket from "ws";
import { options, summary } from "./support.js";

const CONNECTING_MAX = 100;
// For `idle` seconds nothing is said, so that what was only needed to connect is given back.
const { clients, idle, pid, pid2, urls } = options({ clients: 10_000, idle: 15 });
const pids = [pid, pid2].filter(Boolean);

function kilobytes(pid) {
  const field = (name) => {
    const text = readFileSync(`/proc/${pid}/smaps_rollup`, "utf8");
    return Number(text.match(new RegExp(`^${name}:\\s+(\\d+)`, "m"))[1]);
  };
  return { all: field("Rss"), anonymous: field("Anonymous") };
}

function connect(url) {
  return new Promise((resolve, reject) => {
    const socket = new WebSocket(url.replace("http", "ws"), { perMessageDeflate: false });
    socket.once("error", reject);
    socket.once("open", () => resolve(echo(socket).then(() => socket)));
  });
}

async function echo(socket) {
  const began = performance.now();
  await new Promise((heard) => {
    socket.once("message", heard);
    socket.send("hello");
  });
  return performance.now() - began;
}

// A first few, so that what every router has once is not counted.
await Promise.all(
  Array.from({ length: 20 * urls.length }, (_, n) =>
    connect(urls[n % urls.length]).then((socket) => socket.terminate()),
  ),
);
const before = pids.map(kilobytes);
const sockets = [];
while (sockets.length < clients) {
  const some = Math.min(CONNECTING_MAX, clients - sockets.length);
  const more = Array.from({ length: some }, (_, n) => connect(urls[n % urls.length]));
  sockets.push(...(await Promise.all(more)));
}
await new Promise((done) => setTimeout(done, idle * 1000));
for (const [n, pid] of pids.entries()) {
  const now = kilobytes(pid);
  const each = (what) => ((now[what] - before[n][what]) / (clients / urls.length)).toFixed(2);
  console.log(
    `${pid}: ${before[n].all} kB before, ${now.all} kB with ${clients / urls.length} idle:`,
    `${each("all")} kB each, of which ${each("anonymous")} kB anonymous`,
  );
}
const open = sockets.filter((socket) => socket.readyState === WebSocket.OPEN);
console.log(`${open.length} of ${clients} are open`);
const times = [];
for (const socket of open) times.push(await echo(socket));
summary("a word there and back, one after the other", times);
const together = performance.now();
await Promise.all(open.map(echo));
console.log(`all at once: ${Math.round(performance.now() - together)} ms`);
process.exit(open.length === clients ? 0 : 1);
