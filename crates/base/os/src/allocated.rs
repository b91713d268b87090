//! What a directory takes of a disk.

use std::collections::BTreeSet;
use std::fs::{self, DirEntry};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The size of the blocks in which `stat` counts.
const BLOCK_BYTES: u64 = 512;
/// The most files that are counted, which bounds the time of a look; a directory with more takes at
/// least what was counted.
const FILES_MAX: usize = 5_000_000;

/// Returns the bytes that a directory with all in it takes of the disk. Links are not followed, a
/// file with several names counts once, and what cannot be read is left out.
pub fn allocated_bytes(directory: &Path) -> u64 {
    let mut waiting: Vec<PathBuf> = vec![directory.into()];
    let mut named: BTreeSet<(u64, u64)> = BTreeSet::new();
    let (mut bytes, mut files) = (0, 0);
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(metadata) = DirEntry::metadata(&entry) else { continue };
            files += 1;
            if files > FILES_MAX {
                return bytes;
            }
            let is_new = metadata.is_dir()
                || metadata.nlink() == 1
                || named.insert((metadata.dev(), metadata.ino()));
            if is_new {
                bytes += metadata.blocks() * BLOCK_BYTES;
            }
            if metadata.is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_count_once_however_they_are_named() {
        let place = tempfile::tempdir().unwrap();
        let deep = place.path().join("a/b");
        fs::create_dir_all(&deep).unwrap();
        let empty = allocated_bytes(place.path());
        fs::write(deep.join("file"), vec![1; 100_000]).unwrap();
        let full = allocated_bytes(place.path());
        assert!((100_000..200_000).contains(&(full - empty)), "{empty}, {full}");
        fs::hard_link(deep.join("file"), place.path().join("again")).unwrap();
        std::os::unix::fs::symlink(place.path(), deep.join("loop")).unwrap();
        let linked = allocated_bytes(place.path());
        assert!(linked - full < 10_000, "{full}, {linked}");
        assert_eq!(allocated_bytes(&place.path().join("missing")), 0);
    }
}
