//! Tests of the store on a real etcd server: the core contract, outages, compaction, several nodes.

mod server;
mod site;

use std::time::Duration;

use bytes::Bytes;
use etcd_client::GetOptions;
use model::{Prefix, Timestamp};
use tokio::time::Instant;

use self::site::{EtcdSite, address};
use super::Address;
use super::feed::Feed;
use super::hub::Hub;
use super::keeping::Keeping;
use super::keyspace::Keyspace;
use super::link::EtcdLink;
use runtime::driver::Clock;
use store::reply::Reply;
use store::values::ValueFiles;
use store::{
    INLINE_VALUE_MAX, SharedStore, StoreError, Submission, Submitted, Urgency, WatchEvent,
};
use store_contract::{
    DEADLINE, StoreSite, bytes, key, lookup, next_change, next_event, prefix, set,
};

store_contract::over!(EtcdSite::new());

async fn link(address: &Address) -> EtcdLink {
    EtcdLink::connect(address).await.unwrap()
}

async fn revision(link: &EtcdLink) -> i64 {
    let read = link.get("/".into(), GetOptions::new().with_count_only()).await.unwrap();
    read.header().unwrap().revision()
}

#[tokio::test]
async fn a_killed_server_that_comes_back_costs_no_write_and_no_event() {
    let mut site = EtcdSite::new();
    let store = site.open().await;
    let mut watch = store.watch(prefix("a"), None).await.unwrap();
    set(&store, "a::before", "1").await;
    site.server.kill();
    // A write waits meanwhile, and is stored once.
    let writing = tokio::spawn({
        let store = store.clone();
        async move {
            let deadline = Instant::now() + DEADLINE;
            while let Err(error) = store.set(key("a::meanwhile"), bytes("2")).await {
                assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
                assert!(Instant::now() < deadline, "{error}");
            }
        }
    });
    tokio::task::yield_now().await;
    site.server.start_again();
    writing.await.unwrap();
    set(&store, "a::after", "3").await;
    assert_eq!(next_change(&mut watch).await.0, "a::before");
    let mut names = vec![next_change(&mut watch).await.0];
    while names.last().unwrap() != "a::after" {
        names.push(next_change(&mut watch).await.0);
    }
    names.dedup();
    assert_eq!(names, ["a::meanwhile", "a::after"]);
    assert_eq!(lookup(&store, "a::before").await.as_deref(), Some("1"));
    assert_eq!(lookup(&store, "a::meanwhile").await.as_deref(), Some("2"));
    store.close().await.unwrap();
}

#[tokio::test]
async fn an_unreachable_cluster_is_reported_with_what_to_do() {
    let mut site = EtcdSite::new();
    let store = site.open().await;
    site.server.kill();
    let reading_key = key("a");
    let (read, written, opened) = tokio::join!(
        store.lookup(&reading_key),
        store.set(key("a"), bytes("1")),
        site.try_open("test", "n2"),
    );
    let messages = [
        read.unwrap_err().to_string(),
        written.unwrap_err().to_string(),
        opened.err().unwrap().to_string(),
    ];
    for message in messages {
        assert!(message.contains("endpoint health"), "{message}");
    }
}

#[tokio::test]
async fn only_one_process_at_a_time_uses_the_directory() {
    let site = EtcdSite::new();
    let store = site.open().await;
    let error = site.try_open("test", "n1").await.err().unwrap();
    assert!(error.to_string().contains("stop it first"), "{error}");
    store.close().await.unwrap();
    site.open().await.close().await.unwrap();
}

#[tokio::test]
async fn a_watch_resumes_after_a_restart_and_resyncs_after_a_squash() {
    let site = EtcdSite::new();
    let store = site.open().await;
    let mut watch = store.watch(prefix("a"), None).await.unwrap();
    set(&store, "a::b", "1").await;
    let (_, _, cursor) = next_change(&mut watch).await;
    set(&store, "a::c", "2").await;
    store.delete(key("a::b")).await.unwrap();
    store.close().await.unwrap();
    let store = site.open().await;
    set(&store, "a::d", "3").await;
    let mut resumed = store.watch(prefix("a"), Some(cursor)).await.unwrap();
    for (name, value) in [("a::c", Some("2")), ("a::b", None), ("a::d", Some("3"))] {
        let (seen, set_to, _) = next_change(&mut resumed).await;
        assert_eq!((seen.as_str(), set_to.as_deref()), (name, value));
    }
    store.squash(Timestamp(0)).await.unwrap();
    let mut resumed = store.watch(prefix("a"), Some(cursor)).await.unwrap();
    assert_eq!(next_change(&mut resumed).await.0, "a::c");
    store.squash(Timestamp(u64::MAX)).await.unwrap();
    let mut stale = store.watch(prefix("a"), Some(cursor)).await.unwrap();
    assert!(matches!(next_event(&mut stale).await, WatchEvent::Resync { .. }));
    set(&store, "a::e", "4").await;
    assert_eq!(next_change(&mut stale).await.0, "a::e");
    assert_eq!(lookup(&store, "a::c").await.as_deref(), Some("2"));
}

#[tokio::test]
async fn a_feed_whose_history_was_dropped_tells_everybody_to_resync() {
    let mut site = EtcdSite::new();
    let store = site.open().await;
    let mut watch = store.watch(prefix("a"), None).await.unwrap();
    set(&store, "a::b", "1").await;
    let (_, _, cursor) = next_change(&mut watch).await;
    // While the feed is cut others write, and etcd drops what the feed needs to go on.
    site.server.move_to_another_port();
    let other = link(&address(&site.server, "test")).await;
    for value in ["x", "y"] {
        let (_, newest) = other.put("/test/key:a::missed", value).await.unwrap();
        other.compact(newest).await.unwrap();
    }
    site.server.move_back();
    let WatchEvent::Resync { cursor: now } = next_event(&mut watch).await else {
        panic!("what was missed is in no history any more");
    };
    assert!(now.arrival > cursor.arrival);
    set(&store, "a::d", "1").await;
    assert_eq!(next_change(&mut watch).await.0, "a::d");
    // A cursor from before is as little use as that history.
    let mut stale = store.watch(prefix("a"), Some(cursor)).await.unwrap();
    assert!(matches!(next_event(&mut stale).await, WatchEvent::Resync { .. }));
    let mut resumed = store.watch(prefix("a"), Some(now)).await.unwrap();
    assert_eq!(next_change(&mut resumed).await.0, "a::d");
}

#[tokio::test]
async fn nodes_on_one_cluster_see_each_other_and_large_values_stay_where_they_are() {
    let site = EtcdSite::new();
    let (one, two) = (site.open().await, site.try_open("test", "n2").await.unwrap());
    let elsewhere = site.try_open("test/nested", "n3").await.unwrap();
    let mut watch = two.watch(Prefix::all(), None).await.unwrap();
    set(&one, "a", "1").await;
    assert_eq!(next_change(&mut watch).await.0, "a");
    assert_eq!(lookup(&two, "a").await.as_deref(), Some("1"));
    assert_eq!(one.head().await.unwrap(), two.head().await.unwrap());
    set(&one, "local::note", "mine").await;
    assert_eq!(lookup(&two, "local::note").await, None);
    one.set(key("large"), Bytes::from(vec![7; INLINE_VALUE_MAX + 1])).await.unwrap();
    let error = two.lookup(&key("large")).await.unwrap_err();
    assert!(error.to_string().contains("n1 wrote them"), "{error}");
    assert!(two.lookup_hash(&key("large")).await.unwrap().is_some());
    assert_eq!(two.keys(&Prefix::all()).await.unwrap(), [key("a"), key("large")]);
    assert_eq!(elsewhere.count().await.unwrap(), 0);
    let head = one.head().await.unwrap();
    set(&two, "b", "2").await;
    assert_ne!(one.head().await.unwrap(), head);
}

#[tokio::test]
async fn what_etcd_cannot_do_is_refused_with_a_reason() {
    let site = EtcdSite::new();
    let store = site.open().await;
    let error = store.history(&Prefix::all(), 10).await.unwrap_err();
    assert!(matches!(error, StoreError::Unsupported(_)), "{error}");
    assert!(error.to_string().contains("--store local"), "{error}");
}

#[tokio::test]
async fn what_others_wrote_under_our_keys_counts_as_absent() {
    let site = EtcdSite::new();
    let store = site.open().await;
    let other = link(&address(&site.server, "test")).await;
    let mut watch = store.watch(prefix("a"), None).await.unwrap();
    set(&store, "a::b", "1").await;
    other.put("/test/key:a::c", "not a record").await.unwrap();
    other.put("/test/key:a::::x", "not a key").await.unwrap();
    set(&store, "a::d", "2").await;
    assert_eq!(next_change(&mut watch).await.0, "a::b");
    let (name, value, _) = next_change(&mut watch).await;
    assert_eq!((name.as_str(), value), ("a::c", None));
    assert_eq!(next_change(&mut watch).await.0, "a::d");
    assert_eq!(lookup(&store, "a::c").await, None);
    let entries = store.prefix(&prefix("a")).await.unwrap();
    let names: Vec<_> = entries.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(names, ["a::b", "a::d"]);
    // The key can be overwritten and deleted like any other.
    assert_eq!(store.delete(key("a::c")).await.unwrap(), None);
    set(&store, "a::c", "3").await;
    assert_eq!(lookup(&store, "a::c").await.as_deref(), Some("3"));
}

#[tokio::test]
async fn another_layout_of_the_keys_is_not_touched() {
    let site = EtcdSite::new();
    let other = link(&address(&site.server, "new")).await;
    other.put("/new/meta:identity", "cortex-store 2 0011223344556677").await.unwrap();
    let before = revision(&other).await;
    let error = site.try_open("new", "n1").await.err().unwrap();
    assert!(error.to_string().contains("another prefix"), "{error}");
    assert_eq!(revision(&other).await, before);
}

#[tokio::test]
async fn writers_who_wait_together_share_a_transaction() {
    let site = EtcdSite::new();
    let store = site.open().await;
    let other = link(&address(&site.server, "test")).await;
    let before = revision(&other).await;
    let (sender, mut replies) = tokio::sync::mpsc::unbounded_channel();
    for n in 0..500 {
        let sender = sender.clone();
        let reply = Reply::to(move |written| drop(sender.send(written)));
        let write = Submission::set(key(&format!("k::{n}")), bytes("v"));
        store.submit(write, Urgency::Now, reply).await.unwrap();
    }
    for _ in 0..500 {
        assert!(replies.recv().await.unwrap().unwrap().is_some());
    }
    let transactions = revision(&other).await - before;
    assert!((1..500).contains(&transactions), "{transactions}");
    assert_eq!(store.count().await.unwrap(), 500);
}

#[tokio::test]
async fn only_values_with_an_end_have_a_lease_and_near_ends_share_one() {
    let site = EtcdSite::new();
    let store = site.open().await;
    let other = link(&address(&site.server, "test")).await;
    let end = Clock::start().now().after(Duration::from_secs(3600));
    for name in ["one", "two"] {
        let change = Submitted::Set { value: bytes("1"), expires: Some(end) };
        store.write(Submission { key: key(name), change, only_over: None }).await.unwrap();
    }
    let lease = async |name: &str| {
        let read = other.get(format!("/test/key:{name}").into(), GetOptions::new()).await.unwrap();
        read.kvs()[0].lease()
    };
    assert!(lease("one").await != 0 && lease("one").await == lease("two").await);
    assert!(store.expire(&key("one"), None).await.unwrap());
    assert_eq!(lease("one").await, 0);
    set(&store, "two", "2").await;
    assert_eq!(lease("two").await, 0);
}

/// Makes the parts of a store that do at once what it does every hour.
async fn keeping(site: &EtcdSite, values: &std::path::Path) -> Keeping {
    let link = link(&address(&site.server, "test")).await;
    let values = ValueFiles::open(values.into(), Duration::ZERO).unwrap();
    let hub = Hub::new(1, 1, values.clone(), "n1".parse().unwrap());
    let (space, hub) = (Keyspace::new("test"), std::sync::Arc::new(hub));
    Keeping { feed: Feed { link, space, hub, clock: Clock::start() }, values }
}

#[tokio::test]
async fn value_files_go_when_no_record_names_them() {
    let site = EtcdSite::new();
    let store: SharedStore = site.open().await;
    let large = |byte: u8| Bytes::from(vec![byte; INLINE_VALUE_MAX + 1]);
    for (name, byte) in [("kept", 1), ("replaced", 2), ("deleted", 3)] {
        store.set(key(name), large(byte)).await.unwrap();
    }
    set(&store, "replaced", "small").await;
    store.delete(key("deleted")).await.unwrap();
    let kept = store.lookup(&key("kept")).await.unwrap().unwrap();
    let store::Value::File { path, .. } = kept.value else { panic!("a file") };
    let values = path.parent().unwrap().parent().unwrap();
    let keeping = keeping(&site, values).await;
    assert_eq!(keeping.collect().await.unwrap(), 2);
    assert_eq!(keeping.collect().await.unwrap(), 0);
    assert!(path.is_file());
    drop(store);
}
