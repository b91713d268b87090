// The mailman sends what lies in the table of mails, and the notifier tells people's telephones.
// Requests leave a row and tell the actor; a mail that cannot be sent now is tried again later.
import { Actor } from "./actor.js";
import { query, transaction } from "./database.js";
import { log, logError } from "./log.js";
import { call } from "./remote.js";
import { settings } from "./settings.js";

const TRIES_MAX = 5;

export const mailman = new Actor("mailman", async () => {
  while (await sendOne()) continue;
});

// The row stays locked while it is sent, so that no other instance sends it too.
function sendOne() {
  return transaction(async (query) => {
    const [mail] = await query(
      `SELECT id, recipient, subject, tries FROM mails
       WHERE sent_at IS NULL AND next_try <= now() AND tries < $1
       ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED`,
      [TRIES_MAX],
    );
    if (!mail) return false;
    try {
      if (settings.mail) await call(settings.mail, { body: mail });
      else log("mail.no_service", { recipient: mail.recipient, subject: mail.subject });
      await query("UPDATE mails SET sent_at = now() WHERE id = $1", [mail.id]);
    } catch (error) {
      logError("mail.not_sent", error);
      await query(
        `UPDATE mails SET tries = tries + 1, next_try = now() + interval '10 s' * 2 ^ tries
         WHERE id = $1`,
        [mail.id],
      );
    }
    return true;
  });
}

export const notifier = new Actor("notifier", async ({ person, text }) => {
  await query("INSERT INTO notifications (person, text) VALUES ($1, $2)", [person, text]);
  if (settings.push) await call(settings.push, { body: { person, text } });
});
