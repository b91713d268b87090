//! The disk, as the log and the snapshots use it, and its implementation with the machine's own.
//! Knows nothing of what is written. Tests replace it with a disk that forgets what was not synced.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

pub trait DiskFile: Send + Sync {
    fn length(&self) -> io::Result<u64>;
    /// Fills all of `bytes`, or fails.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes written bytes durable in a file that keeps its length: fdatasync.
    fn sync_content(&self) -> io::Result<()>;
    /// Makes the bytes and the length durable: fsync.
    fn sync_all(&self) -> io::Result<()>;
}

pub trait Disk: Send + Sync {
    /// Creates an empty file that only its owner may access.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    fn names(&self, dir: &Path) -> io::Result<Vec<String>>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_names(&self, dir: &Path) -> io::Result<()>;
}

/// The file system of this machine.
pub struct OwnDisk;

impl Disk for OwnDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(create(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(OpenOptions::new().read(true).write(true).open(path)?))
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<String>> {
        std::fs::read_dir(dir)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_names(&self, dir: &Path) -> io::Result<()> {
        sync_dir(dir)
    }
}

impl DiskFile for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync_content(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        File::sync_all(self)
    }
}

pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Creates an empty file that only its owner may read.
pub fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)
}
