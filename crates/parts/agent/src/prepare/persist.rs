//! Persistent paths: what an application wrote lives in `apps/NAME/persist` and is linked into each
//! build. Blocking; must not know frameworks or databases; driven by preparation.
//!
//! Whether a path is a file or a directory is told, in this order, by what is kept already, by
//! what came with the source, and by its name: with a slash at its end it is a directory, as are
//! `data`, `storage`, `uploads` and the like; with an extension it is a file. A file that does
//! not exist yet is left for the application to create, through the link: programs make a schema
//! where there is no file. A name that tells nothing is left alone: what the program makes of it
//! is kept from the next release on (`collect`). SQLite follows links before it names its `-wal`,
//! `-shm` and `-journal` files (since 3.10), so these lie beside the kept file.

mod in_place;

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::unpack::{inside, resolve};

/// The suffixes of files that belong to a database which came with the source, and are of no use
/// without it.
const SQLITE_SIBLINGS: &[&str] = &["-wal", "-journal"];
/// The suffix of a copy in progress; a finished one is renamed.
const PARTIAL: &str = ".cortex-partial";
/// The maximum depth of a tree: uploads are not deeper, and recursion has an end.
const DEPTH_MAX: usize = 100;
/// The names that programs give to the directories in which they keep things.
const DIRECTORIES: &[&str] = &[
    "data",
    "database",
    "databases",
    "db",
    "files",
    "images",
    "instance",
    "log",
    "logs",
    "media",
    "storage",
    "uploads",
    "var",
];
/// The maximum number of hidden paths that are named; nobody who pushed would read more.
const HIDDEN_MAX: usize = 10;

/// The tree that a path is linked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tree {
    /// The tree was just unpacked: all that is in it came with the source.
    Fresh,
    /// The tree runs, or ran: what is in it may be the only copy.
    Used,
}

/// Links every path of `paths` in `root` to its place in `kept`. Safe to repeat. Returns what was
/// pushed and cannot be seen, as something else is kept in its place.
pub fn link(
    root: &Path,
    kept: &Path,
    paths: &[String],
    tree: Tree,
) -> anyhow::Result<Vec<PathBuf>> {
    let mut hidden = Vec::new();
    for (path, slash) in plain(paths)? {
        link_one(root, kept, &path, slash, tree, &mut hidden)
            .with_context(|| format!("cannot keep the persistent path '{}'", path.display()))?;
    }
    hidden.truncate(HIDDEN_MAX);
    Ok(hidden)
}

/// Takes what a running release made at `paths` out of its tree, where it finds it as before.
pub fn collect(root: &Path, kept: &Path, paths: &[String]) -> anyhow::Result<()> {
    for (path, _) in plain(paths)? {
        if fs::symlink_metadata(root.join(&path)).is_ok_and(|found| !found.is_symlink()) {
            in_place::keep(&root.join(&path), &kept.join(&path))
                .with_context(|| format!("cannot keep what was made of '{}'", path.display()))?;
        }
    }
    Ok(())
}

/// Returns the paths inside the release, each with whether a slash says that it is a directory.
/// Paths in a persistent directory are left out, as they persist with it.
fn plain(paths: &[String]) -> anyhow::Result<Vec<(PathBuf, bool)>> {
    let mut plain: Vec<(PathBuf, bool)> = paths
        .iter()
        .map(|text| {
            let path = inside(Path::new(text)).filter(|path| !path.as_os_str().is_empty());
            let path = path.with_context(|| {
                format!("the persistent path '{text}' leaves the release; name one inside it")
            })?;
            Ok((path, text.ends_with('/')))
        })
        .collect::<anyhow::Result<_>>()?;
    plain.sort();
    let mut all: Vec<(PathBuf, bool)> = Vec::new();
    for (path, slash) in plain {
        if !all.iter().any(|(above, _)| path.starts_with(above)) {
            all.push((path, slash));
        }
    }
    Ok(all)
}

fn link_one(
    root: &Path,
    kept: &Path,
    path: &Path,
    slash: bool,
    tree: Tree,
    hidden: &mut Vec<PathBuf>,
) -> anyhow::Result<()> {
    let parent = path.parent().unwrap_or(Path::new(""));
    let place = resolve(root, parent)?.join(path.file_name().context("no name")?);
    let (from, to) = (root.join(place), kept.join(path));
    if fs::read_link(&from).is_ok_and(|target| target == to) {
        return Ok(());
    }
    create_parent(&from)?;
    create_parent(&to)?;
    let source = fs::metadata(&from).ok();
    let is_directory = match (fs::metadata(&to), &source) {
        (Ok(kept), _) => kept.is_dir(),
        (Err(_), Some(source)) => source.is_dir(),
        (Err(_), None) if slash || is_usually_a_directory(path) => true,
        (Err(_), None) if path.extension().is_none() => return Ok(()),
        (Err(_), None) => false,
    };
    if source.is_some() && tree == Tree::Used {
        return in_place::keep(&from, &to);
    }
    if let Some(source) = source {
        note_hidden(path, &from, &to, hidden, 0)?;
        // If it is of the other kind than what is kept, what is kept stays.
        if source.is_dir() == is_directory {
            if is_directory { copy_tree(&from, &from, &to, 0)? } else { copy_database(&from, &to)? }
        }
    }
    if is_directory {
        fs::create_dir_all(&to)?;
    }
    match fs::symlink_metadata(&from) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(&from)?,
        Ok(_) => fs::remove_file(&from)?,
        Err(_) => {}
    }
    symlink(&to, &from)?;
    Ok(())
}

fn is_usually_a_directory(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| DIRECTORIES.contains(&name))
}

/// Notes what was pushed and differs from what is kept under its name.
fn note_hidden(
    path: &Path,
    from: &Path,
    to: &Path,
    hidden: &mut Vec<PathBuf>,
    depth: usize,
) -> io::Result<()> {
    let (Ok(pushed), Ok(kept)) = (fs::metadata(from), fs::metadata(to)) else { return Ok(()) };
    if hidden.len() >= HIDDEN_MAX || depth >= DEPTH_MAX {
        return Ok(());
    }
    if !pushed.is_dir() || !kept.is_dir() {
        let same = pushed.is_file() && kept.is_file() && is_same(from, to)?;
        if !same {
            hidden.push(path.into());
        }
        return Ok(());
    }
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        note_hidden(&path.join(&name), &from.join(&name), &to.join(&name), hidden, depth + 1)?;
    }
    Ok(())
}

fn is_same(one: &Path, other: &Path) -> io::Result<bool> {
    let (mut one, mut other) = (fs::File::open(one)?, fs::File::open(other)?);
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut hash, mut expected) = (blake3::Hasher::new(), blake3::Hasher::new());
    io::copy(&mut one, &mut hash)?;
    io::copy(&mut other, &mut expected)?;
    Ok(hash.finalize() == expected.finalize())
}

fn create_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Copies a file, and before it what SQLite needs to make sense of it.
fn copy_database(from: &Path, to: &Path) -> anyhow::Result<()> {
    if to.exists() {
        return Ok(());
    }
    for sibling in SQLITE_SIBLINGS {
        let beside = |path: &Path| {
            let mut name = path.as_os_str().to_owned();
            name.push(sibling);
            PathBuf::from(name)
        };
        if beside(from).is_file() {
            copy_file(&beside(from), &beside(to))?;
        }
    }
    copy_file(from, to)
}

/// Copies a file. Never overwrites, and never leaves half a file under the final name.
fn copy_file(from: &Path, to: &Path) -> anyhow::Result<()> {
    if to.symlink_metadata().is_ok() {
        return Ok(());
    }
    let mut partial = to.as_os_str().to_owned();
    partial.push(PARTIAL);
    let partial = PathBuf::from(partial);
    fs::copy(from, &partial)?;
    fs::File::open(&partial)?.sync_all()?;
    let linked = fs::hard_link(&partial, to);
    fs::remove_file(&partial)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error.into()),
        _ => Ok(()),
    }
}

/// Copies a tree. Links are taken along where they stay within it; elsewhere they would mean
/// another place.
fn copy_tree(root: &Path, from: &Path, to: &Path, depth: usize) -> anyhow::Result<()> {
    ensure!(depth < DEPTH_MAX, "directories are nested deeper than {DEPTH_MAX}");
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_tree(root, &path, &copy, depth + 1)?;
        } else if kind.is_file() {
            copy_file(&path, &copy)?;
        } else if kind.is_symlink()
            && copy.symlink_metadata().is_err()
            && resolve(root, path.strip_prefix(root)?).is_ok()
        {
            symlink(fs::read_link(&path)?, &copy)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    struct KeptFiles {
        directory: tempfile::TempDir,
    }

    impl KeptFiles {
        fn new() -> KeptFiles {
            KeptFiles { directory: tempfile::tempdir().unwrap() }
        }

        fn kept(&self) -> PathBuf {
            self.directory.path().join("persist")
        }

        fn release(&self, name: &str, files: &[(&str, &str)]) -> PathBuf {
            let root = self.directory.path().join(name);
            fs::create_dir_all(&root).unwrap();
            for (path, text) in files {
                create_parent(&root.join(path)).unwrap();
                fs::write(root.join(path), text).unwrap();
            }
            root
        }

        fn link(&self, release: &Path, paths: &[&str]) -> anyhow::Result<()> {
            let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
            link(release, &self.kept(), &paths, Tree::Fresh).map(drop)
        }
    }

    #[test]
    fn what_came_with_the_source_is_kept_once_and_never_overwritten() {
        let place = KeptFiles::new();
        let first = place.release("v1", &[("up/a.png", "first"), ("db.sqlite3", "one")]);
        place.link(&first, &["up", "db.sqlite3"]).unwrap();
        fs::write(first.join("up/mine"), "user").unwrap();
        let second =
            place.release("v2", &[("up/a.png", "second"), ("up/b", "b"), ("db.sqlite3", "two")]);
        place.link(&second, &["up", "db.sqlite3"]).unwrap();
        place.link(&second, &["up", "db.sqlite3"]).unwrap();
        for (path, text) in
            [("up/a.png", "first"), ("up/b", "b"), ("up/mine", "user"), ("db.sqlite3", "one")]
        {
            assert_eq!(fs::read_to_string(second.join(path)).unwrap(), text, "{path}");
        }
    }

    #[test]
    fn files_and_directories_are_told_apart_by_name() {
        let place = KeptFiles::new();
        let release = place.release("v1", &[]);
        place
            .link(&release, &["log/", "db/x.sqlite3", "data.d/", "log/deeper", "htpasswd"])
            .unwrap();
        assert!(place.kept().join("log").is_dir() && place.kept().join("data.d").is_dir());
        assert!(!release.join("htpasswd").is_symlink(), "its name tells nothing");
        assert!(!release.join("db/x.sqlite3").exists(), "left for the application to create");
        fs::write(release.join("db/x.sqlite3"), "rows").unwrap();
        assert_eq!(fs::read_to_string(place.kept().join("db/x.sqlite3")).unwrap(), "rows");
    }

    #[test]
    fn a_persistent_path_does_not_leave_the_release() {
        let place = KeptFiles::new();
        let release = place.release("v1", &[]);
        for path in ["../x", "/etc", "a/../../x", "", "."] {
            place.link(&release, &[path]).expect_err(path);
        }
        symlink("/tmp", release.join("out")).unwrap();
        place.link(&release, &["out/x"]).expect_err("through a link");
    }

    /// Runs Python's own SQLite in `release`.
    fn sqlite(release: &Path, code: &str) -> String {
        let script = format!("import sqlite3\nc = sqlite3.connect('db/app.sqlite3')\n{code}");
        let output = Command::new("python3").args(["-c", &script]).current_dir(release).output();
        let output = output.expect("python3 runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    #[test]
    fn a_second_release_sees_the_rows_of_the_first() {
        let place = KeptFiles::new();
        let first = place.release("v1", &[]);
        place.link(&first, &["db/app.sqlite3"]).unwrap();
        let beside = sqlite(
            &first,
            "import os\nc.execute('pragma journal_mode=wal')\nc.execute('create table t(x)')\n\
             c.execute('insert into t values (7)')\nc.commit()\n\
             print(sorted(os.listdir('db')), os.path.exists(os.path.realpath('db/app.sqlite3') + \
             '-wal'))",
        );
        assert_eq!(beside, "['app.sqlite3'] True", "the log lies beside the kept file");
        let second = place.release("v2", &[]);
        place.link(&second, &["db/app.sqlite3"]).unwrap();
        assert_eq!(sqlite(&second, "print(c.execute('select x from t').fetchall())"), "[(7,)]");
    }

    #[test]
    fn a_path_inside_a_persistent_directory_is_kept_with_it() {
        let place = KeptFiles::new();
        for (name, text) in [("v1", "rows"), ("v2", "rows")] {
            let release = place.release(name, &[("storage/a", "")]);
            place.link(&release, &["storage/p.sqlite3", "storage"]).unwrap();
            if name == "v1" {
                fs::write(release.join("storage/p.sqlite3"), text).unwrap();
            }
            assert_eq!(fs::read_to_string(release.join("storage/p.sqlite3")).unwrap(), text);
        }
    }

    #[test]
    fn a_path_of_unknown_kind_becomes_what_the_program_makes_of_it() {
        let place = KeptFiles::new();
        let paths = ["htpasswd".to_owned(), "queue".to_owned()];
        let first = place.release("v1", &[]);
        place.link(&first, &["htpasswd", "queue"]).unwrap();
        fs::write(first.join("htpasswd"), "ann").unwrap();
        fs::create_dir(first.join("queue")).unwrap();
        fs::write(first.join("queue/1"), "job").unwrap();
        collect(&first, &place.kept(), &paths).unwrap();
        fs::write(first.join("queue/2"), "job").unwrap();
        let second = place.release("v2", &[]);
        place.link(&second, &["htpasswd", "queue"]).unwrap();
        for release in [&first, &second] {
            assert_eq!(fs::read_to_string(release.join("htpasswd")).unwrap(), "ann");
            assert!(release.join("queue/1").exists() && release.join("queue/2").exists());
        }
    }

    #[test]
    fn pushed_files_that_kept_ones_hide_are_named_if_they_differ() {
        let place = KeptFiles::new();
        let first = place.release("v1", &[("up/a", "1"), ("up/b", "1"), ("seed.json", "{}")]);
        let paths = ["up/".to_owned(), "seed.json".to_owned()];
        assert!(link(&first, &place.kept(), &paths, Tree::Fresh).unwrap().is_empty());
        let second = place.release("v2", &[("up/a", "2"), ("up/b", "1"), ("seed.json", "[]")]);
        let hidden = link(&second, &place.kept(), &paths, Tree::Fresh).unwrap();
        assert_eq!(hidden, [Path::new("seed.json"), Path::new("up/a")]);
    }
}
