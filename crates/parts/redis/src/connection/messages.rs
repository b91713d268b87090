//! Publish and subscribe, and the notifications of changed keys.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use model::Prefix;
use store_core::resp::glob;

use super::{Connection, Problem, Verb, Words};
use crate::context::ServerContext;
use store::bus::{Delivery, Kind, Message, Subscriber};
use store::{Watch, WatchEvent};

/// The beginning of channels and patterns that get notifications of changed keys.
const KEYSPACE: &[u8] = b"__key";
const KEY_CHANNEL: &str = "__keyspace@0__:";
const EVENT_CHANNEL: &str = "__keyevent@0__:";

impl Connection {
    pub(super) async fn subscribe(&mut self, verb: Verb, words: Words<'_>) -> Result<(), Problem> {
        let patterns = verb == Verb::Psubscribe;
        let (kind, word) =
            if patterns { (Kind::Pattern, "psubscribe") } else { (Kind::Channel, "subscribe") };
        for name in words.from(1) {
            self.may_hear(name, patterns)?;
        }
        for name in words.from(1) {
            let bus = self.context.bus.clone();
            let subscriber = self.subscriber.get_or_insert_with(|| Box::new(bus.subscriber()));
            subscriber.subscribe(kind, Bytes::copy_from_slice(name)).map_err(Problem::error)?;
            let count = subscriber.count();
            if name.starts_with(KEYSPACE) {
                notify_of_keys(&self.context).await?;
            }
            self.confirm(word, Some(name), count);
        }
        Ok(())
    }

    /// Checks that the user may subscribe to a name. A channel is named like a key, and a user that
    /// may read the key may subscribe to it. Events of every key may be subscribed to by a user
    /// that may read everything.
    fn may_hear(&self, name: &[u8], pattern: bool) -> Result<(), Problem> {
        let text = std::str::from_utf8(name).unwrap_or_default();
        let text = text.strip_prefix(KEY_CHANNEL).unwrap_or(text);
        let prefix = if pattern { glob::prefix(text) } else { text.parse().unwrap_or_default() };
        self.may(&prefix, false)
    }

    pub(super) fn unsubscribe(&mut self, verb: Verb, words: Words<'_>) -> Result<(), Problem> {
        let patterns = verb == Verb::Punsubscribe;
        let (kind, word) =
            if patterns { (Kind::Pattern, "punsubscribe") } else { (Kind::Channel, "unsubscribe") };
        let mut names: Vec<Bytes> = words.from(1).map(Bytes::copy_from_slice).collect();
        if names.is_empty() {
            names = self.subscriber.as_ref().map_or_else(Vec::new, |s| s.names(kind));
        }
        if names.is_empty() {
            let count = self.subscriber.as_ref().map_or(0, |s| s.count());
            self.confirm(word, None, count);
        }
        for name in names {
            if let Some(subscriber) = &mut self.subscriber {
                subscriber.unsubscribe(kind, &name);
            }
            let count = self.subscriber.as_ref().map_or(0, |s| s.count());
            self.confirm(word, Some(&name), count);
        }
        if self.subscriber.as_ref().is_some_and(|s| s.count() == 0) {
            // Messages that it has been sent already are delivered first.
            while let Some(delivery) = self.subscriber.as_mut().and_then(|s| Subscriber::ready(s)) {
                self.write_delivery(&delivery);
            }
            self.subscriber = None;
        }
        Ok(())
    }

    fn confirm(&mut self, word: &str, name: Option<&[u8]>, count: usize) {
        self.replies.push(3);
        self.replies.text(word);
        match name {
            Some(name) => self.replies.bulk(name),
            None => self.replies.null(),
        }
        self.replies.integer(count as i64);
    }

    pub(super) fn write_delivery(&mut self, delivery: &Delivery) {
        let Delivery { pattern, message } = delivery;
        match pattern {
            None => {
                self.replies.push(3);
                self.replies.text("message");
            }
            Some(pattern) => {
                self.replies.push(4);
                self.replies.text("pmessage");
                self.replies.bulk(pattern);
            }
        }
        self.replies.bulk(&message.channel);
        self.replies.bulk(&message.payload);
    }

    pub(super) fn publish(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let channel = words.get(1);
        let prefix = std::str::from_utf8(channel).ok().and_then(|text| text.parse().ok());
        self.may(&prefix.unwrap_or_else(Prefix::all), true)?;
        let (channel, payload) =
            (Bytes::copy_from_slice(channel), Bytes::copy_from_slice(words.get(2)));
        let heard = self.context.bus.publish(&Message { channel, payload });
        self.replies.integer(heard as i64);
        Ok(())
    }

    pub(super) fn pubsub(&mut self, words: Words<'_>) -> Result<(), Problem> {
        self.may(&Prefix::all(), false)?;
        let bus = &self.context.bus;
        if words.is(1, "CHANNELS") {
            let channels = bus.channels(words.from(2).next());
            self.replies.array(channels.len());
            channels.iter().for_each(|(name, _)| self.replies.bulk(name));
        } else if words.is(1, "NUMSUB") {
            let counted: Vec<(Bytes, usize)> = words
                .from(2)
                .map(Bytes::copy_from_slice)
                .map(|name| (name.clone(), bus.listeners(&name)))
                .collect();
            self.replies.array(2 * counted.len());
            for (name, count) in counted {
                self.replies.bulk(&name);
                self.replies.integer(count as i64);
            }
        } else if words.is(1, "NUMPAT") {
            let count = bus.patterns() as i64;
            self.replies.integer(count);
        } else {
            return Err(Problem::error("PUBSUB has CHANNELS, NUMSUB and NUMPAT"));
        }
        Ok(())
    }
}

/// Follows all changes while anybody subscribes to them; returns once nothing can be missed.
async fn notify_of_keys(context: &Arc<ServerContext>) -> Result<(), Problem> {
    if context.notifying.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    match context.store.watch(Prefix::all(), None).await {
        Ok(watch) => {
            tokio::spawn(follow(context.clone(), watch));
            Ok(())
        }
        Err(error) => {
            context.notifying.store(false, Ordering::SeqCst);
            Err(error.into())
        }
    }
}

async fn follow(context: Arc<ServerContext>, mut watch: Watch) {
    while let Some(event) = watch.next().await {
        if !context.bus.listens_below(KEYSPACE) {
            context.notifying.store(false, Ordering::SeqCst);
            // Somebody may have subscribed just before that was stored.
            if !context.bus.listens_below(KEYSPACE)
                || context.notifying.swap(true, Ordering::SeqCst)
            {
                return;
            }
        }
        // Changes missed before a resync are not told: these notices are sent and forgotten.
        let WatchEvent::Changed { key, value, expired, .. } = event else { continue };
        let event = match (value, expired) {
            (Some(_), _) => "set",
            (None, false) => "del",
            (None, true) => "expired",
        };
        let message = |channel: String, payload: String| Message {
            channel: channel.into(),
            payload: payload.into(),
        };
        // Other nodes learn of the change by replication, and notify their own clients.
        let key = key.as_str();
        context.bus.deliver(&message(format!("{KEY_CHANNEL}{key}"), event.into()));
        context.bus.deliver(&message(format!("{EVENT_CHANNEL}{event}"), key.into()));
    }
}
