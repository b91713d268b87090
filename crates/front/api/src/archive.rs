//! Reading a pushed archive: what detection needs of it, and whether it is safe to unpack.
//! Everything in it is hostile input.

use std::io::Read;
use std::path::{Component, Path, PathBuf};

use agent_core::paths::stays_inside;
use recipe_core::source::SourceTree;
use tar::{Archive, EntryType};

use super::problem::Problem;

/// The most entries of an archive: ten times the files of a large application with its
/// dependencies.
pub const ENTRIES_MAX: usize = 500_000;
/// The longest path in an archive: what Linux accepts.
const PATH_BYTES_MAX: usize = 4095;

/// Reads the archive and refuses unsafe entries. It blocks, so only threads that may block call it.
pub fn read(archive: impl Read) -> Result<SourceTree, Problem> {
    let mut tree = SourceTree::new();
    let mut archive = Archive::new(archive);
    let entries = archive.entries().map_err(|error| damaged(&error))?;
    for (count, entry) in entries.enumerate() {
        let mut entry = entry.map_err(|error| damaged(&error))?;
        if count >= ENTRIES_MAX {
            return Err(Problem::invalid(
                "too_many_files",
                format!("the source has more than {ENTRIES_MAX} files"),
            )
            .hint("leave out what is generated: list it in .cortexignore"));
        }
        let path = entry.path().map_err(|error| damaged(&error))?.into_owned();
        let Some(name) = inside(&path) else {
            return Err(unsafe_entry(&path, "lies outside the application's directory"));
        };
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous => {
                let size = entry.size();
                let executable = entry.header().mode().is_ok_and(|mode| mode & 0o111 != 0);
                let mut bytes = None;
                if SourceTree::reads(&name, size) {
                    let mut text = Vec::new();
                    entry.read_to_end(&mut text).map_err(|error| damaged(&error))?;
                    bytes = Some(text);
                }
                tree.add(&name, size, executable, bytes.as_deref());
            }
            EntryType::Symlink => {
                let target = entry.link_name().map_err(|error| damaged(&error))?;
                if !target.is_some_and(|target| stays_inside(Path::new(&name), &target)) {
                    return Err(unsafe_entry(&path, "is a link that leads outside"));
                }
            }
            EntryType::Link => {
                let target = entry.link_name().map_err(|error| damaged(&error))?;
                if target.is_none_or(|target| inside(&target).is_none()) {
                    return Err(unsafe_entry(&path, "is a link that leads outside"));
                }
            }
            EntryType::Directory | EntryType::XGlobalHeader => {}
            _ => return Err(unsafe_entry(&path, "is not a file, a directory or a link")),
        }
    }
    Ok(tree)
}

/// Returns the path without `./`; `None` if it climbs out of the directory or is too long.
fn inside(path: &Path) -> Option<String> {
    if path.as_os_str().len() > PATH_BYTES_MAX {
        return None;
    }
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            _ => return None,
        }
    }
    // Linux allows names that are not UTF-8; no framework is recognised by one.
    Some(clean.to_string_lossy().into_owned())
}

fn damaged(error: &std::io::Error) -> Problem {
    Problem::invalid(
        "damaged_archive",
        format!("what was pushed is not a complete tar archive: {error}"),
    )
    .hint("push again")
}

fn unsafe_entry(path: &Path, why: &str) -> Problem {
    let shown: String = path.to_string_lossy().escape_debug().take(200).collect();
    Problem::invalid("unsafe_archive", format!("'{shown}' {why}"))
        .hint("remove it from what is pushed, for example by a line in .cortexignore")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            // `set_path` would refuse the hostile ones.
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o755);
            if kind.is_symlink() || kind.is_hard_link() {
                header.set_link_name_literal(content).unwrap();
                header.set_size(0);
                header.set_cksum();
                builder.append(&header, std::io::empty()).unwrap();
            } else {
                header.set_size(content.len() as u64);
                header.set_cksum();
                builder.append(&header, content.as_bytes()).unwrap();
            }
        }
        builder.into_inner().unwrap()
    }

    fn check(entries: &[(&str, EntryType, &str)]) -> Result<SourceTree, String> {
        read(&archive(entries)[..]).map_err(|problem| problem.body().code)
    }

    #[test]
    fn files_are_seen_with_their_texts() {
        let tree = check(&[
            ("./app.py", EntryType::Regular, "import x"),
            ("sub/", EntryType::Directory, ""),
            ("sub/link", EntryType::Symlink, "../app.py"),
        ])
        .unwrap();
        assert_eq!(tree.text("app.py"), Some("import x"));
        assert!(tree.files["app.py"].executable);
    }

    #[test]
    fn hostile_entries_are_refused() {
        for entries in [
            [("../x", EntryType::Regular, "")],
            [("/etc/x", EntryType::Regular, "")],
            [("a/../../x", EntryType::Regular, "")],
            [("link", EntryType::Symlink, "/etc/passwd")],
            [("a/link", EntryType::Symlink, "../../x")],
            [("hard", EntryType::Link, "../x")],
            [("device", EntryType::Block, "")],
            [("pipe", EntryType::Fifo, "")],
        ] {
            assert_eq!(check(&entries), Err("unsafe_archive".into()), "{entries:?}");
        }
    }

    #[test]
    fn a_torn_archive_is_refused() {
        let whole = archive(&[("app.py", EntryType::Regular, &"x".repeat(5000))]);
        let torn = read(&whole[..3000]).unwrap_err();
        assert_eq!(torn.body().code, "damaged_archive");
        assert_eq!(read(&[7u8; 2048][..]).unwrap_err().body().code, "damaged_archive");
    }
}
