//! Removes what is no longer needed: old releases, their logs, caches beyond their size.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use model::{ApplicationName, ReleaseId};

use super::Preparer;
use crate::agent::platform_log;

/// Packages of a dozen large applications; beyond it the least recently written ones go.
const SHARED_CACHE_BYTES_MAX: u64 = 4 << 30;
/// A framework's build cache (compiled assets and the like) is worth keeping, within reason.
const CACHE_BYTES_MAX: u64 = 1 << 30;
/// Build logs outlive their releases a little: people look for why something failed.
const BUILD_LOGS_MAX: usize = 20;

impl Preparer {
    /// Removes all releases but these.
    pub async fn prune_releases(&self, application: &ApplicationName, keep: Vec<ReleaseId>) {
        let releases = self.layout.application(application).join("releases");
        let logs = self.layout.logs(application);
        let removed = crate::task::spawn_blocking(move || {
            let keep: Vec<String> = keep.iter().map(ToString::to_string).collect();
            for entry in entries(&releases) {
                let Some(name) = entry.file_name().map(|name| name.to_string_lossy()) else {
                    continue;
                };
                let release = name.strip_suffix(super::BUILT).unwrap_or(&name);
                if !keep.iter().any(|kept| kept == release) {
                    remove(&entry);
                }
            }
            let is_build = |path: &PathBuf| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("build."))
            };
            let builds = entries(&logs).into_iter().filter(is_build).collect();
            remove_oldest(builds, BUILD_LOGS_MAX);
        });
        removed.await.ok();
    }

    pub(super) async fn prune_caches(&self, application: &ApplicationName) {
        let (own, shared) = (self.layout.cache(application), self.layout.shared_cache());
        let pruned = crate::task::spawn_blocking(move || {
            prune_to(&own, CACHE_BYTES_MAX);
            prune_to(&shared, SHARED_CACHE_BYTES_MAX);
        });
        pruned.await.ok();
    }

    /// After `destroy`: releases, caches and logs go. What the application persisted stays where
    /// the answer to that command says it is: no command of ours deletes users' files.
    pub async fn remove_application(&self, application: &ApplicationName) {
        let directory = self.layout.application(application);
        let persist = self.layout.persist(application);
        let removed = crate::task::spawn_blocking(move || {
            for entry in entries(&directory).into_iter().filter(|entry| *entry != persist) {
                remove(&entry);
            }
            // Both fail, and shall, where there is something in them.
            fs::remove_dir(&persist).ok();
            fs::remove_dir(&directory).ok();
        });
        removed.await.ok();
    }

    pub fn note(&self, application: &ApplicationName, text: &str) {
        platform_log::append(&self.layout.platform_log(application), self.clock.now(), text);
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let Ok(read) = fs::read_dir(directory) else { return Vec::new() };
    read.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

fn remove(path: &Path) {
    let removed = match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => return,
    };
    if let Err(error) = removed {
        tracing::warn!(path = %path.display(), %error, "agent.remove_failed");
    }
}

fn written_at(path: &Path) -> SystemTime {
    let modified = path.symlink_metadata().and_then(|metadata| metadata.modified());
    modified.unwrap_or(SystemTime::UNIX_EPOCH)
}

fn remove_oldest(mut paths: Vec<PathBuf>, keep: usize) {
    paths.sort_by_key(|path| std::cmp::Reverse(written_at(path)));
    for path in paths.iter().skip(keep) {
        remove(path);
    }
}

/// Least recently written files go first until the rest fits.
fn prune_to(directory: &Path, bytes_max: u64) {
    let mut files = Vec::new();
    collect(directory, &mut files);
    let mut bytes: u64 = files.iter().map(|(_, size, _)| size).sum();
    if bytes <= bytes_max {
        return;
    }
    files.sort();
    for (_, size, path) in files {
        if bytes <= bytes_max {
            break;
        }
        remove(&path);
        bytes -= size;
    }
}

fn collect(directory: &Path, files: &mut Vec<(SystemTime, u64, PathBuf)>) {
    for path in entries(directory) {
        match path.symlink_metadata() {
            Ok(metadata) if metadata.is_dir() => collect(&path, files),
            Ok(metadata) => files.push((written_at(&path), metadata.len(), path)),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_cut_to_its_size() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..10 {
            let sub = directory.path().join(format!("d{number}"));
            fs::create_dir(&sub).unwrap();
            fs::write(sub.join("file"), vec![0; 100]).unwrap();
        }
        prune_to(directory.path(), 450);
        let mut left = Vec::new();
        collect(directory.path(), &mut left);
        assert_eq!(left.len(), 4);
    }

    #[test]
    fn the_newest_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..5u64 {
            let path = directory.path().join(number.to_string());
            let file = fs::File::create(&path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(number))
                .unwrap();
        }
        remove_oldest(entries(directory.path()), 2);
        assert_eq!(entries(directory.path()).len(), 2);
        assert!(directory.path().join("4").exists());
    }
}
