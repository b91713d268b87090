//! The options of a data directory's store, and the errors of opening it.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use model::{Key, NodeId};
use thiserror::Error;

use super::cores;
use super::disk::{self, Disk, OwnDisk};
use os::lockfile::FileLock;
use runtime::faults::Faults;

/// A hook that is called with a point's name where the disk may stall or fail: `store.sync` before
/// each fdatasync of the log, `store.extend` before a new log file, `store.snapshot` before a
/// snapshot's fsync. Its error takes the place of the disk's.
pub type FaultHook = Arc<dyn Fn(&str) -> io::Result<()> + Send + Sync>;

/// The size of the first segment in bytes: most data directories stay small, and an empty one
/// should be.
pub const SEGMENT_BYTES_FIRST: u32 = 1 << 20;
/// The size of the largest segment in bytes: large enough that files are few, small enough to read
/// one into memory when opening.
pub const SEGMENT_BYTES_MAX: u32 = 64 << 20;
/// The age below which an unused value file is kept: a push uploads its files before it writes the
/// commits that refer to them.
pub const VALUE_AGE_MIN: Duration = Duration::from_secs(3600);

/// Returns the note for a key of another node whose value the disk had no room for; `None` if this
/// node need not know it.
pub type NoteUnkept = fn(&NodeId, &Key) -> Option<Key>;

#[derive(Clone)]
pub struct Options {
    pub segment_bytes_first: u32,
    pub segment_bytes_max: u32,
    /// How long a value file that no commit refers to is kept.
    pub value_age_min: Duration,
    pub fault: FaultHook,
    pub unkept: NoteUnkept,
    /// Whether cores are few; see `commit_thread`.
    pub few_cores: bool,
    /// The disk that holds the log and its snapshots.
    pub disk: Arc<dyn Disk>,
}

impl Options {
    /// Returns the usual options, with the node's fail points in place of a faulty disk.
    pub fn with_faults(faults: Faults) -> Options {
        let check = move |point: &str| faults.check(point).map_err(io::Error::other);
        Options { fault: Arc::new(check), ..Options::default() }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            segment_bytes_first: SEGMENT_BYTES_FIRST,
            segment_bytes_max: SEGMENT_BYTES_MAX,
            value_age_min: VALUE_AGE_MIN,
            fault: Arc::new(|_| Ok(())),
            unkept: |_, _| None,
            few_cores: cores::are_cores_few(),
            disk: Arc::new(OwnDisk),
        }
    }
}

/// The advice after damage. Nothing is repaired by guessing: what is missing comes from the other
/// nodes, or from a copy.
const RESTORE: &str = "nothing was changed. With other nodes in the cluster: move this directory \
                       aside and start this node with --join ADDRESS; it copies what they hold. \
                       Alone: restore this directory from a copy, or move it aside to begin with \
                       an empty store (applications are then pushed anew)";

#[derive(Debug, Error)]
pub enum OpenError {
    #[error(
        "another process has the store in {} open; stop it first (cortex down), or choose \
         another --data-dir", .0.display()
    )]
    Locked(PathBuf),
    #[error("the commit log is damaged: {}, byte {offset}: {what}; {RESTORE}", file.display())]
    Damaged { file: PathBuf, offset: u64, what: String },
    #[error("the index snapshot {} cannot be read: {what}; {RESTORE}", file.display())]
    Snapshot { file: PathBuf, what: String },
    #[error("the commit log is incomplete: {} is missing; {RESTORE}", .0.display())]
    Missing(PathBuf),
    #[error(
        "the commit log is cut short: {} has {found} bytes of {expected}; {RESTORE}; or accept \
         the loss of what followed with: truncate -s {expected} {}",
        file.display(), file.display()
    )]
    Short { file: PathBuf, found: u64, expected: u64 },
    /// Another back end failed; its message says what to do.
    #[error("{0}")]
    Backend(String),
    #[error("opening the store was interrupted: the node is stopping")]
    Interrupted,
    #[error("{}: {source}; make sure that the disk has room and this user may write there",
        path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl OpenError {
    pub fn io(path: &Path) -> impl FnOnce(io::Error) -> OpenError {
        let path = path.to_path_buf();
        move |source| OpenError::Io { path, source }
    }
}

pub fn make_dir(path: &Path) -> Result<(), OpenError> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.and_then(|()| path.parent().map_or(Ok(()), disk::sync_dir)).map_err(OpenError::io(path))
}

pub fn lock(dir: &Path) -> Result<FileLock, OpenError> {
    let path = dir.join("lock");
    let file = disk::create(&path).map_err(OpenError::io(&path))?;
    let lock = FileLock::acquire(file).map_err(OpenError::io(&path))?;
    lock.ok_or_else(|| OpenError::Locked(dir.to_path_buf()))
}
