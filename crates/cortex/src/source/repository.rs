//! One revision of a repository, by the version control system's own archive command. Its messages
//! are shown as they are: it knows best what is wrong with a revision.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, bail};

use super::{Content, Source};

/// Enough to recognise a commit by.
const SHOWN_ID_LENGTH: usize = 12;

/// Of what goes wrong, the first is what matters.
const MESSAGE_BYTES_MAX: u64 = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Git,
    Hg,
    Bzr,
}

/// A revision that exists, by its full id.
#[derive(Debug)]
pub struct Revision {
    kind: Kind,
    program: &'static str,
    directory: PathBuf,
    id: String,
}

impl Kind {
    /// The repository whose root this directory is.
    pub fn of(directory: &Path) -> Option<Kind> {
        let kinds = [(".git", Kind::Git), (".hg", Kind::Hg), (".bzr", Kind::Bzr)];
        kinds.into_iter().find(|(name, _)| directory.join(name).exists()).map(|(_, kind)| kind)
    }

    fn word(self) -> &'static str {
        match self {
            Kind::Git => "git",
            Kind::Hg => "hg",
            Kind::Bzr => "bzr",
        }
    }

    /// Bazaar's successor Breezy speaks the same.
    fn program(self) -> &'static str {
        match self {
            Kind::Git => "git",
            Kind::Hg => "hg",
            Kind::Bzr if is_installed("brz") => "brz",
            Kind::Bzr => "bzr",
        }
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

pub fn find(kind: Kind, directory: &Path, revision: Option<&str>) -> anyhow::Result<Source> {
    let mut found = Revision {
        kind,
        program: kind.program(),
        directory: directory.to_path_buf(),
        id: String::new(),
    };
    // Would be read as an option.
    if revision.is_some_and(|revision| revision.starts_with('-') || revision.contains('\0')) {
        bail!("'{}' is no revision", revision.unwrap_or_default().escape_debug());
    }
    found.id = found.resolve(revision)?;
    let shown: String = found.id.chars().take(SHOWN_ID_LENGTH).collect();
    let mut warnings = Vec::new();
    if found.is_changed()? {
        warnings.push(format!(
            "there are changes that are not committed: {shown} is pushed without them (--vcs dir \
             pushes the files as they are)"
        ));
    }
    if kind == Kind::Git && directory.join(".gitmodules").exists() {
        warnings.push("submodules are not pushed (--vcs dir pushes their files)".into());
    }
    let note = format!("push of {shown} ({})", kind.word());
    Ok(Source { note, warnings, content: Content::Revision(found) })
}

impl Revision {
    fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(self.program);
        command
            .args(arguments)
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .env("HGPLAIN", "1")
            .env("LC_ALL", "C.UTF-8");
        command
    }

    fn ask(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        self.command(arguments).output().map_err(|error| self.not_started(error))
    }

    fn not_started(&self, error: io::Error) -> anyhow::Error {
        let advice = match error.kind() {
            io::ErrorKind::NotFound => "install it, or push the files as they are with --vcs dir",
            _ => "look what is wrong with it",
        };
        anyhow::Error::new(error).context(format!("{} cannot be run: {advice}", self.program))
    }

    fn resolve(&self, revision: Option<&str>) -> anyhow::Result<String> {
        let output = match self.kind {
            Kind::Git => {
                let commit = format!("{}^{{commit}}", revision.unwrap_or("HEAD"));
                self.ask(&["rev-parse", "--verify", "--end-of-options", &commit])?
            }
            Kind::Hg => {
                self.ask(&["log", "--template", "{node}", "-r", revision.unwrap_or(".")])?
            }
            Kind::Bzr => self.ask(&["revno", "-r", revision.unwrap_or("-1")])?,
        };
        let id = String::from_utf8_lossy(&output.stdout).trim().to_string();
        if !output.status.success() || id.is_empty() {
            bail!(
                "there is no revision '{}' to push in {}: {}",
                revision.unwrap_or("the current one"),
                self.directory.display(),
                said(&output.stderr)
            );
        }
        Ok(id.lines().last().unwrap_or_default().to_string())
    }

    fn is_changed(&self) -> anyhow::Result<bool> {
        let output = match self.kind {
            Kind::Git => self.ask(&["status", "--porcelain"])?,
            Kind::Hg => self.ask(&["status"])?,
            Kind::Bzr => self.ask(&["status", "--short"])?,
        };
        Ok(!output.stdout.is_empty())
    }

    pub fn write(self, to: &mut dyn Write) -> anyhow::Result<()> {
        let arguments: &[&str] = match self.kind {
            Kind::Git => &["archive", "--format=tar", &self.id],
            Kind::Hg => &[
                "archive",
                "--config",
                "ui.archivemeta=false",
                "--type",
                "tar",
                "--prefix",
                ".",
                "--rev",
                &self.id,
                "-",
            ],
            // Without its option the files would carry the time of the export.
            Kind::Bzr => {
                &["export", "--format=tar", "--per-file-timestamps", "--root=", "-r", &self.id, "-"]
            }
        };
        let mut child = self
            .command(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| self.not_started(error))?;
        let mut stdout = child.stdout.take().context("no pipe")?;
        let mut stderr = child.stderr.take().context("no pipe")?;
        // Read beside: a full pipe would stop the archive.
        let errors = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            io::copy(&mut (&mut stderr).take(MESSAGE_BYTES_MAX), &mut bytes).ok();
            io::copy(&mut stderr, &mut io::sink()).ok();
            bytes
        });
        let copied = io::copy(&mut stdout, to);
        drop(stdout);
        let status = child.wait()?;
        let errors = errors.join().unwrap_or_default();
        copied.context("the archive could not be passed on")?;
        if !status.success() {
            bail!("{} could not make an archive: {}", self.program, said(&errors));
        }
        Ok(())
    }
}

fn said(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let text = text.trim();
    if text.is_empty() { "it does not say why".into() } else { text.into() }
}
