//! The files that instances of a release wrote into its own tree, and that would be lost with the
//! next build: newer than the build, outside of caches and logs. Blocking and bounded; asked when
//! another build takes over.

use std::path::Path;
use std::time::SystemTime;

use os::beneath::Directory;

/// The maximum number of entries that are looked through: more would take longer than a rollout;
/// what is seen by then is named.
const ENTRIES_MAX: usize = 200_000;
/// The maximum number of paths that are named; nobody who pushed would read more.
const NAMED_MAX: usize = 8;
/// The maximum depth of a tree: deeper ones hold packages, and recursion has an end.
const DEPTH_MAX: usize = 30;
/// The prefix of the names of what the platform itself leaves in a tree.
const OWN: &str = ".cortex-";
/// The directories that programs write while running, and make again when they need them.
const CACHES: &[&str] = &[
    "__pycache__",
    "node_modules",
    ".venv",
    "venv",
    "vendor",
    ".bundle",
    "tmp",
    "temp",
    "log",
    "logs",
    "cache",
    ".cache",
    ".git",
    ".next",
    ".nuxt",
    ".svelte-kit",
    ".turbo",
    ".parcel-cache",
    "target",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".npm",
    ".yarn",
    ".gradle",
    "bootstrap/cache",
    "storage/framework",
    "storage/logs",
    "_build",
    "deps",
];
/// The directories in which applications keep data; such a directory is named as a whole, whatever
/// of it was pushed.
const DATA: &[&str] =
    &["data", "storage", "uploads", "upload", "media", "instance", "db", "files", "var/data"];
const CACHE_ENDINGS: &[&str] = &[
    ".pyc",
    ".pyo",
    ".log",
    ".pid",
    ".sock",
    ".lock",
    ".tmp",
    ".swp",
    "-wal",
    "-shm",
    "-journal",
    ".left-behind",
    ".cortex-link",
    "nohup.out",
];

/// The paths that were written, relative to the tree, the likeliest to be missed first, with a
/// slash after directories in which nothing came with the build; and how many more there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WrittenPaths {
    pub paths: Vec<String>,
    pub more: usize,
}

/// Returns the files in `root` that were written after `built`.
pub fn since(root: &Path, built: SystemTime) -> WrittenPaths {
    let mut scan = Scan { built, seen: 0, found: Vec::new() };
    if let Ok(root) = Directory::open(root) {
        scan.directory(&root, "", 0);
    }
    let mut paths = scan.found;
    paths.sort_by_key(|path| (!is_database(path), path.clone()));
    let more = paths.len().saturating_sub(NAMED_MAX);
    paths.truncate(NAMED_MAX);
    WrittenPaths { paths, more }
}

fn is_database(path: &str) -> bool {
    [".db", ".sqlite", ".sqlite3"].iter().any(|ending| path.ends_with(ending))
}

struct Scan {
    built: SystemTime,
    seen: usize,
    found: Vec<String>,
}

impl Scan {
    /// Looks through a directory; returns whether something in it came with the build.
    fn directory(&mut self, directory: &Directory, path: &str, depth: usize) -> bool {
        let Ok(entries) = directory.entries() else { return true };
        let before = self.found.len();
        let mut is_old = false;
        for entry in entries {
            self.seen += 1;
            if self.seen > ENTRIES_MAX || depth > DEPTH_MAX {
                return true;
            }
            let Some(name) = entry.name().to_str().map(str::to_owned) else { continue };
            let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            let is_cache = name.starts_with(OWN)
                || CACHES.iter().any(|cache| *cache == name || *cache == path)
                || CACHE_ENDINGS.iter().any(|ending| name.ends_with(ending));
            let Ok(metadata) = entry.metadata() else { continue };
            if is_cache || metadata.is_symlink() {
                is_old |= metadata.is_symlink();
            } else if metadata.is_dir() {
                let within = entry.directory();
                is_old |= within.map_or(true, |within| self.directory(&within, &path, depth + 1));
            } else if metadata.is_file() {
                match metadata.modified() {
                    Ok(modified) if modified > self.built => self.found.push(path),
                    _ => is_old = true,
                }
            }
        }
        let is_whole = !is_old || DATA.contains(&path);
        if is_whole && self.found.len() > before && !path.is_empty() {
            self.found.truncate(before);
            self.found.push(format!("{path}/"));
        }
        is_old
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    /// Checks with files of a build, then with what was written after it.
    fn check(built: &[&str], written: &[&str], expected: &[&str]) {
        let directory = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let write = |path: &&str, at: SystemTime| {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::File::create(&path).unwrap().set_modified(at).unwrap();
        };
        built.iter().for_each(|path| write(path, now - Duration::from_secs(60)));
        written.iter().for_each(|path| write(path, now));
        let found = since(directory.path(), now - Duration::from_secs(30));
        assert_eq!(
            found,
            WrittenPaths { paths: expected.iter().map(|s| (*s).into()).collect(), more: 0 }
        );
    }

    #[test]
    fn what_was_written_is_named_databases_first() {
        check(
            &["app.py", "static/a.css", "conf/x"],
            &["notes.txt", "ihm.db", "uploads/a.png", "uploads/deep/b.png", "conf/y"],
            &["ihm.db", "conf/y", "notes.txt", "uploads/"],
        );
    }

    #[test]
    fn a_directory_of_data_is_named_once_whatever_of_it_was_pushed() {
        check(
            &["doku.php", "conf/local.php.dist", "data/pages/wiki/syntax.txt"],
            &["conf/local.php", "data/pages/start.txt", "data/meta/a", "data/attic/b"],
            &["conf/local.php", "data/"],
        );
    }

    #[test]
    fn caches_and_logs_are_no_loss() {
        check(
            &["app.py", "lib/a.py"],
            &[
                "lib/__pycache__/a.pyc",
                "log/production.log",
                "tmp/x",
                "server.pid",
                "app.db-wal",
                ".cortex-runtimes",
            ],
            &[],
        );
    }
}
