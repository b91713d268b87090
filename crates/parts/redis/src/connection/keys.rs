//! The commands that tell which keys there are.

use std::borrow::Cow;

use model::{Key, Prefix};
use store_core::resp::glob;

use super::values::SYNTAX;
use super::{Connection, Problem, REPLY_BYTES_MAX, Rights, Words};

/// The number of keys that `SCAN` looks at by default; below, the most.
const PAGE_DEFAULT: usize = 10;
const PAGE_MAX: usize = 1000;

impl Connection {
    pub(super) async fn exists(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let mut count = 0;
        for word in words.from(1) {
            let key = self.key(word, false)?;
            count += i64::from(self.context.store.lookup_hash(&key).await?.is_some());
        }
        self.replies.integer(count);
        Ok(())
    }

    pub(super) async fn kind(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let key = self.key(words.get(1), false)?;
        let found = self.context.store.lookup_hash(&key).await?.is_some();
        self.replies.simple(if found { "string" } else { "none" });
        Ok(())
    }

    pub(super) async fn dbsize(&mut self) -> Result<(), Problem> {
        let count = match &self.rights {
            Rights::Application(space) => self.keys_below(&space.prefix()).await?.len(),
            _ => self.context.store.count().await?,
        };
        self.replies.integer(i64::try_from(count).unwrap_or(i64::MAX));
        Ok(())
    }

    pub(super) async fn keys(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let pattern = words.get(1);
        let prefix = self.prefix_of_pattern(pattern)?;
        let (mut found, mut bytes, mut after) = (Vec::new(), 0, None);
        loop {
            let page = self.context.store.keys_after(&prefix, after.as_ref(), PAGE_MAX).await?;
            let Some(last) = page.last().cloned() else { break };
            for name in page.iter().filter_map(|key| self.shown(pattern, key)) {
                bytes += name.len() + 16;
                found.push(name.into_owned());
            }
            if bytes > REPLY_BYTES_MAX {
                return Err(Problem::error("more keys than one reply can hold; use SCAN"));
            }
            after = Some(last);
            // A long list must not keep the thread's other connections waiting.
            tokio::task::yield_now().await;
        }
        self.replies.array(found.len());
        found.iter().for_each(|name| self.replies.bulk(name));
        Ok(())
    }

    pub(super) async fn scan(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let cursor: u64 = words.text(1)?.parse().map_err(|_| Problem::error("invalid cursor"))?;
        let (mut pattern, mut count, mut of_type) = (&b"*"[..], PAGE_DEFAULT, true);
        for at in (2..words.len()).step_by(2) {
            if at + 1 >= words.len() {
                return Err(Problem::error(SYNTAX));
            } else if words.is(at, "MATCH") {
                pattern = words.get(at + 1);
            } else if words.is(at, "COUNT") {
                let wanted = usize::try_from(words.number(at + 1)?).unwrap_or(0);
                count = if wanted == 0 {
                    return Err(Problem::error(SYNTAX));
                } else {
                    wanted.min(PAGE_MAX)
                };
            } else if words.is(at, "TYPE") {
                of_type = words.is(at + 1, "string");
            } else {
                return Err(Problem::error(SYNTAX));
            }
        }
        let after = if cursor == 0 { None } else { Some(self.place(cursor)?) };
        let prefix = self.prefix_of_pattern(pattern)?;
        let page = self.context.store.keys_after(&prefix, after.as_ref(), count).await?;
        let next = match page.last() {
            Some(last) if page.len() == count => self.context.scans().remember(last.clone()),
            _ => 0,
        };
        let shown: Vec<_> = match of_type {
            true => page.iter().filter_map(|key| self.shown(pattern, key)).collect(),
            false => Vec::new(),
        };
        self.replies.array(2);
        self.replies.text(&next.to_string());
        self.replies.array(shown.len());
        shown.iter().for_each(|name| self.replies.bulk(name));
        Ok(())
    }

    fn place(&self, cursor: u64) -> Result<Key, Problem> {
        let unknown = "this cursor is not known any more, as other scans came after it or the node \
                       was restarted; begin again with cursor 0";
        self.context.scans().place(cursor).ok_or_else(|| Problem::error(unknown))
    }

    /// Returns the prefix below which all keys are that can match.
    fn prefix_of_pattern(&self, pattern: &[u8]) -> Result<Prefix, Problem> {
        if let Rights::Application(space) = &self.rights {
            return Ok(space.prefix());
        }
        let pattern = std::str::from_utf8(pattern);
        Ok(glob::prefix(pattern.map_err(|_| Problem::error("an argument is no UTF-8"))?))
    }

    /// Returns what the client calls a key, if it matches and the client may see it.
    fn shown<'a>(&self, pattern: &[u8], key: &'a Key) -> Option<Cow<'a, [u8]>> {
        let (name, may) = match &self.rights {
            Rights::Application(space) => (Cow::Owned(space.name(key)?), true),
            _ => {
                let may = self.may(&Prefix::from(key.clone()), false).is_ok();
                (Cow::Borrowed(key.as_str().as_bytes()), may)
            }
        };
        (may && (pattern == b"*" || glob::matches(pattern, &name))).then_some(name)
    }
}
