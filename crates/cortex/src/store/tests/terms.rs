//! Writes on terms: an end, and a version that is expected.

use std::time::Duration;

use bytes::Bytes;
use model::{Prefix, Timestamp};
use tokio::time::timeout;

use super::fixture::{Place, bytes, key, lookup, set};
use crate::driver::Clock;
use crate::store::{INLINE_VALUE_MAX, SharedStore, Submission, Submitted, WatchEvent};

const DEADLINE: Duration = Duration::from_secs(30);

fn soon() -> Timestamp {
    Clock::start().now().after(Duration::from_millis(150))
}

async fn set_until(store: &SharedStore, name: &str, value: Bytes, expires: Timestamp) {
    let change = Submitted::Set { value, expires: Some(expires) };
    store.write(Submission { key: key(name), change, only_over: None }).await.unwrap();
}

#[tokio::test]
async fn a_value_ends_and_watchers_hear_of_it_also_after_reopening() {
    let place = Place::new();
    let store = place.open();
    set_until(&store, "a::small", bytes("1"), soon()).await;
    set_until(&store, "a::large", vec![7; INLINE_VALUE_MAX + 1].into(), soon()).await;
    set(&store, "a::kept", "2").await;
    let mut watch = store.watch(Prefix::all(), None).await.unwrap();
    let mut ended = Vec::new();
    while ended.len() < 2 {
        match timeout(DEADLINE, watch.next()).await.expect("it ends in time") {
            Some(WatchEvent::Changed { key, value: None, expired: true, .. }) => {
                assert!(store.lookup(&key).await.unwrap().is_none());
                assert!(store.lookup_hash(&key).await.unwrap().is_none());
                ended.push(key.to_string());
            }
            other => panic!("{other:?}"),
        }
    }
    ended.sort();
    assert_eq!(ended, ["a::large", "a::small"]);
    assert_eq!(store.keys(&Prefix::all()).await.unwrap(), [key("a::kept")]);
    assert_eq!(store.count().await.unwrap(), 1);
    let far = Timestamp(Clock::start().now().0 + 3_600_000);
    assert!(store.expire(&key("a::kept"), Some(far)).await.unwrap());
    store.close().await.unwrap();
    drop(store);
    let store = place.open();
    assert_eq!(store.count().await.unwrap(), 1);
    let entry = store.lookup(&key("a::kept")).await.unwrap().unwrap();
    assert_eq!(entry.expires, Some(far));
    assert_eq!(lookup(&store, "a::small").await, None);
}

#[tokio::test]
async fn an_expiry_is_given_and_taken_without_touching_the_value() {
    let place = Place::new();
    let store = place.open();
    let far = Timestamp(Clock::start().now().0 + 3_600_000);
    let large = Bytes::from(vec![7; INLINE_VALUE_MAX + 1]);
    for (name, value) in [("small", bytes("1")), ("large", large)] {
        store.set(key(name), value.clone()).await.unwrap();
        for expires in [Some(far), None] {
            assert!(store.expire(&key(name), expires).await.unwrap());
            let entry = store.lookup(&key(name)).await.unwrap().unwrap();
            assert_eq!(entry.expires, expires);
            assert_eq!(entry.value.read(1 << 20).unwrap(), value);
        }
        assert!(store.expire(&key(name), Some(Timestamp(1))).await.unwrap());
        assert!(store.lookup(&key(name)).await.unwrap().is_none());
    }
    assert!(!store.expire(&key("none"), Some(far)).await.unwrap());
}

#[tokio::test]
async fn a_write_over_another_version_is_not_made() {
    let place = Place::new();
    let store = place.open();
    set(&store, "a", "1").await;
    let first = store.lookup(&key("a")).await.unwrap().unwrap().version;
    let over = |change| Submission { key: key("a"), change, only_over: Some(first) };
    set(&store, "a", "2").await;
    assert_eq!(store.write(over(Submitted::Delete)).await.unwrap(), None);
    assert_eq!(lookup(&store, "a").await.as_deref(), Some("2"));
}
