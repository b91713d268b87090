// What happens by the clock. Every instance has the schedule, the database sees to it that each
// thing is done by one of them: rows are taken with locks that the others skip.
import { query } from "./database.js";
import { removeSome } from "./images.js";
import { logError } from "./log.js";
import { mailman } from "./mailman.js";
import { renewToken } from "./places.js";
import { settings } from "./settings.js";
import { VALID_MS } from "./signing.js";

async function sendReminders() {
  const sent = await query(
    `WITH due AS (
       DELETE FROM reminders WHERE id IN
         (SELECT id FROM reminders WHERE due_at <= now() LIMIT 100 FOR UPDATE SKIP LOCKED)
       RETURNING person, text)
     INSERT INTO mails (recipient, subject)
     SELECT coalesce(email, name), 'Reminder: ' || text FROM due JOIN users ON users.id = person
     RETURNING id`,
  );
  if (sent.length > 0) mailman.tell("post");
}

async function removeFiles() {
  while ((await removeSome()) > 0) continue;
}

const forgetSignatures = () =>
  query("DELETE FROM used_signatures WHERE at < now() - $1 * interval '1 ms'", [2 * VALID_MS]);

// One run at a time of each; the next one is due an interval after the last one's end.
function every(ms, name, work) {
  let timer;
  const run = async () => {
    await work().catch((error) => logError(`schedule.${name}_failed`, error));
    timer = setTimeout(run, ms);
  };
  timer = setTimeout(run, 0);
  return () => clearTimeout(timer);
}

export function startSchedule() {
  const running = [
    every(settings.tickMs, "token", renewToken),
    every(settings.tickMs, "reminders", sendReminders),
    every(settings.tickMs, "mail", async () => void mailman.tell("post")),
    every(settings.tickMs, "files", removeFiles),
    every(VALID_MS, "signatures", forgetSignatures),
  ];
  return () => running.forEach((stop) => stop());
}
