//! Tests of which thread commits a write, and of what happens when that thread does not finish.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use super::fixture::{StoreDirectory, bytes, key, lookup};
use crate::disk::{Disk, DiskFile, OwnDisk};
use crate::reply::Reply;
use crate::{SharedStore, StoreError, Submission, Written};

const DEADLINE: Duration = Duration::from_secs(60);

/// A disk that takes as long as it is told to, and syncs nothing.
#[derive(Clone, Default)]
struct PacedDisk {
    takes_ms: Arc<AtomicU64>,
}

struct PacedFile(Arc<dyn DiskFile>, Arc<AtomicU64>);

impl PacedDisk {
    fn paced(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(PacedFile(file, self.takes_ms.clone()))
    }
}

impl Disk for PacedDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        OwnDisk.create(path).map(|file| self.paced(file))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        OwnDisk.open(path).map(|file| self.paced(file))
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<String>> {
        OwnDisk.names(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        OwnDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        OwnDisk.remove(path)
    }

    fn sync_names(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }
}

impl DiskFile for PacedFile {
    fn length(&self) -> io::Result<u64> {
        self.0.length()
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(bytes, offset)
    }

    fn sync_content(&self) -> io::Result<()> {
        std::thread::sleep(Duration::from_millis(self.1.load(Ordering::SeqCst)));
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }
}

fn place_on(disk: &PacedDisk) -> StoreDirectory {
    let mut place = StoreDirectory::new();
    place.options.disk = Arc::new(disk.clone());
    place.options.few_cores = true;
    place
}

/// Writes, and returns the thread that replied and its result.
fn write(store: &SharedStore, n: u64) -> (ThreadId, Written) {
    let (told, hear) = mpsc::channel();
    let reply = Reply::to(move |written| {
        told.send((std::thread::current().id(), written)).ok();
    });
    let set = Submission::set(key(&format!("s::{}", n % 7)), bytes(&n.to_string()));
    assert!(store.submit_at_once(set, reply).is_none(), "there is room");
    store.hurry();
    hear.recv_timeout(DEADLINE).unwrap()
}

/// Writes until a write is committed on this thread, or on another one; returns the number after
/// it.
fn write_until(store: &SharedStore, here: bool, mut n: u64) -> u64 {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let (thread, written) = write(store, n);
        written.unwrap();
        n += 1;
        if (thread == std::thread::current().id()) == here {
            return n;
        }
        assert!(Instant::now() < deadline, "still not committed where it should be");
    }
}

async fn assert_holds(store: &SharedStore, n: u64) {
    assert_eq!(lookup(store, &format!("s::{}", n % 7)).await, Some(n.to_string()));
}

#[tokio::test]
async fn a_quick_disk_is_waited_for_here_and_a_slow_one_elsewhere() {
    let disk = PacedDisk::default();
    let place = place_on(&disk);
    let store = place.open();
    let n = write_until(&store, true, 0);
    disk.takes_ms.store(20, Ordering::SeqCst);
    let n = write_until(&store, false, n);
    disk.takes_ms.store(0, Ordering::SeqCst);
    let n = write_until(&store, true, n);
    store.close().await.unwrap();
    drop(store);
    assert_holds(&place.open(), n - 1).await;
}

#[tokio::test]
async fn many_cores_leave_every_disk_to_the_committer() {
    let mut place = place_on(&PacedDisk::default());
    place.options.few_cores = false;
    let store = place.open();
    for n in 0..200 {
        let (thread, written) = write(&store, n);
        written.unwrap();
        assert_ne!(thread, std::thread::current().id());
    }
}

#[tokio::test]
async fn a_panic_in_the_middle_of_a_commit_stops_the_store() {
    let mut place = place_on(&PacedDisk::default());
    let panics = Arc::new(AtomicBool::new(false));
    let armed = panics.clone();
    place.options.fault = Arc::new(move |_| {
        assert!(!armed.load(Ordering::SeqCst), "a mistake in the code");
        Ok(())
    });
    let store = place.open();
    let n = write_until(&store, true, 0);
    let mut watch = store.watch(model::Prefix::all(), None).await.unwrap();
    panics.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| write(&store, n))).is_err());
    while watch.next().await.is_some() {}
    let refused = store.set(key("s::late"), bytes("1")).await;
    assert!(matches!(refused, Err(StoreError::Stopped(_))), "{refused:?}");
    drop(store);
    place.wait_until_unlocked();
    panics.store(false, Ordering::SeqCst);
    assert_holds(&place.open(), n - 1).await;
}
