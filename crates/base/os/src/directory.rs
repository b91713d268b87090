//! Directories that are their owner's alone: of data, which holds secrets, and of sockets, which
//! speak to anybody who can open them.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use anyhow::{Context, bail};

use crate::layout::DataDirectory;

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
    if !metadata.is_dir() || metadata.uid() != mine || metadata.mode() & 0o077 != 0 {
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

    #[test]
    fn a_socket_directory_open_to_others_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let layout = DataDirectory::new(directory.path().into(), &directory.path().join("run"));
        socket_directory(&layout).unwrap();
        fs::set_permissions(layout.sockets(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(socket_directory(&layout).is_err());
    }
}
