//! The contract of every store: what callers may rely on, whatever keeps the values. `over!` makes
//! a test of each function here for one kind of site.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use model::{Key, Prefix, Timestamp};
use sha1::{Digest, Sha1};
use tokio::time::timeout;

use runtime::driver::Clock;
use store::reply::Reply;
use store::{
    Cursor, Entry, INLINE_VALUE_MAX, SharedStore, StoreError, Submission, Submitted, Urgency,
    Value, Watch, WatchEvent,
};

/// The time limit of a wait: generous, since machines that run tests are busy.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The place of one store; it may be opened again once it is closed.
pub trait StoreSite: Sync {
    fn open(&self) -> impl Future<Output = SharedStore> + Send;
}

#[macro_export]
macro_rules! over {
    ($site:expr) => {
        $crate::over! { $site;
            what_is_set_is_found_also_after_reopening
            writes_to_a_closed_store_fail
            watches_see_changes_in_order_and_resume
            a_cursor_of_an_earlier_run_never_leaves_a_gap
            the_board_is_seen_and_watched_and_never_kept
            many_writers_at_once_are_all_kept
            writes_of_one_caller_keep_their_order
            pages_of_keys_are_all_keys
            large_values_are_files_however_they_come
            a_value_ends_and_watchers_hear_of_it_also_after_reopening
            an_expiry_is_given_and_taken_without_touching_the_value
            a_write_over_another_version_is_not_made
        }
    };
    ($site:expr; $($name:ident)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                $crate::$name(&$site).await;
            }
        )*
    };
}
pub fn key(text: &str) -> Key {
    text.parse().unwrap()
}

pub fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

pub fn text(value: &Value) -> String {
    String::from_utf8(value.inline().expect("small values are inline").to_vec()).unwrap()
}

pub async fn lookup(store: &SharedStore, name: &str) -> Option<String> {
    store.lookup(&key(name)).await.unwrap().map(|entry: Entry| text(&entry.value))
}

pub async fn set(store: &SharedStore, name: &str, value: &str) {
    store.set(key(name), bytes(value)).await.unwrap();
}

pub fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

async fn names(store: &SharedStore, under: &str) -> Vec<String> {
    let entries = store.prefix(&prefix(under)).await.unwrap();
    let keys = store.keys(&prefix(under)).await.unwrap();
    let names: Vec<String> = entries.iter().map(|entry| entry.key.to_string()).collect();
    assert_eq!(names, keys.iter().map(ToString::to_string).collect::<Vec<_>>());
    names
}

pub async fn next_event(watch: &mut Watch) -> WatchEvent {
    timeout(DEADLINE, watch.next()).await.expect("an event in time").expect("the store runs")
}

pub async fn next_change(watch: &mut Watch) -> (String, Option<String>, Cursor) {
    match next_event(watch).await {
        WatchEvent::Changed { cursor, key, value, .. } => {
            (key.to_string(), value.as_ref().map(text), cursor)
        }
        WatchEvent::Resync { .. } => panic!("nothing was missed"),
    }
}

pub async fn what_is_set_is_found_also_after_reopening(site: &impl StoreSite) {
    let store = site.open().await;
    for (name, value) in [("a::b", "1"), ("a::bc", "2"), ("a!", "3"), ("a::b::c", "4"), ("e", "")] {
        set(&store, name, value).await;
    }
    let before = Clock::start().now();
    set(&store, "a::b", "5").await;
    assert!(store.delete(key("a::bc")).await.unwrap().is_some());
    assert_eq!(store.delete(key("a::bc")).await.unwrap(), None);
    assert_eq!(store.delete(key("nothing")).await.unwrap(), None);
    store.close().await.unwrap();
    drop(store);
    let store = site.open().await;
    assert_eq!(names(&store, "a").await, ["a::b", "a::b::c"]);
    assert_eq!(names(&store, "a::b").await, ["a::b", "a::b::c"]);
    assert_eq!(names(&store, "").await, ["a!", "a::b", "a::b::c", "e"]);
    assert_eq!(store.count().await.unwrap(), 4);
    assert_eq!(lookup(&store, "a::b").await.as_deref(), Some("5"));
    assert_eq!(lookup(&store, "e").await.as_deref(), Some(""));
    assert_eq!(lookup(&store, "a::bc").await, None);
    let entry = store.lookup(&key("a::b")).await.unwrap().unwrap();
    assert!(entry.node.as_str() == "n1" && entry.set_at >= before, "{entry:?}");
    let sha1: [u8; 20] = Sha1::digest(b"5").into();
    assert_eq!(store.lookup_hash(&key("a::b")).await.unwrap(), Some(sha1));
    assert_eq!(store.lookup_hash(&key("a::bc")).await.unwrap(), None);
}

pub async fn writes_to_a_closed_store_fail(site: &impl StoreSite) {
    let store = site.open().await;
    set(&store, "a", "1").await;
    store.close().await.unwrap();
    let error = store.set(key("a"), bytes("2")).await.unwrap_err();
    assert!(matches!(error, StoreError::Stopped(_)), "{error}");
    assert!(store.watch(Prefix::all(), None).await.is_err());
    let store = site.open().await;
    assert_eq!(lookup(&store, "a").await.as_deref(), Some("1"));
    store.close().await.unwrap();
}

pub async fn watches_see_changes_in_order_and_resume(site: &impl StoreSite) {
    let store = site.open().await;
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
    // Each key comes once, with its present value.
    let mut resumed = store.watch(prefix("a"), Some(first)).await.unwrap();
    let (name, value, _) = next_change(&mut resumed).await;
    assert_eq!((name.as_str(), value), ("a::b", None));
    let (name, value, _) = next_change(&mut resumed).await;
    assert_eq!((name.as_str(), value.as_deref()), ("a::c", Some("3")));
    set(&store, "a::d", "4").await;
    let (name, _, newest) = next_change(&mut resumed).await;
    assert_eq!(name, "a::d");
    let mut up_to_date = store.watch(prefix("a"), Some(newest)).await.unwrap();
    set(&store, "a::e", "5").await;
    assert_eq!(next_change(&mut up_to_date).await.0, "a::e");
    let elsewhere = Cursor { incarnation: newest.incarnation ^ 1, ..newest };
    let mut unknown = store.watch(prefix("a"), Some(elsewhere)).await.unwrap();
    assert!(matches!(next_event(&mut unknown).await, WatchEvent::Resync { .. }));
    store.close().await.unwrap();
    // A change that was under way may still come.
    while timeout(DEADLINE, resumed.next()).await.expect("an end").is_some() {}
}

pub async fn a_cursor_of_an_earlier_run_never_leaves_a_gap(site: &impl StoreSite) {
    let store = site.open().await;
    let mut watch = store.watch(prefix("a"), None).await.unwrap();
    set(&store, "a::b", "1").await;
    let (_, _, cursor) = next_change(&mut watch).await;
    set(&store, "a::missed", "2").await;
    store.close().await.unwrap();
    let store = site.open().await;
    let mut resumed = store.watch(prefix("a"), Some(cursor)).await.unwrap();
    match next_event(&mut resumed).await {
        WatchEvent::Resync { .. } => {}
        WatchEvent::Changed { key, .. } => assert_eq!(key.as_str(), "a::missed"),
    }
    set(&store, "a::c", "3").await;
    assert_eq!(next_change(&mut resumed).await.0, "a::c");
    // Notes are gone with the run that had them, and no watcher is told of each.
    let mut notes = store.watch(prefix("local"), Some(cursor)).await.unwrap();
    assert!(matches!(next_event(&mut notes).await, WatchEvent::Resync { .. }));
}

pub async fn the_board_is_seen_and_watched_and_never_kept(site: &impl StoreSite) {
    let store = site.open().await;
    let head = store.head().await.unwrap();
    let mut watch = store.watch(prefix("local::x"), None).await.unwrap();
    set(&store, "local::x::1", "note").await;
    let (_, value, cursor) = next_change(&mut watch).await;
    assert_eq!(value.as_deref(), Some("note"));
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
    let mut resumed = store.watch(prefix("local"), Some(cursor)).await.unwrap();
    let (name, value, _) = next_change(&mut resumed).await;
    assert_eq!((name.as_str(), value.as_deref()), ("local::x::2", Some("other")));
    let (name, value, _) = next_change(&mut resumed).await;
    assert_eq!((name.as_str(), value), ("local::x::1", None));
    let large = Bytes::from(vec![0; INLINE_VALUE_MAX + 1]);
    let error = store.set(key("local::x::3"), large).await.unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { .. }), "{error}");
    // Keys and notes come in one watch, in the order in which they were set.
    let mut all = store.watch(Prefix::all(), None).await.unwrap();
    for name in ["local::y", "a", "local::z", "b"] {
        set(&store, name, "1").await;
    }
    for name in ["local::y", "a", "local::z", "b"] {
        assert_eq!(next_change(&mut all).await.0, name);
    }
    store.close().await.unwrap();
    assert_eq!(lookup(&site.open().await, "local::x::2").await, None);
}

pub async fn many_writers_at_once_are_all_kept(site: &impl StoreSite) {
    let store = site.open().await;
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
    let store = site.open().await;
    assert_eq!(names(&store, "w").await.len(), 1000);
    assert_eq!(lookup(&store, "w::49::19").await.as_deref(), Some("49/19"));
}

pub async fn writes_of_one_caller_keep_their_order(site: &impl StoreSite) {
    let store = site.open().await;
    let mut watch = store.watch(prefix("o"), None).await.unwrap();
    let (sender, mut replies) = tokio::sync::mpsc::unbounded_channel();
    for n in 0..100 {
        let sender = sender.clone();
        let write = match n % 3 {
            2 => Submission::delete(key(&format!("o::{}", n % 5))),
            _ => Submission::set(key(&format!("o::{}", n % 5)), bytes(&n.to_string())),
        };
        let reply = Reply::to(move |written| drop(sender.send((n, written))));
        store.submit(write, Urgency::Now, reply).await.unwrap();
    }
    // A delete of nothing may be answered before the writes in front of it.
    let mut written = BTreeMap::new();
    while written.len() < 100 {
        let (n, reply) = timeout(DEADLINE, replies.recv()).await.unwrap().unwrap();
        written.insert(n, reply.unwrap().is_some());
    }
    let mut expected = BTreeMap::new();
    for (n, written) in written {
        let key = format!("o::{}", n % 5);
        let had = match n % 3 {
            2 => expected.remove(&key).is_some(),
            _ => {
                expected.insert(key, n.to_string());
                true
            }
        };
        assert_eq!(written, had, "{n}");
    }
    set(&store, "o::9", "end").await;
    let mut seen = BTreeMap::new();
    loop {
        match next_change(&mut watch).await {
            (name, _, _) if name == "o::9" => break,
            (name, Some(value), _) => drop(seen.insert(name, value)),
            (name, None, _) => drop(seen.remove(&name)),
        }
    }
    assert_eq!(seen, expected);
    for (name, value) in &expected {
        assert_eq!(lookup(&store, name).await.as_ref(), Some(value));
    }
}

pub async fn pages_of_keys_are_all_keys(site: &impl StoreSite) {
    let store = site.open().await;
    let mut expected = BTreeSet::new();
    for name in ["p", "p!", "p::a", "p::a::b", "p::ab", "p::ä", "px", "local::p", "q"] {
        set(&store, name, "1").await;
        expected.insert(key(name));
    }
    for (under, all) in [("", 9), ("p", 5), ("p::a", 2), ("local", 1), ("none", 0)] {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = store.keys_after(&prefix(under), after.as_ref(), 2).await.unwrap();
            assert!(page.len() <= 2);
            match page.last() {
                Some(last) => after = Some(last.clone()),
                None => break,
            }
            seen.extend(page);
        }
        seen.sort();
        let wanted: Vec<_> =
            expected.iter().filter(|key| prefix(under).matches(key)).cloned().collect();
        assert_eq!((seen.len(), seen), (all, wanted), "{under}");
    }
}

pub async fn large_values_are_files_however_they_come(site: &impl StoreSite) {
    let store = site.open().await;
    let large = Bytes::from(vec![7; INLINE_VALUE_MAX + 1]);
    store.set(key("large"), large.clone()).await.unwrap();
    let mut writer = store.writer().await.unwrap();
    writer.write(b"sm").unwrap();
    writer.write(b"all").unwrap();
    let file = writer.finish().unwrap();
    store.set_file(key("small"), file.clone()).await.unwrap();
    store.close().await.unwrap();
    let store = site.open().await;
    let sha1: [u8; 20] = Sha1::digest(&large).into();
    assert_eq!(store.lookup_hash(&key("large")).await.unwrap(), Some(sha1));
    let entry = store.lookup(&key("large")).await.unwrap().unwrap();
    let Value::File { hash, size, path } = entry.value else { panic!("a file") };
    assert_eq!(hash.0, *blake3::hash(&large).as_bytes());
    assert_eq!((size, std::fs::read(path).unwrap()), (large.len() as u64, large.to_vec()));
    assert_eq!(lookup(&store, "small").await.as_deref(), Some("small"));
    std::fs::remove_file(&file.path).unwrap();
    let error = store.set_file(key("gone"), file).await.unwrap_err();
    assert!(error.to_string().contains("upload it again"), "{error}");
}

async fn set_until(store: &SharedStore, name: &str, value: Bytes, expires: Timestamp) {
    let change = Submitted::Set { value, expires: Some(expires) };
    store.write(Submission { key: key(name), change, only_over: None }).await.unwrap();
}

pub async fn a_value_ends_and_watchers_hear_of_it_also_after_reopening(site: &impl StoreSite) {
    let store = site.open().await;
    let mut watch = store.watch(Prefix::all(), None).await.unwrap();
    let soon = || Clock::start().now().after(Duration::from_millis(150));
    set_until(&store, "a::small", bytes("1"), soon()).await;
    set_until(&store, "a::large", vec![7; INLINE_VALUE_MAX + 1].into(), soon()).await;
    set(&store, "a::kept", "2").await;
    let mut ended = Vec::new();
    while ended.len() < 2 {
        match next_event(&mut watch).await {
            WatchEvent::Changed { key, value: None, expired: true, .. } => {
                assert!(store.lookup(&key).await.unwrap().is_none());
                assert!(store.lookup_hash(&key).await.unwrap().is_none());
                ended.push(key.to_string());
            }
            WatchEvent::Changed { value: Some(_), .. } => {}
            other => panic!("{other:?}"),
        }
    }
    ended.sort();
    assert_eq!(ended, ["a::large", "a::small"]);
    assert_eq!(names(&store, "").await, ["a::kept"]);
    assert_eq!(store.count().await.unwrap(), 1);
    assert_eq!(store.delete(key("a::small")).await.unwrap(), None);
    let far = Timestamp(Clock::start().now().0 + 3_600_000);
    assert!(store.expire(&key("a::kept"), Some(far)).await.unwrap());
    store.close().await.unwrap();
    drop(store);
    let store = site.open().await;
    assert_eq!(names(&store, "").await, ["a::kept"]);
    assert_eq!(store.count().await.unwrap(), 1);
    let entry = store.lookup(&key("a::kept")).await.unwrap().unwrap();
    assert_eq!(entry.expires, Some(far));
    assert_eq!(lookup(&store, "a::small").await, None);
}

pub async fn an_expiry_is_given_and_taken_without_touching_the_value(site: &impl StoreSite) {
    let store = site.open().await;
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

pub async fn a_write_over_another_version_is_not_made(site: &impl StoreSite) {
    let store = site.open().await;
    set(&store, "a", "1").await;
    let first = store.lookup(&key("a")).await.unwrap().unwrap().version;
    let over = |change| Submission { key: key("a"), change, only_over: Some(first) };
    let made = store.write(over(Submitted::Set { value: bytes("2"), expires: None })).await;
    assert!(made.unwrap().is_some());
    assert_eq!(store.write(over(Submitted::Delete)).await.unwrap(), None);
    assert_eq!(lookup(&store, "a").await.as_deref(), Some("2"));
}

#[cfg(test)]
mod tests {
    use os::layout::DataDirectory;
    use store::open::open_alone;
    use store::options::Options;
    use tempfile::TempDir;

    use super::*;

    /// Cortex's own store, in segments that are small enough to be many.
    struct SmallStore(TempDir);

    impl StoreSite for SmallStore {
        async fn open(&self) -> SharedStore {
            let layout = DataDirectory::new(self.0.path().join("data"), self.0.path());
            let small = 64 << 10;
            let options = Options {
                segment_bytes_first: small,
                segment_bytes_max: small,
                ..Options::default()
            };
            open_alone(&layout, "n1".parse().unwrap(), Clock::start(), options).unwrap()
        }
    }

    crate::over!(SmallStore(TempDir::new().unwrap()));
}
