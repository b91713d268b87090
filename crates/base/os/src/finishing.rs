//! The processes that another one has succeeded and that only finish what they have: so that many
//! successions in a row do not leave ever more of them, there is a limit, and the oldest gives way.
//! Each has a file in a directory that they share, locked while it lives; it ends once that file is
//! gone.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use rustix::fs::{FlockOperation, flock};

use crate::directory::private_directory;
use crate::lockfile::FileLock;

/// The number of processes that may finish at a time. Each takes some ten megabytes; more than one
/// succession in as many minutes is rare.
pub const FINISHING_MAX: usize = 8;
/// The ending of a file that is not locked yet.
const UNLOCKED: &str = "new";

/// The place of this process among those that finish.
#[derive(Debug)]
pub struct Finishing {
    path: PathBuf,
    _lock: FileLock,
}

impl Finishing {
    /// Enters this process; beyond the limit the oldest ones are told to end. Files of processes
    /// that died are removed.
    pub fn begin(directory: &Path) -> anyhow::Result<Finishing> {
        let context = || format!("a file in {} cannot be made", directory.display());
        private_directory(directory).with_context(context)?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // The names are in the order of time.
        let name = format!("{:020}-{}", since.as_nanos(), std::process::id());
        let path = directory.join(name);
        let unlocked = path.with_extension(UNLOCKED);
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(&unlocked).with_context(context)?;
        let lock = FileLock::acquire(file)?.context("another process has locked a new file")?;
        fs::rename(&unlocked, &path).with_context(context)?;
        let mut all = others(directory, &path).with_context(context)?;
        all.retain(|one| lives(one) || fs::remove_file(one).is_err());
        let too_many = (all.len() + 1).saturating_sub(FINISHING_MAX);
        for oldest in &all[..too_many] {
            fs::remove_file(oldest).with_context(|| format!("{}", oldest.display()))?;
        }
        Ok(Finishing { path, _lock: lock })
    }

    /// Returns whether no later process needs this one's place.
    pub fn may_go_on(&self) -> bool {
        self.path.exists()
    }
}

impl Drop for Finishing {
    fn drop(&mut self) {
        fs::remove_file(&self.path).ok();
    }
}

/// Returns the files of other processes, the oldest first.
fn others(directory: &Path, own: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path != own && path.extension().is_none() {
            all.push(path);
        }
    }
    all.sort();
    Ok(all)
}

/// Returns whether the file's process holds its lock.
fn lives(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    flock(&file, FlockOperation::NonBlockingLockShared).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_gives_way_and_the_dead_do_not_count() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("finishing");
        let begin = || Finishing::begin(&directory).unwrap();
        let mut all: Vec<Finishing> = (0..FINISHING_MAX).map(|_| begin()).collect();
        assert!(all.iter().all(Finishing::may_go_on));
        // Its process was killed: the file stays, and nobody holds its lock.
        let killed = all.pop().unwrap();
        let of_killed = killed.path.clone();
        drop(killed);
        fs::write(&of_killed, "").unwrap();
        all.push(begin());
        assert!(all.iter().all(Finishing::may_go_on));
        assert!(!of_killed.exists());
        all.push(begin());
        assert!(!all[0].may_go_on());
        assert!(all[1..].iter().all(Finishing::may_go_on));
        drop(all);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    }
}
