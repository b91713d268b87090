//! Publish and subscribe, and the notifications of changed keys.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use model::Prefix;
use store_core::resp::glob;

use super::{Connection, Problem, Rights, Verb, Words};
use crate::context::ServerContext;
use crate::table;
use store::bus::{Delivery, Message, Subscriber, SubscriptionKind, TRAVELLING_BYTES_MAX};
use store::{Watch, WatchEvent};

/// The beginning of channels and patterns that get notifications of changed keys.
const KEYSPACE: &[u8] = b"__key";
const KEY_CHANNEL: &str = "__keyspace@0__:";
const EVENT_CHANNEL: &str = "__keyevent@0__:";
/// The script with which Laravel broadcasts: the first argument goes to the channels behind it.
const PUBLISH_SCRIPT: &[u8] = b"for i = 2, #ARGV do redis.call('publish', ARGV[i], ARGV[1]) end";

impl Connection {
    pub(super) async fn subscribe(&mut self, verb: Verb, words: Words<'_>) -> Result<(), Problem> {
        let patterns = verb == Verb::Psubscribe;
        let (kind, word) = if patterns {
            (SubscriptionKind::Pattern, "psubscribe")
        } else {
            (SubscriptionKind::Channel, "subscribe")
        };
        for name in words.from(1) {
            self.may_hear(name, patterns)?;
        }
        for name in words.from(1) {
            let bus = self.context.bus.clone();
            let subscriber = self.subscriber.get_or_insert_with(|| Box::new(bus.subscriber()));
            let channel = channel(&self.rights, name);
            let is_of_keys = channel.starts_with(KEYSPACE);
            subscriber.subscribe(kind, channel).map_err(Problem::error)?;
            let count = subscriber.count();
            if is_of_keys {
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
        if matches!(self.rights, Rights::Application(_)) {
            return Ok(());
        }
        let text = std::str::from_utf8(name).unwrap_or_default();
        let text = text.strip_prefix(KEY_CHANNEL).unwrap_or(text);
        let prefix = if pattern { glob::prefix(text) } else { text.parse().unwrap_or_default() };
        self.may(&prefix, false)
    }

    pub(super) fn unsubscribe(&mut self, verb: Verb, words: Words<'_>) -> Result<(), Problem> {
        let patterns = verb == Verb::Punsubscribe;
        let (kind, word) = if patterns {
            (SubscriptionKind::Pattern, "punsubscribe")
        } else {
            (SubscriptionKind::Channel, "unsubscribe")
        };
        let mut names: Vec<Bytes> = words.from(1).map(|name| channel(&self.rights, name)).collect();
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
            let shown = channel_name(&self.rights, &name).to_vec();
            self.confirm(word, Some(&shown), count);
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
                self.replies.bulk(channel_name(&self.rights, pattern));
            }
        }
        self.replies.bulk(channel_name(&self.rights, &message.channel));
        self.replies.bulk(&message.payload);
    }

    pub(super) fn publish(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let heard = self.publish_one(words.get(1), Bytes::copy_from_slice(words.get(2)))?;
        self.replies.integer(heard as i64);
        Ok(())
    }

    fn publish_one(&self, name: &[u8], payload: Bytes) -> Result<usize, Problem> {
        if !matches!(self.rights, Rights::Application(_)) {
            let prefix = std::str::from_utf8(name).ok().and_then(|text| text.parse().ok());
            self.may(&prefix.unwrap_or_else(Prefix::all), true)?;
        }
        let channel = channel(&self.rights, name);
        let is_heard_everywhere = channel.len() + payload.len() <= TRAVELLING_BYTES_MAX;
        if matches!(self.rights, Rights::Application(_)) && !is_heard_everywhere {
            return Err(Problem::error(format!(
                "a message on the bus has at most {TRAVELLING_BYTES_MAX} bytes with its channel's \
                 name; SET what is larger, or put it into a file, and publish where it is"
            )));
        }
        Ok(self.context.bus.publish(&Message { channel, payload }))
    }

    /// Carries out the one script that is known: it sends a message to several channels.
    pub(super) fn eval(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let spaceless = |text: &[u8]| -> Vec<u8> {
            text.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect()
        };
        if spaceless(words.get(1)) != spaceless(PUBLISH_SCRIPT) || words.get(2) != b"0" {
            return Err(Problem::error(format!("EVAL is refused: {}", table::TOGETHER)));
        }
        let payload = Bytes::copy_from_slice(words.get(3));
        for name in words.from(4) {
            self.publish_one(name, payload.clone())?;
        }
        self.replies.null();
        Ok(())
    }

    pub(super) async fn pubsub(&mut self, words: Words<'_>) -> Result<(), Problem> {
        if !matches!(self.rights, Rights::Application(_)) {
            self.may(&Prefix::all(), false)?;
        }
        let bus = self.context.bus.clone();
        if words.is(1, "CHANNELS") {
            let pattern = channel(&self.rights, words.from(2).next().unwrap_or(b"*"));
            let channels = bus.names_everywhere(SubscriptionKind::Channel, &pattern).await;
            let channels = channels.map_err(Problem::error)?;
            self.replies.array(channels.len());
            for name in channels {
                self.replies.bulk(channel_name(&self.rights, &name));
            }
        } else if words.is(1, "NUMSUB") {
            let names: Vec<Bytes> = words.from(2).map(|name| channel(&self.rights, name)).collect();
            let counts = bus.listeners_everywhere(&names).await;
            self.replies.array(2 * names.len());
            for (name, count) in words.from(2).zip(counts) {
                self.replies.bulk(name);
                self.replies.integer(count as i64);
            }
        } else if words.is(1, "NUMPAT") {
            let all = channel(&self.rights, b"*");
            let patterns = bus.names_everywhere(SubscriptionKind::Pattern, &all).await;
            self.replies.integer(patterns.map_err(Problem::error)?.len() as i64);
        } else {
            return Err(Problem::error("PUBSUB has CHANNELS, NUMSUB and NUMPAT"));
        }
        Ok(())
    }
}

/// Returns the name by which the bus knows what a client calls a channel or a pattern.
fn channel(rights: &Rights, name: &[u8]) -> Bytes {
    match rights {
        Rights::Application(space) => space.channel(name).into(),
        _ => Bytes::copy_from_slice(name),
    }
}

/// Returns what a client calls a channel or a pattern of the bus.
fn channel_name<'a>(rights: &Rights, channel: &'a [u8]) -> &'a [u8] {
    match rights {
        Rights::Application(space) => space.channel_name(channel).unwrap_or_default(),
        _ => channel,
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
