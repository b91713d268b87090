//! A plain directory as a tar stream: sorted, without times and owners, so that an unchanged
//! directory gives the same bytes. `.gitignore`, `.slugignore` and `.cortexignore` are honoured.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ignore::{DirEntry, WalkBuilder};
use tar::{Builder, EntryType};

use super::header;

/// Heroku's and ours, in the format of `.gitignore`, which is honoured too.
const IGNORE_FILES: &[&str] = &[".slugignore", ".cortexignore"];
/// Histories are no source.
const SKIPPED: &[&str] = &[".git", ".hg", ".bzr"];
/// In a Python environment: it names this machine's paths and is made anew where it runs.
const VIRTUAL_ENVIRONMENT_MARK: &str = "pyvenv.cfg";

pub fn write(root: &Path, to: &mut dyn Write) -> anyhow::Result<()> {
    let root = root.canonicalize().with_context(|| format!("{} cannot be read", root.display()))?;
    let mut archive = Builder::new(to);
    for entry in walk(&root) {
        let entry = entry.context("the directory cannot be read; nothing was pushed")?;
        let path = entry.path().strip_prefix(&root)?.to_path_buf();
        if !path.as_os_str().is_empty() {
            append(&mut archive, &root, &path, &entry)?;
        }
    }
    archive.finish()?;
    Ok(())
}

fn walk(root: &Path) -> ignore::Walk {
    let mut walk = WalkBuilder::new(root);
    walk.standard_filters(false)
        .git_ignore(true)
        .require_git(false)
        .follow_links(false)
        .sort_by_file_name(|a, b| a.cmp(b))
        .filter_entry(is_source);
    for file in IGNORE_FILES {
        walk.add_custom_ignore_filename(file);
    }
    walk.build()
}

fn is_source(entry: &DirEntry) -> bool {
    if entry.depth() == 0 {
        return true;
    }
    if SKIPPED.iter().any(|name| entry.file_name() == *name) {
        return false;
    }
    let is_directory = entry.file_type().is_some_and(|kind| kind.is_dir());
    !is_directory || !entry.path().join(VIRTUAL_ENVIRONMENT_MARK).exists()
}

fn append(
    archive: &mut Builder<&mut dyn Write>,
    root: &Path,
    path: &Path,
    entry: &DirEntry,
) -> anyhow::Result<()> {
    let shown = || format!("{} cannot be read; nothing was pushed", entry.path().display());
    let metadata = std::fs::symlink_metadata(entry.path()).with_context(shown)?;
    let kind = metadata.file_type();
    if kind.is_dir() {
        let mut header = header(EntryType::Directory, 0o755, 0);
        archive.append_data(&mut header, path, io::empty())?;
    } else if kind.is_symlink() {
        let target = link_target(root, entry.path())?;
        let mut header = header(EntryType::Symlink, 0o777, 0);
        archive.append_link(&mut header, path, target)?;
    } else if kind.is_file() {
        let file = File::open(entry.path()).with_context(shown)?;
        let metadata = file.metadata().with_context(shown)?;
        let executable = metadata.permissions().mode() & 0o111 != 0;
        let mode = if executable { 0o755 } else { 0o644 };
        let mut header = header(EntryType::Regular, mode, metadata.len());
        let exact = Exactly { file, left: metadata.len() };
        archive.append_data(&mut header, path, exact).with_context(shown)?;
    }
    // Sockets, pipes and devices belong to something that runs here: they are no source.
    Ok(())
}

fn link_target(root: &Path, link: &Path) -> anyhow::Result<PathBuf> {
    let target = std::fs::read_link(link)
        .with_context(|| format!("the link {} cannot be read", link.display()))?;
    let inside = link.strip_prefix(root)?;
    let resolved = link.canonicalize();
    let leaves = resolved.is_ok_and(|resolved| !resolved.starts_with(root));
    if leaves || !crate::api::stays_inside(inside, &target) {
        bail!(
            "{} is a link to {}, which is outside of what is pushed: replace it by a copy, or list \
             it in .cortexignore; nothing was pushed",
            link.display(),
            target.display()
        );
    }
    Ok(target)
}

/// As many bytes as the header promises, whatever happens to the file meanwhile.
struct Exactly {
    file: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.file.read(&mut buffer[..wanted])?;
        if count == 0 && wanted > 0 {
            return Err(io::Error::other("it became shorter meanwhile: push again"));
        }
        self.left -= count as u64;
        Ok(count)
    }
}
