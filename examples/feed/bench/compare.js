// Compares the server with its twin: node bench/compare.js, and the same with FEED_SERVER=twin. One
// instance each; a service of somebody else's takes half a second, and so many ask for it at once.
// In between, others ask for the server's time. Then clients hang on the live feed.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { IS_TWIN, startAll, until } from "../test/support.js";
import { summary } from "./support.js";

const SERVICE_MS = 500;
const AT_ONCE = [10, 30, 100, 300];
const CLIENTS = 1000;

const all = await startAll();
const { child, url } = all.instances[0];
const person = await all.a.join("Bench");
await until("a token", async () => (await person.ask("GET", "/places/x")).status === 200);
all.services.delayMs = SERVICE_MS;
console.log(IS_TWIN ? "twin, 32 threads" : "server");

for (const count of AT_ONCE) {
  const quick = [];
  let done = false;
  const began = performance.now();
  const slow = Array.from({ length: count }, async (_, n) => {
    const { status } = await person.ask("GET", `/places/${n}`);
    return status === 200 ? performance.now() - began : Number.NaN;
  });
  const times = Promise.all(slow).finally(() => (done = true));
  while (!done) {
    const asked = performance.now();
    await all.a.ask("GET", "/time");
    quick.push(performance.now() - asked);
  }
  const failed = (await times).filter(Number.isNaN).length;
  summary(
    `${count} at once, ${failed} failed`,
    (await times).filter((time) => time),
  );
  summary(`  ${quick.length} short requests meanwhile`, quick);
}

const memory = () => {
  const field = (name) =>
    readFileSync(`/proc/${child.pid}/status`, "utf8").match(
      new RegExp(`^${name}:\\s+(\\d+)`, "m"),
    )[1];
  return `${field("VmRSS")} kB, at most ${field("VmHWM")} kB, ${field("Threads")} threads`;
};
console.log(`without clients: ${memory()}`);
const script = new URL("live.js", import.meta.url).pathname;
const words = [script, "--clients", String(CLIENTS), "--events", "50", url];
const live = execFileSync(process.execPath, words, { encoding: "utf8" });
console.log(live.trim());
console.log(`after ${CLIENTS} clients: ${memory()}`);
await all.stop();
process.exit();
