//! What outlives releases: `persist` paths live in the application's own directory, and each
//! release has a link there. SQLite keeps its journal beside the file that a link leads to (since
//! 3.10), so linking a database file alone is enough.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail};

/// Links each of `paths` in the release to its place under `persist`. Content that came with the
/// source is the first content; what is there already is never overwritten.
pub fn link(release: &Path, persist: &Path, paths: &[String]) -> anyhow::Result<()> {
    for text in paths {
        let relative = inner(text)?;
        let (from, to) = (release.join(&relative), persist.join(&relative));
        link_one(&from, &to, is_directory(text, &from))
            .with_context(|| format!("the persistent path {text} cannot be set up"))?;
    }
    Ok(())
}

fn link_one(from: &Path, to: &Path, directory: bool) -> anyhow::Result<()> {
    let parent = to.parent().context("no parent")?;
    crate::node::identity::private_directory(parent)?;
    let came_along = from.symlink_metadata().is_ok();
    if came_along && to.symlink_metadata().is_err() {
        move_tree(from, to)?;
    } else if came_along {
        if directory {
            add_missing(from, to)?;
        }
        remove(from)?;
    }
    if directory {
        fs::create_dir_all(to)?;
    }
    if let Some(parent) = from.parent() {
        fs::create_dir_all(parent)?;
    }
    symlink(to, from)?;
    Ok(())
}

/// A file, where the source has one there or the last part has an extension; else a directory.
/// A slash at the end always means a directory.
fn is_directory(text: &str, from: &Path) -> bool {
    match from.symlink_metadata() {
        Ok(metadata) => metadata.is_dir(),
        Err(_) => text.ends_with('/') || from.extension().is_none(),
    }
}

fn inner(text: &str) -> anyhow::Result<PathBuf> {
    let path = Path::new(text);
    let normal = path.components().all(|part| matches!(part, Component::Normal(_)));
    if text.is_empty() || !normal {
        bail!("the persistent path '{text}' must be inside the application, like 'storage'");
    }
    Ok(path.components().collect())
}

/// Files of a newer source that the persistent directory does not have yet.
fn add_missing(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() && target.is_dir() {
            add_missing(&entry.path(), &target)?;
        } else if target.symlink_metadata().is_err() {
            move_tree(&entry.path(), &target)?;
        }
    }
    Ok(())
}

/// Both are below one data directory, which is one file system.
fn move_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::rename(from, to)
}

fn remove(path: &Path) -> std::io::Result<()> {
    if path.symlink_metadata()?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bench {
        directory: tempfile::TempDir,
    }

    impl Bench {
        fn release(&self, name: &str, files: &[(&str, &str)]) -> PathBuf {
            let release = self.directory.path().join(name);
            fs::create_dir_all(&release).unwrap();
            for (path, content) in files {
                let path = release.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, content).unwrap();
            }
            release
        }

        fn link(&self, release: &Path, paths: &[&str]) -> anyhow::Result<()> {
            let paths: Vec<String> = paths.iter().map(ToString::to_string).collect();
            link(release, &self.directory.path().join("persist"), &paths)
        }
    }

    fn bench() -> Bench {
        Bench { directory: tempfile::tempdir().unwrap() }
    }

    #[test]
    fn the_first_content_comes_with_the_source_and_later_content_stays() {
        let bench = bench();
        let first = bench.release("v1", &[("storage/a", "1"), ("db/data.sqlite3", "first")]);
        bench.link(&first, &["storage", "db/data.sqlite3"]).unwrap();
        fs::write(first.join("storage/upload"), "u").unwrap();
        fs::write(first.join("db/data.sqlite3"), "rows").unwrap();
        let second = bench
            .release("v2", &[("storage/a", "2"), ("storage/b", "2"), ("db/data.sqlite3", "other")]);
        bench.link(&second, &["storage", "db/data.sqlite3"]).unwrap();
        let read = |path: &str| fs::read_to_string(second.join(path)).unwrap();
        assert_eq!(read("storage/upload"), "u");
        assert_eq!(read("storage/a"), "1");
        assert_eq!(read("storage/b"), "2");
        assert_eq!(read("db/data.sqlite3"), "rows");
    }

    #[test]
    fn what_the_source_lacks_is_made_a_directory_or_left_to_the_application() {
        let bench = bench();
        let release = bench.release("v1", &[]);
        bench.link(&release, &["storage", "db/production.sqlite3", "odd.d/"]).unwrap();
        assert!(release.join("storage").is_dir());
        assert!(release.join("odd.d").is_dir());
        assert!(!release.join("db/production.sqlite3").exists());
        fs::write(release.join("db/production.sqlite3"), "made").unwrap();
        let kept = bench.directory.path().join("persist/db/production.sqlite3");
        assert_eq!(fs::read_to_string(kept).unwrap(), "made");
    }

    #[test]
    fn paths_that_lead_out_are_refused() {
        let bench = bench();
        let release = bench.release("v1", &[]);
        for path in ["", "/etc", "..", "a/../../b", "."] {
            assert!(bench.link(&release, &[path]).is_err(), "{path}");
        }
    }

    #[test]
    fn a_linked_database_keeps_its_rows_and_its_journal_beside_it() {
        let bench = bench();
        let script = "import sqlite3,sys\nc=sqlite3.connect('db.sqlite3')\n\
            c.execute('pragma journal_mode=wal')\n\
            c.execute('create table if not exists t(x)')\nc.execute('insert into t values(1)')\n\
            c.commit()\nprint(c.execute('select count(*) from t').fetchone()[0])\n";
        for (name, rows) in [("v1", "1\n"), ("v2", "2\n")] {
            let release = bench.release(name, &[]);
            bench.link(&release, &["db.sqlite3"]).unwrap();
            let output = std::process::Command::new("python3")
                .args(["-c", script])
                .current_dir(&release)
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), rows);
            assert!(release.join("db.sqlite3").symlink_metadata().unwrap().is_symlink());
            assert!(!release.join("db.sqlite3-wal").exists());
        }
    }
}
