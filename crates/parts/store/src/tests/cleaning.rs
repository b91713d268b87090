//! Tests that nothing grows without bound: old segments, old snapshots and unused value files are
//! removed.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use model::{Prefix, Timestamp};

use super::child;
use super::fixture::{SEGMENT_SMALL, StoreDirectory, key, lookup, set};
use crate::Value;

const STREAMED: &str = "tests::cleaning::fifty_megabytes_are_streamed_in_little_memory";

fn size_of(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.filter_map(|entry| entry.unwrap().metadata().ok()).map(|meta| meta.len()).sum()
}

#[tokio::test]
async fn a_store_that_is_overwritten_again_and_again_stays_small() {
    const LIVE: usize = 40;
    let place = StoreDirectory::new();
    let store = place.open();
    // Values that never change, spread over the first segments: these have to be moved.
    for n in 0..LIVE {
        set(&store, &format!("fixed::{n}"), &format!("{n}:{}", "f".repeat(1000))).await;
        set(&store, "noise", &"n".repeat(3000)).await;
    }
    let (mut highest, mut round) = (0, 0);
    let first = place.layout().store().join("log-00000001");
    let deadline = Instant::now() + Duration::from_secs(60);
    // The cleaner works beside the writers and takes the emptiest segment first: the first one is
    // due sooner or later, as long as there are writes.
    while round < 2000 || round % 10 != 0 || first.exists() {
        assert!(Instant::now() < deadline, "{} was to be removed", first.display());
        let value = format!("{round}:{}", "x".repeat(1000));
        set(&store, &format!("hot::{}", round % 10), &value).await;
        if round % 20 == 0 {
            store.squash(Timestamp(u64::MAX)).await.unwrap();
        }
        highest = highest.max(size_of(&place.layout().store()));
        round += 1;
    }
    // 2 MB were written; some 50 KB are alive.
    assert!(highest < 14 * u64::from(SEGMENT_SMALL), "{highest}");
    assert!(store.history(&Prefix::all(), 10_000).await.unwrap().len() < LIVE + 60);
    let head = store.head().await.unwrap();
    store.close().await.unwrap();
    let store = place.open();
    assert_eq!(store.head().await.unwrap(), head);
    for n in 0..LIVE {
        let value = lookup(&store, &format!("fixed::{n}")).await.unwrap();
        assert!(value.starts_with(&format!("{n}:f")), "{value}");
    }
    for n in 0..10 {
        let value = lookup(&store, &format!("hot::{n}")).await.unwrap();
        assert!(value.starts_with(&format!("{}:x", round - 10 + n)), "{value}");
    }
    store.close().await.unwrap();
    let logs = place.files().iter().filter(|name| name.starts_with("log-")).count();
    assert!(logs <= 8, "{:?}", place.files());
}

#[tokio::test]
async fn value_files_go_when_no_commit_needs_them_and_they_are_old() {
    let mut place = StoreDirectory::new();
    let store = place.open();
    let large = |byte: u8| Bytes::from(vec![byte; 10_000]);
    let path = async |name: &str| match store.lookup(&key(name)).await.unwrap().unwrap().value {
        Value::File { path, .. } => path,
        _ => panic!("{name} is large and here"),
    };
    store.set(key("kept"), large(1)).await.unwrap();
    store.set(key("deleted"), large(2)).await.unwrap();
    store.set(key("shared"), large(3)).await.unwrap();
    store.set(key("shared-too"), large(3)).await.unwrap();
    let (kept, deleted, shared) = (path("kept").await, path("deleted").await, path("shared").await);
    let mut writer = store.writer().await.unwrap();
    writer.write(&large(4)).unwrap();
    let unused = writer.finish().unwrap().path;
    let mut abandoned = store.writer().await.unwrap();
    abandoned.write(&large(5)).unwrap();
    let incoming = abandoned.path.clone();
    drop(abandoned);
    assert!(!incoming.exists());
    store.delete(key("deleted")).await.unwrap();
    store.delete(key("shared")).await.unwrap();
    store.close().await.unwrap();
    // All are young: none is removed.
    place.open().close().await.unwrap();
    assert!(kept.exists() && deleted.exists() && shared.exists() && unused.exists());
    place.options.value_age_min = Duration::ZERO;
    // History still refers to the deleted one; only the file that no commit ever named is removed.
    let store = place.open();
    wait_until_gone(&unused).await;
    assert!(kept.exists() && deleted.exists() && shared.exists());
    store.squash(Timestamp(u64::MAX)).await.unwrap();
    store.close().await.unwrap();
    let store = place.open();
    wait_until_gone(&deleted).await;
    store.close().await.unwrap();
    assert!(kept.exists() && shared.exists());
}

async fn wait_until_gone(path: &Path) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while path.exists() {
        assert!(Instant::now() < deadline, "{} was to be removed", path.display());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the highest resident memory of this process so far, in KiB.
fn memory_peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn fifty_megabytes_are_streamed_in_little_memory() {
    const CHUNK: usize = 64 << 10;
    const CHUNKS: usize = 800;
    let Some(directory) = child::directory() else {
        let place = StoreDirectory::new();
        // It runs in a process of its own, since the peak is the whole process's.
        let mut child = child::start(STREAMED, place.path(), "");
        assert!(child.wait().unwrap().success());
        let store = place.open();
        let entry = store.lookup(&key("large")).await.unwrap().expect("the child stored it");
        let Value::File { size, path, hash } = entry.value else { panic!("a file") };
        assert_eq!(size, (CHUNK * CHUNKS) as u64);
        let mut hasher = blake3::Hasher::new();
        std::io::copy(&mut std::fs::File::open(path).unwrap(), &mut hasher).unwrap();
        assert_eq!(hasher.finalize().as_bytes(), &hash.0);
        return;
    };
    let store = StoreDirectory::at(&directory).open();
    let before = memory_peak_kib();
    let mut writer = store.writer().await.unwrap();
    for n in 0..CHUNKS {
        writer.write(&[n as u8; CHUNK]).unwrap();
    }
    store.set_file(key("large"), writer.finish().unwrap()).await.unwrap();
    let grown = memory_peak_kib() - before;
    assert!(grown < 8 << 10, "{grown} KiB");
    store.close().await.unwrap();
}
