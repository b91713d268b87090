//! Copies of the binary for shims to run from: an upgrade replaces the file that a node was
//! started from, while shims live on.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::Context;

const CHUNK_BYTES: usize = 256 << 10;
/// While the copy is written, another thread may start a process, which holds the file open for
/// writing until it has become its program; the kernel does not run a file in that state.
const BUSY_RETRIES: u32 = 100;
const BUSY_WAIT: Duration = Duration::from_millis(5);

/// Blocking. Returns the path of the copy, named by its content.
pub fn install(source: &Path, directory: &Path) -> anyhow::Result<PathBuf> {
    let hash = hash(source).with_context(|| format!("cannot read {}", source.display()))?;
    let path = directory.join(&hash[..32]);
    if path.exists() {
        return Ok(path);
    }
    copy(source, directory, &path)
        .with_context(|| format!("cannot copy the binary to {}", path.display()))?;
    Ok(path)
}

fn hash(source: &Path) -> io::Result<String> {
    let mut file = fs::File::open(source)?;
    let mut hasher = blake3::Hasher::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hasher.finalize().to_hex().to_string()),
            count => hasher.update(&chunk[..count]),
        };
    }
}

fn copy(source: &Path, directory: &Path, path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let fresh = directory.join(format!("new-{}", std::process::id()));
    let _ = fs::remove_file(&fresh);
    let copied = write(source, &fresh).and_then(|()| fs::rename(&fresh, path));
    if copied.is_err() {
        // Half a copy would keep a full disk full.
        let _ = fs::remove_file(&fresh);
    }
    copied
}

fn write(source: &Path, fresh: &Path) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o700).open(fresh)?;
    io::copy(&mut fs::File::open(source)?, &mut file)?;
    file.flush()
}

/// Blocking. Removes the copies that nothing runs from.
pub fn prune(directory: &Path, in_use: &BTreeSet<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if !in_use.contains(&path) {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// Blocking.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    for _ in 0..BUSY_RETRIES {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(BUSY_WAIT);
            }
            result => return result,
        }
    }
    command.spawn()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_fails_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let bin = directory.path().join("bin");
        // Opened like a file, but reading it fails.
        copy(directory.path(), &bin, &bin.join("copy")).unwrap_err();
        assert_eq!(fs::read_dir(&bin).unwrap().count(), 0);
    }
}
