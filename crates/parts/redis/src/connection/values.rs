//! The commands that set, get and delete values.

use std::io;

use bytes::Bytes;
use model::Timestamp;

use super::{Answer, Connection, Problem, REPLY_BYTES_MAX, Verb, Words};
use store::values::blocking;
use store::{Entry, Submission, Submitted, Value, Version};

/// The number of attempts at a conditional write; each failure means that another write of the same
/// key came between.
const ATTEMPTS_MAX: usize = 16;
pub const SYNTAX: &str = "syntax error";

/// The options of `SET`.
#[derive(Default)]
pub struct Terms {
    pub expires: Option<Timestamp>,
    pub keep: bool,
    pub get: bool,
}

impl Connection {
    pub(super) async fn carry_out(
        &mut self,
        verb: Verb,
        words: Words<'_>,
    ) -> io::Result<Result<(), Problem>> {
        Ok(match verb {
            Verb::Set | Verb::Get | Verb::Del | Verb::Mset | Verb::Ping => {
                unreachable!("carried out by the caller")
            }
            Verb::Mget => self.mget(words).await,
            Verb::GetDel => return self.getdel(words).await,
            Verb::Strlen => self.strlen(words).await,
            Verb::SetEx | Verb::PsetEx => self.setex(verb, words).await,
            Verb::Expire | Verb::Pexpire | Verb::ExpireAt | Verb::PexpireAt => {
                self.expire(verb, words).await
            }
            Verb::Ttl | Verb::Pttl | Verb::ExpireTime | Verb::PexpireTime => {
                self.ttl(verb, words).await
            }
            Verb::Persist => self.persist(words).await,
            Verb::Exists => self.exists(words).await,
            Verb::Type => self.kind(words).await,
            Verb::Keys => self.keys(words).await,
            Verb::Scan => self.scan(words).await,
            Verb::Dbsize => self.dbsize().await,
            Verb::Auth => self.auth(words).await,
            Verb::Hello => self.hello(words).await,
            Verb::Client => self.client(words),
            Verb::Select => self.select(words),
            Verb::Reset => self.reset(),
            Verb::Quit => self.quit(),
            Verb::Echo => {
                self.replies.bulk(words.get(1));
                Ok(())
            }
            Verb::Command => self.command(words),
            Verb::Config => self.config(words),
            Verb::Info => self.info().await,
            Verb::Time => self.time(),
            Verb::Wait => self.wait_for_peers(words).await,
            Verb::Subscribe | Verb::Psubscribe => self.subscribe(verb, words).await,
            Verb::Unsubscribe | Verb::Punsubscribe => self.unsubscribe(verb, words),
            Verb::Publish => self.publish(words),
            Verb::Pubsub => self.pubsub(words).await,
            Verb::Eval => self.eval(words),
            Verb::CortexHash => self.hash(words).await,
            Verb::CortexHead => self.head().await,
            Verb::CortexHelp => self.help(),
            Verb::CortexHistory => self.history(words).await,
            Verb::CortexPrefix => self.list_prefix(words).await,
            Verb::CortexSquash => self.squash(words).await,
            Verb::CortexSync => self.sync().await,
            Verb::CortexWatch => self.watch(words).await,
            Verb::CortexUnwatch => self.unwatch(),
            Verb::CortexUser => self.user(words).await,
        })
    }

    pub(super) async fn set(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let key = self.key(words.get(1), true)?;
        let terms = self.terms(words, 3)?;
        self.room_for(&key, words.get(2)).await?;
        let value = Bytes::copy_from_slice(words.get(2));
        if terms.keep || terms.get {
            self.settle().await;
            let found = self.set_over(key, terms.keep, terms.expires, value).await?;
            return self.reply_old(terms.get, found).await;
        }
        let change = Submitted::Set { value, expires: terms.expires };
        let write = Submission { key, change, only_over: None };
        self.queue([write], Answer::Ok).await;
        Ok(())
    }

    /// Sets a key over the entry that was read first; returns that entry.
    async fn set_over(
        &mut self,
        key: model::Key,
        keep: bool,
        expires: Option<Timestamp>,
        value: Bytes,
    ) -> Result<Option<Entry>, Problem> {
        for _ in 0..ATTEMPTS_MAX {
            let found = self.context.store.lookup(&key).await?;
            let kept = found.as_ref().filter(|_| keep).and_then(|entry| entry.expires);
            let only_over: Option<Version> = found.as_ref().map(|entry| entry.version);
            let change = Submitted::Set { value: value.clone(), expires: kept.or(expires) };
            let write = Submission { key: key.clone(), change, only_over };
            if self.context.store.write(write).await?.is_some() {
                return Ok(found);
            }
        }
        Err(Problem::error(format!("'{key}' is being written all the time; try again later")))
    }

    async fn reply_old(&mut self, wanted: bool, found: Option<Entry>) -> Result<(), Problem> {
        match found {
            _ if !wanted => self.replies.ok(),
            None => self.replies.null(),
            Some(entry) => {
                let value = read(entry.value, REPLY_BYTES_MAX).await?;
                self.replies.bulk(&value);
            }
        }
        Ok(())
    }

    /// Reads `EX`, `KEEPTTL` and the like, from the word `first` on.
    pub(super) fn terms(&self, words: Words<'_>, first: usize) -> Result<Terms, Problem> {
        let mut terms = Terms::default();
        let mut at = first;
        while at < words.len() {
            let unit = ["EX", "PX", "EXAT", "PXAT"].into_iter().find(|unit| words.is(at, unit));
            if let Some(unit) = unit {
                if terms.expires.is_some() || at + 1 >= words.len() {
                    return Err(Problem::error(SYNTAX));
                }
                terms.expires = Some(self.instant(unit, words.number(at + 1)?, "set")?);
                at += 1;
            } else if words.is(at, "KEEPTTL") {
                terms.keep = true;
            } else if words.is(at, "GET") {
                terms.get = true;
            } else if words.is(at, "NX") || words.is(at, "XX") {
                return Err(Problem::error(
                    "SET with NX or XX is refused: a node may not know of a newer write \
                     elsewhere, so locks and conditions made of it do not hold; use plain SET, or \
                     a store with agreement such as etcd",
                ));
            } else {
                return Err(Problem::error(SYNTAX));
            }
            at += 1;
        }
        if terms.keep && terms.expires.is_some() {
            return Err(Problem::error(SYNTAX));
        }
        Ok(terms)
    }

    async fn setex(&mut self, verb: Verb, words: Words<'_>) -> Result<(), Problem> {
        let key = self.key(words.get(1), true)?;
        self.room_for(&key, words.get(3)).await?;
        let (unit, command) = if verb == Verb::SetEx { ("EX", "setex") } else { ("PX", "psetex") };
        let expires = Some(self.instant(unit, words.number(2)?, command)?);
        let change = Submitted::Set { value: Bytes::copy_from_slice(words.get(3)), expires };
        self.context.store.write(Submission { key, change, only_over: None }).await?;
        self.replies.ok();
        Ok(())
    }

    pub(super) async fn mset(&mut self, words: Words<'_>) -> Result<(), Problem> {
        if words.len().is_multiple_of(2) {
            return Err(Problem::error("wrong number of arguments for 'mset' command"));
        }
        let mut writes = Vec::new();
        for at in (1..words.len()).step_by(2) {
            let key = self.key(words.get(at), true)?;
            self.room_for(&key, words.get(at + 1)).await?;
            writes.push(Submission::set(key, Bytes::copy_from_slice(words.get(at + 1))));
        }
        self.queue(writes, Answer::Ok).await;
        Ok(())
    }

    pub(super) async fn del(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let keys: Result<Vec<_>, _> = words.from(1).map(|word| self.key(word, true)).collect();
        self.queue(keys?.into_iter().map(Submission::delete), Answer::Count).await;
        Ok(())
    }

    /// Replies with a value. An error of the connection itself ends it, since a value was half
    /// sent.
    pub(super) async fn get(&mut self, words: Words<'_>) -> io::Result<Result<(), Problem>> {
        let key = match self.key(words.get(1), false) {
            Ok(key) => key,
            Err(problem) => return Ok(Err(problem)),
        };
        let at_once = self.context.store.lookup_at_once(&key);
        let found = match at_once {
            Some(found) => Ok(found),
            None => self.context.store.lookup(&key).await,
        };
        match found {
            Err(error) => Ok(Err(error.into())),
            Ok(None) => {
                self.replies.null();
                Ok(Ok(()))
            }
            Ok(Some(Entry { value: Value::Inline(value), .. })) => {
                self.replies.bulk(&value);
                Ok(Ok(()))
            }
            Ok(Some(Entry { value, .. })) => Box::pin(self.send_large(value)).await,
        }
    }

    async fn getdel(&mut self, words: Words<'_>) -> io::Result<Result<(), Problem>> {
        let key = match self.key(words.get(1), true) {
            Ok(key) => key,
            Err(problem) => return Ok(Err(problem)),
        };
        for _ in 0..ATTEMPTS_MAX {
            let entry = match self.context.store.lookup(&key).await {
                Ok(Some(entry)) => entry,
                Ok(None) => {
                    self.replies.null();
                    return Ok(Ok(()));
                }
                Err(error) => return Ok(Err(error.into())),
            };
            // The value is read first, so that it is not deleted and then lost because it does not
            // fit a reply.
            let value = match read(entry.value, REPLY_BYTES_MAX).await {
                Ok(value) => value,
                Err(problem) => return Ok(Err(problem)),
            };
            let only_over = Some(entry.version);
            let write = Submission { only_over, ..Submission::delete(key.clone()) };
            match self.context.store.write(write).await {
                Ok(Some(_)) => {
                    self.replies.bulk(&value);
                    return Ok(Ok(()));
                }
                Ok(None) => {}
                Err(error) => return Ok(Err(error.into())),
            }
        }
        Ok(Err(Problem::error(format!("'{key}' is being written all the time; try again later"))))
    }

    async fn mget(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let keys: Result<Vec<_>, _> = words.from(1).map(|word| self.key(word, false)).collect();
        let keys = keys?;
        self.replies.array(keys.len());
        for key in keys {
            match self.context.store.lookup(&key).await? {
                None => self.replies.null(),
                Some(entry) => {
                    let room = REPLY_BYTES_MAX.saturating_sub(self.replies.bytes.len());
                    let value = read(entry.value, room).await?;
                    self.replies.bulk(&value);
                }
            }
        }
        Ok(())
    }

    async fn strlen(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let key = self.key(words.get(1), false)?;
        let entry = self.context.store.lookup(&key).await?;
        let length = entry.map_or(0, |entry| entry.value.size());
        self.replies.integer(i64::try_from(length).unwrap_or(i64::MAX));
        Ok(())
    }
}

/// Returns a whole value, if it has at most `max` bytes.
pub async fn read(value: Value, max: usize) -> Result<Bytes, Problem> {
    if value.size() > max as u64 {
        return Err(Problem::error(
            "the reply would be too large; GET large values one at a time: those are streamed",
        ));
    }
    match value.here().await? {
        Value::Inline(bytes) => Ok(bytes),
        file => Ok(blocking(move || file.read(max as u64)).await?),
    }
}
