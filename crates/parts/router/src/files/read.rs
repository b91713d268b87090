//! The look at the disk: what a path leads to, and how it is sent. It is called where waiting holds
//! nobody up.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use router_core::files::coding::{self, Coding};
use router_core::files::content_type;
use router_core::files::fingerprint::is_fingerprinted;

use super::answer::prepare;
use super::conditions;
use super::found::{Content, Found};
use super::source::Roots;
use os::beneath::Directory;

/// The size, in bytes, up to which a file is kept in memory; larger ones are sent from their
/// descriptors.
const SMALL_BYTES_MAX: u64 = 256 * 1024;

/// Returns where another form of a file lies.
pub fn beside(path: &Path, coding: Coding) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(coding.suffix());
    path.into()
}

/// Reads a file from the disk, which may take its time.
pub fn read(path: &Path, roots: &Roots) -> Found {
    let roots = RealRoots::of(roots);
    open(path, &roots).unwrap_or_else(|| {
        let is_directory = path.is_dir() && roots.real(path).is_some();
        let content = if is_directory { Content::Directory } else { Content::Missing };
        Found { content, ..Found::missing() }
    })
}

/// The application's own directories, without links on the way.
struct RealRoots(Vec<PathBuf>);

impl RealRoots {
    fn of(roots: &Roots) -> RealRoots {
        let both = [&roots.build, &roots.persist];
        RealRoots(both.iter().filter_map(|root| root.canonicalize().ok()).collect())
    }

    fn contain(&self, real: &Path) -> bool {
        self.0.iter().any(|root| real.starts_with(root))
    }

    /// Returns where a path leads. Links are followed, but not out of these directories.
    fn real(&self, path: &Path) -> Option<PathBuf> {
        path.canonicalize().ok().filter(|real| self.contain(real))
    }

    /// Opens a file inside. The application may put a link into a path after it was looked at, so
    /// from then on none is followed; nor does a pipe in its place hold anybody up.
    fn open(&self, path: &Path) -> Option<File> {
        self.open_real(&self.real(path)?)
    }

    fn open_real(&self, real: &Path) -> Option<File> {
        let inside = |root: &PathBuf| Some((root.clone(), real.strip_prefix(root).ok()?));
        let (root, below) = self.0.iter().find_map(inside)?;
        Directory::open(&root).and_then(|root| root.place(below)?.file()).ok()
    }
}

fn open(path: &Path, roots: &RealRoots) -> Option<Found> {
    let file = roots.open(path)?;
    let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let size = metadata.len();
    let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let age = modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let content = if size <= SMALL_BYTES_MAX {
        let mut bytes = Vec::new();
        // A file that grows meanwhile must not fill the memory.
        file.take(SMALL_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Content::Small(bytes.into())
    } else {
        Content::Large(Arc::new(file))
    };
    let size = if let Content::Small(bytes) = &content { bytes.len() as u64 } else { size };
    let name = path.to_string_lossy();
    let (modified, changed_at) = conditions::modified(age);
    let is_coded = coding::ALL.iter().any(|coding| name.ends_with(coding.suffix()));
    let is_there = |coding: &Coding| {
        let other = beside(path, *coding);
        !is_coded && other.is_file() && roots.real(&other).is_some()
    };
    let found = Found {
        content,
        answer: Bytes::new(),
        size,
        content_type: content_type(&name),
        etag: format!("\"{:x}-{size:x}\"", age.as_nanos()),
        modified,
        changed_at,
        lasts: is_fingerprinted(&name),
        codings: coding::ALL.into_iter().filter(is_there).collect(),
    };
    Some(prepare(found))
}

#[cfg(test)]
mod tests;
