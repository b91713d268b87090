// Starts the service (HTTP, the live feed over WebSockets, bus, schedule), and ends it in order.
import { createServer } from "node:http";
import { WebSocketServer } from "ws";
import { api } from "./lib/api.js";
import { startBus, stopBus, subscriber } from "./lib/bus.js";
import { closeDatabase } from "./lib/database.js";
import { feeder, isFeed } from "./lib/feeder.js";
import { answer, Refusal } from "./lib/http.js";
import { log, logError } from "./lib/log.js";
import { mailman, notifier } from "./lib/mailman.js";
import { page } from "./lib/pages.js";
import { startSchedule } from "./lib/schedule.js";
import { settings } from "./lib/settings.js";

const FEEDS_MAX = 50;
const CLIENT_MESSAGE_MAX_BYTES = 1024;
// A client that has not answered one ping when the next is due is gone.
const PING_MS = 30_000;

const server = createServer(async (request, response) => {
  try {
    const url = new URL(request.url, "http://feed");
    if (page(request, response, url)) return;
    if (!(await api(request, response, url))) throw new Refusal(404, "there is nothing here");
  } catch (error) {
    refuse(response, error);
  }
});

function refuse(response, error) {
  if (response.destroyed) return;
  const known = error instanceof Refusal || error.code === "ERR_INVALID_URL";
  const status = error.status ?? (known ? 400 : 500);
  if (status >= 500) logError("request.failed", error);
  const message = known ? error.message : "that did not work, and it is our fault";
  if (response.headersSent) return response.destroy();
  // What is left of a body that is too large is not read.
  const headers = status === 413 ? { connection: "close" } : error.headers;
  answer(response, status, { error: message }, headers);
}

const sockets = new WebSocketServer({
  noServer: true,
  maxPayload: CLIENT_MESSAGE_MAX_BYTES,
  perMessageDeflate: false,
});

server.on("upgrade", (request, socket, head) => {
  socket.on("error", () => socket.destroy());
  const feeds = feedsOf(request.url);
  if (!feeds) {
    socket.end("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    return;
  }
  sockets.handleUpgrade(request, socket, head, (client) => {
    client.alive = true;
    client.on("pong", () => (client.alive = true));
    client.on("error", () => client.terminate());
    client.on("close", () => feeder.tell({ gone: client }));
    feeder.tell({ connect: client, feeds });
  });
});

// `/live?feed=/picture/1234/likes&feed=/picture/*/added`
function feedsOf(target) {
  if (!URL.canParse(target, "http://feed")) return undefined;
  const url = new URL(target, "http://feed");
  const feeds = [...new Set(url.searchParams.getAll("feed"))];
  const good = feeds.length > 0 && feeds.length <= FEEDS_MAX && feeds.every(isFeed);
  return url.pathname === "/live" && good ? feeds : undefined;
}

const pings = setInterval(() => {
  for (const client of sockets.clients) {
    if (!client.alive) client.terminate();
    client.alive = false;
    client.ping();
  }
}, PING_MS);

startBus();
const stopSchedule = startSchedule();
server.listen(settings.port, settings.host, () => {
  log("server.listens", { host: settings.host, port: settings.port, instance: settings.instance });
});

async function stop() {
  log("server.stops");
  stopSchedule();
  clearInterval(pings);
  // Clients come back at once, to another instance.
  for (const client of sockets.clients) client.close(1001);
  server.closeIdleConnections();
  await new Promise((done) => server.close(done));
  for (const actor of [mailman, notifier, subscriber, feeder]) await actor.idle();
  await stopBus();
  await closeDatabase();
  process.exit(0);
}
process.once("SIGTERM", stop);
process.once("SIGINT", stop);
