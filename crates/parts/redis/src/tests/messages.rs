//! Tests of publish and subscribe, notifications of keys, and watches.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use store_core::resp::glob;

use super::{Server, show};
use store::bus::{BusError, Message, Names, Neighbours, SubscriptionKind};

#[test]
fn messages_reach_subscribers_in_both_protocols() {
    let server = Server::start();
    let (mut old, mut new, mut sender) = (server.client(), server.client(), server.client());
    old.send(&["SUBSCRIBE", "a", "b"]);
    assert_eq!(show(&old.next()), "[subscribe a 1]");
    assert_eq!(show(&old.next()), "[subscribe b 2]");
    assert!(old.text("GET x").contains("only (P)SUBSCRIBE"));
    assert_eq!(old.text("PING"), "[pong ]");
    assert!(new.text("HELLO 3").contains("proto 3"));
    assert_eq!(new.text("PSUBSCRIBE a*"), "[psubscribe a* 1]");
    // A newer client goes on using its connection.
    assert_eq!(new.text("SET x 1"), "OK");
    assert_eq!(sender.text("PUBLISH a one"), "2");
    assert_eq!(sender.text("PUBLISH c none"), "0");
    assert_eq!(show(&old.next()), "[message a one]");
    assert_eq!(show(&new.next()), "[pmessage a* a one]");
    assert_eq!(sender.text("PUBSUB CHANNELS"), "[a b]");
    assert_eq!(sender.text("PUBSUB NUMSUB a c"), "[a 1 c 0]");
    assert_eq!(sender.text("PUBSUB NUMPAT"), "1");
    assert_eq!(old.text("UNSUBSCRIBE a"), "[unsubscribe a 1]");
    assert_eq!(old.text("UNSUBSCRIBE"), "[unsubscribe b 0]");
    assert_eq!(old.text("GET x"), "1");
    assert_eq!(old.text("UNSUBSCRIBE"), "[unsubscribe nil 0]");
}

#[test]
fn changes_of_keys_are_told_to_whoever_listens() {
    let server = Server::start();
    let (mut listener, mut client) = (server.client(), server.client());
    listener.text("PSUBSCRIBE __keyevent@0__:*");
    listener.text("SUBSCRIBE __keyspace@0__:a::b");
    client.text("SET a::b 1");
    assert_eq!(show(&listener.next()), "[message __keyspace@0__:a::b set]");
    let told = "[pmessage __keyevent@0__:* __keyevent@0__:set a::b]";
    assert_eq!(show(&listener.next()), told);
    client.text("DEL a::b");
    assert_eq!(show(&listener.next()), "[message __keyspace@0__:a::b del]");
    listener.next();
    client.text("SET c 1 PX 30");
    listener.next();
    let told = "[pmessage __keyevent@0__:* __keyevent@0__:expired c]";
    assert_eq!(show(&listener.next()), told);
}

#[test]
fn a_watch_is_pushed_to_resumes_and_says_when_it_cannot() {
    let server = Server::start();
    let (mut watcher, mut client) = (server.client(), server.client());
    assert_eq!(watcher.text("CORTEX.WATCH a"), "OK");
    assert!(watcher.text("CORTEX.WATCH b").contains("watches already"));
    client.text("SET a::b one");
    client.text("SET b unseen");
    client.text("DEL a::b");
    let told = show(&watcher.next());
    let cursor = told.strip_prefix("[cortex.watch set a::b one 3 ").unwrap().trim_end_matches(']');
    assert!(show(&watcher.next()).starts_with("[cortex.watch del a::b nil 0 "));
    let mut resumed = server.client();
    client.text("SET a::c two");
    resumed.text(&format!("CORTEX.WATCH a {cursor}"));
    assert!(show(&resumed.next()).starts_with("[cortex.watch del a::b "));
    assert!(show(&resumed.next()).starts_with("[cortex.watch set a::c two "));
    let mut stale = server.client();
    stale.text("CORTEX.WATCH a 1:1");
    assert!(show(&stale.next()).starts_with("[cortex.watch resync nil nil 0 "));
    assert!(show(&watcher.next()).starts_with("[cortex.watch set a::c "));
    assert_eq!(watcher.text("CORTEX.UNWATCH"), "OK");
    assert_eq!(watcher.text("PING"), "PONG");
    let history = client.text("CORTEX.HISTORY a LIMIT 2");
    assert!(history.contains("a::c") && history.contains("del"), "{history}");
    assert_eq!(client.text("CORTEX.HEAD").len(), 32);
    assert_eq!(client.text("CORTEX.SQUASH"), "OK");
    assert_eq!(client.text("CORTEX.SYNC"), "0");
}

#[derive(Default)]
struct Others {
    forwarded: Mutex<Vec<Message>>,
}

#[async_trait]
impl Neighbours for Others {
    fn forward(&self, message: &Message) {
        self.forwarded.lock().unwrap().push(message.clone());
    }

    async fn holding(&self, wanted: usize, _limit: Duration) -> usize {
        wanted.min(2)
    }

    async fn listening(&self, channels: &[Bytes]) -> Vec<usize> {
        channels.iter().map(|name| if name == "a" { 2 } else { 0 }).collect()
    }

    async fn names(&self, kind: SubscriptionKind, pattern: &Bytes) -> Result<Names, BusError> {
        let names: &[&'static str] = match kind {
            SubscriptionKind::Channel => &["a", "c"],
            SubscriptionKind::Pattern => &["a*", "b*"],
        };
        let names = names.iter().map(|name| Bytes::from_static(name.as_bytes()));
        match &pattern[..] {
            b"many*" => Err(BusError::Names),
            _ => Ok(names.filter(|name| glob::matches(pattern, name)).collect()),
        }
    }

    async fn meet(&self) -> usize {
        3
    }
}

#[test]
fn other_nodes_hear_messages_and_are_waited_for() {
    let server = Server::start();
    let others = Arc::new(Others::default());
    server.bus.connect(others.clone());
    let (mut client, mut listener) = (server.client(), server.client());
    listener.text("SUBSCRIBE a");
    assert_eq!(client.text("PUBLISH a x"), "1");
    let message = Message { channel: "a".into(), payload: "x".into() };
    assert_eq!(*others.forwarded.lock().unwrap(), [message]);
    let message = Message { channel: "a".into(), payload: "from another".into() };
    assert_eq!(server.bus.deliver(&message), 1);
    listener.next();
    assert_eq!(show(&listener.next()), "[message a from another]");
    assert_eq!(others.forwarded.lock().unwrap().len(), 1);
    assert_eq!(client.text("PUBSUB NUMSUB a b"), "[a 3 b 0]");
    assert_eq!(client.text("PUBSUB CHANNELS"), "[a c]");
    assert_eq!(client.text("PUBSUB CHANNELS c*"), "[c]");
    assert!(client.text("PUBSUB CHANNELS many*").contains("with a longer pattern"));
    listener.text("PSUBSCRIBE b*");
    assert_eq!(client.text("PUBSUB NUMPAT"), "2");
    assert_eq!(client.text("WAIT 5 10"), "2");
    assert_eq!(client.text("CORTEX.SYNC"), "3");
}
