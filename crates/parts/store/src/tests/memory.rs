//! A disk in memory whose bytes a test can change, for tests that open a log many thousand times.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::disk::{Disk, DiskFile};

#[derive(Default)]
pub struct MemoryDisk {
    files: Mutex<BTreeMap<PathBuf, Arc<MemoryFile>>>,
}

#[derive(Default)]
pub struct MemoryFile(Mutex<Vec<u8>>);

impl MemoryFile {
    pub fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap()
    }
}

impl MemoryDisk {
    pub fn file(&self, path: &Path) -> Option<Arc<MemoryFile>> {
        self.files.lock().unwrap().get(path).cloned()
    }

    fn found(&self, path: &Path) -> io::Result<Arc<MemoryFile>> {
        self.file(path).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for MemoryDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = Arc::new(MemoryFile::default());
        self.files.lock().unwrap().insert(path.into(), file.clone());
        Ok(file)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.found(path)?)
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<String>> {
        let files = self.files.lock().unwrap();
        let below = files.keys().filter_map(|path| path.strip_prefix(dir).ok());
        Ok(below.map(|name| name.to_string_lossy().into_owned()).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let file = self.found(from)?;
        let mut files = self.files.lock().unwrap();
        files.remove(from);
        files.insert(to.into(), file);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.found(path)?;
        self.files.lock().unwrap().remove(path);
        Ok(())
    }

    fn sync_names(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

impl DiskFile for MemoryFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.bytes().len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let held = self.bytes();
        let from = held.get(offset as usize..).and_then(|held| held.get(..bytes.len()));
        bytes.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut held = self.bytes();
        let end = offset as usize + bytes.len();
        if held.len() < end {
            held.resize(end, 0);
        }
        held[offset as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn sync_content(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }
}
