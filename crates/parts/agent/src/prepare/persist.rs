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
//!
//! The application may change both the tree and what is kept meanwhile, so nothing here follows a
//! link of theirs (`os::beneath`); a link that is kept stays as it is, for the application to
//! follow.

mod in_place;

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::unpack::{inside, resolve, resolve_in};
use os::beneath::{Directory, Place};
use os::directory::private_directory;

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

/// The paths that live on beside the builds: where they are linked, and where they are kept.
#[derive(Clone, Debug)]
pub struct Persistent {
    pub root: PathBuf,
    pub kept: PathBuf,
    /// The directory within `kept`, which the application could make a link.
    pub below: PathBuf,
    pub paths: Vec<String>,
}

impl Persistent {
    /// Links every path in the tree to its place among what is kept. Safe to repeat. Returns what
    /// was pushed and cannot be seen, as something else is kept in its place.
    pub fn link(&self, tree: Tree) -> anyhow::Result<Vec<PathBuf>> {
        private_directory(&self.root)?;
        private_directory(&self.kept)?;
        let mut hidden = Vec::new();
        for (path, slash) in plain(&self.paths)? {
            self.link_one(&path, slash, tree, &mut hidden)
                .with_context(|| format!("cannot keep the persistent path '{}'", path.display()))?;
        }
        hidden.truncate(HIDDEN_MAX);
        Ok(hidden)
    }

    /// Takes what a running release made at these paths out of its tree, where it finds it as
    /// before.
    pub fn collect(&self) -> anyhow::Result<()> {
        let root = match Directory::open(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            root => root?,
        };
        for (path, _) in plain(&self.paths)? {
            let Ok(from) = root.place(&path) else { continue };
            if from.metadata().is_ok_and(|found| !found.is_symlink()) {
                let to = self.kept_directory()?.place_made(&path)?;
                in_place::keep(&from, &to, &self.kept_path(&path)).with_context(|| {
                    format!("cannot keep what was made of '{}'", path.display())
                })?;
            }
        }
        Ok(())
    }

    fn kept_directory(&self) -> io::Result<Directory> {
        private_directory(&self.kept)?;
        Directory::open(&self.kept)?.directory_made(&self.below)
    }

    /// Returns where the application finds what is kept.
    fn kept_path(&self, path: &Path) -> PathBuf {
        self.kept.join(&self.below).join(path)
    }

    fn link_one(
        &self,
        path: &Path,
        slash: bool,
        tree: Tree,
        hidden: &mut Vec<PathBuf>,
    ) -> anyhow::Result<()> {
        let parent = path.parent().unwrap_or(Path::new(""));
        let place = resolve(&self.root, parent)?.join(path.file_name().context("no name")?);
        let target = self.kept_path(path);
        let root = Directory::open(&self.root)?;
        let from = root.place_made(&place)?;
        if from.read_link().is_ok_and(|there| there == target) {
            return Ok(());
        }
        let to = self.kept_directory()?.place_made(path)?;
        // A link that came with the source stays within it.
        let source = match resolve(&self.root, &place) {
            Ok(real) => root.place(&real).ok().filter(Place::is_there),
            Err(_) => from.is_there().then(|| from.clone()),
        };
        let found = source.as_ref().map(Place::metadata).transpose()?;
        let is_directory = match (to.metadata(), &found) {
            (Ok(kept), _) => kept.is_dir(),
            (Err(_), Some(found)) => found.is_dir(),
            (Err(_), None) if slash || is_usually_a_directory(path) => true,
            (Err(_), None) if path.extension().is_none() => return Ok(()),
            (Err(_), None) => false,
        };
        if source.is_some() && tree == Tree::Used {
            return in_place::keep(&from, &to, &target);
        }
        if let (Some(source), Some(found)) = (source, found) {
            note_hidden(path, &source, &to, hidden, 0)?;
            // If it is of the other kind than what is kept, what is kept stays.
            match is_directory {
                true if found.is_dir() => {
                    let tree = source.directory()?;
                    copy_tree(&tree, &tree, Path::new(""), &to.directory_made()?, 0)?;
                }
                false if found.is_file() => copy_database(&source, &to)?,
                _ => {}
            }
        }
        if is_directory {
            to.directory_made()?;
        }
        from.remove()?;
        Ok(from.make_link(&target)?)
    }
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

fn is_usually_a_directory(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| DIRECTORIES.contains(&name))
}

/// Notes what was pushed and differs from what is kept under its name.
fn note_hidden(
    path: &Path,
    from: &Place,
    to: &Place,
    hidden: &mut Vec<PathBuf>,
    depth: usize,
) -> io::Result<()> {
    let (Ok(pushed), Ok(kept)) = (from.metadata(), to.metadata()) else { return Ok(()) };
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
    let kept = to.directory()?;
    for entry in from.directory()?.entries()? {
        let name = Path::new(entry.name());
        note_hidden(&path.join(name), &entry, &kept.place(name)?, hidden, depth + 1)?;
    }
    Ok(())
}

fn is_same(one: &Place, other: &Place) -> io::Result<bool> {
    let (mut one, mut other) = (one.file()?, other.file()?);
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut hash, mut expected) = (blake3::Hasher::new(), blake3::Hasher::new());
    io::copy(&mut one, &mut hash)?;
    io::copy(&mut other, &mut expected)?;
    Ok(hash.finalize() == expected.finalize())
}

/// Copies a file, and before it what SQLite needs to make sense of it.
fn copy_database(from: &Place, to: &Place) -> anyhow::Result<()> {
    if to.is_there() {
        return Ok(());
    }
    for sibling in SQLITE_SIBLINGS {
        if from.with(sibling).metadata().is_ok_and(|found| found.is_file()) {
            copy_file(&from.with(sibling), &to.with(sibling))?;
        }
    }
    copy_file(from, to)
}

/// Copies a file. Never overwrites, and never leaves half a file under the final name.
fn copy_file(from: &Place, to: &Place) -> anyhow::Result<()> {
    if to.is_there() {
        return Ok(());
    }
    let partial = to.with(PARTIAL);
    partial.remove()?;
    let (mut source, mut copy) = (from.file()?, partial.new_file()?);
    io::copy(&mut source, &mut copy)?;
    copy.set_permissions(source.metadata()?.permissions())?;
    copy.sync_all()?;
    let linked = partial.hard_link(to);
    partial.remove()?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error.into()),
        _ => Ok(()),
    }
}

/// Copies what is in a directory, which lies at `path` in `tree`. Links are taken along where they
/// stay within the tree; elsewhere they would mean another place.
fn copy_tree(
    tree: &Directory,
    from: &Directory,
    path: &Path,
    to: &Directory,
    depth: usize,
) -> anyhow::Result<()> {
    ensure!(depth < DEPTH_MAX, "directories are nested deeper than {DEPTH_MAX}");
    for entry in from.entries()? {
        let (path, copy) = (path.join(entry.name()), to.place(Path::new(entry.name()))?);
        let kind = entry.metadata()?.file_type();
        if kind.is_dir() {
            match copy.metadata() {
                // What is kept is of another kind, or a link: it stays.
                Ok(kept) if !kept.is_dir() => {}
                _ => {
                    copy_tree(tree, &entry.directory()?, &path, &copy.directory_made()?, depth + 1)?
                }
            }
        } else if kind.is_file() {
            copy_file(&entry, &copy)?;
        } else if kind.is_symlink()
            && !copy.is_there()
            && resolve_in(&|path| tree.place(path)?.read_link(), &path).is_ok()
        {
            copy.make_link(&entry.read_link()?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
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
                fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
                fs::write(root.join(path), text).unwrap();
            }
            root
        }

        fn of(&self, release: &Path, paths: &[&str]) -> Persistent {
            Persistent {
                root: release.into(),
                kept: self.kept(),
                below: PathBuf::new(),
                paths: paths.iter().map(|path| (*path).to_owned()).collect(),
            }
        }

        fn link(&self, release: &Path, paths: &[&str]) -> anyhow::Result<()> {
            self.of(release, paths).link(Tree::Fresh).map(drop)
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
        let first = place.release("v1", &[]);
        place.link(&first, &["htpasswd", "queue"]).unwrap();
        fs::write(first.join("htpasswd"), "ann").unwrap();
        fs::create_dir(first.join("queue")).unwrap();
        fs::write(first.join("queue/1"), "job").unwrap();
        place.of(&first, &["htpasswd", "queue"]).collect().unwrap();
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
        let paths = ["up/", "seed.json"];
        assert!(place.of(&first, &paths).link(Tree::Fresh).unwrap().is_empty());
        let second = place.release("v2", &[("up/a", "2"), ("up/b", "1"), ("seed.json", "[]")]);
        let hidden = place.of(&second, &paths).link(Tree::Fresh).unwrap();
        assert_eq!(hidden, [Path::new("seed.json"), Path::new("up/a")]);
    }

    /// Makes `keys/key` beside everything, which nobody is to reach.
    fn keys(place: &KeptFiles) -> PathBuf {
        let keys = place.directory.path().join("keys");
        fs::create_dir(&keys).unwrap();
        fs::write(keys.join("key"), "secret").unwrap();
        keys
    }

    fn is_untouched(keys: &Path) -> bool {
        let names: Vec<_> = fs::read_dir(keys).unwrap().map(|e| e.unwrap().file_name()).collect();
        names == ["key"] && fs::read_to_string(keys.join("key")).unwrap() == "secret"
    }

    #[test]
    fn links_among_what_is_kept_lead_the_node_nowhere() {
        let place = KeptFiles::new();
        let keys = keys(&place);
        fs::create_dir_all(place.kept().join("data")).unwrap();
        symlink(&keys, place.kept().join("up")).unwrap();
        symlink(&keys, place.kept().join("data/deep")).unwrap();
        symlink(keys.join("new"), place.kept().join("seed.json")).unwrap();
        symlink(keys.join("key"), place.kept().join("app.db")).unwrap();
        let pushed =
            [("up/a", "1"), ("data/deep/b", "1"), ("seed.json", "1"), ("app.db", "secret")];
        let release = place.release("v1", &pushed);
        let paths = ["up/", "data", "seed.json", "app.db"];
        let hidden = place.of(&release, &paths).link(Tree::Fresh).unwrap();
        assert!(is_untouched(&keys));
        // Not even whether a file is the same as another one is told.
        assert!(hidden.contains(&PathBuf::from("app.db")), "{hidden:?}");
        let second = place.release("v2", &[]);
        place.link(&second, &["data/deep/er/x.db"]).unwrap_err();
        assert!(is_untouched(&keys));
    }

    #[test]
    fn links_in_a_tree_that_ran_lead_the_node_nowhere() {
        let place = KeptFiles::new();
        let keys = keys(&place);
        let release = place.release("v1", &[("conf/x.json", "1"), ("up/a", "1")]);
        fs::remove_dir_all(release.join("conf")).unwrap();
        symlink(&keys, release.join("conf")).unwrap();
        symlink(&keys, release.join("up/out")).unwrap();
        symlink(keys.join("key"), release.join("up/key")).unwrap();
        symlink(keys.join("key"), release.join("app.db")).unwrap();
        for paths in [&["conf/key"][..], &["up"], &["app.db"]] {
            place.of(&release, paths).collect().unwrap();
            place.of(&release, paths).link(Tree::Used).ok();
        }
        assert!(is_untouched(&keys));
        let second = place.release("v2", &[]);
        place.link(&second, &["up", "app.db"]).unwrap();
        let kept = |path: &str| fs::symlink_metadata(place.kept().join(path)).unwrap();
        assert!(kept("up/out").is_symlink() && kept("up/key").is_symlink());
        assert!(kept("app.db").is_symlink(), "what it means is the application's to see");
        assert!(is_untouched(&keys));
    }

    #[test]
    fn a_home_that_is_kept_is_not_followed_out() {
        let place = KeptFiles::new();
        let keys = keys(&place);
        fs::create_dir(place.kept()).unwrap();
        symlink(&keys, place.kept().join("home")).unwrap();
        let release = place.release("v1", &[("up/a", "1")]);
        let of_home = Persistent { below: "home".into(), ..place.of(&release, &["up"]) };
        of_home.link(Tree::Fresh).unwrap_err();
        of_home.collect().unwrap_err();
        assert!(is_untouched(&keys));
    }
}
