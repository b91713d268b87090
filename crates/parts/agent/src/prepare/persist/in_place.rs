//! Moving files out of a tree that runs: at each moment there is something under the old name, and
//! a process that has them open goes on with the same files. Nothing is overwritten.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{copy_file, copy_tree};

/// The suffixes of files of an open SQLite database: a process that opens it by its new name has to
/// find these there.
const SIBLINGS: &[&str] = &["-wal", "-shm", "-journal"];
/// The suffix of what had a kept path's name in the tree, and is older than what is kept.
const LEFT: &str = ".left-behind";
/// The suffix of what was kept, and was replaced by a newer file under the same name.
const REPLACED: &str = ".replaced";
/// The suffix of a link that is about to be renamed.
const LINK: &str = ".cortex-link";

/// Moves `from`, a file or a directory in the tree, to `to` and makes it a link to that. Where
/// something is kept at `to`, a newer file replaces an older one (programs save by renaming over
/// the link), and directories are joined; what gives way stays beside it under another name.
pub fn keep(from: &Path, to: &Path) -> anyhow::Result<()> {
    super::create_parent(to)?;
    let (found, kept) = (fs::symlink_metadata(from)?, fs::metadata(to).ok());
    match kept {
        None if found.is_dir() => move_directory(from, to)?,
        None => move_file(from, to)?,
        Some(kept) if found.is_file() && kept.is_file() => {
            if found.modified()? > kept.modified()? {
                fs::rename(to, with(to, REPLACED))?;
                move_file(from, to)?;
            } else {
                fs::rename(from, with(from, LEFT))?;
                symlink(to, from)?;
            }
        }
        Some(kept) => {
            if found.is_dir() && kept.is_dir() {
                copy_tree(from, from, to, 0)?;
            }
            fs::rename(from, with(from, LEFT))?;
            symlink(to, from)?;
        }
    }
    Ok(())
}

/// Moves a file, which has both names for a moment.
fn move_file(from: &Path, to: &Path) -> anyhow::Result<()> {
    for ending in SIBLINGS {
        let (sibling, kept) = (with(from, ending), with(to, ending));
        if sibling.is_file() && !kept.exists() {
            link_or_copy(&sibling, &kept)?;
        }
    }
    link_or_copy(from, to)?;
    let link = with(from, LINK);
    match fs::remove_file(&link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    symlink(to, &link)?;
    fs::rename(&link, from)?;
    Ok(())
}

fn link_or_copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    match fs::hard_link(from, to) {
        // The file is kept on another disk: a process that has it open goes on with the old one
        // until it is replaced.
        Err(error) if error.raw_os_error() == Some(libc::EXDEV) => copy_file(from, to),
        linked => Ok(linked?),
    }
}

fn move_directory(from: &Path, to: &Path) -> anyhow::Result<()> {
    symlink(to, to)?;
    match renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        Err(_) => {
            // The file system cannot exchange names, or the file is kept on another disk.
            fs::remove_file(to)?;
            match fs::rename(from, to) {
                Err(error) if error.raw_os_error() == Some(libc::EXDEV) => {
                    copy_tree(from, from, to, 0)?;
                    fs::rename(from, with(from, LEFT))?;
                }
                renamed => renamed?,
            }
            Ok(symlink(to, from)?)
        }
    }
}

fn with(path: &Path, ending: &str) -> PathBuf {
    let mut name: OsString = path.into();
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::{Duration, SystemTime};

    use super::*;

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
