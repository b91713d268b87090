//! Moving files out of a tree that runs: at each moment there is something under the old name, and
//! a process that has them open goes on with the same files. Nothing is overwritten.

use std::path::Path;

use super::{copy_file, copy_tree};
use os::beneath::Place;

/// The suffixes of files of an open SQLite database: a process that opens it by its new name has to
/// find these there.
const SIBLINGS: &[&str] = &["-wal", "-shm", "-journal"];
/// The suffix of what had a kept path's name in the tree, and is older than what is kept.
const LEFT: &str = ".left-behind";
/// The suffix of what was kept, and was replaced by a newer file under the same name.
const REPLACED: &str = ".replaced";
/// The suffix of a link that is about to be renamed.
const LINK: &str = ".cortex-link";

/// Moves `from`, a file or a directory in the tree, to `to` and makes it a link to that, whose path
/// is `target`. Where something is kept there, a newer file replaces an older one (programs save by
/// renaming over the link), and directories are joined; what gives way stays beside it under
/// another name.
pub fn keep(from: &Place, to: &Place, target: &Path) -> anyhow::Result<()> {
    let (found, kept) = (from.metadata()?, to.metadata().ok());
    match kept {
        None if found.is_dir() => move_directory(from, to, target)?,
        None => move_file(from, to, target)?,
        Some(kept) if found.is_file() && kept.is_file() => {
            if found.modified()? > kept.modified()? {
                to.rename(&to.with(REPLACED))?;
                move_file(from, to, target)?;
            } else {
                from.rename(&from.with(LEFT))?;
                from.make_link(target)?;
            }
        }
        Some(kept) => {
            if found.is_dir() && kept.is_dir() {
                let tree = from.directory()?;
                copy_tree(&tree, &tree, Path::new(""), &to.directory()?, 0)?;
            }
            from.rename(&from.with(LEFT))?;
            from.make_link(target)?;
        }
    }
    Ok(())
}

/// Moves a file, which has both names for a moment.
fn move_file(from: &Place, to: &Place, target: &Path) -> anyhow::Result<()> {
    for ending in SIBLINGS {
        let (sibling, kept) = (from.with(ending), to.with(ending));
        if sibling.metadata().is_ok_and(|found| found.is_file()) && !kept.is_there() {
            link_or_copy(&sibling, &kept)?;
        }
    }
    link_or_copy(from, to)?;
    let link = from.with(LINK);
    link.remove()?;
    link.make_link(target)?;
    Ok(link.rename(from)?)
}

fn link_or_copy(from: &Place, to: &Place) -> anyhow::Result<()> {
    match from.hard_link(to) {
        // The file is kept on another disk: a process that has it open goes on with the old one
        // until it is replaced.
        Err(error) if error.raw_os_error() == Some(libc::EXDEV) => copy_file(from, to),
        linked => Ok(linked?),
    }
}

fn move_directory(from: &Place, to: &Place, target: &Path) -> anyhow::Result<()> {
    to.make_link(target)?;
    match from.exchange(to) {
        Ok(()) => Ok(()),
        Err(_) => {
            // The file system cannot exchange names, or the file is kept on another disk.
            to.remove()?;
            match from.rename(to) {
                Err(error) if error.raw_os_error() == Some(libc::EXDEV) => {
                    let tree = from.directory()?;
                    copy_tree(&tree, &tree, Path::new(""), &to.directory_made()?, 0)?;
                    from.rename(&from.with(LEFT))?;
                }
                renamed => renamed?,
            }
            Ok(from.make_link(target)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::path::PathBuf;
    use std::time::{Duration, SystemTime};

    use os::beneath::Directory;

    use super::*;

    fn keep(from: &Path, to: &Path) -> anyhow::Result<()> {
        let root = Directory::open(Path::new("/"))?;
        let inside =
            |path: &Path| root.place_made(path.strip_prefix("/")?).map_err(anyhow::Error::from);
        super::keep(&inside(from)?, &inside(to)?, to)
    }

    fn places() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let (tree, kept) = (directory.path().join("tree"), directory.path().join("kept"));
        fs::create_dir_all(&tree).unwrap();
        (directory, tree, kept)
    }

    fn text(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_process_with_an_open_file_goes_on_with_it() {
        let (_directory, tree, kept) = places();
        let (from, to) = (tree.join("app.db"), kept.join("app.db"));
        let mut open = fs::File::create(&from).unwrap();
        fs::write(tree.join("app.db-wal"), "log").unwrap();
        keep(&from, &to).unwrap();
        open.write_all(b"later").unwrap();
        assert_eq!((text(&from), text(&to)), ("later".into(), "later".into()));
        assert_eq!(text(&kept.join("app.db-wal")), "log");
        assert!(from.is_symlink());
    }

    #[test]
    fn a_directory_is_moved_with_all_that_is_open_in_it() {
        let (_directory, tree, kept) = places();
        fs::create_dir_all(tree.join("up/deep")).unwrap();
        let mut open = fs::File::create(tree.join("up/deep/a")).unwrap();
        keep(&tree.join("up"), &kept.join("files/up")).unwrap();
        open.write_all(b"later").unwrap();
        fs::write(tree.join("up/b"), "b").unwrap();
        assert_eq!(text(&kept.join("files/up/deep/a")), "later");
        assert_eq!(text(&kept.join("files/up/b")), "b");
        assert!(tree.join("up").is_symlink());
    }

    #[test]
    fn the_newer_of_two_files_is_kept_and_the_other_one_is_not_lost() {
        for (tree_is_newer, expected, aside) in
            [(true, "tree", "kept/x.json.replaced"), (false, "kept", "tree/x.json.left-behind")]
        {
            let (directory, tree, kept) = places();
            fs::create_dir_all(&kept).unwrap();
            let (from, to) = (tree.join("x.json"), kept.join("x.json"));
            fs::write(&from, "tree").unwrap();
            fs::write(&to, "kept").unwrap();
            let older = if tree_is_newer { &to } else { &from };
            let before = SystemTime::now() - Duration::from_secs(60);
            fs::File::options().write(true).open(older).unwrap().set_modified(before).unwrap();
            keep(&from, &to).unwrap();
            assert_eq!((text(&from), text(&to)), (expected.into(), expected.into()));
            assert!(directory.path().join(aside).exists(), "{aside}");
        }
    }

    #[test]
    fn directories_are_joined() {
        let (_directory, tree, kept) = places();
        fs::create_dir_all(tree.join("up")).unwrap();
        fs::create_dir_all(kept.join("up")).unwrap();
        fs::write(tree.join("up/new"), "new").unwrap();
        fs::write(tree.join("up/a"), "tree").unwrap();
        fs::write(kept.join("up/a"), "kept").unwrap();
        keep(&tree.join("up"), &kept.join("up")).unwrap();
        assert_eq!(
            (text(&tree.join("up/a")), text(&tree.join("up/new"))),
            ("kept".into(), "new".into())
        );
        assert_eq!(text(&tree.join("up.left-behind/a")), "tree");
    }
}
