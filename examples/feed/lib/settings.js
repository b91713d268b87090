// What the environment says, read once.
const env = process.env;

export const settings = {
  host: env.HOST || "127.0.0.1",
  port: Number(env.PORT || 3000),
  database: env.DATABASE_URL,
  bus: env.CORTEX_BUS_URL || env.REDIS_URL || "redis://127.0.0.1:6379",
  // The program that converts images: ImageMagick's, or one that takes the same arguments.
  convert: env.CONVERT || "convert",
  // Services of others. Without an address each is left out, and says so.
  places: env.PLACES_URL,
  mail: env.MAIL_URL,
  push: env.PUSH_URL,
  // How often the schedule looks whether something is due.
  tickMs: Number(env.TICK_MS || 5000),
  instance: env.CORTEX_SLOT
    ? `${env.CORTEX_PROCESS || "web"}.${env.CORTEX_SLOT}`
    : `port ${env.PORT || 3000}`,
};
