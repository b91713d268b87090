//! A store in a directory of its own, for tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use model::{Key, Prefix};
use tempfile::TempDir;

use crate::disk;
use crate::open::open_alone;
use crate::options::{OpenError, Options};
use crate::{Entry, SharedStore, Value, Watch, WatchEvent};
use os::layout::DataDirectory;
use os::lockfile::FileLock;
use runtime::driver::Clock;

/// The smallest segment size that still holds some hundred records, in bytes.
pub const SEGMENT_SMALL: u32 = 64 << 10;

pub struct StoreDirectory {
    path: PathBuf,
    pub options: Options,
    /// The directory to remove; `None` if somebody else removes it.
    _own: Option<TempDir>,
}

impl StoreDirectory {
    pub fn new() -> StoreDirectory {
        let dir = TempDir::new().unwrap();
        let place = StoreDirectory::at(dir.path());
        StoreDirectory { _own: Some(dir), ..place }
    }

    pub fn at(path: &Path) -> StoreDirectory {
        let small = Options {
            segment_bytes_first: SEGMENT_SMALL,
            segment_bytes_max: SEGMENT_SMALL,
            ..Options::default()
        };
        StoreDirectory { path: path.into(), options: small, _own: None }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn layout(&self) -> DataDirectory {
        DataDirectory::new(self.path.join("data"), &self.path)
    }

    pub fn try_open(&self) -> Result<SharedStore, OpenError> {
        open_alone(&self.layout(), "n1".parse().unwrap(), Clock::start(), self.options.clone())
    }

    pub fn open(&self) -> SharedStore {
        self.try_open().unwrap()
    }

    /// Waits until the committer of a dropped store has ended by itself and freed the directory.
    pub fn wait_until_unlocked(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let path = self.layout().store().join("lock");
        loop {
            let file = disk::create(&path).unwrap();
            if FileLock::acquire(file).unwrap().is_some() {
                return;
            }
            assert!(Instant::now() < deadline, "the store was to end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn log(&self, number: u32) -> PathBuf {
        super::super::segment::log_path(&self.layout().store(), number)
    }

    /// Returns the names of the store's files, sorted.
    pub fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.layout().store()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub fn failing(
        mut self,
        fault: impl Fn(&str) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> StoreDirectory {
        self.options.fault = Arc::new(fault);
        self
    }
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

pub async fn next_event(watch: &mut Watch) -> WatchEvent {
    tokio::time::timeout(Duration::from_secs(60), watch.next())
        .await
        .expect("an event in time")
        .expect("the store runs")
}
