//! Tests of fdatasync and fsync as the kernel sees them: each call fails once, and every reply
//! comes after the sync that its write waits for.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use model::Prefix;

use super::child;
use super::fixture::{StoreDirectory, bytes, key, lookup, set};
use crate::StoreError;

const FAILING: &str = "tests::syncing::whichever_sync_fails_nothing_acknowledged_is_lost";
const ORDERED: &str = "tests::syncing::replies_come_after_the_sync_of_their_writes";
const WRITES: usize = 30;

fn value(n: usize) -> String {
    format!("{n}:{}", "v".repeat(3000))
}

/// Writes one value after the other, and prints the result of each write.
async fn write_and_tell(directory: &Path) {
    let say = |line: String| writeln!(std::io::stdout(), "{line}").unwrap();
    let store = match StoreDirectory::at(directory).try_open() {
        Ok(store) => store,
        Err(error) => return say(format!("unopened: {error}")),
    };
    for n in 0..WRITES {
        match store.set(key(&format!("k::{n}")), bytes(&value(n))).await {
            Ok(_) => say(format!("stored {n}")),
            Err(StoreError::Stopped(_)) => say("stopped".into()),
            Err(error) => say(format!("refused {error}")),
        }
    }
}

/// Builds the library that makes the calls fail.
fn library(directory: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/failing_sync.c");
    let library = directory.join("failing_sync.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl");
    assert!(cc.status().expect("a C compiler is installed: gcc").success());
    library
}

struct Told {
    stored: Vec<usize>,
    refused: Vec<String>,
    stopped: usize,
    unopened: bool,
}

fn run(library: &Path, place: &StoreDirectory, call: &str, at: usize) -> Told {
    let shell = format!(
        "export LD_PRELOAD={} FAILING_SYNC={call} FAILING_SYNC_AT={at};",
        library.display()
    );
    let mut child = child::start(FAILING, place.path(), &shell);
    let mut told = Told { stored: Vec::new(), refused: Vec::new(), stopped: 0, unopened: false };
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some((_, n)) = line.split_once("stored ") {
            told.stored.push(n.parse().unwrap());
        }
        told.refused.extend(line.split_once("refused ").map(|(_, why)| why.to_string()));
        told.stopped += usize::from(line.ends_with("stopped"));
        told.unopened |= line.contains("unopened: ");
    }
    assert!(child.wait().unwrap().success(), "{call} {at}");
    told
}

async fn check(place: &StoreDirectory, told: &Told, what: &str) {
    let store = place.open();
    for n in &told.stored {
        let found = lookup(&store, &format!("k::{n}")).await;
        assert_eq!(found, Some(value(*n)), "{what}: write {n}");
    }
    set(&store, "after", "it").await;
    store.close().await.unwrap();
    let store = place.open();
    // The write whose sync failed may be there: its writer was told that this is unknown.
    let kept = store.keys(&Prefix::all()).await.unwrap().len();
    assert!(kept > told.stored.len() && kept <= told.stored.len() + 2, "{what}: {kept}");
    store.close().await.unwrap();
}

#[tokio::test]
async fn whichever_sync_fails_nothing_acknowledged_is_lost() {
    if let Some(directory) = child::directory() {
        return write_and_tell(&directory).await;
    }
    let scratch = tempfile::tempdir().unwrap();
    let library = library(scratch.path());
    for at in 1..=WRITES {
        let (place, what) = (StoreDirectory::new(), format!("fdatasync {at}"));
        let told = run(&library, &place, "fdatasync", at);
        // There is one fdatasync per write: that write is refused, and the store stops.
        assert_eq!(told.stored, (0..at - 1).collect::<Vec<_>>(), "{what}");
        assert!(told.refused.is_empty() || told.refused.len() == 1, "{what}: {:?}", told.refused);
        assert_eq!(told.stopped + told.refused.len(), WRITES - told.stored.len(), "{what}");
        check(&place, &told, &what).await;
    }
    // These make the directory and its files: some are tried again, some stop the store, some keep
    // it from opening.
    let (mut stopped, mut unopened, mut whole) = (0, 0, 0);
    for at in 1.. {
        let (place, what) = (StoreDirectory::new(), format!("fsync {at}"));
        let told = run(&library, &place, "fsync", at);
        unopened += usize::from(told.unopened);
        stopped += usize::from(told.stopped > 0);
        check(&place, &told, &what).await;
        if told.stored.len() == WRITES {
            whole += 1;
        }
        // Past the last call, nothing fails any more.
        if whole > 5 {
            break;
        }
    }
    assert!(unopened > 0 && stopped > 0, "{unopened} {stopped}");
}

/// Returns a line of strace's without the thread.
fn call(line: &str) -> &str {
    line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start()
}

/// Returns the name, such as `w1::7`, that follows `before` in a call's bytes.
fn named(call: &str, before: &str) -> Option<String> {
    let (_, rest) = call.split_once(before)?;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != ':')?;
    Some(rest[..end].to_string())
}

#[tokio::test]
async fn replies_come_after_the_sync_of_their_writes() {
    const WRITERS: usize = 4;
    const EACH: usize = 15;
    if let Some(directory) = child::directory() {
        let store = StoreDirectory::at(&directory).open();
        let writers = (0..WRITERS).map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                for n in 0..EACH {
                    set(&store, &format!("order::w{writer}::{n}"), "=").await;
                    let line = format!("replied order::w{writer}::{n}\n");
                    std::io::stdout().write_all(line.as_bytes()).unwrap();
                }
            })
        });
        futures_util::future::join_all(writers).await;
        return store.close().await.unwrap();
    }
    let place = StoreDirectory::new();
    let trace = place.path().join("trace");
    let strace = format!(
        "strace -f -qq -y -s 100000 -e signal=none -e trace=pwrite64,fdatasync,write -o {} \
         \"$0\" --exact \"$1\" --nocapture; exit $?;",
        trace.display()
    );
    let child = child::start(ORDERED, place.path(), &strace);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "strace is installed, and may trace: {output:?}");
    let trace = std::fs::read_to_string(trace).unwrap();
    // The number of syncs begun when a key was written.
    let mut written: BTreeMap<String, usize> = BTreeMap::new();
    let (mut begun, mut ended, mut replies) = (0, 0, 0);
    for line in trace.lines().map(call) {
        if line.starts_with("pwrite64(") && line.contains("/log-") {
            let mut rest = line;
            while let Some(name) = named(rest, "order::") {
                written.entry(name).or_insert(begun);
                rest = rest.split_once("order::").expect("just found").1;
            }
        } else if line.starts_with("fdatasync(") && line.contains("/log-") {
            begun += 1;
            ended += usize::from(line.ends_with("= 0"));
        } else if line.starts_with("<... fdatasync resumed>") && line.ends_with("= 0") {
            ended += 1;
        } else if line.starts_with("write(")
            && let Some(name) = named(line, "replied order::")
        {
            let before = written.get(&name).expect("it was written before the reply");
            // One thread writes and syncs, so the next sync to begin covers the write.
            assert!(ended > *before, "{name}: {before} syncs before, {ended} ended: {line}");
            replies += 1;
        }
    }
    assert_eq!(replies, WRITERS * EACH, "{trace}");
    assert!(ended == begun && begun < replies + 10, "{begun} syncs, {ended} ended");
}
