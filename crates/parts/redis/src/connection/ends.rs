//! The commands that set and tell the ends of values.

use model::Timestamp;

use super::{Connection, Problem, Verb, Words};

/// The latest instant, which still fits the replies.
const INSTANT_MAX: i64 = i64::MAX / 2;

impl Connection {
    /// Returns the instant that `EX 10` and the like mean; for `SET` it must be in the future.
    pub(super) fn instant(
        &self,
        unit: &str,
        number: i64,
        command: &str,
    ) -> Result<Timestamp, Problem> {
        let invalid = || Problem::error(format!("invalid expire time in '{command}' command"));
        if number <= 0 {
            return Err(invalid());
        }
        let ms = if unit.starts_with('E') { number.checked_mul(1000) } else { Some(number) };
        let now = self.context.clock.now().0 as i64;
        let from = if unit.ends_with("AT") { 0 } else { now };
        let instant = ms.and_then(|ms| ms.checked_add(from)).filter(|at| *at <= INSTANT_MAX);
        Ok(Timestamp(instant.ok_or_else(invalid)? as u64))
    }

    /// Sets the end of a value. An instant that has passed deletes the key, as in Redis.
    pub(super) async fn expire(&mut self, verb: Verb, words: Words<'_>) -> Result<(), Problem> {
        let key = self.key(words.get(1), true)?;
        let number = words.number(2)?;
        let (unit, command) = match verb {
            Verb::Expire => ("EX", "expire"),
            Verb::Pexpire => ("PX", "pexpire"),
            Verb::ExpireAt => ("EXAT", "expireat"),
            _ => ("PXAT", "pexpireat"),
        };
        let past = number <= 0;
        let at = if past { Timestamp(1) } else { self.instant(unit, number, command)? };
        let done = if past || at <= self.context.clock.now() {
            self.context.store.delete(key).await?.is_some()
        } else {
            self.context.store.expire(&key, Some(at)).await?
        };
        self.replies.integer(done.into());
        Ok(())
    }

    pub(super) async fn persist(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let key = self.key(words.get(1), true)?;
        let entry = self.context.store.lookup(&key).await?;
        let ends = entry.is_some_and(|entry| entry.expires.is_some());
        let done = ends && self.context.store.expire(&key, None).await?;
        self.replies.integer(done.into());
        Ok(())
    }

    pub(super) async fn ttl(&mut self, verb: Verb, words: Words<'_>) -> Result<(), Problem> {
        let key = self.key(words.get(1), false)?;
        let reply = match self.context.store.lookup(&key).await?.map(|entry| entry.expires) {
            None => -2,
            Some(None) => -1,
            Some(Some(at)) => {
                let left = at.since(self.context.clock.now()).as_millis() as i64;
                match verb {
                    Verb::Ttl => (left + 500) / 1000,
                    Verb::Pttl => left,
                    Verb::ExpireTime => (at.0 / 1000) as i64,
                    _ => at.0 as i64,
                }
            }
        };
        self.replies.integer(reply);
        Ok(())
    }
}
