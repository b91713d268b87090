//! Messages from publishers to subscribers, on this node and, if there is a transport, on all of
//! them: fire and forget. Owns the subscriptions; must not know of connections.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use store_core::resp::glob;
use thiserror::Error;
use tokio::sync::mpsc;

/// The number of channels and patterns of all subscribers together; each costs some hundred bytes.
pub const SUBSCRIPTIONS_MAX: usize = 100_000;
/// The number of messages that may wait for a subscriber; one that lets more wait is too slow and
/// is cut off.
pub const MESSAGES_WAITING_MAX: usize = 4096;
/// The same limit for their bytes; one message may be as large as a command.
pub const BYTES_WAITING_MAX: usize = 8 << 20;
/// The length of a message that travels to other nodes, with its channel's name, in bytes.
pub const TRAVELLING_BYTES_MAX: usize = 256 << 10;
/// The length of a channel's name or a pattern in bytes. A name is like a key; patterns may be
/// longer.
pub const CHANNEL_BYTES_MAX: usize = 4096;
/// The length of all names in one answer to the question which there are, in bytes; a client gets
/// them as one reply.
pub const NAMES_BYTES_MAX: usize = 4 << 20;

/// The other nodes, as far as the store's interfaces need them.
#[async_trait]
pub trait Neighbours: Send + Sync {
    /// Passes a message to every node that can be reached now. It is bounded and never blocks: a
    /// message that finds no room is dropped.
    fn forward(&self, message: &Message);
    /// Returns how many peers hold everything that this node has acknowledged up to now. Waits
    /// until there are `wanted`, or until the time has passed.
    async fn holding(&self, wanted: usize, limit: Duration) -> usize;
    /// Returns how many subscribers each of these channels has on the other nodes. A node that does
    /// not answer soon counts as one without.
    async fn listening(&self, channels: &[Bytes]) -> Vec<usize>;
    /// Returns the channels, or the patterns, with subscribers on the other nodes whose names
    /// match. A node that does not answer soon counts as one without.
    async fn names(&self, kind: SubscriptionKind, pattern: &Bytes) -> Result<Names, BusError>;
    /// Compares histories with every node that can be reached, now. Returns how many there were.
    async fn meet(&self) -> usize;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub channel: Bytes,
    pub payload: Bytes,
}

#[derive(Clone, Debug)]
pub struct Delivery {
    /// The pattern that matched; `None` for a subscription to the channel itself.
    pub pattern: Option<Bytes>,
    pub message: Message,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SubscriptionKind {
    Channel,
    Pattern,
}

/// Names of channels or patterns.
pub type Names = BTreeSet<Bytes>;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum BusError {
    #[error("too many subscriptions on this node; end some of them first")]
    Full,
    #[error("a channel's name has at most {CHANNEL_BYTES_MAX} bytes")]
    Name,
    #[error(
        "the names that match have more than {NAMES_BYTES_MAX} bytes together; ask for fewer of \
         them, with a longer pattern"
    )]
    Names,
}

type Inbox = Arc<Waiting>;

#[derive(Debug)]
struct Waiting {
    sender: mpsc::Sender<Delivery>,
    bytes: AtomicUsize,
}

#[derive(Default)]
struct Subscriptions {
    /// The inboxes by kind and name, then by subscriber; no name is without one.
    names: BTreeMap<(SubscriptionKind, Bytes), BTreeMap<u64, Inbox>>,
    count: usize,
    next_subscriber: u64,
}

#[derive(Default)]
pub struct Bus {
    subscriptions: Mutex<Subscriptions>,
    neighbours: OnceLock<Arc<dyn Neighbours>>,
}

impl Bus {
    fn subscriptions(&self) -> MutexGuard<'_, Subscriptions> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects the other nodes; called once, when the transport is there.
    pub fn connect(&self, neighbours: Arc<dyn Neighbours>) {
        if self.neighbours.set(neighbours).is_err() {
            tracing::error!("bus.connected_twice");
        }
    }

    /// Passes a message to subscribers here and, if there are any, to other nodes. Returns how many
    /// received it here.
    pub fn publish(&self, message: &Message) -> usize {
        if let Some(neighbours) = self.neighbours.get() {
            neighbours.forward(message);
        }
        self.deliver(message)
    }

    /// Passes a message that another node published to subscribers here.
    pub fn deliver(&self, message: &Message) -> usize {
        let subscriptions = self.subscriptions();
        let mut heard = 0;
        if let Some(inboxes) =
            subscriptions.names.get(&(SubscriptionKind::Channel, message.channel.clone()))
        {
            heard += inboxes.values().filter(|inbox| inbox.put(None, message)).count();
        }
        let patterns = subscriptions.names.range((SubscriptionKind::Pattern, Bytes::new())..);
        for ((_, pattern), inboxes) in patterns {
            if glob::matches(pattern, &message.channel) {
                let put = |inbox: &&Inbox| inbox.put(Some(pattern), message);
                heard += inboxes.values().filter(put).count();
            }
        }
        heard
    }

    pub fn subscriber(self: &Arc<Self>) -> Subscriber {
        let (sender, deliveries) = mpsc::channel(MESSAGES_WAITING_MAX);
        let mut subscriptions = self.subscriptions();
        let id = subscriptions.next_subscriber;
        subscriptions.next_subscriber += 1;
        let inbox = Arc::new(Waiting { sender, bytes: AtomicUsize::new(0) });
        Subscriber { bus: self.clone(), id, inbox, deliveries, names: BTreeMap::new() }
    }

    /// Returns how many peers hold all that was acknowledged here; 0 while this node is alone.
    pub async fn holding(&self, wanted: usize, limit: Duration) -> usize {
        match self.neighbours.get() {
            Some(neighbours) => neighbours.holding(wanted, limit).await,
            None => 0,
        }
    }

    /// Compares histories with the other nodes now. Returns how many there were.
    pub async fn meet(&self) -> usize {
        match self.neighbours.get() {
            Some(neighbours) => neighbours.meet().await,
            None => 0,
        }
    }

    /// Returns the channels, or the patterns, with subscribers here whose names match.
    pub fn names(&self, kind: SubscriptionKind, pattern: &[u8]) -> Result<Names, BusError> {
        let subscriptions = self.subscriptions();
        let start = glob::literal(pattern);
        let from = (kind, Bytes::copy_from_slice(start));
        let below = subscriptions.names.range(from..).map(|((of, name), _)| (*of, name));
        let below = below.take_while(|(of, name)| *of == kind && name.starts_with(start));
        let mut names = Names::new();
        let mut bytes = 0;
        for (_, name) in below.filter(|(_, name)| glob::matches(pattern, name)) {
            bytes += name.len();
            if bytes > NAMES_BYTES_MAX {
                return Err(BusError::Names);
            }
            names.insert(name.clone());
        }
        Ok(names)
    }

    /// Returns the same of all nodes together.
    pub async fn names_everywhere(
        &self,
        kind: SubscriptionKind,
        pattern: &Bytes,
    ) -> Result<Names, BusError> {
        let mut names = self.names(kind, pattern)?;
        if let Some(neighbours) = self.neighbours.get() {
            names.append(&mut neighbours.names(kind, pattern).await?);
        }
        match names.iter().map(Bytes::len).sum::<usize>() > NAMES_BYTES_MAX {
            true => Err(BusError::Names),
            false => Ok(names),
        }
    }

    /// Returns how many channels, or patterns, have subscribers here.
    pub fn count(&self, wanted: SubscriptionKind) -> usize {
        self.subscriptions().names.keys().filter(|(kind, _)| *kind == wanted).count()
    }

    pub fn listeners(&self, channel: &Bytes) -> usize {
        self.subscriptions()
            .names
            .get(&(SubscriptionKind::Channel, channel.clone()))
            .map_or(0, BTreeMap::len)
    }

    /// Returns how many subscribers channels have, on all nodes together.
    pub async fn listeners_everywhere(&self, channels: &[Bytes]) -> Vec<usize> {
        let mut counts: Vec<usize> = channels.iter().map(|name| self.listeners(name)).collect();
        if let Some(neighbours) = self.neighbours.get() {
            let others = neighbours.listening(channels).await;
            counts.iter_mut().zip(others).for_each(|(count, other)| *count += other);
        }
        counts
    }

    /// Returns whether anybody subscribes to names or patterns that begin like this.
    pub fn listens_below(&self, start: &'static [u8]) -> bool {
        let subscriptions = self.subscriptions();
        [SubscriptionKind::Channel, SubscriptionKind::Pattern].into_iter().any(|kind| {
            let from = (kind, Bytes::from_static(start));
            let first = subscriptions.names.range(from..).next();
            first.is_some_and(|((of, name), _)| *of == kind && name.starts_with(start))
        })
    }
}

impl Waiting {
    /// Queues a message; returns `false` if the subscriber is too slow, or gone.
    fn put(&self, pattern: Option<&Bytes>, message: &Message) -> bool {
        let delivery = Delivery { pattern: pattern.cloned(), message: message.clone() };
        let weight = delivery.weight();
        let before = self.bytes.fetch_add(weight, Ordering::Relaxed);
        // One message always finds room.
        let room = before == 0 || before + weight <= BYTES_WAITING_MAX;
        let put = room && self.sender.try_send(delivery).is_ok();
        if !put {
            // The count stays above the limit, so the subscriber is cut off and reads nothing more.
            self.bytes.fetch_add(BYTES_WAITING_MAX, Ordering::Relaxed);
        }
        put
    }
}

impl Delivery {
    fn weight(&self) -> usize {
        let pattern = self.pattern.as_ref().map_or(0, Bytes::len);
        pattern + self.message.channel.len() + self.message.payload.len()
    }
}

/// One subscriber. Its subscriptions end with it.
pub struct Subscriber {
    bus: Arc<Bus>,
    id: u64,
    inbox: Inbox,
    deliveries: mpsc::Receiver<Delivery>,
    /// The names that it subscribes to, by kind.
    names: BTreeMap<(SubscriptionKind, Bytes), ()>,
}

impl Subscriber {
    pub fn subscribe(&mut self, kind: SubscriptionKind, name: Bytes) -> Result<(), BusError> {
        if name.len() > CHANNEL_BYTES_MAX {
            return Err(BusError::Name);
        }
        if self.names.contains_key(&(kind, name.clone())) {
            return Ok(());
        }
        let mut subscriptions = self.bus.subscriptions();
        if subscriptions.count >= SUBSCRIPTIONS_MAX {
            return Err(BusError::Full);
        }
        subscriptions.count += 1;
        let inboxes = subscriptions.names.entry((kind, name.clone())).or_default();
        inboxes.insert(self.id, self.inbox.clone());
        self.names.insert((kind, name), ());
        Ok(())
    }

    pub fn unsubscribe(&mut self, kind: SubscriptionKind, name: &Bytes) {
        let name = (kind, name.clone());
        if self.names.remove(&name).is_none() {
            return;
        }
        let mut subscriptions = self.bus.subscriptions();
        subscriptions.count -= 1;
        if let Some(inboxes) = subscriptions.names.get_mut(&name) {
            inboxes.remove(&self.id);
            if inboxes.is_empty() {
                subscriptions.names.remove(&name);
            }
        }
    }

    pub fn names(&self, wanted: SubscriptionKind) -> Vec<Bytes> {
        let of_kind = self.names.keys().filter(|(kind, _)| *kind == wanted);
        of_kind.map(|(_, name)| name.clone()).collect()
    }

    /// Returns the number of channels and patterns together, as clients count them.
    pub fn count(&self) -> usize {
        self.names.len()
    }

    /// Waits for the next message; `None` if this subscriber was too slow and has missed some.
    pub async fn next(&mut self) -> Option<Delivery> {
        let delivery = self.deliveries.recv().await?;
        self.taken(delivery)
    }

    /// Returns the next message if it has come already, like `next`.
    pub fn ready(&mut self) -> Option<Delivery> {
        let delivery = self.deliveries.try_recv().ok()?;
        self.taken(delivery)
    }

    fn taken(&mut self, delivery: Delivery) -> Option<Delivery> {
        let weight = delivery.weight();
        let before = self.inbox.bytes.fetch_sub(weight, Ordering::Relaxed);
        (before <= BYTES_WAITING_MAX.max(weight)).then_some(delivery)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        for (kind, name) in std::mem::take(&mut self.names).into_keys() {
            self.names.insert((kind, name.clone()), ());
            self.unsubscribe(kind, &name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(channel: &'static str, payload: &'static str) -> Message {
        Message { channel: channel.into(), payload: payload.into() }
    }

    #[tokio::test]
    async fn messages_reach_channels_and_patterns_until_they_are_left() {
        let bus = Arc::new(Bus::default());
        let (mut one, mut other) = (bus.subscriber(), bus.subscriber());
        one.subscribe(SubscriptionKind::Channel, "a".into()).unwrap();
        one.subscribe(SubscriptionKind::Channel, "a".into()).unwrap();
        other.subscribe(SubscriptionKind::Pattern, "a*".into()).unwrap();
        assert_eq!(bus.publish(&message("a", "1")), 2);
        assert_eq!(bus.publish(&message("ab", "2")), 1);
        assert_eq!(bus.publish(&message("b", "3")), 0);
        assert_eq!(one.next().await.unwrap().message, message("a", "1"));
        assert_eq!(other.next().await.unwrap().pattern.unwrap(), "a*");
        assert_eq!(other.next().await.unwrap().message, message("ab", "2"));
        assert!(one.ready().is_none());
        assert!(bus.listens_below(b"a") && !bus.listens_below(b"b"));
        one.unsubscribe(SubscriptionKind::Channel, &"a".into());
        drop(other);
        assert_eq!(bus.publish(&message("a", "4")), 0);
        assert!(bus.subscriptions().names.is_empty());
        assert_eq!(bus.subscriptions().count, 0);
    }

    #[test]
    fn names_are_found_by_patterns_and_are_bounded() {
        let bus = Arc::new(Bus::default());
        let mut subscriber = bus.subscriber();
        for (kind, name) in [
            (SubscriptionKind::Channel, "a/1"),
            (SubscriptionKind::Channel, "a/2"),
            (SubscriptionKind::Channel, "a"),
            (SubscriptionKind::Channel, "b/1"),
            (SubscriptionKind::Pattern, "a/*"),
        ] {
            subscriber.subscribe(kind, name.into()).unwrap();
        }
        let names = |kind, pattern: &str| {
            let names = bus.names(kind, pattern.as_bytes()).unwrap();
            names.iter().map(|name| std::str::from_utf8(name).unwrap().to_owned()).collect()
        };
        let channels = |pattern| -> Vec<String> { names(SubscriptionKind::Channel, pattern) };
        let patterns = |pattern| -> Vec<String> { names(SubscriptionKind::Pattern, pattern) };
        assert_eq!(channels("a/*"), ["a/1", "a/2"]);
        assert_eq!(channels("?/1"), ["a/1", "b/1"]);
        assert_eq!(channels("a"), ["a"]);
        assert_eq!(channels("*"), ["a", "a/1", "a/2", "b/1"]);
        assert_eq!(channels("c*"), [""; 0]);
        assert_eq!(patterns("*"), ["a/*"]);
        assert_eq!(bus.count(SubscriptionKind::Channel), 4);
        assert_eq!(bus.count(SubscriptionKind::Pattern), 1);
        for number in 0..=NAMES_BYTES_MAX / CHANNEL_BYTES_MAX {
            let name = format!("{number:0CHANNEL_BYTES_MAX$}");
            subscriber.subscribe(SubscriptionKind::Channel, name.into()).unwrap();
        }
        let all = bus.names(SubscriptionKind::Channel, b"*");
        assert_eq!(all, Err(BusError::Names));
        assert_eq!(channels("a/*"), ["a/1", "a/2"]);
    }

    #[tokio::test]
    async fn a_slow_subscriber_is_cut_off_and_told_so() {
        let bus = Arc::new(Bus::default());
        let mut slow = bus.subscriber();
        slow.subscribe(SubscriptionKind::Channel, "a".into()).unwrap();
        for _ in 0..MESSAGES_WAITING_MAX {
            assert_eq!(bus.publish(&message("a", "x")), 1);
        }
        assert_eq!(bus.publish(&message("a", "x")), 0);
        assert!(slow.next().await.is_none());
        let mut slow = bus.subscriber();
        slow.subscribe(SubscriptionKind::Channel, "b".into()).unwrap();
        let large = Message { channel: "b".into(), payload: vec![0; BYTES_WAITING_MAX].into() };
        assert_eq!(bus.publish(&large), 1);
        assert_eq!(slow.next().await.unwrap().message, large);
        assert_eq!(bus.publish(&large), 1);
        assert_eq!(bus.publish(&message("b", "x")), 0);
        assert!(slow.next().await.is_none());
    }
}
