//! The commands that Redis does not have: hash, history, prefix, watch. All of them are `CORTEX.…`.

use model::access::AccessRight;
use model::hex::to_hex;
use model::{Prefix, Timestamp};

use super::values::{SYNTAX, read};
use super::{Connection, Problem, REPLY_BYTES_MAX, Words};
use crate::table::TABLE;
use store::{Cursor, Value, WatchEvent};

const HISTORY_DEFAULT: usize = 100;
const HISTORY_MAX: usize = 10_000;
/// The number of keys in one `CORTEX.PREFIX`; more come page by page with `SCAN`.
const PREFIX_KEYS_MAX: usize = 10_000;

const HELP: &[&str] = &[
    "CORTEX.WATCH replies OK and pushes [cortex.watch, event, key, value, size, cursor]; events are",
    "set, del, expired and resync. Large values are null: GET them. After a resync read the prefix",
    "again. A cursor is incarnation:arrival, of this node alone; give it to go on from there.",
    "CORTEX.HISTORY lists [id, key, milliseconds, node, set or del, size], newest first.",
    "CORTEX.USER SET name [READ prefix]… [WRITE prefix]… replies with the user's new token; DEL name;",
    "LIST. A user named 'default' is whoever does not say who they are, and must say AUTH token.",
];

impl Connection {
    pub(super) fn help(&mut self) -> Result<(), Problem> {
        let own: Vec<_> = TABLE.iter().filter(|spec| spec.name.starts_with("CORTEX.")).collect();
        self.replies.array(own.len() + HELP.len());
        own.iter().for_each(|spec| self.replies.text(&format!("{}: {}", spec.name, spec.summary)));
        HELP.iter().for_each(|line| self.replies.text(line));
        Ok(())
    }

    pub(super) async fn hash(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let key = self.key(words.get(1), false)?;
        match self.context.store.lookup_hash(&key).await? {
            Some(sha1) => self.replies.text(&to_hex(&sha1)),
            None => self.replies.null(),
        }
        Ok(())
    }

    pub(super) async fn head(&mut self) -> Result<(), Problem> {
        let head = self.context.store.head().await?;
        self.replies.text(&head);
        Ok(())
    }

    pub(super) async fn history(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let prefix = self.prefix(words.text(1)?, false)?;
        let limit = match words.len() {
            2 => HISTORY_DEFAULT,
            4 if words.is(2, "LIMIT") => usize::try_from(words.number(3)?).unwrap_or(0),
            _ => return Err(Problem::error(SYNTAX)),
        };
        let entries = self.context.store.history(&prefix, limit.min(HISTORY_MAX)).await?;
        self.replies.array(entries.len());
        for entry in entries {
            self.replies.array(6);
            self.replies.text(&to_hex(&entry.id.0));
            self.replies.text(entry.key.as_str());
            self.replies.integer(entry.set_at.0 as i64);
            self.replies.text(entry.node.as_str());
            self.replies.text(if entry.deleted { "del" } else { "set" });
            self.replies.integer(i64::try_from(entry.size).unwrap_or(i64::MAX));
        }
        Ok(())
    }

    pub(super) async fn list_prefix(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let prefix = self.prefix(words.text(1)?, false)?;
        let keys_only = match words.len() {
            2 => false,
            3 if words.is(2, "KEYS") => true,
            _ => return Err(Problem::error(SYNTAX)),
        };
        let keys = self.context.store.keys_after(&prefix, None, PREFIX_KEYS_MAX + 1).await?;
        let many = || {
            Problem::error(format!("more than {PREFIX_KEYS_MAX} keys; use SCAN 0 MATCH prefix::*"))
        };
        if keys.len() > PREFIX_KEYS_MAX {
            return Err(many());
        }
        if keys_only {
            self.replies.array(keys.len());
            keys.iter().for_each(|key| self.replies.text(key.as_str()));
            return Ok(());
        }
        let entries = self.context.store.prefix(&prefix).await?;
        if entries.len() > PREFIX_KEYS_MAX {
            return Err(many());
        }
        self.replies.map(entries.len());
        for entry in entries {
            let room = REPLY_BYTES_MAX.saturating_sub(self.replies.bytes.len());
            let value = read(entry.value, room).await?;
            self.replies.text(entry.key.as_str());
            self.replies.bulk(&value);
        }
        Ok(())
    }

    pub(super) async fn squash(&mut self, words: Words<'_>) -> Result<(), Problem> {
        self.may(&Prefix::all(), true)?;
        let before = match words.len() {
            1 => self.context.clock.now(),
            2 => Timestamp(u64::try_from(words.number(1)?).unwrap_or(0)),
            _ => return Err(Problem::error(SYNTAX)),
        };
        self.context.store.squash(before).await?;
        self.replies.ok();
        Ok(())
    }

    pub(super) async fn sync(&mut self) -> Result<(), Problem> {
        let peers = self.context.bus.meet().await;
        self.replies.integer(peers as i64);
        Ok(())
    }

    pub(super) async fn watch(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let prefix = self.prefix(words.text(1)?, false)?;
        if self.watch.is_some() {
            return Err(Problem::error(
                "this connection watches already; say CORTEX.UNWATCH, or use another connection",
            ));
        }
        let from = match words.len() {
            2 => None,
            3 => Some(cursor(words.text(2)?)?),
            _ => return Err(Problem::error(SYNTAX)),
        };
        self.watch = Some(Box::new(self.context.store.watch(prefix, from).await?));
        self.replies.ok();
        Ok(())
    }

    pub(super) fn unwatch(&mut self) -> Result<(), Problem> {
        self.watch = None;
        self.replies.ok();
        Ok(())
    }

    pub(super) fn write_change(&mut self, event: WatchEvent) {
        self.replies.push(6);
        self.replies.text("cortex.watch");
        let cursor = match event {
            WatchEvent::Resync { cursor } => {
                self.replies.text("resync");
                self.replies.null();
                self.replies.null();
                self.replies.integer(0);
                cursor
            }
            WatchEvent::Changed { cursor, key, value, expired } => {
                let event = match (&value, expired) {
                    (Some(_), _) => "set",
                    (None, false) => "del",
                    (None, true) => "expired",
                };
                self.replies.text(event);
                self.replies.text(key.as_str());
                match value {
                    Some(Value::Inline(value)) => {
                        self.replies.bulk(&value);
                        self.replies.integer(value.len() as i64);
                    }
                    Some(large) => {
                        self.replies.null();
                        self.replies.integer(i64::try_from(large.size()).unwrap_or(i64::MAX));
                    }
                    None => {
                        self.replies.null();
                        self.replies.integer(0);
                    }
                }
                cursor
            }
        };
        self.replies.text(&format!("{}:{}", cursor.incarnation, cursor.arrival));
    }

    pub(super) async fn user(&mut self, words: Words<'_>) -> Result<(), Problem> {
        self.may(&Prefix::all(), true)?;
        let context = self.context.clone();
        let (access, store) = (&context.access, &context.store);
        let failed = |error: anyhow::Error| Problem::error(format!("{error:#}"));
        if words.is(1, "LIST") && words.len() == 2 {
            let users = access.names();
            self.replies.array(users.len());
            for (name, rights) in users {
                self.replies.array(1 + rights.len());
                self.replies.text(&name);
                for (prefix, write) in rights {
                    let what = if write { "WRITE" } else { "READ" };
                    self.replies.text(&format!("{what} {}", prefix.as_str()));
                }
            }
            return Ok(());
        }
        if words.is(1, "DEL") && words.len() == 3 {
            let removed = access.remove(&**store, words.text(2)?).await.map_err(failed)?;
            access.load_from(store).await.map_err(failed)?;
            self.replies.integer(removed.into());
            return Ok(());
        }
        if !words.is(1, "SET") || words.len() < 3 || words.len().is_multiple_of(2) {
            return Err(Problem::error(
                "say CORTEX.USER SET name [READ prefix]… [WRITE prefix]…, DEL name, or LIST",
            ));
        }
        let mut rights = Vec::new();
        for at in (3..words.len()).step_by(2) {
            let write = words.is(at, "WRITE");
            if !write && !words.is(at, "READ") {
                return Err(Problem::error(SYNTAX));
            }
            let prefix: Prefix = words.text(at + 1)?.parse().map_err(Problem::error)?;
            rights.push(AccessRight { prefix: prefix.as_str().into(), write });
        }
        let token = access.create(&**store, words.text(2)?, rights).await.map_err(failed)?;
        access.load_from(store).await.map_err(failed)?;
        self.replies.text(&token);
        Ok(())
    }
}

fn cursor(text: &str) -> Result<Cursor, Problem> {
    let parts = text.split_once(':').and_then(|(incarnation, arrival)| {
        Some(Cursor { incarnation: incarnation.parse().ok()?, arrival: arrival.parse().ok()? })
    });
    parts.ok_or_else(|| Problem::error("a cursor is incarnation:arrival, two numbers"))
}
