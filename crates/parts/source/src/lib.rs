//! The source that is pushed: a directory, or one revision of a Git, Mercurial or Bazaar
//! repository, as a tar stream. Runs on the developer's machine; knows nothing of applications.
//! Driven by `push`, on a thread that may block.

mod directory;
mod git;
mod ignored;
mod pack;
mod repository;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::ValueEnum;

use self::pack::Packer;
use self::repository::{VersionControl, VersionedDirectory};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Vcs {
    /// What the directory is or lies in: a work tree of Git, Mercurial or Bazaar, else a plain
    /// directory.
    #[default]
    Auto,
    Git,
    Hg,
    Bzr,
    /// The files as they are, whatever repository they belong to.
    Dir,
}

/// A source that can be pushed, found and checked but not read yet.
#[derive(Debug)]
pub struct Source {
    /// The note of the release: "push of abc123 (git)".
    pub note: String,
    /// The revision that is pushed, whole; `None` for files as they are.
    pub revision: Option<String>,
    /// The warning that the work tree has changes which are not pushed.
    pub uncommitted: Option<String>,
    /// The warnings for people, before the push.
    pub warnings: Vec<String>,
    content: PushedContent,
}

#[derive(Debug)]
enum PushedContent {
    Directory(PathBuf),
    Revision(Box<repository::Revision>),
}

impl Source {
    pub fn find(directory: &Path, vcs: Vcs, revision: Option<&str>) -> anyhow::Result<Source> {
        let metadata = std::fs::metadata(directory)
            .with_context(|| format!("{} cannot be pushed", directory.display()))?;
        if !metadata.is_dir() {
            bail!("{} is not a directory: push the directory that it lies in", directory.display());
        }
        let kind = match vcs {
            Vcs::Auto => return Source::whatever(directory, revision),
            Vcs::Git => VersionControl::Git,
            Vcs::Hg => VersionControl::Hg,
            Vcs::Bzr => VersionControl::Bzr,
            Vcs::Dir => return Source::as_it_is(directory, revision),
        };
        // A bare repository has no work tree.
        let bare =
            || VersionedDirectory { kind, root: directory.to_path_buf(), prefix: PathBuf::new() };
        let place = VersionedDirectory::around(directory).filter(|place| place.kind == kind);
        let place = place.unwrap_or_else(bare);
        let found = place.clone().find(revision)?;
        found.ok_or_else(|| not_there(&place, revision))
    }

    fn whatever(directory: &Path, revision: Option<&str>) -> anyhow::Result<Source> {
        if let Some(place) = VersionedDirectory::at(directory) {
            let found = place.clone().find(revision)?;
            return found.ok_or_else(|| not_there(&place, revision));
        }
        let Some(place) = VersionedDirectory::around(directory) else {
            return Source::as_it_is(directory, revision);
        };
        let (root, prefix) = (place.root.display(), place.prefix.display());
        let warning = match (place.clone().find(revision), revision) {
            (Ok(Some(source)), _) => return Ok(source),
            (Ok(None), Some(_)) => return Err(not_there(&place, revision)),
            (Err(error), Some(_)) => return Err(error),
            (Ok(None), None) if place.ignores(directory) => None,
            (Ok(None), None) => Some(format!("{prefix} is not committed in {root}")),
            (Err(error), None) => Some(format!("{error:#}")),
        };
        let mut source = Source::as_it_is(directory, None)?;
        let said = |why| format!("{why}; the files of {prefix} are pushed as they are");
        source.warnings.extend(warning.map(said));
        Ok(source)
    }

    fn as_it_is(directory: &Path, revision: Option<&str>) -> anyhow::Result<Source> {
        if let Some(revision) = revision {
            bail!(
                "there is no repository in {} that could hold the revision '{revision}'; leave out \
                 --rev, or say which kind it is with --vcs",
                directory.display()
            );
        }
        Ok(Source {
            note: "push of a directory".into(),
            revision: None,
            uncommitted: None,
            warnings: Vec::new(),
            content: PushedContent::Directory(directory.to_path_buf()),
        })
    }

    /// Writes an archive of at most so many bytes: the same source gives the same bytes. Returns
    /// warnings about what was packed.
    pub fn write(&self, to: &mut dyn Write, bytes_max: u64) -> anyhow::Result<Vec<String>> {
        let mut packer = Packer::new(to, bytes_max);
        let mut warnings = match &self.content {
            PushedContent::Directory(directory) => {
                directory::write(directory, &mut packer)?;
                Vec::new()
            }
            PushedContent::Revision(revision) => revision.write(&mut packer)?,
        };
        warnings.extend(packer.finish()?);
        Ok(warnings)
    }
}

fn not_there(place: &VersionedDirectory, revision: Option<&str>) -> anyhow::Error {
    anyhow::anyhow!(
        "the revision '{}' of {} has no directory {}: choose one that has it, or push the files as \
         they are with --vcs dir",
        revision.unwrap_or("the current one"),
        place.root.display(),
        place.prefix.display()
    )
}

#[cfg(test)]
mod tests;
