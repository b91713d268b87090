//! Large values: files named by the BLAKE3 of their content. A file is durable before a commit
//! refers to it, and is removed once no commit does and it has aged. So is the part that has come
//! of a value that is being fetched from another node.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use model::value::{ContentHash, VALUE_BYTES_MAX};
use sha1::{Digest, Sha1};

use super::bulk::ValueName;
use super::bulk::outline::{Outline, Outliner, Outlines};
use super::disk::{create, sync_dir};
use super::{INLINE_VALUE_MAX, StoreError, ValueFile};

const INCOMING: &str = "incoming";
/// The directory of values that are being fetched, as far as they have come, by their names.
const PARTIAL: &str = "partial";
/// The directory of files whose content does not match their names; they are kept until the values
/// have been fetched from other nodes.
const DAMAGED: &str = "damaged";
/// The number of bytes after which a file is synced while it is written: otherwise gigabytes would
/// stand before the log's next fdatasync.
pub const SYNC_BYTES: u64 = 8 << 20;

pub struct ValueFiles {
    dir: PathBuf,
    age_min: Duration,
    /// A lock that is held while a file is made young and while an old one is removed, so that no
    /// file is removed between the two checks.
    guard: Mutex<()>,
    counter: AtomicU64,
    /// The outlines of values that were written or asked for lately.
    pub outlines: Outlines,
}

impl ValueFiles {
    /// Opens the directory. The store's lock is held, so incoming files were left by a run that has
    /// ended.
    pub fn open(dir: PathBuf, age_min: Duration) -> io::Result<Arc<ValueFiles>> {
        let incoming = dir.join(INCOMING);
        match std::fs::remove_dir_all(&incoming) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::fs::create_dir(&incoming)?;
        std::fs::create_dir_all(dir.join(PARTIAL))?;
        std::fs::create_dir_all(dir.join(DAMAGED))?;
        Ok(Arc::new(ValueFiles {
            dir,
            age_min,
            guard: Mutex::new(()),
            counter: AtomicU64::new(0),
            outlines: Outlines::default(),
        }))
    }

    pub fn path(&self, hash: &[u8; 32]) -> PathBuf {
        let name = ContentHash(*hash).to_string();
        self.dir.join(&name[..2]).join(name)
    }

    pub fn create(self: &Arc<Self>) -> io::Result<ValueWriter> {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.join(INCOMING).join(number.to_string());
        let file = create(&path)?;
        Ok(ValueWriter {
            file,
            path,
            size: 0,
            synced: 0,
            outliner: Outliner::default(),
            sha1: Sha1::new(),
            files: self.clone(),
        })
    }

    /// Returns the values whose files were found damaged here and have not been replaced yet.
    pub fn damaged(&self) -> io::Result<Vec<ValueName>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.dir.join(DAMAGED))? {
            let entry = entry?;
            found.extend(entry.file_name().to_str().and_then(damaged_value));
        }
        Ok(found)
    }

    pub fn is_damaged(&self, value: &ValueName) -> bool {
        self.dir.join(damaged_name(value)).exists()
    }

    pub async fn writer(self: &Arc<Self>) -> Result<ValueWriter, StoreError> {
        let values = self.clone();
        blocking(move || {
            values.create().map_err(|source| {
                let what = format!("a value's file cannot be made ({source}); free space for it");
                StoreError::Io { what, source }
            })
        })
        .await
    }

    /// Writes a value that is in memory to a file.
    pub async fn keep(self: &Arc<Self>, value: Bytes) -> Result<ValueFile, StoreError> {
        let mut writer = self.writer().await?;
        blocking(move || writer.write(&value).and_then(|()| writer.finish())).await
    }

    /// Makes a finished file young again, since a commit is about to refer to it. A small value
    /// stays small however it came: its bytes are returned, since its commit will hold them.
    pub async fn renew_or_read(
        self: &Arc<Self>,
        file: &ValueFile,
    ) -> Result<Option<Bytes>, StoreError> {
        let (values, hash, size) = (self.clone(), file.hash.0, file.size);
        blocking(move || {
            let gone = |source: io::Error| {
                let what = format!("the uploaded value is gone ({source}); upload it again");
                StoreError::Io { what, source }
            };
            values.renew(&hash).map_err(gone)?;
            let small = size <= INLINE_VALUE_MAX as u64;
            let read = || std::fs::read(values.path(&hash)).map(Bytes::from).map_err(gone);
            small.then(read).transpose()
        })
        .await
    }

    /// Makes a finished file young again, since a commit is about to refer to it.
    pub fn renew(&self, hash: &[u8; 32]) -> io::Result<()> {
        let _guard = self.guard.lock().unwrap_or_else(|e| e.into_inner());
        File::options().append(true).open(self.path(hash))?.set_modified(SystemTime::now())
    }

    /// Returns whether the whole value is here; if so, it is kept for a while even if no commit
    /// refers to it.
    pub fn holds(&self, value: &ValueName) -> io::Result<bool> {
        match std::fs::metadata(self.path(&value.hash)) {
            Ok(found) if found.len() == value.size => {}
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => return Ok(false),
        }
        match self.renew(&value.hash) {
            Ok(()) => Ok(true),
            // The file was removed between the two looks.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens the whole value for reading.
    pub fn open_value(&self, value: &ValueName) -> io::Result<Option<File>> {
        let file = match File::open(self.path(&value.hash)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        Ok((file.metadata()?.len() == value.size).then_some(file))
    }

    /// Opens the part of a value that has come so far.
    pub fn open_partial(&self, hash: &[u8; 32]) -> io::Result<(File, PathBuf)> {
        let path = self.dir.join(PARTIAL).join(ContentHash(*hash).to_string());
        let _guard = self.guard.lock().unwrap_or_else(|e| e.into_inner());
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path)?;
        file.set_modified(SystemTime::now())?;
        Ok((file, path))
    }

    /// Opens the part that has come of a value that is being fetched, for reading.
    pub fn read_partial(&self, hash: &[u8; 32]) -> io::Result<Option<File>> {
        match File::open(self.dir.join(PARTIAL).join(ContentHash(*hash).to_string())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Renames a durable file to the hash of its content.
    pub fn place(&self, from: &Path, hash: &[u8; 32]) -> io::Result<PathBuf> {
        let path = self.path(hash);
        let fan = path.parent().expect("a value's path has a directory");
        let _guard = self.guard.lock().unwrap_or_else(|e| e.into_inner());
        match std::fs::create_dir(fan) {
            Ok(()) => sync_dir(&self.dir)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        // It may replace an equal file: the new one is young and surely whole.
        std::fs::rename(from, &path)?;
        sync_dir(fan)?;
        let size = std::fs::metadata(&path)?.len();
        match std::fs::remove_file(self.dir.join(damaged_name(&ValueName { hash: *hash, size }))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(path)
    }

    /// Removes aged files that no commit refers to; returns how many. A value that is being fetched
    /// is referred to though its file is not here.
    pub fn collect(&self, referred: impl Fn(&[u8; 32]) -> bool) -> io::Result<usize> {
        let mut removed = 0;
        for fan in std::fs::read_dir(&self.dir)? {
            let fan = fan?;
            if fan.file_name() == INCOMING || !fan.file_type()?.is_dir() {
                continue;
            }
            for entry in std::fs::read_dir(fan.path())? {
                let entry = entry?;
                let name = entry.file_name();
                let value = name.to_str().and_then(|name| {
                    let damaged = damaged_value(name).map(|value| ContentHash(value.hash));
                    damaged.or_else(|| name.parse::<ContentHash>().ok())
                });
                // Other files in this directory are not ours to remove.
                let Some(hash) = value else { continue };
                // A part is not needed if the whole value came another way.
                let referred = |hash: &[u8; 32]| {
                    let superfluous = fan.file_name() == PARTIAL && self.path(hash).exists();
                    !superfluous && referred(hash)
                };
                removed += usize::from(self.collect_one(&entry.path(), &hash.0, &referred)?);
            }
        }
        Ok(removed)
    }

    fn collect_one(
        &self,
        path: &Path,
        hash: &[u8; 32],
        referred: &impl Fn(&[u8; 32]) -> bool,
    ) -> io::Result<bool> {
        let _guard = self.guard.lock().unwrap_or_else(|e| e.into_inner());
        let modified = std::fs::metadata(path)?.modified()?;
        let age = SystemTime::now().duration_since(modified).unwrap_or_default();
        if age < self.age_min || referred(hash) {
            return Ok(false);
        }
        std::fs::remove_file(path)?;
        Ok(true)
    }
}

/// Returns the name of a damaged value's file. The length is part of it, since the file may have
/// lost some of its own.
fn damaged_name(value: &ValueName) -> PathBuf {
    Path::new(DAMAGED).join(format!("{}.{}", value.text(), value.size))
}

fn damaged_value(name: &str) -> Option<ValueName> {
    let (hash, size) = name.split_once('.')?;
    Some(ValueName { hash: hash.parse::<ContentHash>().ok()?.0, size: size.parse().ok()? })
}

/// Checks a file in which wrong bytes were found. If it is damaged, it is set aside, so that nobody
/// reads it any more, and fetched from another node.
pub fn suspect(path: &Path, value: &ValueName) {
    match File::open(path).and_then(Outline::read) {
        // The file was replaced meanwhile.
        Ok(outline) if outline.hash() == value.hash => return,
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => {
            tracing::error!(path = %path.display(), %error, "bulk.value_unreadable");
            return;
        }
    }
    let Some(dir) = path.parent().and_then(Path::parent) else { return };
    let aside = dir.join(damaged_name(value));
    match std::fs::rename(path, &aside) {
        Ok(()) => tracing::error!(
            aside = %aside.display(),
            "bulk.value_damaged: a file was not what its name says; it is set aside, and other \
             nodes are asked for the value: look after this disk"
        ),
        // Of several readers, the first one moves it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::error!(path = %path.display(), %error, "bulk.value_damaged"),
    }
}

/// A writer of a large value: a temporary file, hashed while it is written. Its methods block.
/// Dropping it abandons the value.
pub struct ValueWriter {
    pub file: File,
    pub path: PathBuf,
    /// The number of bytes so far.
    pub size: u64,
    synced: u64,
    outliner: Outliner,
    sha1: Sha1,
    files: Arc<ValueFiles>,
}

impl ValueWriter {
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.size += bytes.len() as u64;
        if self.size > VALUE_BYTES_MAX {
            return Err(StoreError::TooLarge { max: VALUE_BYTES_MAX });
        }
        self.file.write_all(bytes).map_err(|source| self.error(source))?;
        if self.size - self.synced >= SYNC_BYTES {
            self.file.sync_data().map_err(|source| self.error(source))?;
            self.synced = self.size;
        }
        self.outliner.update(bytes);
        self.sha1.update(bytes);
        Ok(())
    }

    /// Makes the file durable. Give it to `Store::set_file` within the hour.
    pub fn finish(mut self) -> Result<ValueFile, StoreError> {
        let outline = Arc::new(std::mem::take(&mut self.outliner).finish());
        let hash = outline.hash();
        let placed = self.file.sync_all().and_then(|()| self.files.place(&self.path, &hash));
        let path = placed.map_err(|source| self.error(source))?;
        // Peers will ask for it soon.
        self.files.outlines.put(hash, outline);
        let sha1 = self.sha1.clone().finalize().into();
        Ok(ValueFile { hash: ContentHash(hash), sha1, size: self.size, path })
    }

    fn error(&self, source: io::Error) -> StoreError {
        let what = format!(
            "the value could not be written below {} ({source}); nothing was stored: free space \
             there, then try again",
            self.files.dir.display()
        );
        StoreError::Io { what, source }
    }
}

impl Drop for ValueWriter {
    fn drop(&mut self) {
        // A finished file is no longer there.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Runs disk and hashing work away from the caller's runtime.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match runtime::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err(StoreError::Stopped("the runtime is shutting down".into())),
    }
}
