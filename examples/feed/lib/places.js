// A service of somebody else's, which knows places and takes its time. It wants an access token,
// which is renewed on a schedule, by one instance for all.
import { query, transaction } from "./database.js";
import { Refusal } from "./http.js";
import { call } from "./remote.js";
import { settings } from "./settings.js";
import { log } from "./log.js";

const LOCK = 20140920;

export async function place(name) {
  if (!settings.places) throw new Refusal(503, "no PLACES_URL is configured");
  const [found] = await query("SELECT token FROM access_tokens WHERE service = 'places'");
  if (!found) throw new Refusal(503, "there is no access token yet");
  const url = `${settings.places}/places/${encodeURIComponent(name)}`;
  return call(url, { token: found.token });
}

// A token is renewed when half of its life is over; a failure leaves as long for the next try.
export async function renewToken() {
  if (!settings.places) return;
  await transaction(async (query) => {
    const [{ mine }] = await query("SELECT pg_try_advisory_xact_lock($1) AS mine", [LOCK]);
    if (!mine) return;
    const sql = "SELECT 1 FROM access_tokens WHERE service = 'places' AND renew_at > now()";
    if ((await query(sql)).length > 0) return;
    const { token, expires_in } = await call(`${settings.places}/token`, { body: {} });
    await query(
      `INSERT INTO access_tokens (service, token, renew_at)
       VALUES ('places', $1, now() + interval '1 s' * $2::float)
       ON CONFLICT (service) DO UPDATE SET token = $1, renew_at = excluded.renew_at`,
      [token, expires_in / 2],
    );
    log("token.renewed", { service: "places" });
  });
}
