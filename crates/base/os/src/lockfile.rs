//! A file's exclusive lock, let go of at once when its holder is done. A child that was forked and
//! has not yet run its program shares every open file, and with it the lock, for a moment: closing
//! the file would not be enough, and a killed holder's lock may stay that long.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// The maximum wait for a lock: far longer than a child takes from fork to exec, and short for
/// somebody who waits for an error.
const FREED_WITHIN: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub struct FileLock {
    file: File,
}

impl FileLock {
    /// Takes the lock; `None` when another process holds it.
    pub fn acquire(file: File) -> io::Result<Option<FileLock>> {
        let started = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(FileLock { file })),
                Err(Errno::WOULDBLOCK) if started.elapsed() >= FREED_WITHIN => return Ok(None),
                Err(Errno::WOULDBLOCK) => std::thread::sleep(POLL),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing the file lets go of it too, where no child shares it.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_descriptor_does_not_keep_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let file = File::create(&path).unwrap();
        let as_a_child_has_it = file.try_clone().unwrap();
        let lock = FileLock::acquire(file).unwrap().unwrap();
        assert!(FileLock::acquire(File::open(&path).unwrap()).unwrap().is_none());
        drop(lock);
        assert!(FileLock::acquire(File::open(&path).unwrap()).unwrap().is_some());
        drop(as_a_child_has_it);
    }
}
