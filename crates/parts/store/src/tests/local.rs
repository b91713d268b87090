//! Tests of what only this kind of store offers: the history. `store-contract` has the contract of
//! all.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use model::Prefix;

use super::fixture::{StoreDirectory, key, next_event, prefix, set};
use crate::options::OpenError;
use crate::reply::Reply;
use crate::{HistoryEntry, Submission, Urgency, Value, WatchEvent};

fn ids(list: &[HistoryEntry]) -> Vec<[u8; 32]> {
    list.iter().map(|entry| entry.id.0).collect()
}

#[tokio::test]
async fn the_history_and_its_id_are_the_same_after_reopening() {
    let place = StoreDirectory::new();
    let store = place.open();
    for (name, value) in [("a::b", "1"), ("a::bc", "2"), ("a!", "3"), ("a::b::c", "4")] {
        set(&store, name, value).await;
    }
    set(&store, "a::b", "5").await;
    store.delete(key("a::bc")).await.unwrap();
    store.delete(key("nothing")).await.unwrap();
    let head = store.head().await.unwrap();
    let history = store.history(&Prefix::all(), 100).await.unwrap();
    assert_eq!(history.len(), 6);
    assert!(history[0].deleted && history[0].key == key("a::bc"));
    store.close().await.unwrap();
    drop(store);
    let store = place.open();
    assert_eq!(store.head().await.unwrap(), head);
    assert_eq!(ids(&store.history(&Prefix::all(), 100).await.unwrap()), ids(&history));
    let of_one = store.history(&prefix("a::b"), 2).await.unwrap();
    assert_eq!(of_one.iter().map(|e| e.key.as_str()).collect::<Vec<_>>(), ["a::b", "a::b::c"]);
}

#[tokio::test]
async fn a_lookup_that_finds_nothing_waits_for_the_write_that_came_before() {
    let place = StoreDirectory::new();
    let store = place.open();
    let write = Submission::set(key("a"), "1".into());
    store.submit(write, Urgency::WithOthers, Reply::to(drop)).await.unwrap();
    assert!(store.lookup_at_once(&key("a")).is_none(), "not known yet");
    assert!(store.lookup_at_once(&key("b")).is_some_and(|found| found.is_none()));
    let a = key("a");
    let mut looking = pin!(store.lookup(&a));
    let looked = poll_fn(|context| Poll::Ready(looking.as_mut().poll(context))).await;
    assert!(looked.is_pending());
    store.hurry();
    let found = looking.await.unwrap().map(|entry| entry.value);
    assert!(matches!(found, Some(Value::Inline(value)) if value == "1"));
    assert!(store.lookup_at_once(&a).is_some());
    assert!(store.delete(a.clone()).await.unwrap().is_some());
    assert!(store.lookup(&a).await.unwrap().is_none());
}

#[tokio::test]
async fn only_one_process_at_a_time_opens_a_store() {
    let place = StoreDirectory::new();
    let store = place.open();
    let error = place.try_open().err().unwrap();
    assert!(matches!(error, OpenError::Locked(_)), "{error}");
    assert!(error.to_string().contains("stop it first"), "{error}");
    store.close().await.unwrap();
    place.open().close().await.unwrap();
}

#[tokio::test]
async fn a_cursor_of_an_earlier_run_is_told_to_resync() {
    let place = StoreDirectory::new();
    let store = place.open();
    let mut watch = store.watch(prefix("a"), None).await.unwrap();
    set(&store, "a::b", "1").await;
    let WatchEvent::Changed { cursor, .. } = next_event(&mut watch).await else { panic!() };
    store.close().await.unwrap();
    let store = place.open();
    let mut stale = store.watch(prefix("a"), Some(cursor)).await.unwrap();
    assert!(matches!(next_event(&mut stale).await, WatchEvent::Resync { .. }));
}
