//! The specifics of Git: submodules, files that `export-ignore` leaves out, and its word on what is
//! ignored in a work tree.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::bail;

use super::ignored::Ignored;
use super::pack::{Packer, listed};
use super::repository::{Mount, Revision, VersionControl, VersionedDirectory, said};

/// The maximum depth of nested submodules: deeper ones are a circle.
const DEPTH_MAX: usize = 10;
/// The maximum number of trees of one push: nobody maintains more.
const PARTS_MAX: usize = 500;

/// A tree of one commit, and the place where it goes.
#[derive(Debug)]
pub struct TreePart {
    root: PathBuf,
    commit: String,
    prefix: PathBuf,
    mount: PathBuf,
    /// The files that it has, relative to where the push begins.
    files: BTreeSet<PathBuf>,
}

enum TreeEntry {
    File(PathBuf),
    /// A submodule, and its commit.
    Submodule(PathBuf, String),
}

pub fn is_installed() -> bool {
    VersionControl::Git.command(Path::new("."), &["--version"]).output().is_ok()
}

pub fn has_no_commit(root: &Path) -> bool {
    let head = VersionControl::Git.ask(root, &["rev-parse", "--verify", "--quiet", "HEAD"]);
    let inside = VersionControl::Git.ask(root, &["rev-parse", "--git-dir"]);
    head.is_ok_and(|output| !output.status.success())
        && inside.is_ok_and(|output| output.status.success())
}

pub fn names(place: &VersionedDirectory, commit: &str) -> anyhow::Result<Vec<PathBuf>> {
    let entries = entries(&place.root, commit, &place.prefix)?;
    let path = |entry| match entry {
        TreeEntry::File(path) | TreeEntry::Submodule(path, _) => path,
    };
    Ok(entries.into_iter().map(path).collect())
}

/// Lists the entries of a directory; nothing where the commit has no such directory.
fn entries(root: &Path, commit: &str, prefix: &Path) -> anyhow::Result<Vec<TreeEntry>> {
    let mut tree = OsString::from(format!("{commit}:"));
    tree.push(prefix);
    let arguments = ["ls-tree", "-r", "-z", "--full-tree"].map(OsStr::new);
    let output = VersionControl::Git.ask(root, &[&arguments[..], &[&tree]].concat())?;
    if !output.status.success() {
        if prefix.as_os_str().is_empty() {
            bail!("git cannot list {commit}: {}", said(&output.stderr));
        }
        return Ok(Vec::new());
    }
    let lines = output.stdout.split(|byte| *byte == 0).filter(|line| !line.is_empty());
    // A line is mode, type and object, a tab, the path.
    let entry = |line: &[u8]| {
        let tab = line.iter().position(|byte| *byte == b'\t')?;
        let path = PathBuf::from(OsStr::from_bytes(&line[tab + 1..]));
        let head = std::str::from_utf8(&line[..tab]).ok()?;
        let mut words = head.split(' ');
        Some(match (words.nth(1)?, words.next()?) {
            ("commit", object) => TreeEntry::Submodule(path, object.into()),
            _ => TreeEntry::File(path),
        })
    };
    Ok(lines.filter_map(entry).collect())
}

pub fn changed(place: &VersionedDirectory) -> anyhow::Result<BTreeSet<PathBuf>> {
    let arguments = ["status", "--porcelain", "-z", "--no-renames", "--", "."];
    let output = VersionControl::Git.ask(&place.directory(), &arguments)?;
    let lines = output.stdout.split(|byte| *byte == 0).filter_map(|line| line.get(3..));
    // The names are relative to the root of the work tree.
    let names = lines.map(|name| Path::new(OsStr::from_bytes(name)));
    Ok(names.map(|name| name.strip_prefix(&place.prefix).unwrap_or(name).into()).collect())
}

/// Returns the revision's own tree and those of its submodules, and the submodules that are not
/// checked out here.
pub fn parts(
    revision: &Revision,
    ignored: &Ignored,
) -> anyhow::Result<(Vec<TreePart>, BTreeSet<PathBuf>)> {
    let VersionedDirectory { root, prefix, .. } = revision.place.clone();
    let mut waiting = vec![(root, revision.id.clone(), prefix, PathBuf::new(), 0)];
    let (mut parts, mut absent) = (Vec::new(), BTreeSet::new());
    while let Some((root, commit, prefix, mount, depth)) = waiting.pop() {
        let mut files = BTreeSet::new();
        for entry in entries(&root, &commit, &prefix)? {
            let (path, object) = match entry {
                TreeEntry::File(path) => {
                    files.insert(mount.join(path));
                    continue;
                }
                TreeEntry::Submodule(path, object) => (path, object),
            };
            let at = mount.join(&path);
            if ignored.leaves_out(&at, true) {
                continue;
            }
            let directory = root.join(&prefix).join(&path);
            let is_here = depth < DEPTH_MAX
                && waiting.len() + parts.len() < PARTS_MAX
                && directory.join(".git").exists()
                && VersionControl::Git
                    .ask(&directory, &["cat-file", "-e", &format!("{object}^{{commit}}")])?
                    .status
                    .success();
            match is_here {
                true => waiting.push((directory, object, PathBuf::new(), at, depth + 1)),
                false => drop(absent.insert(at)),
            }
        }
        parts.push(TreePart { root, commit, prefix, mount, files });
    }
    Ok((parts, absent))
}

/// Packs the parts; returns messages about what was left out.
pub fn write(
    parts: &[TreePart],
    ignored: &Ignored,
    packer: &mut Packer<'_>,
) -> anyhow::Result<Vec<String>> {
    let mut left_out = BTreeSet::new();
    for part in parts {
        let mut arguments: Vec<&OsStr> =
            ["archive", "--format=tar", &part.commit].map(OsStr::new).into();
        if !part.prefix.as_os_str().is_empty() {
            arguments.extend([OsStr::new("--"), part.prefix.as_os_str()]);
        }
        let command = VersionControl::Git.command(&part.root, &arguments);
        let mount = Mount { prefix: &part.prefix, at: &part.mount, ignored };
        let mut rest = part.files.clone();
        mount.copy(VersionControl::Git, command, packer, |path| {
            rest.remove(&path);
        })?;
        left_out.extend(rest.into_iter().filter(|path| !ignored.leaves_out(path, false)));
    }
    if left_out.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![format!(
        "what .gitattributes marks as export-ignore is not pushed (--vcs dir pushes it): {}",
        listed(&left_out)
    )])
}

/// Returns what Git ignores in a work tree's directory, relative to it: by each ignore file above
/// it and in it, by the repository's own and by the user's. A directory stands for all in it.
/// `None` if Git does not say, or says that it ignores the directory itself.
pub fn ignored_in(directory: &Path) -> Option<BTreeSet<PathBuf>> {
    let arguments =
        ["ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory", "--", "."];
    let output =
        VersionControl::Git.ask(directory, &arguments).ok().filter(|one| one.status.success())?;
    let names = output.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let names: BTreeSet<PathBuf> = names
        .map(|name| name.strip_suffix(b"/").unwrap_or(name))
        .map(|name| PathBuf::from(OsStr::from_bytes(name)))
        .collect();
    (!names.contains(Path::new("."))).then_some(names)
}
