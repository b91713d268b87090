//! The identity of this node, and the lock that keeps it alone on its data directory.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, bail};
use model::NodeId;

use os::directory::data_directory;
use os::layout::DataDirectory;
use os::lockfile::FileLock;

const NODE_ID_LENGTH: usize = 8;
/// The letters of an id, without those that are mistaken for one another when read aloud.
const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// Locks the data directory, and makes it if it is missing; it becomes its owner's alone. The lock
/// is held as long as the node runs; the kernel releases it however the process ends.
pub fn lock(layout: &DataDirectory) -> anyhow::Result<FileLock> {
    let root = layout.root();
    for path in data_directory(layout)? {
        tracing::warn!(path = %path.display(), "data.was_open_to_others");
    }
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

/// Returns the id, which is made at the first start and stays with the data directory.
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
    use std::path::Path;

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
    fn the_id_of_a_node_stays() {
        let directory = tempfile::tempdir().unwrap();
        let layout = layout(directory.path());
        let id = node_id(&layout).unwrap();
        assert_eq!(node_id(&layout).unwrap(), id);
    }
}
