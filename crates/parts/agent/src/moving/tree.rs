//! Directories as a stream of entries, and back. Blocking; must not know nodes or applications.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use tokio::sync::mpsc::Sender;

use super::frame::{DATA_BYTES_MAX, EntryKind, FileEntry, MoveFrame};
use os::beneath::{Directory, Place};

/// The maximum number of entries of a tree: more than any application here keeps; each costs memory
/// on both sides.
const ENTRIES_MAX: usize = 500_000;
/// The maximum depth of a tree: uploads are not deeper, and recursion has an end.
const DEPTH_MAX: usize = 100;
/// The age from which a file counts as settled when it is read: one that was written later may
/// change again without another time of change.
const SETTLED_AFTER: Duration = Duration::from_secs(2);
const MODE_MASK: u32 = 0o777;

/// The version of a file that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileVersion {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileVersion {
    fn of(file: &Metadata) -> FileVersion {
        FileVersion {
            inode: file.ino(),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }
}

/// The files that the other side has.
#[derive(Debug, Default)]
pub struct KnownFiles {
    files: BTreeMap<PathBuf, FileVersion>,
}

/// Sends everything below `root`, parents first; files that are known and unchanged by name alone.
/// The application may run, and put links in the place of what was seen: none is followed.
pub fn walk(root: &Path, known: KnownFiles, out: &Sender<MoveFrame>) -> anyhow::Result<KnownFiles> {
    let mut walk = Walk { known, next: KnownFiles::default(), count: 0, out };
    match Directory::open(root) {
        Ok(directory) => walk.directory(&directory, Path::new(""), 0)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    Ok(walk.next)
}

struct Walk<'a> {
    known: KnownFiles,
    next: KnownFiles,
    count: usize,
    out: &'a Sender<MoveFrame>,
}

impl Walk<'_> {
    fn say(&self, frame: MoveFrame) -> anyhow::Result<()> {
        self.out.blocking_send(frame).ok().context("the other side is gone")
    }

    fn directory(
        &mut self,
        directory: &Directory,
        below: &Path,
        depth: usize,
    ) -> anyhow::Result<()> {
        ensure!(depth < DEPTH_MAX, "directories are nested deeper than {DEPTH_MAX}");
        for place in directory.entries()? {
            let path = below.join(place.name());
            // Only the entry itself gets this context, or each directory above would add its path
            // once more.
            let within = self.entry(&place, &path);
            if let Some(within) = within.with_context(|| path.display().to_string())? {
                self.directory(&within, &path, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Sends one entry; returns it if it is a directory, whose content follows.
    fn entry(&mut self, place: &Place, path: &Path) -> anyhow::Result<Option<Directory>> {
        self.count += 1;
        ensure!(self.count <= ENTRIES_MAX, "there are more than {ENTRIES_MAX} files");
        let Some(metadata) = if_there(place.metadata())? else { return Ok(None) };
        let bytes = path.as_os_str().as_bytes().to_vec();
        let mode = metadata.permissions().mode() & MODE_MASK;
        let entry = |kind| MoveFrame::Entry(FileEntry { path: bytes.clone(), mode, kind });
        if metadata.is_dir() {
            let Some(within) = if_there(place.directory())? else { return Ok(None) };
            self.say(entry(EntryKind::Directory))?;
            return Ok(Some(within));
        }
        if metadata.is_symlink() {
            let Some(target) = if_there(place.read_link())? else { return Ok(None) };
            self.say(entry(EntryKind::Link(target.as_os_str().as_bytes().to_vec())))?;
        }
        // Sockets and pipes are nothing without the process that made them.
        if metadata.is_file() {
            match self.known.files.get(path) == Some(&FileVersion::of(&metadata)) {
                true => self.say(entry(EntryKind::Same))?,
                false => self.file(path, place, entry(EntryKind::File))?,
            }
        }
        Ok(None)
    }

    fn file(&mut self, path: &Path, place: &Place, entry: MoveFrame) -> anyhow::Result<()> {
        let Some(mut file) = if_there(place.file())? else { return Ok(()) };
        // This comes before the first byte is read, so that what is written later is noticed.
        let (before, began) = (file.metadata()?, SystemTime::now());
        self.say(entry)?;
        let mut hash = blake3::Hasher::new();
        loop {
            let mut chunk = vec![0; DATA_BYTES_MAX];
            let count = file.read(&mut chunk)?;
            if count == 0 {
                break;
            }
            chunk.truncate(count);
            hash.update(&chunk);
            self.say(MoveFrame::Data(chunk))?;
        }
        let settled = before.modified()? + SETTLED_AFTER < began;
        if settled {
            self.next.files.insert(path.to_path_buf(), FileVersion::of(&before));
        }
        self.say(MoveFrame::FileEnd(*hash.finalize().as_bytes()))
    }
}

/// Returns nothing of what went away, or became something else, since it was seen: the last pass
/// comes when the application has stopped.
fn if_there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    let changed = [ErrorKind::NotFound, ErrorKind::NotADirectory, ErrorKind::InvalidInput];
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if changed.contains(&error.kind()) || is_link(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_link(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ELOOP)
}

/// A directory that becomes the same as the other side's. No application knows it before it is
/// whole, so plain paths do here.
#[derive(Debug)]
pub struct Staging {
    root: PathBuf,
    /// The paths of this pass.
    listed: BTreeSet<PathBuf>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    path: PathBuf,
    mode: u32,
    file: File,
    hash: blake3::Hasher,
}

impl Staging {
    /// Creates an empty directory; throws away what an earlier attempt left.
    pub fn create(root: PathBuf) -> anyhow::Result<Staging> {
        remove(&root)?;
        fs::create_dir_all(&root).with_context(|| root.display().to_string())?;
        Ok(Staging { root, listed: BTreeSet::new(), open: None })
    }

    pub fn begin(&mut self) {
        self.listed.clear();
        self.open = None;
    }

    pub fn take(&mut self, frame: MoveFrame) -> anyhow::Result<()> {
        match (frame, self.open.take()) {
            (MoveFrame::Entry(entry), None) => self.entry(&entry),
            (MoveFrame::Data(bytes), Some(mut open)) => {
                open.hash.update(&bytes);
                open.file.write_all(&bytes)?;
                self.open = Some(open);
                Ok(())
            }
            (MoveFrame::FileEnd(hash), Some(open)) => self.file_end(open, hash),
            _ => bail!("the other side sent something out of turn"),
        }
    }

    fn entry(&mut self, entry: &FileEntry) -> anyhow::Result<()> {
        let path = self.inside(&entry.path)?;
        ensure!(self.listed.len() < ENTRIES_MAX, "there are more than {ENTRIES_MAX} files");
        self.listed.insert(path.clone());
        let at = self.root.join(&path);
        let there = fs::symlink_metadata(&at).ok();
        match &entry.kind {
            EntryKind::Directory => {
                if there.is_none_or(|there| !there.is_dir()) {
                    remove(&at)?;
                    fs::create_dir(&at)?;
                }
                set_mode(&at, entry.mode | 0o700)
            }
            EntryKind::Link(target) => {
                remove(&at)?;
                Ok(symlink(OsStr::from_bytes(target), &at)?)
            }
            EntryKind::Same => {
                let is_file = there.is_some_and(|there| there.is_file());
                ensure!(is_file, "{} was never sent", path.display());
                set_mode(&at, entry.mode)
            }
            EntryKind::File => {
                remove(&at)?;
                let file = File::create_new(&at)?;
                let (mode, hash) = (entry.mode, blake3::Hasher::new());
                self.open = Some(Open { path, mode, file, hash });
                Ok(())
            }
        }
    }

    fn file_end(&mut self, open: Open, hash: [u8; 32]) -> anyhow::Result<()> {
        let Open { path, mode, file, hash: written } = open;
        drop(file);
        let same = *written.finalize().as_bytes() == hash;
        ensure!(same, "{} came damaged", path.display());
        set_mode(&self.root.join(path), mode)
    }

    /// Checks that a path lies inside: nothing outside is ever written, not even through a link
    /// that came before.
    fn inside(&self, path: &[u8]) -> anyhow::Result<PathBuf> {
        let path = Path::new(OsStr::from_bytes(path));
        let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
        let short = path.components().count() <= DEPTH_MAX;
        let empty = path.as_os_str().is_empty();
        ensure!(plain && short && !empty, "'{}' is no path in a directory", path.display());
        for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
            let there = fs::symlink_metadata(self.root.join(above));
            let directory = there.is_ok_and(|there| there.is_dir());
            ensure!(directory, "'{}' is not in a directory that was sent", path.display());
        }
        Ok(path.to_path_buf())
    }

    /// Puts the directory under its final name, durably; what was there before is kept beside it.
    pub fn put_in_place(self, target: &Path) -> anyhow::Result<()> {
        ensure!(self.open.is_none(), "a file was not sent to its end");
        self.remove_unlisted(Path::new(""))?;
        rustix::fs::syncfs(File::open(&self.root)?)?;
        if target.symlink_metadata().is_ok() {
            let before = target.with_extension("before");
            remove(&before)?;
            fs::rename(target, &before)?;
        }
        fs::rename(&self.root, target)?;
        if let Some(parent) = target.parent() {
            File::open(parent)?.sync_all()?;
        }
        Ok(())
    }

    /// Removes all that has come.
    pub fn throw_away(self) -> anyhow::Result<()> {
        remove(&self.root)
    }

    fn remove_unlisted(&self, below: &Path) -> anyhow::Result<()> {
        for entry in fs::read_dir(self.root.join(below))? {
            let path = below.join(entry?.file_name());
            let at = self.root.join(&path);
            if !self.listed.contains(&path) {
                remove(&at)?;
            } else if fs::symlink_metadata(&at)?.is_dir() {
                self.remove_unlisted(&path)?;
            }
        }
        Ok(())
    }
}

fn set_mode(at: &Path, mode: u32) -> anyhow::Result<()> {
    Ok(fs::set_permissions(at, fs::Permissions::from_mode(mode & MODE_MASK))?)
}

/// Removes a file or a directory, if it is there.
fn remove(at: &Path) -> anyhow::Result<()> {
    let removed = match fs::symlink_metadata(at) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
        Ok(there) if there.is_dir() => fs::remove_dir_all(at),
        Ok(_) => fs::remove_file(at),
    };
    removed.with_context(|| at.display().to_string())
}
