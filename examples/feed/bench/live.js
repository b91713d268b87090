// Measures the live feed: node bench/live.js [--clients 2000] [--events 100] URL URL…
// Clients are spread over the addresses, events are likes that go to each address in turn. The time
// of an event begins before its request is sent, so it has the database's part in it.
import WebSocket from "ws";
import { Client, png } from "../test/support.js";
import { summary, options } from "./support.js";

const WAIT_MAX_MS = 10_000;
const CONNECTING_MAX = 50;
const { clients, events, urls } = options({ clients: 2000, events: 100 });

const owner = await new Client(urls[0]).join(`bench${Date.now()}`);
const album = (await owner.ask("POST", "/albums", { title: "Bench" })).value.id;
const upload = { pictures: [{ title: "Bench", image: png() }] };
const { pictures } = (await owner.ask("POST", `/albums/${album}/pictures`, upload)).value;
const { id } = pictures[0];
const people = [];
for (let n = 0; n < events; n += 1) {
  people.push(await new Client(urls[n % urls.length]).join(`${owner.user.name}.${n}`));
}

let event = { likes: -1 };
let lost = 0;
const times = [];
const all = [];
const crossed = [];

function connect(url) {
  return new Promise((resolve, reject) => {
    const target = `${url.replace("http", "ws")}/live?feed=/picture/${id}/likes`;
    const socket = new WebSocket(target, { perMessageDeflate: false });
    socket.on("error", reject);
    socket.on("close", () => (lost += 1));
    socket.on("message", (data) => {
      const news = JSON.parse(data);
      if (news.ready) {
        socket.instance = news.instance;
        return resolve(socket);
      }
      if (news.likes !== event.likes) return;
      event.times.push(performance.now() - event.began);
      // Whether this client hangs on another instance than the one that took the like.
      if (socket.instance !== news.instance) crossed.push(event.times.at(-1));
      if (event.times.length === clients) event.done();
    });
  });
}

const sockets = [];
const began = performance.now();
while (sockets.length < clients) {
  const some = Math.min(CONNECTING_MAX, clients - sockets.length);
  const more = Array.from({ length: some }, (_, n) => connect(urls[n % urls.length]));
  sockets.push(...(await Promise.all(more)));
}
console.log(`${clients} clients connected in ${Math.round(performance.now() - began)} ms`);
for (const instance of new Set(sockets.map((socket) => socket.instance))) {
  console.log(`${instance}:`, sockets.filter((one) => one.instance === instance).length);
}

let unseen = 0;
for (const [n, person] of people.entries()) {
  const seen = new Promise((done) => {
    event = { likes: n + 1, times: [], began: performance.now(), done };
  });
  await person.ask("POST", `/pictures/${id}/likes`);
  const late = new Promise((done) => setTimeout(done, WAIT_MAX_MS, "late").unref());
  if ((await Promise.race([seen, late])) === "late") unseen += clients - event.times.length;
  times.push(...event.times);
  all.push(Math.max(...event.times));
}

summary("an event reaches a client", times);
summary("a client of another instance", crossed);
summary("all clients have it", all);
console.log(`never seen: ${unseen}, connections lost: ${lost}`);
sockets.forEach((socket) => socket.terminate());
process.exit(unseen + lost > 0 ? 1 : 0);
