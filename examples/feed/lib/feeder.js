// The feeder keeps the clients of this instance by the feed that each wants, and hands on what
// happens. It hears: { connect, feeds }, { gone }, { channel, data }.
import { Actor } from "./actor.js";
import { log } from "./log.js";
import { settings } from "./settings.js";

// A client that reads so slowly is let go; it comes back and asks for the state of things.
const UNSENT_MAX_BYTES = 1 << 20;
const READY = JSON.stringify({ ready: true, instance: settings.instance });
const FEED = /^\/picture\/(\*|\d{1,18})\/(likes|added)$/;

export const isFeed = (name) => FEED.test(name);

const clientsOf = new Map();
const counted = { clients: 0 };

export const liveClients = () => counted.clients;

export const feeder = new Actor("feeder", (message) => {
  if (message.connect) return connect(message.connect, message.feeds);
  if (message.gone) return gone(message.gone);
  return push(message.channel, message.data);
});

function connect(socket, feeds) {
  // One that went while its message waited has been forgotten already.
  if (socket.readyState !== socket.OPEN) return;
  socket.feeds = feeds;
  for (const feed of feeds) {
    if (!clientsOf.has(feed)) clientsOf.set(feed, new Set());
    clientsOf.get(feed).add(socket);
  }
  counted.clients += 1;
  socket.send(READY);
}

function gone(socket) {
  if (!socket.feeds) return;
  for (const feed of socket.feeds) {
    const clients = clientsOf.get(feed);
    clients.delete(socket);
    if (clients.size === 0) clientsOf.delete(feed);
  }
  socket.feeds = undefined;
  counted.clients -= 1;
}

// `/picture/1234/likes` interests those of that feed and those of `/picture/*/likes`.
function push(channel, data) {
  const [, , , what] = channel.split("/");
  const sent = new Set();
  for (const feed of [channel, `/picture/*/${what}`]) {
    for (const socket of clientsOf.get(feed) ?? []) {
      if (sent.has(socket)) continue;
      sent.add(socket);
      if (socket.bufferedAmount > UNSENT_MAX_BYTES) {
        log("feed.slow_client");
        socket.terminate();
      } else {
        socket.send(data);
      }
    }
  }
}
