//! The removal of what is no longer needed: old builds, their logs, caches beyond their size.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

use model::{ApplicationName, BuildId};

use super::runtimes::CHOICE;
use super::{BuildTurn, Preparer, mark};
use os::beneath::Directory;
use os::layout::{BUILT_ENDING, HOME_ENDING};
use os::platform_log;

/// The maximum size of the shared cache in bytes: packages of a dozen large applications; beyond it
/// the least recently written ones go.
const SHARED_CACHE_BYTES_MAX: u64 = 4 << 30;
/// The maximum size of an application's cache in bytes: a framework's build cache (compiled assets
/// and the like) is worth keeping, within reason.
const CACHE_BYTES_MAX: u64 = 1 << 30;
/// The maximum size of one application's builds in bytes, beside what runs: enough for the last
/// releases of a large one.
const BUILDS_BYTES_MAX: u64 = 4 << 30;
/// The maximum depth to which a tree is measured: caches are not deeper, and recursion has an end.
const DEPTH_MAX: usize = 200;
/// The maximum number of build logs; they outlive their releases a little, as people look for why
/// something failed.
const BUILD_LOGS_MAX: usize = 20;

impl Preparer {
    /// Removes all builds but those in `keep`, and of these, from the last on, what does not fit;
    /// never the first `needed`.
    pub async fn prune_builds(
        &self,
        application: &ApplicationName,
        keep: Vec<BuildId>,
        needed: usize,
    ) {
        let places = self.layout.builds(application);
        let kept = self.places_of(application, &keep);
        let logs = self.layout.logs(application);
        let (layout, name) = (self.layout.clone(), application.clone());
        let (turns, staying) = (self.turns.clone(), self.staying.clone());
        let removed = runtime::task::spawn_blocking(move || {
            let is_begun = |place: &Path| {
                let said = staying.lock().unwrap_or_else(PoisonError::into_inner);
                let turns = turns.lock().unwrap_or_else(PoisonError::into_inner);
                let is_it = |((of, build), turn): (&(ApplicationName, BuildId), &BuildTurn)| {
                    let held = Arc::strong_count(turn) > 1;
                    held && *of == name && layout.build(&name, build) == place
                };
                said.get(&name).is_some_and(|said| said.iter().any(|one| one == place))
                    || turns.iter().any(is_it)
            };
            remove_builds(&places, kept, needed, BUILDS_BYTES_MAX, &is_begun);
            let is_build = |path: &PathBuf| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("build."))
            };
            let builds = entries(&logs).into_iter().filter(is_build).collect();
            remove_oldest(builds, BUILD_LOGS_MAX);
        });
        removed.await.ok();
    }

    /// Sets which builds stay from now on, even while builds are still being removed after an
    /// earlier list: looking through builds takes longer than beginning one.
    pub fn keep_builds(&self, application: &ApplicationName, keep: &[BuildId]) {
        let places = self.places_of(application, keep);
        let mut staying = self.staying.lock().unwrap_or_else(PoisonError::into_inner);
        staying.insert(application.clone(), places);
    }

    fn places_of(&self, application: &ApplicationName, builds: &[BuildId]) -> Vec<PathBuf> {
        builds.iter().map(|build| self.layout.build(application, build)).collect()
    }

    pub(super) async fn prune_caches(&self, application: &ApplicationName) {
        let (own, shared) = (self.layout.cache(application), self.layout.shared_cache());
        let pruned = runtime::task::spawn_blocking(move || {
            prune_to(&own, CACHE_BYTES_MAX);
            prune_to(&shared, SHARED_CACHE_BYTES_MAX);
        });
        pruned.await.ok();
    }

    /// Returns whether anything of an application lies on this machine.
    pub fn has_files_of(&self, application: &ApplicationName) -> bool {
        self.layout.application(application).is_dir()
    }

    /// Removes releases, caches and logs after `destroy`; what the application persisted only if
    /// its time is over, or somebody said so.
    pub async fn remove_application(&self, application: &ApplicationName, with_files: bool) {
        self.staying.lock().unwrap_or_else(PoisonError::into_inner).remove(application);
        let directory = self.layout.application(application);
        let persist = self.layout.persist(application);
        let removed = runtime::task::spawn_blocking(move || {
            for entry in entries(&directory).into_iter() {
                if with_files || entry != persist {
                    remove(&entry);
                }
            }
            // Both calls fail, and shall, where there is something in the directory.
            fs::remove_dir(&persist).ok();
            fs::remove_dir(&directory).ok();
        });
        removed.await.ok();
    }

    pub fn note(&self, application: &ApplicationName, text: &str) {
        platform_log::append(&self.layout.platform_log(application), self.clock.now(), text);
    }
}

/// Removes builds; `kept` has the ones likeliest to be run first. Builds that began after the list
/// was made stay.
fn remove_builds(
    places: &[PathBuf],
    kept: Vec<PathBuf>,
    needed: usize,
    bytes_max: u64,
    is_begun: &dyn Fn(&Path) -> bool,
) {
    let listed = kept.clone();
    let mut bytes = 0;
    let measured = kept.len() > needed;
    let fits = |(at, build): &(usize, PathBuf)| {
        bytes += if measured { tree_bytes(build) } else { 0 };
        *at < needed || bytes <= bytes_max
    };
    let kept: Vec<PathBuf> =
        kept.into_iter().enumerate().filter(fits).map(|(_, build)| build).collect();
    for entry in places.iter().flat_map(|place| entries(place)) {
        let name = entry.to_string_lossy();
        let beside = [BUILT_ENDING, HOME_ENDING, CHOICE];
        let build = beside.iter().find_map(|ending| name.strip_suffix(ending));
        let build = build.map_or_else(|| entry.clone(), PathBuf::from);
        if !kept.contains(&build) && (listed.contains(&build) || !is_begun(&build)) {
            // The build's mark goes first, so that what is left is never taken for whole.
            remove(&mark(&entry));
            remove(&entry);
        }
    }
}

/// Returns the size of a tree in bytes. Links are not followed: what persists lies elsewhere.
fn tree_bytes(path: &Path) -> u64 {
    let mut files = Vec::new();
    if let Ok(directory) = Directory::open(path) {
        collect(&directory, &mut files);
    }
    files.iter().map(|(_, size, _)| size).sum()
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let Ok(read) = fs::read_dir(directory) else { return Vec::new() };
    read.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Removes what lies in a directory of the node's own.
fn remove(path: &Path) {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return };
    let place = Directory::open(parent).and_then(|parent| parent.place(Path::new(name)));
    match place.and_then(|place| place.remove()) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "agent.remove_failed");
        }
        _ => {}
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

/// Removes the least recently written files until the rest fits. Whoever may write there can make a
/// directory a link meanwhile: no link is followed, neither when files are found nor when they go.
fn prune_to(directory: &Path, bytes_max: u64) {
    let Ok(root) = Directory::open(directory) else { return };
    let mut files = Vec::new();
    collect(&root, &mut files);
    let mut bytes: u64 = files.iter().map(|(_, size, _)| size).sum();
    if bytes <= bytes_max {
        return;
    }
    files.sort_by_key(|(written, size, _)| (*written, *size));
    for (_, size, path) in files {
        if bytes <= bytes_max {
            break;
        }
        if let Err(error) = root.place(&path).and_then(|place| place.remove()) {
            tracing::warn!(path = %path.display(), %error, "agent.remove_failed");
        }
        bytes -= size;
    }
}

/// Collects the files of a tree, with when they were written and their size.
fn collect(root: &Directory, files: &mut Vec<(SystemTime, u64, PathBuf)>) {
    collect_below(root, Path::new(""), files, 0);
}

fn collect_below(
    directory: &Directory,
    path: &Path,
    files: &mut Vec<(SystemTime, u64, PathBuf)>,
    depth: usize,
) {
    for entry in directory.entries().unwrap_or_default() {
        let (path, Ok(metadata)) = (path.join(entry.name()), entry.metadata()) else { continue };
        if !metadata.is_dir() {
            let written = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            files.push((written, metadata.len(), path));
        } else if depth < DEPTH_MAX
            && let Ok(within) = entry.directory()
        {
            collect_below(&within, &path, files, depth + 1);
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
        collect(&Directory::open(directory.path()).unwrap(), &mut left);
        assert_eq!(left.len(), 4);
    }

    #[test]
    fn no_cache_leads_to_what_lies_elsewhere() {
        let all = tempfile::tempdir().unwrap();
        let (cache, keys) = (all.path().join("cache"), all.path().join("keys"));
        for directory in [&cache, &keys] {
            fs::create_dir(directory).unwrap();
        }
        fs::write(keys.join("key"), vec![0; 100]).unwrap();
        std::os::unix::fs::symlink(&keys, cache.join("out")).unwrap();
        fs::create_dir(cache.join("swapped")).unwrap();
        fs::write(cache.join("swapped/key"), vec![0; 100]).unwrap();
        let root = Directory::open(&cache).unwrap();
        let mut files = Vec::new();
        collect(&root, &mut files);
        let found: Vec<&Path> = files.iter().map(|(_, _, path)| path.as_path()).collect();
        assert_eq!(found, [Path::new("out"), Path::new("swapped/key")]);
        fs::remove_dir_all(cache.join("swapped")).unwrap();
        std::os::unix::fs::symlink(&keys, cache.join("swapped")).unwrap();
        assert!(root.place(found[1]).is_err(), "what was found may be a link by now");
        prune_to(&cache, 0);
        assert!(tree_bytes(&cache) == 0 && keys.join("key").exists());
    }

    #[test]
    fn builds_for_rollbacks_are_kept_as_far_as_there_is_room() {
        let directory = tempfile::tempdir().unwrap();
        let places = ["builds", "releases"].map(|kind| directory.path().join(kind));
        let build = |number: usize| places[number % 2].join(format!("b{number}"));
        let make = |number: usize| {
            fs::create_dir_all(build(number)).unwrap();
            fs::write(build(number).join("file"), vec![0; 100]).unwrap();
            fs::write(mark(&build(number)), "x").unwrap();
        };
        let left = || -> Vec<usize> {
            let whole = |n: &usize| build(*n).exists() && mark(&build(*n)).exists();
            (0..6).filter(whole).collect()
        };
        (0..6).for_each(make);
        remove_builds(&places, [3, 2, 1, 0].map(build).into(), 2, 1_000, &|_| false);
        assert_eq!(left(), [0, 1, 2, 3]);
        remove_builds(&places, [3, 2, 1, 0].map(build).into(), 2, 300, &|_| false);
        assert_eq!(left(), [1, 2, 3]);
        remove_builds(&places, [3, 2, 1].map(build).into(), 2, 50, &|_| false);
        assert_eq!(left(), [2, 3], "what runs stays");
        assert_eq!(places.iter().flat_map(|place| entries(place)).count(), 4);
        make(5);
        let begun = build(5);
        remove_builds(&places, [3].map(build).into(), 1, 50, &|place| place == begun);
        assert_eq!(left(), [3, 5], "what was begun since the list was made stays");
    }

    #[test]
    fn the_newest_builds_are_kept() {
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
