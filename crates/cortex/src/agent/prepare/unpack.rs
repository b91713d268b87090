//! Unpacks a source archive into a release's directory. The archive is hostile input: nothing it
//! says may touch a file outside that directory.

use std::io::Read;
use std::path::{Component, Path};

use anyhow::{Context, bail, ensure};
use tar::{Archive, EntryType};

/// Larger trees are a mistake: a checked-in dependency cache, or a bomb.
const FILES_MAX: usize = 500_000;
const BYTES_MAX: u64 = 8 << 30;

pub fn unpack(source: impl Read, directory: &Path) -> anyhow::Result<()> {
    let mut archive = Archive::new(source);
    archive.set_preserve_mtime(false);
    archive.set_overwrite(true);
    let (mut files, mut bytes) = (0, 0u64);
    for entry in archive.entries()? {
        let mut entry = entry.context("the source archive is damaged; push again")?;
        let path = entry.path()?.into_owned();
        files += 1;
        bytes = bytes.saturating_add(entry.size());
        ensure!(files <= FILES_MAX, "the source has more than {FILES_MAX} files");
        ensure!(bytes <= BYTES_MAX, "the source has more than {BYTES_MAX} bytes");
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Directory | EntryType::Continuous => {}
            EntryType::Symlink => {
                let target = entry.link_name()?.unwrap_or_default();
                ensure!(
                    stays_inside(&path, &target),
                    "the link {} leads out of the source, to {}",
                    path.display(),
                    target.display()
                );
            }
            EntryType::XGlobalHeader => continue,
            kind => bail!("{} is neither file, directory nor link ({kind:?})", path.display()),
        }
        // Refuses paths that lead out, also through links made earlier; drops setuid bits.
        let inside = entry.unpack_in(directory);
        let inside = inside.with_context(|| format!("{} cannot be unpacked", path.display()))?;
        ensure!(inside, "the path {} leads out of the source", path.display());
    }
    Ok(())
}

/// Whether a link at `path` to `target` ends within the directory that both are relative to.
fn stays_inside(path: &Path, target: &Path) -> bool {
    let mut depth = path.components().filter(|part| matches!(part, Component::Normal(_))).count();
    depth = depth.saturating_sub(1);
    for part in target.components() {
        match part {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use tar::{Builder, Header};

    fn archive(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (path, kind, content) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o4755);
            // Written by hand: the library refuses to make hostile names.
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            let data: &[u8] = if *kind == EntryType::Regular { content.as_bytes() } else { b"" };
            if *kind == EntryType::Symlink || *kind == EntryType::Link {
                let name = &mut header.as_gnu_mut().unwrap().linkname;
                name[..content.len()].copy_from_slice(content.as_bytes());
            }
            header.set_size(data.len() as u64);
            header.set_cksum();
            builder.append(&header, data).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn files_directories_and_inner_links_are_unpacked() {
        let directory = tempfile::tempdir().unwrap();
        let source = archive(&[
            ("bin/", EntryType::Directory, ""),
            ("bin/run", EntryType::Regular, "#!/bin/sh\n"),
            ("run", EntryType::Symlink, "bin/run"),
            ("bin/up", EntryType::Symlink, "../run"),
        ]);
        unpack(&source[..], directory.path()).unwrap();
        assert_eq!(fs::read_to_string(directory.path().join("bin/up")).unwrap(), "#!/bin/sh\n");
        let mode = fs::metadata(directory.path().join("bin/run")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755, "executable, and nothing more");
    }

    #[test]
    fn hostile_archives_are_refused() {
        for entries in [
            vec![("../out", EntryType::Regular, "x")],
            vec![("link", EntryType::Symlink, "../../etc")],
            vec![("link", EntryType::Symlink, "/etc/passwd")],
            vec![("hard", EntryType::Link, "/etc/passwd")],
            vec![("device", EntryType::Char, "")],
            vec![("pipe", EntryType::Fifo, "")],
        ] {
            let outer = tempfile::tempdir().unwrap();
            let directory = outer.path().join("release");
            fs::create_dir(&directory).unwrap();
            assert!(unpack(&archive(&entries)[..], &directory).is_err(), "{entries:?}");
            assert!(!outer.path().join("out").exists());
        }
    }

    #[test]
    fn a_cut_archive_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let source = archive(&[("a", EntryType::Regular, &"x".repeat(2000))]);
        assert!(unpack(&source[..700], directory.path()).is_err());
    }
}
