//! Who this node is, and that it is alone on its data directory.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, bail};
use model::NodeId;

use crate::layout::DataDirectory;
use crate::lockfile::FileLock;

const NODE_ID_LENGTH: usize = 8;
/// Without letters that are mistaken for one another when read aloud.
const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// Makes the data directory where it is missing, readable by its owner alone: it holds secrets.
/// The lock is held as long as the node runs; the kernel lets go of it however the process ends.
pub fn lock(layout: &DataDirectory) -> anyhow::Result<FileLock> {
    let root = layout.root();
    private_directory(root).with_context(|| {
        format!(
            "the data directory {} cannot be made; choose another with --data-dir",
            root.display()
        )
    })?;
    let path = layout.lock();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .with_context(|| {
            format!("{} cannot be opened; choose another --data-dir", path.display())
        })?;
    let Some(lock) = FileLock::acquire(file.try_clone()?)? else {
        let pid = fs::read_to_string(&path).unwrap_or_default();
        bail!(
            "a node already runs on {} (pid {}): see `cortex status`, stop it with `cortex down`, \
             or choose another directory with --data-dir",
            root.display(),
            pid.trim()
        );
    };
    file.set_len(0)?;
    writeln!(&file, "{}", std::process::id())?;
    Ok(lock)
}

/// Sockets speak to whoever can open them, so their directory is the owner's alone. `/tmp` is
/// everybody's: a directory that somebody else made there is refused.
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

/// Makes it where it is missing, and refuses one that is not the owner's alone.
pub fn private_socket_directory(path: &Path) -> anyhow::Result<()> {
    private_directory(path).with_context(|| format!("{} cannot be made", path.display()))?;
    let mine = rustix::process::getuid().as_raw();
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_dir() || metadata.uid() != mine || metadata.mode() & 0o077 != 0 {
        bail!(
            "{} belongs to somebody else or is open to others: remove it, or set \
             XDG_RUNTIME_DIR to a private directory",
            path.display()
        );
    }
    Ok(())
}

/// Owner-only, parents included where they are missing.
pub fn private_directory(path: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The id made at the first start; it stays with the data directory.
pub fn node_id(layout: &DataDirectory) -> anyhow::Result<NodeId> {
    let path = layout.node_id();
    match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().with_context(|| {
            format!("{} is damaged; restore it from a backup of this directory", path.display())
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let id = random_id()?;
            let fresh = path.with_extension("fresh");
            let mut file = File::create(&fresh)?;
            writeln!(file, "{id}")?;
            file.sync_all()?;
            fs::rename(&fresh, &path)?;
            File::open(layout.root())?.sync_all()?;
            Ok(id)
        }
        Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
    }
}

fn random_id() -> anyhow::Result<NodeId> {
    let mut bytes = [0u8; NODE_ID_LENGTH];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    let text: String =
        bytes.iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)])).collect();
    Ok(text.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(directory: &Path) -> DataDirectory {
        DataDirectory::new(directory.to_path_buf(), directory)
    }

    #[test]
    fn a_second_node_is_told_who_holds_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let layout = layout(directory.path());
        let first = lock(&layout).unwrap();
        let error = lock(&layout).unwrap_err().to_string();
        assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
        drop(first);
        lock(&layout).unwrap();
    }

    #[test]
    fn sockets_are_found_again_under_another_environment() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("data");
        let layout = DataDirectory::new(root.clone(), &directory.path().join("run"));
        let _lock = lock(&layout).unwrap();
        socket_directory(&layout).unwrap();
        let elsewhere = DataDirectory::find(root, &directory.path().join("other"));
        assert_eq!(elsewhere.api_socket(), layout.api_socket());
    }

    #[test]
    fn a_socket_directory_open_to_others_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let layout = DataDirectory::new(directory.path().into(), &directory.path().join("run"));
        socket_directory(&layout).unwrap();
        fs::set_permissions(layout.sockets(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(socket_directory(&layout).is_err());
    }

    #[test]
    fn the_id_stays() {
        let directory = tempfile::tempdir().unwrap();
        let layout = layout(directory.path());
        let id = node_id(&layout).unwrap();
        assert_eq!(node_id(&layout).unwrap(), id);
    }
}
