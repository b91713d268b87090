// The pool of connections to PostgreSQL. A query returns a promise: nothing waits in the meantime.
import pg from "pg";
import { settings } from "./settings.js";
import { logError } from "./log.js";

// Instances times this stays below PostgreSQL's own limit, which is 100 to begin with.
const CONNECTIONS_MAX = 10;
// A request that gets no connection for so long is answered with 500 rather than kept waiting.
const CONNECT_TIME_MAX_MS = 5000;
const QUERY_TIME_MAX_MS = 20_000;

export const UNIQUE_VIOLATION = "23505";
export const FOREIGN_KEY_VIOLATION = "23503";

const pool = new pg.Pool({
  connectionString: settings.database,
  max: CONNECTIONS_MAX,
  connectionTimeoutMillis: CONNECT_TIME_MAX_MS,
  query_timeout: QUERY_TIME_MAX_MS,
});
// A server that closes an idle connection is no reason to end; the next query makes a new one.
pool.on("error", (error) => logError("database.connection_lost", error));

export async function query(text, values) {
  return (await pool.query(text, values)).rows;
}

export async function transaction(work) {
  const client = await pool.connect();
  let broken;
  try {
    await client.query("BEGIN");
    const result = await work(async (text, values) => (await client.query(text, values)).rows);
    await client.query("COMMIT");
    return result;
  } catch (error) {
    await client.query("ROLLBACK").catch((lost) => {
      broken = lost;
    });
    throw error;
  } finally {
    client.release(broken);
  }
}

export const closeDatabase = () => pool.end();
