//! Tests in which the power goes at every step that the store asks of its disk. The disk is
//! turmoil's: whatever was not synced is gone, names of files too, and a write that was under way
//! is there up to some sector. Everything that was acknowledged has to be there afterwards.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use model::{Prefix, Timestamp};
use turmoil::Sim;
use turmoil::fs::FsHandle;
use turmoil::fs::shim::std::fs;

use super::fixture::{StoreDirectory, bytes, key, lookup};
use crate::disk::{Disk, DiskFile};
use crate::{SharedStore, StoreError};

/// The size in bytes of what a disk writes whole.
const SECTOR_BYTES: u64 = 512;
const HOST: &str = "node";
const SEGMENT: u32 = 16 << 10;
/// The number of writes: enough for several segments, snapshots and the removal of old segments.
const WRITES: usize = 48;

/// A mistake that this test has to notice.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    NamesAreNotSynced,
    ContentIsNotSynced,
}

struct Power {
    fs: FsHandle,
    /// The number of steps until the power goes.
    left: AtomicI64,
}

impl Power {
    /// Performs one step on turmoil's file system, on any thread.
    fn step<T>(&self, perform: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            return Err(io::Error::other("the power is gone"));
        }
        let _inside = self.fs.enter();
        perform()
    }
}

/// A file that keeps its name up to date through a rename, since turmoil's files go by their names.
struct NamedFile {
    power: Arc<Power>,
    path: Mutex<PathBuf>,
    mistake: Mistake,
}

impl NamedFile {
    fn with<T>(&self, perform: impl FnOnce(fs::File) -> io::Result<T>) -> io::Result<T> {
        let path = self.path.lock().unwrap().clone();
        self.power.step(|| perform(fs::OpenOptions::new().read(true).write(true).open(path)?))
    }
}

impl DiskFile for NamedFile {
    fn length(&self) -> io::Result<u64> {
        self.with(|file| Ok(file.metadata()?.len()))
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.with(|file| file.read_exact_at(bytes, offset))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.with(|file| file.write_all_at(bytes, offset))
    }

    fn sync_content(&self) -> io::Result<()> {
        if self.mistake == Mistake::ContentIsNotSynced {
            return Ok(());
        }
        self.with(|file| file.sync_data())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.with(|file| file.sync_all())
    }
}

struct TurmoilDisk {
    power: Arc<Power>,
    files: Mutex<BTreeMap<PathBuf, Arc<NamedFile>>>,
    mistake: Mistake,
}

impl TurmoilDisk {
    fn named(&self, path: &Path) -> Arc<NamedFile> {
        let (power, path_now) = (self.power.clone(), Mutex::new(path.into()));
        let named = Arc::new(NamedFile { power, path: path_now, mistake: self.mistake });
        self.files.lock().unwrap().insert(path.into(), named.clone());
        named
    }
}

impl Disk for TurmoilDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.power.step(|| fs::File::create(path))?;
        Ok(self.named(path))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.power.step(|| fs::File::open(path))?;
        Ok(self.named(path))
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<String>> {
        let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        self.power.step(|| fs::read_dir(dir)?.map(|entry| Ok(name(entry?))).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.power.step(|| fs::rename(from, to))?;
        let mut files = self.files.lock().unwrap();
        if let Some(file) = files.remove(from) {
            *file.path.lock().unwrap() = to.into();
            files.insert(to.into(), file);
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.power.step(|| fs::remove_file(path))
    }

    fn sync_names(&self, dir: &Path) -> io::Result<()> {
        if self.mistake == Mistake::NamesAreNotSynced {
            return Ok(());
        }
        self.power.step(|| fs::sync_dir(dir))
    }
}

/// A place whose log is on a disk of turmoil's.
struct Cut<'a> {
    place: StoreDirectory,
    power: Arc<Power>,
    sim: Sim<'a>,
    runtime: tokio::runtime::Runtime,
}

impl Cut<'_> {
    fn new(seed: u64, steps: i64, mistake: Mistake) -> Cut<'static> {
        let mut builder = turmoil::Builder::new();
        builder.rng_seed(seed).fs().block_size(SECTOR_BYTES);
        let mut sim = builder.build();
        let (found, handles) = std::sync::mpsc::channel();
        sim.host(HOST, move || {
            let found = found.clone();
            async move {
                found.send(FsHandle::current())?;
                std::future::pending().await
            }
        });
        sim.step().unwrap();
        let fs = handles.recv().unwrap();
        let power = Arc::new(Power { fs, left: AtomicI64::new(steps) });
        let mut place = StoreDirectory::new();
        let dir = place.layout().store();
        {
            let _inside = power.fs.enter();
            fs::create_dir_all(&dir).unwrap();
            dir.ancestors().for_each(|dir| fs::sync_dir(dir).unwrap());
        }
        let files = Mutex::default();
        let disk = TurmoilDisk { power: power.clone(), files, mistake };
        place.options.disk = Arc::new(disk);
        place.options.segment_bytes_first = SEGMENT;
        place.options.segment_bytes_max = SEGMENT;
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Cut { place, power, sim, runtime }
    }

    /// Forgets everything that was not synced, and gives the disk power again.
    fn restart(&mut self) {
        self.sim.crash(HOST);
        self.power.left.store(i64::MAX, Ordering::SeqCst);
    }
}

fn value(n: usize) -> String {
    format!("{n}:{}", "v".repeat(n * 331 % 3000))
}

fn name(n: usize) -> String {
    format!("k::{}", n % 7)
}

/// Writes until the power goes or everything is written; returns how many writes were acknowledged.
async fn write(store: &SharedStore) -> usize {
    for n in 0..WRITES {
        match store.set(key(&name(n)), bytes(&value(n))).await {
            Ok(_) => {}
            // No new segment could be made, or the log could not be written.
            Err(StoreError::Io { .. } | StoreError::Stopped(_)) => return n,
            Err(other) => panic!("{other}"),
        }
        if n % 10 == 9 {
            let _ = store.squash(Timestamp(u64::MAX)).await;
        }
    }
    let _ = store.close().await;
    WRITES
}

/// Cuts the power after this many steps. Returns whether it went at all, or an error if something
/// that was acknowledged before is missing.
fn cut_after(seed: u64, steps: i64, mistake: Mistake) -> Result<bool, String> {
    let mut cut = Cut::new(seed + steps as u64, steps, mistake);
    let acknowledged = match cut.place.try_open() {
        Ok(store) => cut.runtime.block_on(write(&store)),
        Err(_) => 0,
    };
    cut.place.wait_until_unlocked();
    let went = cut.power.left.load(Ordering::SeqCst) <= 0;
    cut.restart();
    for round in ["first", "second"] {
        let store = cut.place.try_open().map_err(|error| format!("{round} opening: {error}"))?;
        let found = cut.runtime.block_on(async {
            for n in acknowledged.saturating_sub(7)..acknowledged {
                // One more write may be durable without its writer having been told.
                let newer = (n % 7 == acknowledged % 7).then(|| value(acknowledged));
                let found = lookup(&store, &name(n)).await;
                if found.is_none() || found != Some(value(n)) && found != newer {
                    return Err(format!("write {n} of {acknowledged} is lost: {found:?}"));
                }
            }
            store.history(&Prefix::all(), WRITES).await.map_err(|error| error.to_string())?;
            store.set(key("after"), bytes(round)).await.map_err(|error| error.to_string())?;
            Ok(())
        });
        drop(store);
        cut.place.wait_until_unlocked();
        found.map_err(|what| format!("{round} opening: {what}"))?;
        // This time nothing is under way.
        cut.restart();
    }
    Ok(went)
}

#[test]
fn the_power_may_go_at_any_step() {
    let seeds = if std::env::var_os("CORTEX_LONG_PROOFS").is_some() { 40 } else { 1 };
    for seed in (0..seeds).map(|n| n * 100_000) {
        let mut steps = 0;
        while cut_after(seed, steps, Mistake::None)
            .unwrap_or_else(|what| panic!("seed {seed}, the power went after {steps}: {what}"))
        {
            steps += 1;
        }
        println!("the power went at each of {steps} steps");
        // Each write is written, synced and marked; then there are segments, snapshots and their
        // names.
        assert!(steps > 3 * WRITES as i64, "{steps}");
    }
}

#[test]
fn a_missing_sync_is_noticed() {
    for mistake in [Mistake::NamesAreNotSynced, Mistake::ContentIsNotSynced] {
        let lost = (0..200).step_by(10).find_map(|steps| cut_after(0, steps, mistake).err());
        let lost = lost.unwrap_or_else(|| panic!("{mistake:?} was to be noticed"));
        println!("{mistake:?}: {lost}");
    }
}
