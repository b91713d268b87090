//! The directory `DATA/bin`: copies of the binary, named by their content, and links that name some
//! of them. An upgrade replaces the file that a node was started from, while shims live on in the
//! copy they were started from. Blocking throughout; driven by the launcher, `install` and the
//! upgrade.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;

use crate::observe::process;

/// The file that this process runs, whatever became of its name.
pub const OWN_BINARY: &str = "/proc/self/exe";
const CHUNK_BYTES: usize = 256 << 10;
/// The number of tries to run a copy: while it is written, another thread may start a process,
/// which holds the file open for writing until it has become its program; the kernel does not run a
/// file in that state.
const BUSY_RETRIES: u32 = 100;
const BUSY_WAIT: Duration = Duration::from_millis(5);

/// A role that a copy in `DATA/bin` has; at most one copy is kept for each, beside those in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryRole {
    /// The binary that the next start of the machine runs.
    Current,
    /// The binary that ran before it.
    Previous,
    /// The binary that is being tried.
    Candidate,
}

impl BinaryRole {
    pub fn name(self) -> &'static str {
        match self {
            BinaryRole::Current => "cortex",
            BinaryRole::Previous => "previous",
            BinaryRole::Candidate => "candidate",
        }
    }
}

/// Returns the copy that has this role, if there is one.
pub fn named(directory: &Path, role: BinaryRole) -> Option<PathBuf> {
    let target = fs::read_link(directory.join(role.name())).ok()?;
    let path = directory.join(target.file_name()?);
    path.is_file().then_some(path)
}

/// Gives a copy in `directory` a role; in one step, so that a start finds the one or the other.
pub fn name(directory: &Path, role: BinaryRole, copy: &Path) -> anyhow::Result<()> {
    let target = copy.file_name().context("a copy has a name")?;
    link(Path::new(target), &directory.join(role.name()))
}

pub fn forget(directory: &Path, role: BinaryRole) -> io::Result<()> {
    match fs::remove_file(directory.join(role.name())) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes or replaces a symbolic link.
pub fn link(target: &Path, at: &Path) -> anyhow::Result<()> {
    let fresh = at.with_file_name(unfinished());
    let _ = fs::remove_file(&fresh);
    std::os::unix::fs::symlink(target, &fresh)
        .and_then(|()| fs::rename(&fresh, at))
        .with_context(|| format!("cannot link {}", at.display()))
}

/// A copy of a binary, named by its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledBinary {
    pub path: PathBuf,
    /// The hash of the whole file, in hex.
    pub hash: String,
}

/// Copies a binary, unless there is a copy of it.
pub fn install(source: &Path, directory: &Path) -> anyhow::Result<InstalledBinary> {
    let hash = hash(source).with_context(|| format!("cannot read {}", source.display()))?;
    install_hashed(source, hash, directory)
}

/// Copies the binary that this process runs. Several parts of a node look for it as they start, so
/// it is read once: its file may be replaced, and what runs stays the same.
pub fn install_own(directory: &Path) -> anyhow::Result<InstalledBinary> {
    static HASH: Mutex<Option<String>> = Mutex::new(None);
    let source = Path::new(OWN_BINARY);
    // Held while it is copied, too: whoever comes second finds the copy.
    let mut known = HASH.lock().unwrap_or_else(PoisonError::into_inner);
    if known.is_none() {
        *known = Some(hash(source).context("cannot read this program's own file")?);
    }
    install_hashed(source, known.clone().expect("it is known by now"), directory)
}

fn install_hashed(
    source: &Path,
    hash: String,
    directory: &Path,
) -> anyhow::Result<InstalledBinary> {
    let path = directory.join(&hash[..32]);
    if !path.exists() {
        copy(source, directory, &path)
            .with_context(|| format!("cannot copy the binary to {}", path.display()))?;
    }
    Ok(InstalledBinary { path, hash })
}

/// Returns the hash of a whole file, in hex.
pub fn hash(source: &Path) -> io::Result<String> {
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

/// Whether there is a copy of what has this hash.
pub fn has(directory: &Path, hash: &str) -> bool {
    hash.get(..32).is_some_and(|name| directory.join(name).exists())
}

fn copy(source: &Path, directory: &Path, path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let fresh = directory.join(unfinished());
    let _ = fs::remove_file(&fresh);
    let copied = write(source, &fresh).and_then(|()| fs::rename(&fresh, path));
    if copied.is_err() {
        // Half a copy would keep a full disk full.
        let _ = fs::remove_file(&fresh);
    }
    copied
}

/// The beginning of the names of what is being made, before the id of the process that makes it.
const UNFINISHED: &str = "new-";

/// Returns the name of something that this process begins to make: several of its parts may look
/// for its copy at once.
fn unfinished() -> String {
    static TURN: AtomicU64 = AtomicU64::new(0);
    let turn = TURN.fetch_add(1, Ordering::Relaxed);
    format!("{UNFINISHED}{}-{turn}", std::process::id())
}

/// Returns whether something of that name is being made by a process that lives.
fn is_under_way(name: &OsStr) -> bool {
    let maker = name.to_str().and_then(|name| name.strip_prefix(UNFINISHED)?.split_once('-'));
    maker.and_then(|(pid, _)| process::stat(pid.parse().ok()?)).is_some()
}

fn write(source: &Path, fresh: &Path) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o700).open(fresh)?;
    io::copy(&mut fs::File::open(source)?, &mut file)?;
    file.flush()
}

/// Removes the copies that nothing runs from and that have no role, and what processes that have
/// ended left unfinished.
pub fn prune(directory: &Path, in_use: &BTreeSet<PathBuf>) -> anyhow::Result<()> {
    let roles = [BinaryRole::Current, BinaryRole::Previous, BinaryRole::Candidate];
    let named: BTreeSet<PathBuf> =
        roles.into_iter().filter_map(|role| named(directory, role)).collect();
    for entry in fs::read_dir(directory)? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        let is_role = roles.iter().any(|role| path.ends_with(role.name()));
        if is_role || in_use.contains(&path) || named.contains(&path) || is_under_way(&name) {
            continue;
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Starts a program from a copy that may just have been written.
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
    fn a_copy_that_fails_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let bin = directory.path().join("bin");
        // It is opened like a file, but reading it fails.
        copy(directory.path(), &bin, &bin.join("copy")).unwrap_err();
        assert_eq!(fs::read_dir(&bin).unwrap().count(), 0);
    }

    #[test]
    fn what_runs_is_copied_once() {
        let directory = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| directory.path().join(name));
        let first = install_own(&one).unwrap();
        assert_eq!(install_own(&one).unwrap(), first);
        assert_eq!(fs::read_dir(&one).unwrap().count(), 1);
        assert_eq!(hash(&first.path).unwrap(), first.hash);
        assert_eq!(install_own(&other).unwrap().path, other.join(first.path.file_name().unwrap()));
    }

    #[test]
    fn links_are_made_while_another_part_removes_what_nobody_needs() {
        let directory = tempfile::tempdir().unwrap();
        let copy = directory.path().join("copy");
        fs::write(&copy, "x").unwrap();
        let (bin, in_use) = (directory.path(), BTreeSet::from([copy.clone()]));
        std::thread::scope(|scope| {
            let naming = scope
                .spawn(|| (0..2_000).try_for_each(|_| name(bin, BinaryRole::Candidate, &copy)));
            while !naming.is_finished() {
                prune(bin, &in_use).unwrap();
            }
            naming.join().unwrap().unwrap();
        });
        assert_eq!(named(bin, BinaryRole::Candidate), Some(copy));
    }

    #[test]
    fn copies_with_a_role_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let bin = directory.path().join("bin");
        let copy_of = |text: &str| {
            let source = directory.path().join("source");
            fs::write(&source, text).unwrap();
            install(&source, &bin).unwrap().path
        };
        let [one, two, three] = ["one", "two", "three"].map(copy_of);
        name(&bin, BinaryRole::Current, &one).unwrap();
        name(&bin, BinaryRole::Current, &two).unwrap();
        name(&bin, BinaryRole::Previous, &one).unwrap();
        // Process 1 lives as long as the machine is up; there is none of the number 0.
        let [ours, others, left] = [&unfinished(), "new-1-0", "new-0-0"].map(|name| bin.join(name));
        for unfinished in [&ours, &others, &left] {
            fs::write(unfinished, "half").unwrap();
        }
        prune(&bin, &BTreeSet::new()).unwrap();
        assert!(ours.exists() && others.exists() && !left.exists());
        assert_eq!(named(&bin, BinaryRole::Current), Some(two.clone()));
        assert_eq!(fs::read(bin.join("cortex")).unwrap(), b"two");
        assert!(one.exists() && two.exists() && !three.exists());
        forget(&bin, BinaryRole::Previous).unwrap();
        forget(&bin, BinaryRole::Previous).unwrap();
        prune(&bin, &BTreeSet::from([three])).unwrap();
        assert!(!one.exists() && named(&bin, BinaryRole::Previous).is_none());
    }
}
