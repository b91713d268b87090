//! Directories that are their owner's alone: of data, which holds secrets, and of sockets, which
//! speak to anybody who can open them.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use crate::layout::DataDirectory;

/// The permissions of the group and of others.
const OPEN_TO_OTHERS: u32 = 0o077;
/// The bit of directories in which anybody may make files of their own, such as `/tmp`.
const STICKY: u32 = 0o1000;
/// The directory that a file system may have in its root, where nobody else put anything.
const LOST_AND_FOUND: &str = "lost+found";

/// Makes the data directory, or makes one that is there its owner's alone, as it holds secrets.
/// Returns what was open to others until now. A directory that may be somebody else's business is
/// refused instead, where it is open.
pub fn data_directory(layout: &DataDirectory) -> anyhow::Result<Vec<PathBuf>> {
    let root = layout.root();
    private_directory(root).with_context(|| {
        format!(
            "the data directory {} cannot be made; choose another with --data-dir",
            root.display()
        )
    })?;
    let shown = root.display();
    let metadata = fs::metadata(root).with_context(|| format!("{shown} cannot be read"))?;
    let mode = metadata.mode();
    let mut tightened = Vec::new();
    if mode & OPEN_TO_OTHERS != 0 {
        let remedy = format!("choose another directory with --data-dir, or `chmod 700 {shown}`");
        ensure!(
            mode & STICKY == 0 && (has_run_a_node(layout) || is_empty(root)?),
            "the data directory {shown} is open to others (mode {:o}) and has something in it that \
             is not of a node; what a node keeps is secret: {remedy}",
            mode & 0o7777
        );
        let kept = tighten(root, mode).with_context(|| {
            format!(
                "the data directory {shown} is open to others (mode {:o}), and what a node keeps \
                 is secret. It belongs to the user {}, so this one cannot close it: choose another \
                 with --data-dir, or give it to this user (`chown`) and `chmod 700 {shown}`",
                mode & 0o7777,
                metadata.uid()
            )
        })?;
        ensure!(
            kept,
            "the data directory {shown} stays open to others whatever is done: its file system \
             keeps no permissions. Mount that for one user alone, or choose another directory \
             with --data-dir"
        );
        tightened.push(root.to_owned());
    }
    for path in secrets(layout) {
        // Links lead to what somebody has put elsewhere on purpose.
        let found = fs::symlink_metadata(&path).ok().filter(|found| !found.is_symlink());
        let Some(mode) = found.map(|found| found.mode()) else { continue };
        // What cannot be changed is still below a directory that nobody else can enter.
        if mode & OPEN_TO_OTHERS != 0 && tighten(&path, mode).is_ok() {
            tightened.push(path);
        }
    }
    Ok(tightened)
}

fn secrets(layout: &DataDirectory) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for directory in layout.keys() {
        let keys = fs::read_dir(&directory).into_iter().flatten().flatten();
        all.extend(keys.map(|entry| entry.path()));
        all.push(directory);
    }
    all.extend(layout.secrets());
    all
}

fn has_run_a_node(layout: &DataDirectory) -> bool {
    layout.lock().is_file() || layout.node_id().is_file()
}

fn is_empty(directory: &Path) -> anyhow::Result<bool> {
    let entries = fs::read_dir(directory);
    let mut entries = entries.with_context(|| format!("{} cannot be read", directory.display()))?;
    Ok(entries.all(|entry| entry.is_ok_and(|entry| entry.file_name() == LOST_AND_FOUND)))
}

/// Takes the permissions of others away; returns whether they are gone.
fn tighten(path: &Path, mode: u32) -> std::io::Result<bool> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o7777 & !OPEN_TO_OTHERS))?;
    match fs::metadata(path) {
        Ok(now) => Ok(now.mode() & OPEN_TO_OTHERS == 0),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Makes the directory of sockets. They speak to anybody who can open them, so it is the owner's
/// alone. `/tmp` is everybody's: a directory that somebody else made there is refused.
pub fn socket_directory(layout: &DataDirectory) -> anyhow::Result<()> {
    let path = layout.sockets();
    private_directory(path).with_context(|| format!("{} cannot be made", path.display()))?;
    for directory in [Some(path), path.parent()].into_iter().flatten() {
        private_socket_directory(directory)?;
    }
    let link = layout.sockets_link();
    if fs::read_link(&link).ok().as_deref() != Some(path) {
        fs::remove_file(&link).ok();
        std::os::unix::fs::symlink(path, &link)
            .with_context(|| format!("{} cannot be made", link.display()))?;
    }
    Ok(())
}

/// Creates a directory if it is missing, and refuses one that is not the owner's alone.
pub fn private_socket_directory(path: &Path) -> anyhow::Result<()> {
    private_directory(path).with_context(|| format!("{} cannot be made", path.display()))?;
    let mine = rustix::process::getuid().as_raw();
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_dir() || metadata.uid() != mine || metadata.mode() & OPEN_TO_OTHERS != 0 {
        bail!(
            "{} belongs to somebody else or is open to others: remove it, or set \
             XDG_RUNTIME_DIR to a private directory",
            path.display()
        );
    }
    Ok(())
}

/// Creates a directory for its owner only, with missing parents.
pub fn private_directory(path: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_found_again_under_another_environment() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("data");
        let layout = DataDirectory::new(root.clone(), &directory.path().join("run"));
        private_directory(layout.root()).unwrap();
        socket_directory(&layout).unwrap();
        let elsewhere = DataDirectory::find(root, &directory.path().join("other"));
        assert_eq!(elsewhere.api_socket(), layout.api_socket());
    }

    fn open(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn data_of_a_node_is_closed_to_others() {
        let directory = tempfile::tempdir().unwrap();
        let layout = DataDirectory::new(directory.path().join("data"), directory.path());
        assert!(data_directory(&layout).unwrap().is_empty());
        let root = layout.root();
        assert_eq!(mode(root), 0o700);
        let key = layout.cluster().join("node.key");
        fs::create_dir(layout.cluster()).unwrap();
        for path in [&layout.node_id(), &layout.started(), &key] {
            fs::write(path, "x").unwrap();
        }
        for path in [&layout.cluster(), root] {
            open(path, 0o755);
        }
        for path in [&layout.started(), &key] {
            open(path, 0o644);
        }
        open(&layout.node_id(), 0o600);
        let tightened = data_directory(&layout).unwrap();
        assert_eq!(tightened, [root.to_owned(), key.clone(), layout.cluster(), layout.started()]);
        assert_eq!((mode(root), mode(&layout.cluster()), mode(&key)), (0o700, 0o700, 0o600));
        assert!(data_directory(&layout).unwrap().is_empty());
    }

    #[test]
    fn empty_directory_is_taken_and_one_that_is_somebody_elses_business_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let layout = DataDirectory::new(directory.path().join("data"), directory.path());
        let root = layout.root();
        fs::create_dir(root).unwrap();
        fs::create_dir(root.join(LOST_AND_FOUND)).unwrap();
        open(root, 0o2775);
        assert_eq!(data_directory(&layout).unwrap(), [root]);
        assert_eq!(mode(root) & OPEN_TO_OTHERS, 0);

        let refused = |needle: &str| {
            let before = mode(root);
            let error = format!("{:#}", data_directory(&layout).unwrap_err());
            assert!(error.contains(needle) && error.contains("chmod 700"), "{error}");
            assert_eq!(mode(root), before, "it is left as it was");
        };
        open(root, 0o1777);
        refused("mode 1777");
        fs::write(root.join("letter.txt"), "dear").unwrap();
        open(root, 0o755);
        refused("has something in it that is not of a node");
        open(root, 0o700);
        assert!(data_directory(&layout).unwrap().is_empty(), "nobody else can enter");
    }

    #[test]
    fn a_socket_directory_open_to_others_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let layout = DataDirectory::new(directory.path().into(), &directory.path().join("run"));
        socket_directory(&layout).unwrap();
        fs::set_permissions(layout.sockets(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(socket_directory(&layout).is_err());
    }
}
