//! What is pushed: a directory, or one revision of a Git, Mercurial or Bazaar repository, as a tar
//! stream. Runs on the developer's machine; knows nothing of applications. Driven by `push`, on a
//! thread that may block.

mod directory;
mod header;
mod repository;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::ValueEnum;

pub use self::header::header;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Vcs {
    /// What lies in the directory: .git, .hg or .bzr, else the plain directory.
    #[default]
    Auto,
    Git,
    Hg,
    Bzr,
    /// The files as they are, whatever repository they belong to.
    Dir,
}

/// Something that can be pushed, found and checked but not read yet.
#[derive(Debug)]
pub struct Source {
    /// For the release: "push of abc123 (git)".
    pub note: String,
    /// For people, before the push.
    pub warnings: Vec<String>,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Directory(PathBuf),
    Revision(repository::Revision),
}

impl Source {
    pub fn find(directory: &Path, vcs: Vcs, revision: Option<&str>) -> anyhow::Result<Source> {
        let metadata = std::fs::metadata(directory)
            .with_context(|| format!("{} cannot be pushed", directory.display()))?;
        if !metadata.is_dir() {
            bail!("{} is no directory: push the directory it lies in", directory.display());
        }
        let kind = match vcs {
            Vcs::Auto => repository::Kind::of(directory),
            Vcs::Git => Some(repository::Kind::Git),
            Vcs::Hg => Some(repository::Kind::Hg),
            Vcs::Bzr => Some(repository::Kind::Bzr),
            Vcs::Dir => None,
        };
        match (kind, revision) {
            (Some(kind), revision) => repository::find(kind, directory, revision),
            (None, Some(revision)) => bail!(
                "there is no repository in {} that could hold the revision '{revision}'; leave out \
                 --rev, or say which kind it is with --vcs",
                directory.display()
            ),
            (None, None) => Ok(Source {
                note: "push of a directory".into(),
                warnings: Vec::new(),
                content: Content::Directory(directory.to_path_buf()),
            }),
        }
    }

    /// The same source gives the same bytes.
    pub fn write(self, to: &mut dyn Write) -> anyhow::Result<()> {
        match self.content {
            Content::Directory(directory) => directory::write(&directory, to),
            Content::Revision(revision) => revision.write(to),
        }
    }
}

#[cfg(test)]
mod tests;
