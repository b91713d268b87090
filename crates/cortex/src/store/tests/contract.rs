//! What every caller may rely on.

use bytes::Bytes;
use model::Prefix;
use sha1::{Digest, Sha1};

use super::fixture::{Place, bytes, key, lookup, set, text};
use crate::store::open::OpenError;
use crate::store::{Cursor, INLINE_VALUE_MAX, SharedStore, StoreError, Value, Watch, WatchEvent};

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

async fn names(store: &SharedStore, under: &str) -> Vec<String> {
    let entries = store.prefix(&prefix(under)).await.unwrap();
    let keys = store.keys(&prefix(under)).await.unwrap();
    let names: Vec<String> = entries.iter().map(|entry| entry.key.to_string()).collect();
    assert_eq!(names, keys.iter().map(ToString::to_string).collect::<Vec<_>>());
    names
}

async fn next_change(watch: &mut Watch) -> (String, Option<String>, Cursor) {
    match watch.next().await.expect("the store runs") {
        WatchEvent::Changed { cursor, key, value, .. } => {
            (key.to_string(), value.as_ref().map(text), cursor)
        }
        WatchEvent::Resync { .. } => panic!("nothing was missed"),
    }
}

#[tokio::test]
async fn what_is_set_is_found_also_after_reopening() {
    let place = Place::new();
    let store = place.open();
    for (name, value) in [("a::b", "1"), ("a::bc", "2"), ("a!", "3"), ("a::b::c", "4"), ("e", "")] {
        set(&store, name, value).await;
    }
    set(&store, "a::b", "5").await;
    assert!(store.delete(key("a::bc")).await.unwrap().is_some());
    assert_eq!(store.delete(key("a::bc")).await.unwrap(), None);
    assert_eq!(store.delete(key("nothing")).await.unwrap(), None);
    let head = store.head().await.unwrap();
    let history = store.history(&Prefix::all(), 100).await.unwrap();
    assert_eq!(history.len(), 7);
    assert!(history[0].deleted && history[0].key == key("a::bc"));
    store.close().await.unwrap();
    drop(store);
    let store = place.open();
    assert_eq!(store.head().await.unwrap(), head);
    assert_eq!(names(&store, "a").await, ["a::b", "a::b::c"]);
    assert_eq!(names(&store, "a::b").await, ["a::b", "a::b::c"]);
    assert_eq!(names(&store, "").await, ["a!", "a::b", "a::b::c", "e"]);
    assert_eq!(lookup(&store, "a::b").await.as_deref(), Some("5"));
    assert_eq!(lookup(&store, "e").await.as_deref(), Some(""));
    assert_eq!(lookup(&store, "a::bc").await, None);
    let sha1: [u8; 20] = Sha1::digest(b"5").into();
    assert_eq!(store.lookup_hash(&key("a::b")).await.unwrap(), Some(sha1));
    assert_eq!(store.lookup_hash(&key("a::bc")).await.unwrap(), None);
    let ids = |list: Vec<crate::store::HistoryEntry>| -> Vec<_> {
        list.into_iter().map(|entry| entry.id).collect()
    };
    let again = store.history(&Prefix::all(), 100).await.unwrap();
    assert_eq!(ids(again), ids(history));
    let of_one = store.history(&prefix("a::b"), 2).await.unwrap();
    assert_eq!(of_one.iter().map(|e| e.key.as_str()).collect::<Vec<_>>(), ["a::b", "a::b::c"]);
}

#[tokio::test]
async fn one_process_at_a_time() {
    let place = Place::new();
    let store = place.open();
    let error = place.try_open().err().unwrap();
    assert!(matches!(error, OpenError::Locked(_)), "{error}");
    assert!(error.to_string().contains("stop it first"), "{error}");
    store.close().await.unwrap();
    place.open().close().await.unwrap();
    let error = store.set(key("a"), bytes("1")).await.unwrap_err();
    assert!(matches!(error, StoreError::Stopped(_)), "{error}");
    assert!(store.watch(Prefix::all(), None).await.is_err());
}

#[tokio::test]
async fn watches_see_changes_in_order_and_resume() {
    let place = Place::new();
    let store = place.open();
    set(&store, "a::before", "0").await;
    let mut watch = store.watch(prefix("a"), None).await.unwrap();
    set(&store, "a::b", "1").await;
    set(&store, "ab", "unseen").await;
    set(&store, "a::b", "2").await;
    store.delete(key("a::b")).await.unwrap();
    let (name, value, first) = next_change(&mut watch).await;
    assert_eq!((name.as_str(), value.as_deref()), ("a::b", Some("1")));
    assert_eq!(next_change(&mut watch).await.1.as_deref(), Some("2"));
    assert_eq!(next_change(&mut watch).await.1, None);
    set(&store, "a::c", "3").await;
    // Each key once, with its present value.
    let mut resumed = store.watch(prefix("a"), Some(first)).await.unwrap();
    let (name, value, _) = next_change(&mut resumed).await;
    assert_eq!((name.as_str(), value), ("a::b", None));
    let (name, value, _) = next_change(&mut resumed).await;
    assert_eq!((name.as_str(), value.as_deref()), ("a::c", Some("3")));
    set(&store, "a::d", "4").await;
    assert_eq!(next_change(&mut resumed).await.0, "a::d");
    store.close().await.unwrap();
    assert!(resumed.next().await.is_none());
    let store = place.open();
    let mut stale = store.watch(prefix("a"), Some(first)).await.unwrap();
    assert!(matches!(stale.next().await, Some(WatchEvent::Resync { .. })));
}

#[tokio::test]
async fn the_board_is_seen_and_watched_and_never_logged() {
    let place = Place::new();
    let store = place.open();
    let head = store.head().await.unwrap();
    let mut watch = store.watch(prefix("local::x"), None).await.unwrap();
    set(&store, "local::x::1", "note").await;
    assert_eq!(next_change(&mut watch).await.1.as_deref(), Some("note"));
    assert_eq!(lookup(&store, "local::x::1").await.as_deref(), Some("note"));
    assert_eq!(names(&store, "local").await, ["local::x::1"]);
    let sha1: [u8; 20] = Sha1::digest(b"note").into();
    assert_eq!(store.lookup_hash(&key("local::x::1")).await.unwrap(), Some(sha1));
    set(&store, "local::x::2", "other").await;
    assert!(store.delete(key("local::x::1")).await.unwrap().is_some());
    assert_eq!(store.delete(key("local::x::1")).await.unwrap(), None);
    assert_eq!(next_change(&mut watch).await.1.as_deref(), Some("other"));
    assert_eq!(next_change(&mut watch).await.1, None);
    assert_eq!(store.head().await.unwrap(), head);
    let large = Bytes::from(vec![0; INLINE_VALUE_MAX + 1]);
    let error = store.set(key("local::x::3"), large).await.unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { .. }), "{error}");
    store.close().await.unwrap();
    assert_eq!(lookup(&place.open(), "local::x::2").await, None);
}

#[tokio::test]
async fn many_writers_at_once_are_all_kept() {
    let place = Place::new();
    let store = place.open();
    let writers: Vec<_> = (0..50)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                for n in 0..20 {
                    set(&store, &format!("w::{writer}::{n}"), &format!("{writer}/{n}")).await;
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(names(&store, "w").await.len(), 1000);
    store.close().await.unwrap();
    let store = place.open();
    assert_eq!(names(&store, "w").await.len(), 1000);
    assert_eq!(lookup(&store, "w::49::19").await.as_deref(), Some("49/19"));
}

#[tokio::test]
async fn large_values_are_files_however_they_come() {
    let place = Place::new();
    let store = place.open();
    let large = Bytes::from(vec![7; INLINE_VALUE_MAX + 1]);
    store.set(key("large"), large.clone()).await.unwrap();
    let mut writer = store.writer().await.unwrap();
    writer.write(b"sm").unwrap();
    writer.write(b"all").unwrap();
    let file = writer.finish().unwrap();
    store.set_file(key("small"), file.clone()).await.unwrap();
    store.close().await.unwrap();
    let store = place.open();
    let entry = store.lookup(&key("large")).await.unwrap().unwrap();
    let Value::File { hash, size, path } = entry.value else { panic!("a file") };
    assert_eq!(hash.0, *blake3::hash(&large).as_bytes());
    assert_eq!((size, std::fs::read(path).unwrap()), (large.len() as u64, large.to_vec()));
    assert_eq!(lookup(&store, "small").await.as_deref(), Some("small"));
    std::fs::remove_file(&file.path).unwrap();
    let error = store.set_file(key("gone"), file).await.unwrap_err();
    assert!(error.to_string().contains("upload it again"), "{error}");
}
