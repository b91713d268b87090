//! A plain directory as a tar stream: sorted, without times and owners, so that an unchanged
//! directory gives the same bytes. `.gitignore`, `.slugignore` and `.cortexignore` are honoured.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tar::{Builder, EntryType};

use super::header;
use super::ignored::Rules;

/// Heroku's and ours, in the format of `.gitignore`: what they say counts before what that says.
const IGNORE_FILES: &[&[&str]] = &[&[".slugignore", ".cortexignore"], &[".gitignore"]];
/// Histories are no source.
const SKIPPED: &[&str] = &[".git", ".hg", ".bzr"];
/// In a Python environment: it names this machine's paths and is made anew where it runs.
const VIRTUAL_ENVIRONMENT_MARK: &str = "pyvenv.cfg";

pub fn write(root: &Path, to: &mut dyn Write) -> anyhow::Result<()> {
    let root = root.canonicalize().with_context(|| format!("{} cannot be read", root.display()))?;
    let mut archive = Builder::new(to);
    Walk { root: &root, rules: Vec::new() }.directory(&mut archive, Path::new(""))?;
    archive.finish()?;
    Ok(())
}

struct Walk<'a> {
    root: &'a Path,
    /// Of the directories from the root to the one that is read, each kind of file apart.
    rules: Vec<(PathBuf, Vec<Rules>)>,
}

impl Walk<'_> {
    /// Everything in it, by name, each directory before what is in it.
    fn directory(
        &mut self,
        archive: &mut Builder<&mut dyn Write>,
        directory: &Path,
    ) -> anyhow::Result<()> {
        let at = self.root.join(directory);
        let unread = || format!("{} cannot be read; nothing was pushed", at.display());
        let rules = IGNORE_FILES.iter().map(|names| read_rules(&at, names)).collect();
        self.rules.push((directory.to_path_buf(), rules));
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(&at).with_context(unread)? {
            let entry = entry.with_context(unread)?;
            entries.push((entry.file_name(), entry.file_type().with_context(unread)?.is_dir()));
        }
        entries.sort_unstable();
        for (name, is_directory) in entries {
            let path = directory.join(&name);
            if !self.is_source(&path, is_directory) {
                continue;
            }
            append(archive, self.root, &path)?;
            if is_directory {
                self.directory(archive, &path)?;
            }
        }
        self.rules.pop();
        Ok(())
    }

    fn is_source(&self, path: &Path, is_directory: bool) -> bool {
        let name = path.file_name();
        if SKIPPED.iter().any(|skipped| name == Some(OsStr::new(skipped))) {
            return false;
        }
        let left_out = (0..IGNORE_FILES.len()).find_map(|kind| {
            self.rules.iter().rev().find_map(|(above, rules)| {
                let below = path.strip_prefix(above).ok()?;
                rules[kind].leave_out(below.as_os_str().as_bytes(), is_directory)
            })
        });
        let is_environment =
            || is_directory && self.root.join(path).join(VIRTUAL_ENVIRONMENT_MARK).exists();
        !left_out.unwrap_or(false) && !is_environment()
    }
}

/// Of a directory; a file that is not there or cannot be read says nothing.
fn read_rules(directory: &Path, names: &[&str]) -> Rules {
    let mut rules = Rules::default();
    for name in names {
        if let Ok(text) = std::fs::read(directory.join(name)) {
            rules.add(&text);
        }
    }
    rules
}

fn append(archive: &mut Builder<&mut dyn Write>, root: &Path, path: &Path) -> anyhow::Result<()> {
    let at = root.join(path);
    let shown = || format!("{} cannot be read; nothing was pushed", at.display());
    let metadata = std::fs::symlink_metadata(&at).with_context(shown)?;
    let kind = metadata.file_type();
    if kind.is_dir() {
        let mut header = header(EntryType::Directory, 0o755, 0);
        archive.append_data(&mut header, path, io::empty())?;
    } else if kind.is_symlink() {
        let target = link_target(root, &at)?;
        let mut header = header(EntryType::Symlink, 0o777, 0);
        archive.append_link(&mut header, path, target)?;
    } else if kind.is_file() {
        let file = File::open(&at).with_context(shown)?;
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
