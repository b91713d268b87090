//! Tests with disks that are full, fail or stall.

use std::io::{self, BufRead, BufReader, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use model::Prefix;

use super::child;
use super::fixture::{StoreDirectory, bytes, key, lookup, set};
use crate::StoreError;

const LIMITED: &str = "tests::full::a_real_limit_refuses_writes_and_loses_none";

#[tokio::test]
async fn a_full_disk_refuses_writes_until_there_is_room() {
    let full = Arc::new(AtomicBool::new(false));
    let asked = full.clone();
    let place = StoreDirectory::new().failing(move |point| {
        let extends = point == "store.extend" && asked.load(Ordering::SeqCst);
        if extends { Err(io::Error::from(io::ErrorKind::StorageFull)) } else { Ok(()) }
    });
    let store = place.open();
    full.store(true, Ordering::SeqCst);
    let mut stored = 0;
    let error = loop {
        match store.set(key(&format!("k::{stored}")), "v".repeat(1000).into()).await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 1000, "the first segment was to be full");
    };
    let StoreError::Io { what, source } = &error else { panic!("{error}") };
    assert_eq!(source.kind(), io::ErrorKind::StorageFull);
    assert!(what.contains("free space") && what.contains("nothing was written"), "{what}");
    assert_eq!(store.keys(&Prefix::all()).await.unwrap().len(), stored);
    assert!(store.set(key("again"), "v".repeat(4000).into()).await.is_err());
    full.store(false, Ordering::SeqCst);
    set(&store, "room", "again").await;
    store.close().await.unwrap();
    let store = place.open();
    assert_eq!(store.keys(&Prefix::all()).await.unwrap().len(), stored + 1);
    assert_eq!(lookup(&store, "room").await.as_deref(), Some("again"));
}

#[tokio::test]
async fn a_real_limit_refuses_writes_and_loses_none() {
    if let Some(directory) = child::directory() {
        let mut place = StoreDirectory::at(&directory);
        place.options.segment_bytes_max = 1 << 20;
        let store = place.open();
        for n in 0.. {
            match store.set(key(&format!("k::{n}")), "v".repeat(1000).into()).await {
                Ok(_) => writeln!(io::stdout(), "stored {n}").unwrap(),
                Err(error) => {
                    writeln!(io::stdout(), "refused {error}").unwrap();
                    break;
                }
            }
        }
        return store.close().await.unwrap();
    }
    let place = StoreDirectory::new();
    // A file may grow to 100 KiB; the signal at the limit is ignored, so that the write fails.
    let mut child = child::start(LIMITED, place.path(), "trap '' XFSZ; ulimit -f 200;");
    let (mut stored, mut refused) = (0, None);
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        stored += usize::from(line.contains("stored "));
        refused = refused.or(line.split_once("refused ").map(|(_, why)| why.to_string()));
    }
    assert!(child.wait().unwrap().success());
    let refused = refused.expect("the limit was reached");
    assert!(refused.contains("nothing was written") && refused.contains("free space"), "{refused}");
    assert!(stored > 10);
    let store = place.open();
    assert_eq!(store.keys(&Prefix::all()).await.unwrap().len(), stored);
    set(&store, "more", "room").await;
}

#[tokio::test]
async fn a_failed_fdatasync_stops_the_store_for_good() {
    let fails = Arc::new(AtomicBool::new(false));
    let asked = fails.clone();
    let place = StoreDirectory::new().failing(move |point| {
        let fails = point == "store.sync" && asked.load(Ordering::SeqCst);
        if fails { Err(io::Error::other("the disk is gone")) } else { Ok(()) }
    });
    let store = place.open();
    set(&store, "before", "1").await;
    let mut watch = store.watch(Prefix::all(), None).await.unwrap();
    fails.store(true, Ordering::SeqCst);
    let error = store.set(key("lost"), bytes("2")).await.unwrap_err();
    assert!(error.to_string().contains("the disk is gone"), "{error}");
    fails.store(false, Ordering::SeqCst);
    let error = store.set(key("after"), bytes("3")).await.unwrap_err();
    assert!(matches!(error, StoreError::Stopped(_)), "{error}");
    assert!(error.to_string().contains("restart the node"), "{error}");
    assert!(watch.next().await.is_none());
    assert_eq!(lookup(&store, "before").await.as_deref(), Some("1"));
    assert_eq!(lookup(&store, "lost").await, None);
    assert!(store.close().await.is_err());
    let store = place.open();
    assert_eq!(lookup(&store, "before").await.as_deref(), Some("1"));
    assert_eq!(lookup(&store, "after").await, None);
}

#[tokio::test]
async fn reads_go_on_while_the_disk_stalls() {
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let asked = gate.clone();
    let place = StoreDirectory::new().failing(move |point| {
        let (stalled, changed) = &*asked;
        let mut stalled = stalled.lock().unwrap();
        while *stalled && point == "store.sync" {
            stalled = changed.wait(stalled).unwrap();
        }
        Ok(())
    });
    let store = place.open();
    set(&store, "a", "1").await;
    *gate.0.lock().unwrap() = true;
    let writer = store.clone();
    let write = tokio::spawn(async move { writer.set(key("a"), bytes("2")).await });
    // The board needs no disk, and nothing that still waits for the disk is visible.
    set(&store, "local::a", "note").await;
    assert_eq!(lookup(&store, "local::a").await.as_deref(), Some("note"));
    assert_eq!(lookup(&store, "a").await.as_deref(), Some("1"));
    assert_eq!(store.prefix(&Prefix::all()).await.unwrap().len(), 2);
    assert!(!write.is_finished());
    *gate.0.lock().unwrap() = false;
    gate.1.notify_all();
    write.await.unwrap().unwrap();
    assert_eq!(lookup(&store, "a").await.as_deref(), Some("2"));
}
