//! Static files that are kept for a while: small ones in memory, large ones by their descriptors.
//! The disk is read by a pool of other threads, never by the router's.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::found::{Content, Found};
use super::read::read;
use super::source::Roots;

const CACHE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The time that a file counts as fresh: releases do not change; persistent directories do, and are
/// looked at again after this time.
const CACHE_TIME_MAX: Duration = Duration::from_secs(1);
/// The age up to which a file is still given while it is read again.
const STALE_TIME_MAX: Duration = Duration::from_secs(2);
/// The time after which an unused file is forgotten, with what a removed release had on disk.
const UNUSED_TIME_MAX: Duration = Duration::from_secs(60);
/// The time between two searches for unused files.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
/// The bytes that a descriptor counts for, so that at most 256 are kept.
const DESCRIPTOR_COST: usize = 256 * 1024;

/// The files that all threads share.
pub struct Files {
    blocking: Handle,
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    /// The files by the bytes of their paths, which are compared faster than their components.
    files: BTreeMap<OsString, Cached>,
    bytes: usize,
    /// Whether a task looks for unused files.
    swept: bool,
}

struct Cached {
    found: Arc<Found>,
    read_at: Instant,
    /// Whether somebody is reading it again; one is enough.
    being_read: bool,
}

impl Files {
    /// Creates the cache; `blocking` is a runtime whose pool reads the disk.
    pub fn new(blocking: Handle) -> Files {
        Files { blocking, cache: Mutex::default() }
    }

    /// Returns the runtime on which the disk is waited for.
    pub fn pool(&self) -> &Handle {
        &self.blocking
    }

    /// Opens a file; `None` if the disk's pool is gone.
    pub async fn open(self: &Arc<Files>, path: PathBuf, roots: &Roots) -> Option<Arc<Found>> {
        if let Some(found) = self.lock().get(path.as_os_str()) {
            return Some(found);
        }
        let (files, roots) = (self.clone(), roots.clone());
        let task = self.blocking.spawn_blocking(move || {
            let found = Arc::new(read(&path, &roots));
            let mut cache = files.lock();
            cache.put(path, found.clone());
            if !std::mem::replace(&mut cache.swept, true) {
                files.blocking.spawn(sweep(Arc::downgrade(&files)));
            }
            drop(cache);
            found
        });
        task.await.ok()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cache {
    /// Returns a file; `None` for the caller that is to read it from the disk. Meanwhile others get
    /// what was there.
    fn get(&mut self, path: &OsStr) -> Option<Arc<Found>> {
        let cached = self.files.get_mut(path)?;
        let age = cached.read_at.elapsed();
        let good = age < CACHE_TIME_MAX || (cached.being_read && age < STALE_TIME_MAX);
        cached.being_read |= !good;
        good.then(|| cached.found.clone())
    }

    fn put(&mut self, path: PathBuf, found: Arc<Found>) {
        let path = path.into_os_string();
        let now = Instant::now();
        if let Some(old) = self.files.remove(&path) {
            self.bytes -= cost(&path, &old.found);
        }
        self.bytes += cost(&path, &found);
        let cached = Cached { found, read_at: now, being_read: false };
        self.files.insert(path, cached);
        while self.bytes > CACHE_BYTES_MAX {
            // The first in order goes, whatever it is: a file that is asked for is read again at
            // once.
            let Some((path, old)) = self.files.pop_first() else { break };
            self.bytes -= cost(&path, &old.found);
        }
    }

    fn sweep(&mut self) {
        let (now, bytes) = (Instant::now(), &mut self.bytes);
        self.files.retain(|path, one| {
            let keep = now.saturating_duration_since(one.read_at) < UNUSED_TIME_MAX;
            if !keep {
                *bytes -= cost(path, &one.found);
            }
            keep
        });
        self.swept = !self.files.is_empty();
    }
}

/// Forgets what nobody asks for, until nothing is left.
async fn sweep(files: Weak<Files>) {
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        let Some(files) = files.upgrade() else { return };
        let mut cache = files.lock();
        cache.sweep();
        if !cache.swept {
            return;
        }
    }
}

/// Returns the cost of a file in bytes of memory.
fn cost(path: &OsStr, found: &Found) -> usize {
    let content = match &found.content {
        Content::Small(bytes) => bytes.len(),
        Content::Large(_) => DESCRIPTOR_COST,
        Content::Missing | Content::Directory => 0,
    };
    content + path.len() + 256
}

#[cfg(test)]
mod tests;
