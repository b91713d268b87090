//! Files in directories that somebody else may change at any moment, such as those of an
//! application: no link is followed on the way to them, nor at their end, whatever is put there
//! meanwhile. A directory is held open, and what is in it is named from there, one name at a time.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, RenameFlags};

/// The mode of new files and directories: their owner's alone.
const DIRECTORY_MODE: Mode = Mode::RWXU;
const FILE_MODE: Mode = Mode::from_raw_mode(0o600);
/// The maximum depth to which a tree is removed at once, as each level holds a directory open; what
/// is deeper is moved up and removed from there.
const DEPTH_MAX: usize = 100;
/// The suffix of what was too deep.
const DEEP: &str = ".cortex-deep-";

/// A directory that is held open: it stays the same one, whatever its name means by now.
#[derive(Clone, Debug)]
pub struct Directory {
    descriptor: Arc<OwnedFd>,
}

impl Directory {
    /// Opens a directory by a path that nobody else can change.
    pub fn open(trusted: &Path) -> Result<Directory> {
        Directory::at(CWD, trusted.as_os_str(), OFlags::empty())
    }

    fn at(from: impl rustix::fd::AsFd, name: &OsStr, more: OFlags) -> Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | more;
        let descriptor = rustix::fs::openat(from, name, flags, Mode::empty())?;
        Ok(Directory { descriptor: descriptor.into() })
    }

    /// Returns the place of a path in this directory; the directories on the way are there.
    pub fn place(&self, path: &Path) -> Result<Place> {
        self.walk(path, Place::directory)
    }

    /// Returns the place of a path in this directory, and makes the directories on the way.
    pub fn place_made(&self, path: &Path) -> Result<Place> {
        self.walk(path, Place::directory_made)
    }

    fn walk(&self, path: &Path, step: fn(&Place) -> Result<Directory>) -> Result<Place> {
        let (mut directory, mut last) = (self.clone(), None::<Place>);
        for component in path.components() {
            let Component::Normal(name) = component else { return Err(no_name(path)) };
            if let Some(place) = last {
                directory = step(&place)?;
            }
            last = Some(Place { directory: directory.clone(), name: name.into() });
        }
        last.ok_or_else(|| no_name(path))
    }

    /// Returns the directory at a path in this one, which may be empty.
    pub fn directory(&self, path: &Path) -> Result<Directory> {
        match path.as_os_str().is_empty() {
            true => Ok(self.clone()),
            false => self.place(path)?.directory(),
        }
    }

    /// Returns the directory at a path in this one, which may be empty, and makes what is missing.
    pub fn directory_made(&self, path: &Path) -> Result<Directory> {
        match path.as_os_str().is_empty() {
            true => Ok(self.clone()),
            false => self.place_made(path)?.directory_made(),
        }
    }

    /// Returns what is in the directory, sorted by name.
    pub fn entries(&self) -> Result<Vec<Place>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&*self.descriptor)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        names.sort();
        Ok(names.into_iter().map(|name| Place { directory: self.clone(), name }).collect())
    }
}

/// A name in a directory, with whatever has it.
#[derive(Clone, Debug)]
pub struct Place {
    directory: Directory,
    name: OsString,
}

impl Place {
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns the place beside this one whose name is longer by `ending`.
    pub fn with(&self, ending: &str) -> Place {
        let mut beside = self.clone();
        beside.name.push(ending);
        beside
    }

    /// Returns what is known of that which has the name; of a link, not of where it leads.
    pub fn metadata(&self) -> Result<Metadata> {
        File::from(self.opened(OFlags::PATH)?).metadata()
    }

    pub fn is_there(&self) -> bool {
        self.metadata().is_ok()
    }

    pub fn directory(&self) -> Result<Directory> {
        Directory::at(&*self.directory.descriptor, &self.name, OFlags::NOFOLLOW)
    }

    pub fn directory_made(&self) -> Result<Directory> {
        match self.make_directory() {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => self.directory(),
        }
    }

    pub fn make_directory(&self) -> Result<()> {
        Ok(rustix::fs::mkdirat(&*self.directory.descriptor, &self.name, DIRECTORY_MODE)?)
    }

    /// Opens a file for reading. A pipe or a device, at which one could wait for ever, is none.
    pub fn file(&self) -> Result<File> {
        let file = File::from(self.opened(OFlags::NONBLOCK | OFlags::NOCTTY)?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(Error::new(ErrorKind::InvalidInput, "it is no plain file")),
        }
    }

    fn opened(&self, more: OFlags) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | more;
        Ok(rustix::fs::openat(&*self.directory.descriptor, &self.name, flags, Mode::empty())?)
    }

    /// Makes a file that was not there, for writing.
    pub fn new_file(&self) -> Result<File> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let from = &*self.directory.descriptor;
        Ok(rustix::fs::openat(from, &self.name, flags, FILE_MODE)?.into())
    }

    pub fn read_link(&self) -> Result<PathBuf> {
        let target = rustix::fs::readlinkat(&*self.directory.descriptor, &self.name, Vec::new())?;
        Ok(OsStr::from_bytes(target.as_bytes()).into())
    }

    /// Makes a link here that leads to `target`.
    pub fn make_link(&self, target: &Path) -> Result<()> {
        Ok(rustix::fs::symlinkat(target, &*self.directory.descriptor, &self.name)?)
    }

    /// Gives the same file another name as well.
    pub fn hard_link(&self, to: &Place) -> Result<()> {
        let (from, other) = (&*self.directory.descriptor, &*to.directory.descriptor);
        Ok(rustix::fs::linkat(from, &self.name, other, &to.name, AtFlags::empty())?)
    }

    pub fn rename(&self, to: &Place) -> Result<()> {
        self.rename_with(to, RenameFlags::empty())
    }

    /// Exchanges what has the two names.
    pub fn exchange(&self, to: &Place) -> Result<()> {
        self.rename_with(to, RenameFlags::EXCHANGE)
    }

    fn rename_with(&self, to: &Place, flags: RenameFlags) -> Result<()> {
        let (from, other) = (&*self.directory.descriptor, &*to.directory.descriptor);
        Ok(rustix::fs::renameat_with(from, &self.name, other, &to.name, flags)?)
    }

    /// Removes what has the name, a directory with all that is in it. Nothing there is fine.
    pub fn remove(&self) -> Result<()> {
        let mut deep = 0;
        self.remove_at(0, &mut |within| {
            let aside = self.with(&format!("{DEEP}{deep}"));
            deep += 1;
            within.rename(&aside)
        })?;
        (0..deep).try_for_each(|number| self.with(&format!("{DEEP}{number}")).remove())
    }

    fn remove_at(&self, depth: usize, aside: &mut dyn FnMut(&Place) -> Result<()>) -> Result<()> {
        let removed = match self.metadata() {
            Ok(metadata) if metadata.is_dir() && depth >= DEPTH_MAX => aside(self),
            Ok(metadata) if metadata.is_dir() => {
                let entries = self.directory().and_then(|directory| directory.entries())?;
                entries.iter().try_for_each(|entry| entry.remove_at(depth + 1, aside))?;
                self.unlink(AtFlags::REMOVEDIR)
            }
            Ok(_) => self.unlink(AtFlags::empty()),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn unlink(&self, flags: AtFlags) -> Result<()> {
        Ok(rustix::fs::unlinkat(&*self.directory.descriptor, &self.name, flags)?)
    }
}

fn no_name(path: &Path) -> Error {
    let why = format!("'{}' is no path in a directory", path.display());
    Error::new(ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Makes a directory `own` with links out of it, and beside it `keys` with a file.
    fn places() -> (tempfile::TempDir, Directory) {
        let all = tempfile::tempdir().unwrap();
        for name in ["own/deep", "keys"] {
            fs::create_dir_all(all.path().join(name)).unwrap();
        }
        fs::write(all.path().join("keys/key"), "secret").unwrap();
        fs::write(all.path().join("own/deep/file"), "own").unwrap();
        symlink(all.path().join("keys"), all.path().join("own/out")).unwrap();
        symlink("../keys/key", all.path().join("own/file")).unwrap();
        let own = Directory::open(&all.path().join("own")).unwrap();
        (all, own)
    }

    #[test]
    fn what_is_inside_is_reached() {
        let (all, own) = places();
        let mut text = String::new();
        let file = own.place(Path::new("deep/file")).unwrap();
        file.file().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "own");
        own.place_made(Path::new("new/er/x")).unwrap().new_file().unwrap();
        assert!(all.path().join("own/new/er/x").is_file());
        let names: Vec<_> = own.entries().unwrap().iter().map(|e| e.name().to_owned()).collect();
        assert_eq!(names, ["deep", "file", "new", "out"]);
    }

    #[test]
    fn no_link_is_followed_on_the_way_or_at_the_end() {
        let (all, own) = places();
        for path in ["out/key", "out/new/deeper", "../keys/key", "/etc/passwd", "", "deep/../x"] {
            assert!(own.place(Path::new(path)).is_err(), "{path}");
            assert!(own.place_made(Path::new(path)).is_err(), "{path}");
        }
        let link = own.place(Path::new("file")).unwrap();
        assert!(link.file().is_err() && link.new_file().is_err() && link.directory().is_err());
        assert!(link.metadata().unwrap().is_symlink());
        let out = own.place(Path::new("out")).unwrap();
        assert!(out.directory().is_err() && out.directory_made().is_err());
        assert_eq!(fs::read_dir(all.path().join("keys")).unwrap().count(), 1);
    }

    #[test]
    fn what_is_removed_is_the_link() {
        let (all, own) = places();
        for entry in own.entries().unwrap() {
            entry.remove().unwrap();
        }
        assert_eq!(fs::read_dir(all.path().join("own")).unwrap().count(), 0);
        assert_eq!(fs::read_to_string(all.path().join("keys/key")).unwrap(), "secret");
    }

    #[test]
    fn a_tree_of_any_depth_is_removed() {
        let all = tempfile::tempdir().unwrap();
        let top = Directory::open(all.path()).unwrap();
        let mut directory = top.clone();
        for _ in 0..4 * DEPTH_MAX {
            directory = directory.directory_made(Path::new("d")).unwrap();
        }
        drop(directory);
        top.place(Path::new("d")).unwrap().remove().unwrap();
        assert_eq!(fs::read_dir(all.path()).unwrap().count(), 0);
    }

    #[test]
    fn nobody_waits_at_a_pipe() {
        let (_all, own) = places();
        let pipe = own.place(Path::new("pipe")).unwrap();
        let from = &*pipe.directory.descriptor;
        rustix::fs::mkfifoat(from, "pipe", FILE_MODE).unwrap();
        assert_eq!(pipe.file().unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
