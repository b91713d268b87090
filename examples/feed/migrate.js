// Makes the tables. Two nodes may run it at once: the lock lets one of them go first, and whoever
// comes second finds everything there.
import pg from "pg";

const LOCK = 20140919;
const TABLES = `
  CREATE TABLE IF NOT EXISTS users (
    id bigserial PRIMARY KEY,
    name text NOT NULL,
    email text,
    key text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now());
  CREATE UNIQUE INDEX IF NOT EXISTS users_name ON users (lower(name));

  CREATE TABLE IF NOT EXISTS albums (
    id bigserial PRIMARY KEY,
    owner bigint NOT NULL REFERENCES users,
    title text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now());

  CREATE TABLE IF NOT EXISTS pictures (
    id bigserial PRIMARY KEY,
    album bigint NOT NULL REFERENCES albums ON DELETE CASCADE,
    title text NOT NULL,
    file uuid NOT NULL,
    likes int NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now());
  CREATE INDEX IF NOT EXISTS pictures_album ON pictures (album);

  CREATE TABLE IF NOT EXISTS likes (
    picture bigint NOT NULL REFERENCES pictures ON DELETE CASCADE,
    person bigint NOT NULL REFERENCES users,
    PRIMARY KEY (picture, person));

  CREATE TABLE IF NOT EXISTS files (
    id uuid NOT NULL,
    size text NOT NULL,
    type text NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (id, size));
  CREATE TABLE IF NOT EXISTS removals (file uuid PRIMARY KEY);

  CREATE TABLE IF NOT EXISTS notifications (
    id bigserial PRIMARY KEY,
    person bigint NOT NULL REFERENCES users,
    text text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now());
  CREATE INDEX IF NOT EXISTS notifications_person ON notifications (person, id);

  CREATE TABLE IF NOT EXISTS mails (
    id bigserial PRIMARY KEY,
    recipient text NOT NULL,
    subject text NOT NULL,
    tries int NOT NULL DEFAULT 0,
    next_try timestamptz NOT NULL DEFAULT now(),
    sent_at timestamptz);
  CREATE INDEX IF NOT EXISTS mails_unsent ON mails (next_try) WHERE sent_at IS NULL;

  CREATE TABLE IF NOT EXISTS reminders (
    id bigserial PRIMARY KEY,
    person bigint NOT NULL REFERENCES users,
    text text NOT NULL,
    due_at timestamptz NOT NULL);
  CREATE INDEX IF NOT EXISTS reminders_due ON reminders (due_at);

  CREATE TABLE IF NOT EXISTS access_tokens (
    service text PRIMARY KEY,
    token text NOT NULL,
    renew_at timestamptz NOT NULL);

  CREATE TABLE IF NOT EXISTS used_signatures (
    signature text PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now());
`;

const client = new pg.Client({ connectionString: process.env.DATABASE_URL });
await client.connect();
await client.query("BEGIN");
await client.query("SELECT pg_advisory_xact_lock($1)", [LOCK]);
await client.query(TABLES);
await client.query("COMMIT");
await client.end();
console.log("The tables are there.");
