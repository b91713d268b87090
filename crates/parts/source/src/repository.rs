//! A revision of a repository, or of a directory in it, by the version control system's own archive
//! command. Its messages are shown as they are: it knows best what is wrong with a revision.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, bail};

use super::ignored::{self, IGNORE_FILES, Ignored};
use super::pack::{Packer, listed};
use super::{PushedContent, Source, git};

/// The length of an id that is enough to recognise a commit by.
const SHOWN_ID_LENGTH: usize = 12;
/// The maximum length of a message in bytes: of what goes wrong, the first is what matters.
const MESSAGE_BYTES_MAX: u64 = 64 * 1024;
/// The variables that name, within a Git hook, the repository that calls it, whatever is pushed.
const OF_HOOKS: &[&str] = &[
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionControl {
    Git,
    Hg,
    Bzr,
}

const KINDS: [(&str, VersionControl); 3] =
    [(".git", VersionControl::Git), (".hg", VersionControl::Hg), (".bzr", VersionControl::Bzr)];

/// A directory under version control: a whole work tree, or a part of one.
#[derive(Clone, Debug)]
pub struct VersionedDirectory {
    pub kind: VersionControl,
    /// The root of the work tree.
    pub root: PathBuf,
    /// The place of the directory in it; empty for all of it.
    pub prefix: PathBuf,
}

/// A revision that exists, by its full id.
#[derive(Debug)]
pub struct Revision {
    pub(super) place: VersionedDirectory,
    pub(super) id: String,
    ignored: Ignored,
    /// The trees of Git alone: the revision's own, then those of the submodules that are here.
    parts: Vec<git::TreePart>,
}

impl VersionControl {
    /// Returns the kind of repository whose root this directory is.
    fn of(directory: &Path) -> Option<VersionControl> {
        KINDS.into_iter().find(|(name, _)| directory.join(name).exists()).map(|(_, kind)| kind)
    }

    pub fn word(self) -> &'static str {
        match self {
            VersionControl::Git => "git",
            VersionControl::Hg => "hg",
            VersionControl::Bzr => "bzr",
        }
    }

    /// Returns the program's name; Bazaar's successor Breezy speaks the same.
    fn program(self) -> &'static str {
        match self {
            VersionControl::Git => "git",
            VersionControl::Hg => "hg",
            VersionControl::Bzr if is_installed("brz") => "brz",
            VersionControl::Bzr => "bzr",
        }
    }

    pub fn command<S: AsRef<OsStr>>(self, directory: &Path, arguments: &[S]) -> Command {
        let mut command = Command::new(self.program());
        command
            .args(arguments)
            .current_dir(directory)
            .stdin(Stdio::null())
            .env("HGPLAIN", "1")
            .env("LC_ALL", "C.UTF-8")
            .env("GIT_LITERAL_PATHSPECS", "1")
            .env("GIT_OPTIONAL_LOCKS", "0");
        for name in OF_HOOKS {
            command.env_remove(name);
        }
        command
    }

    pub fn ask<S: AsRef<OsStr>>(self, directory: &Path, arguments: &[S]) -> anyhow::Result<Output> {
        self.command(directory, arguments).output().map_err(|error| self.not_started(error))
    }

    fn not_started(self, error: io::Error) -> anyhow::Error {
        let advice = match error.kind() {
            io::ErrorKind::NotFound => "install it, or push the files as they are with --vcs dir",
            _ => "find out what is wrong with it",
        };
        anyhow::Error::new(error).context(format!("{} cannot be run: {advice}", self.program()))
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

impl VersionedDirectory {
    /// Returns the work tree that the directory is the root of.
    pub fn at(directory: &Path) -> Option<VersionedDirectory> {
        let (root, prefix) = (directory.to_path_buf(), PathBuf::new());
        VersionControl::of(directory).map(|kind| VersionedDirectory { kind, root, prefix })
    }

    /// Returns the work tree that the directory is in, at its root or below.
    pub fn around(directory: &Path) -> Option<VersionedDirectory> {
        let directory = directory.canonicalize().ok()?;
        let root = directory.ancestors().find(|one| VersionControl::of(one).is_some())?;
        let prefix = directory.strip_prefix(root).ok()?.to_path_buf();
        Some(VersionedDirectory {
            kind: VersionControl::of(root)?,
            root: root.to_path_buf(),
            prefix,
        })
    }

    pub fn directory(&self) -> PathBuf {
        self.root.join(&self.prefix)
    }

    /// Whether the directory is one of those that are left out of the repository.
    pub fn ignores(&self, directory: &Path) -> bool {
        self.kind == VersionControl::Git && git::ignored_in(directory).is_none()
    }

    fn ask<S: AsRef<OsStr>>(&self, arguments: &[S]) -> anyhow::Result<Output> {
        self.kind.ask(&self.root, arguments)
    }

    /// Finds a revision; `None` where it has no such directory, which only a part of a work tree
    /// lacks.
    pub fn find(self, revision: Option<&str>) -> anyhow::Result<Option<Source>> {
        // It would be read as an option.
        if revision.is_some_and(|revision| revision.starts_with('-') || revision.contains('\0')) {
            bail!("'{}' is not a revision", revision.unwrap_or_default().escape_debug());
        }
        let id = self.resolve(revision)?;
        let short: String = id.chars().take(SHOWN_ID_LENGTH).collect();
        let names = self.names(&id)?;
        if names.is_empty() && !self.prefix.as_os_str().is_empty() {
            return Ok(None);
        }
        let mut warnings: Vec<String> = Vec::new();
        let changed = self.changed()?;
        let uncommitted = (!changed.is_empty()).then(|| {
            format!(
                "there are changes that are not committed: {short} is pushed without them (--vcs \
                 dir pushes the files as they are): {}",
                listed(&changed)
            )
        });
        let revision_id = Some(id.clone());
        let mut found =
            Revision { place: self, id, ignored: Ignored::default(), parts: Vec::new() };
        found.ignored = found.ignore_files(&names, revision.is_some())?;
        if found.place.kind == VersionControl::Git {
            let (parts, absent) = git::parts(&found, &found.ignored)?;
            found.parts = parts;
            if !absent.is_empty() {
                warnings.push(format!(
                    "submodules that are not here are pushed as empty directories: {}. Run `git \
                     submodule update --init --recursive`, then push again",
                    listed(&absent)
                ));
            }
        }
        let place = match found.place.prefix.as_os_str().is_empty() {
            true => String::new(),
            false => format!(":{}", found.place.prefix.display()),
        };
        let note = format!("push of {short}{place} ({})", found.place.kind.word());
        let content = PushedContent::Revision(Box::new(found));
        Ok(Some(Source { note, revision: revision_id, uncommitted, warnings, content }))
    }

    fn resolve(&self, revision: Option<&str>) -> anyhow::Result<String> {
        let output = match self.kind {
            VersionControl::Git => {
                let commit = format!("{}^{{commit}}", revision.unwrap_or("HEAD"));
                self.ask(&["rev-parse", "--verify", "--end-of-options", &commit])?
            }
            VersionControl::Hg => {
                self.ask(&["log", "--template", "{node}", "-r", revision.unwrap_or(".")])?
            }
            VersionControl::Bzr => self.ask(&["revno", "-r", revision.unwrap_or("-1")])?,
        };
        let id = String::from_utf8_lossy(&output.stdout).trim().to_string();
        let id = id.lines().last().unwrap_or_default().to_string();
        let none_yet = match self.kind {
            VersionControl::Git => git::has_no_commit(&self.root),
            VersionControl::Hg => !id.is_empty() && id.bytes().all(|byte| byte == b'0'),
            VersionControl::Bzr => self.ask(&["revno"])?.stdout.trim_ascii() == b"0",
        };
        if revision.is_none() && none_yet {
            return Err(NothingCommitted(self.root.clone(), self.kind).into());
        }
        if !output.status.success() || id.is_empty() {
            bail!(
                "there is no revision '{}' to push in {}: {}",
                revision.unwrap_or("the current one"),
                self.root.display(),
                said(&output.stderr)
            );
        }
        Ok(id)
    }

    /// Returns files that are changed, new or gone, below the directory; named as the version
    /// control system names them.
    fn changed(&self) -> anyhow::Result<BTreeSet<PathBuf>> {
        let place = self.pathspec();
        let arguments: Vec<&OsStr> = match self.kind {
            VersionControl::Git => return git::changed(self),
            VersionControl::Hg => ["status", "--no-status", "--print0"].map(OsStr::new).into(),
            VersionControl::Bzr => ["status", "--short"].map(OsStr::new).into(),
        };
        let output = self.ask(&[arguments, vec![&place]].concat())?;
        let end = if self.kind == VersionControl::Hg { 0 } else { b'\n' };
        let names = output.stdout.split(|byte| *byte == end).filter(|name| !name.is_empty());
        // Bazaar's lines begin with four columns of status.
        let names = names.map(|name| match self.kind {
            VersionControl::Bzr => name.get(4..).unwrap_or_default(),
            _ => name,
        });
        Ok(names.map(|name| PathBuf::from(OsStr::from_bytes(name))).collect())
    }

    /// Returns the directory in the form that commands at the root take.
    fn pathspec(&self) -> OsString {
        match (self.kind, self.prefix.as_os_str().is_empty()) {
            (VersionControl::Hg, _) => {
                let mut path = OsString::from("path:");
                path.push(if self.prefix.as_os_str().is_empty() { "." } else { "" });
                path.push(&self.prefix);
                path
            }
            (_, true) => ".".into(),
            (_, false) => self.prefix.clone().into(),
        }
    }

    /// Returns all files of that revision that lie in the directory, relative to it.
    fn names(&self, id: &str) -> anyhow::Result<Vec<PathBuf>> {
        let place = self.pathspec();
        let arguments: Vec<&OsStr> = match self.kind {
            VersionControl::Git => return git::names(self, id),
            VersionControl::Hg => ["files", "--print0", "-r", id].map(OsStr::new).into(),
            VersionControl::Bzr => {
                ["ls", "--recursive", "--versioned", "--null", "-r", id].map(OsStr::new).into()
            }
        };
        let output = self.ask(&[arguments, vec![&place]].concat())?;
        let names = output.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let names = names.map(|name| Path::new(OsStr::from_bytes(name)));
        let names = names.map(|name| clean(name.strip_prefix(&self.root).unwrap_or(name)));
        Ok(names.filter_map(|name| Some(name.strip_prefix(&self.prefix).ok()?.into())).collect())
    }

    fn content(&self, id: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
        let path = self.prefix.join(path);
        let output = match self.kind {
            VersionControl::Git => {
                let mut name = OsString::from(format!("{id}:"));
                name.push(&path);
                self.ask(&[OsStr::new("cat-file"), OsStr::new("blob"), &name])?
            }
            VersionControl::Hg => {
                let mut name = OsString::from("path:");
                name.push(&path);
                self.ask(&[OsStr::new("cat"), OsStr::new("-r"), OsStr::new(id), &name])?
            }
            VersionControl::Bzr => {
                self.ask(&[OsStr::new("cat"), OsStr::new("-r"), OsStr::new(id), path.as_os_str()])?
            }
        };
        Ok(output.stdout)
    }
}

/// Returns the path without `.` and empty components.
fn clean(path: &Path) -> PathBuf {
    path.components().filter(|one| matches!(one, Component::Normal(_))).collect()
}

/// The error of a repository in which nothing is committed yet.
#[derive(Debug, thiserror::Error)]
#[error(
    "there is no revision to push in {}, as nothing is committed yet: commit it first ({}), or push \
     the files as they are with --vcs dir", .0.display(), first_commit(*.1)
)]
pub struct NothingCommitted(PathBuf, VersionControl);

fn first_commit(kind: VersionControl) -> &'static str {
    match kind {
        VersionControl::Git => "`git add -A`, then `git commit -m 'first version'`",
        VersionControl::Hg => "`hg add`, then `hg commit -m 'first version'`",
        VersionControl::Bzr => "`bzr add`, then `bzr commit -m 'first version'`",
    }
}

impl Revision {
    /// Reads the ignore files. If a revision was chosen, they are read from it. Else they are
    /// instructions for this push and read from the directory, so that a line in one helps at once.
    fn ignore_files(&self, names: &[PathBuf], chosen: bool) -> anyhow::Result<Ignored> {
        let mut ignored = Ignored::default();
        let mut files: BTreeSet<PathBuf> =
            names.iter().filter(|name| ignored::is_ignore_file(name)).cloned().collect();
        if !chosen {
            files.extend(IGNORE_FILES.iter().map(PathBuf::from));
        }
        for name in IGNORE_FILES {
            for path in files.iter().filter(|path| path.file_name() == Some(OsStr::new(name))) {
                let text = match chosen {
                    true => self.place.content(&self.id, path)?,
                    false => std::fs::read(self.place.directory().join(path)).unwrap_or_default(),
                };
                ignored.add(path.parent().unwrap_or(Path::new("")), &text);
            }
        }
        Ok(ignored)
    }

    pub fn write(&self, packer: &mut Packer<'_>) -> anyhow::Result<Vec<String>> {
        if self.place.kind == VersionControl::Git {
            return git::write(&self.parts, &self.ignored, packer);
        }
        let place = self.place.pathspec();
        let line: &[&str] = match self.place.kind {
            VersionControl::Hg => &[
                "archive",
                "--config",
                "ui.archivemeta=false",
                "--type",
                "tar",
                "--prefix",
                ".",
                "--rev",
                &self.id,
                "-I",
            ],
            _ => &["export", "--format=tar", "--root=", "-r", &self.id],
        };
        let mut arguments: Vec<&OsStr> = line.iter().map(OsStr::new).collect();
        arguments.extend((self.place.kind == VersionControl::Hg).then_some(place.as_os_str()));
        arguments.push(OsStr::new("-"));
        let command = self.place.kind.command(&self.place.root, &arguments);
        let mount = Mount { prefix: &self.place.prefix, at: Path::new(""), ignored: &self.ignored };
        mount.copy(self.place.kind, command, packer, |_| {})?;
        Ok(Vec::new())
    }
}

/// The selection of an archive's entries, and the place where they go.
pub struct Mount<'a> {
    /// The directory whose entries are taken; its name is stripped.
    pub prefix: &'a Path,
    pub at: &'a Path,
    pub ignored: &'a Ignored,
}

impl Mount<'_> {
    /// Copies the entries; `seen` gets the path of everything in the archive.
    pub fn copy(
        &self,
        kind: VersionControl,
        mut command: Command,
        packer: &mut Packer<'_>,
        seen: impl FnMut(PathBuf),
    ) -> anyhow::Result<()> {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| kind.not_started(error))?;
        let mut stdout = child.stdout.take().context("no pipe")?;
        let mut stderr = child.stderr.take().context("no pipe")?;
        // The messages are read in another thread: a full pipe would stop the archive.
        let errors = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            io::copy(&mut (&mut stderr).take(MESSAGE_BYTES_MAX), &mut bytes).ok();
            io::copy(&mut stderr, &mut io::sink()).ok();
            bytes
        });
        let copied = self.entries(&mut stdout, packer, seen);
        if copied.is_ok() {
            io::copy(&mut stdout, &mut io::sink()).ok();
        }
        drop(stdout);
        let status = child.wait()?;
        let errors = errors.join().unwrap_or_default();
        if !status.success() && (copied.is_ok() || !errors.is_empty()) {
            bail!("{} could not make an archive: {}", kind.program(), said(&errors));
        }
        copied.context("the archive could not be passed on")
    }

    fn entries(
        &self,
        archive: impl Read,
        packer: &mut Packer<'_>,
        mut seen: impl FnMut(PathBuf),
    ) -> io::Result<()> {
        for entry in tar::Archive::new(archive).entries()? {
            let entry = entry?;
            let kind = entry.header().entry_type();
            if kind.is_pax_global_extensions() {
                continue;
            }
            let path = clean(&entry.path()?);
            let Ok(inside) = path.strip_prefix(self.prefix) else { continue };
            if inside.as_os_str().is_empty() {
                continue;
            }
            let path = self.at.join(inside);
            if !self.ignored.leaves_out(&path, kind.is_dir()) {
                packer.copy(&path, entry)?;
            }
            seen(path);
        }
        Ok(())
    }
}

pub fn said(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let text = text.trim();
    if text.is_empty() { "it does not say why".into() } else { text.into() }
}
