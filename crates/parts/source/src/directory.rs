//! A directory's files as they are, as a tar stream: sorted, without times and owners, so that an
//! unchanged directory gives the same bytes. What Git ignores in a work tree stays at home, in a
//! plain directory what its `.gitignore` names; `.slugignore` and `.cortexignore` are honoured in
//! both.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, bail};
use ignore::{DirEntry, WalkBuilder};

use super::git;
use super::ignored::{IGNORE_FILES, IgnoreDecision, Ignored};
use super::pack::Packer;
use super::repository::{VersionControl, VersionedDirectory};

/// The directories that hold histories and are no source.
const SKIPPED: &[&str] = &[".git", ".hg", ".bzr"];
/// The file that marks a Python environment, which names this machine's paths and is made anew
/// where it runs.
const VIRTUAL_ENVIRONMENT_MARK: &str = "pyvenv.cfg";

pub fn write(root: &Path, packer: &mut Packer<'_>) -> anyhow::Result<()> {
    let root = root.canonicalize().with_context(|| format!("{} cannot be read", root.display()))?;
    for entry in walk(&root) {
        let entry = entry.context("the directory cannot be read; nothing was pushed")?;
        let path = entry.path().strip_prefix(&root)?.to_path_buf();
        if !path.as_os_str().is_empty() {
            append(packer, &root, &path, &entry)?;
        }
    }
    Ok(())
}

fn walk(root: &Path) -> ignore::Walk {
    let mut walk = WalkBuilder::new(root);
    walk.standard_filters(false).follow_links(false).sort_by_file_name(|a, b| a.cmp(b));
    let in_git =
        VersionedDirectory::around(root).is_some_and(|place| place.kind == VersionControl::Git);
    let rules = in_git.then(|| Rules::of(root)).flatten();
    match rules {
        Some(rules) => {
            let rules = Arc::new(rules);
            walk.filter_entry(move |entry| is_source(entry) && rules.takes(entry));
        }
        None => {
            walk.git_ignore(true).require_git(false).filter_entry(is_source);
            // Where Git is not installed its files are read all the same.
            if in_git && !git::is_installed() {
                walk.parents(true).require_git(true).git_exclude(true).git_global(true);
            }
            for file in IGNORE_FILES {
                walk.add_custom_ignore_filename(file);
            }
        }
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
    !is_directory(entry) || !entry.path().join(VIRTUAL_ENVIRONMENT_MARK).exists()
}

fn is_directory(entry: &DirEntry) -> bool {
    entry.file_type().is_some_and(|kind| kind.is_dir())
}

/// The rules on what is left out of a work tree, as far as the walk has come.
struct Rules {
    root: PathBuf,
    known: Mutex<Known>,
}

struct Known {
    /// The paths that Git leaves out. A nested repository has its own say.
    by_git: BTreeSet<PathBuf>,
    own: Ignored,
}

impl Rules {
    /// Returns the rules; `None` if Git has nothing to say about this directory.
    fn of(root: &Path) -> Option<Rules> {
        let by_git = git::ignored_in(root)?;
        let mut known = Known { by_git, own: Ignored::default() };
        known.enter(Path::new(""), root);
        Some(Rules { root: root.to_path_buf(), known: Mutex::new(known) })
    }

    fn takes(&self, entry: &DirEntry) -> bool {
        let Ok(path) = entry.path().strip_prefix(&self.root) else { return false };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let left_out = match known.own.said_of(path, is_directory(entry)) {
            IgnoreDecision::Nothing => known.by_git.contains(path),
            IgnoreDecision::LeftOut => true,
            IgnoreDecision::Wanted => false,
        };
        if !left_out && is_directory(entry) {
            known.enter(path, entry.path());
        }
        !left_out
    }
}

impl Known {
    fn enter(&mut self, path: &Path, directory: &Path) {
        for name in IGNORE_FILES {
            if let Ok(text) = std::fs::read(directory.join(name)) {
                self.own.add(path, &text);
            }
        }
        if !path.as_os_str().is_empty() && directory.join(".git").exists() {
            let inside = git::ignored_in(directory).unwrap_or_default();
            self.by_git.extend(inside.iter().map(|name| path.join(name)));
        }
    }
}

fn append(
    packer: &mut Packer<'_>,
    root: &Path,
    path: &Path,
    entry: &DirEntry,
) -> anyhow::Result<()> {
    let shown = || format!("{} cannot be read; nothing was pushed", entry.path().display());
    let metadata = std::fs::symlink_metadata(entry.path()).with_context(shown)?;
    let kind = metadata.file_type();
    if kind.is_dir() {
        packer.directory(path)?;
    } else if kind.is_symlink() {
        packer.link(path, &link_target(root, entry.path())?)?;
    } else if kind.is_file() {
        let file = File::open(entry.path()).with_context(shown)?;
        let metadata = file.metadata().with_context(shown)?;
        let executable = metadata.permissions().mode() & 0o111 != 0;
        let mode = if executable { 0o755 } else { 0o644 };
        let exact = Exactly { file, left: metadata.len() };
        packer.file(path, mode, metadata.len(), exact).with_context(shown)?;
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
    if leaves || !agent_core::paths::stays_inside(inside, &target) {
        bail!(
            "{} is a link to {}, which is outside of what is pushed: replace it by a copy, or list \
             it in .cortexignore; nothing was pushed",
            link.display(),
            target.display()
        );
    }
    Ok(target)
}

/// A reader of as many bytes as the header promises, whatever happens to the file meanwhile.
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
