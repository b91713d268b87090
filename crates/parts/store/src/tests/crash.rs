//! A test that a process killed while it writes keeps everything that it said was stored.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use bytes::Bytes;
use model::{Prefix, Timestamp};

use super::child;
use super::fixture::{StoreDirectory, key};
use crate::{INLINE_VALUE_MAX, SharedStore, Value};

const TEST: &str = "tests::crash::killed_at_any_moment_nothing_acknowledged_is_lost";
/// The number of kills by default, some hundred milliseconds each. The long proof kills five times
/// as often, and later.
const ROUNDS: u64 = 200;
const WRITES_MAX: u64 = 150;
const WRITERS: u64 = 6;

/// Returns a value; every now and then it is longer than a small one may be.
fn value(number: u64) -> Bytes {
    let length = if number.is_multiple_of(23) {
        INLINE_VALUE_MAX + 10
    } else {
        (number * 37 % 700) as usize
    };
    let mut text = format!("{number}:");
    text.extend(std::iter::repeat_n('x', length));
    text.into()
}

/// Writes until it is killed, and says what is stored. There are few keys, so that old values pile
/// up, history is squashed, and segments are cleaned and removed.
async fn write_for_ever(store: SharedStore, from: u64) {
    let writers = (0..WRITERS).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            for number in from.. {
                let name = format!("w{writer}::{}", number % 40);
                store.set(key(&name), value(number)).await.unwrap();
                writeln!(std::io::stdout(), "stored {name} {number}").unwrap();
                if number % 50 == 0 {
                    store.squash(Timestamp(u64::MAX)).await.unwrap();
                }
            }
        })
    });
    futures_util::future::join_all(writers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_any_moment_nothing_acknowledged_is_lost() {
    if let Some(directory) = child::directory() {
        let place = StoreDirectory::at(&directory);
        let from = std::fs::read_to_string(directory.join("from")).unwrap();
        return write_for_ever(place.open(), from.parse().unwrap()).await;
    }
    let place = StoreDirectory::new();
    let mut stored: BTreeMap<String, u64> = BTreeMap::new();
    let mut from = 0;
    let long = if std::env::var_os("CORTEX_LONG_PROOFS").is_some() { 5 } else { 1 };
    for round in 0..ROUNDS * long {
        std::fs::write(place.path().join("from"), from.to_string()).unwrap();
        let wanted = 1 + round * 53 % (WRITES_MAX * long);
        from = run_and_kill(place.path(), wanted, &mut stored).max(from) + 1;
        let store = place.open();
        for (name, number) in &stored {
            let entry = store.lookup(&key(name)).await.unwrap();
            let entry = entry.unwrap_or_else(|| panic!("round {round}: {name} is lost"));
            let found = match entry.value {
                Value::Inline(bytes) => bytes,
                large => large.read(1 << 20).unwrap(),
            };
            let text = std::str::from_utf8(&found).unwrap();
            let read: u64 = text.split(':').next().unwrap().parse().unwrap();
            assert!(read >= *number, "round {round}: {name} is {read}, {number} was stored");
            assert_eq!(found, value(read), "round {round}: {name}");
        }
        assert!(store.keys(&Prefix::all()).await.unwrap().len() >= stored.len());
        store.close().await.unwrap();
    }
    assert!(stored.len() as u64 > WRITERS * 30, "{}", stored.len());
}

/// Runs the child, kills it after `wanted` writes and returns the highest number that was stored.
fn run_and_kill(directory: &Path, wanted: u64, stored: &mut BTreeMap<String, u64>) -> u64 {
    let mut child = child::start(TEST, directory, "");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (mut count, mut highest) = (0, 0);
    // After the kill, what the child said before is still in the pipe.
    while let Some(Ok(line)) = lines.next() {
        // The test harness may have begun the first line.
        if let Some((_, said)) = line.split_once("stored ")
            && let Some((name, number)) = said.split_once(' ')
            && let Ok(number) = number.parse()
        {
            stored.insert(name.into(), number);
            highest = highest.max(number);
            count += 1;
            if count == wanted {
                child.kill().unwrap();
            }
        }
    }
    child.wait().unwrap();
    assert!(count >= wanted, "the child ended by itself after {count} writes");
    highest
}
