// The bus between instances: publish and subscribe over the Redis protocol. The subscriber turns
// what comes on `/picture/*/likes` into messages for the feeder. News go one way only, through the
// bus, to this instance's own clients too: none hears a thing twice, all hear it in one order.
import { createClient } from "redis";
import { Actor } from "./actor.js";
import { feeder } from "./feeder.js";
import { settings } from "./settings.js";
import { logError } from "./log.js";

const PATTERNS = ["/picture/*/likes", "/picture/*/added"];
const RETRY_MIN_MS = 50;
const RETRY_MAX_MS = 1000;
const PING_MS = 20_000;

function client() {
  const made = createClient({
    url: settings.bus,
    // What cannot be published now is lost; nothing is kept for later.
    disableOfflineQueue: true,
    pingInterval: PING_MS,
    socket: { reconnectStrategy: (tries) => Math.min(RETRY_MAX_MS, RETRY_MIN_MS * 2 ** tries) },
  });
  made.on("error", (error) => logError("bus.lost", error));
  return made;
}

const publisher = client();
const connection = client();

export const subscriber = new Actor("subscriber", ({ channel, data }) => {
  feeder.tell({ channel, data });
});

// Publishing is a side effect: the like is in the database whether or not anybody hears of it.
export function publish(channel, news) {
  const data = JSON.stringify({ channel, ...news, instance: settings.instance, at: Date.now() });
  publisher.publish(channel, data).catch((error) => logError("bus.not_published", error));
}

// The bus may come later than the application: the clients try again by themselves.
export function startBus() {
  publisher.connect().catch((error) => logError("bus.not_there", error));
  connection
    .connect()
    .then(() =>
      connection.pSubscribe(PATTERNS, (data, channel) => subscriber.tell({ channel, data })),
    )
    .catch((error) => logError("bus.not_there", error));
}

export const busIsThere = () => publisher.isReady && connection.isReady;

export async function stopBus() {
  for (const one of [publisher, connection]) {
    if (one.isOpen) await one.disconnect().catch(() => {});
  }
}
