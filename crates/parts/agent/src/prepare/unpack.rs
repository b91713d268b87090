//! The unpacking of a pushed archive into a fresh directory. The archive is hostile input: nothing
//! is written outside that directory, and no link in it leads outside, whatever links it passes.
//! Blocking; must not know what the files mean; driven by preparation.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail, ensure};
use model::value::ContentHash;
use tar::{Archive, Entry, EntryType};

/// The maximum number of entries of an archive: ten times the files of a large application with its
/// dependencies. The API has the same limit.
const ENTRIES_MAX: usize = 500_000;
/// The maximum size of all files in bytes; archives are not compressed, so this bounds the archive
/// as well.
const BYTES_MAX: u64 = 16 << 30;
/// The number of links that Linux follows before it calls a chain of them a loop.
const LINKS_FOLLOWED_MAX: usize = 40;
/// The mode of files: setuid, setgid and sticky bits are dropped, and the owner can always replace
/// a file.
const FILE_MODE: u32 = 0o644;
const EXECUTABLE_MODE: u32 = 0o755;

/// Unpacks into `directory`, which must not exist. What was unpacked before an error stays, for the
/// caller to remove.
pub fn unpack(archive: impl Read, expected: ContentHash, directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    let mut hashed = HashedReader { inner: archive, hasher: blake3::Hasher::new() };
    let mut unpacking = Unpacking { root: directory, links: BTreeMap::new(), hard: Vec::new() };
    unpacking.entries(&mut Archive::new(&mut hashed))?;
    // The bytes after the end mark belong to the hash too.
    io::copy(&mut hashed, &mut io::sink()).context("the source cannot be read to its end")?;
    let actual = ContentHash(*hashed.hasher.finalize().as_bytes());
    ensure!(actual == expected, "the stored source is damaged ({actual}); push again");
    unpacking.make_links()
}

struct HashedReader<R> {
    inner: R,
    hasher: blake3::Hasher,
}

impl<R: Read> Read for HashedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}

/// The state of one unpacking. Links are made when all files are written: no file can be written
/// through one.
struct Unpacking<'a> {
    root: &'a Path,
    links: BTreeMap<PathBuf, PathBuf>,
    hard: Vec<(PathBuf, PathBuf)>,
}

impl Unpacking<'_> {
    fn entries<R: Read>(&mut self, archive: &mut Archive<R>) -> anyhow::Result<()> {
        let mut bytes = 0u64;
        for (count, entry) in archive.entries().context("the source is damaged")?.enumerate() {
            ensure!(count < ENTRIES_MAX, "the source has more than {ENTRIES_MAX} files");
            let entry = entry.context("the source is damaged")?;
            bytes = bytes.saturating_add(entry.size());
            ensure!(bytes <= BYTES_MAX, "the source is larger than {} GiB", BYTES_MAX >> 30);
            self.entry(entry)?;
        }
        Ok(())
    }

    fn entry<R: Read>(&mut self, mut entry: Entry<'_, R>) -> anyhow::Result<()> {
        let kind = entry.header().entry_type();
        if kind == EntryType::XGlobalHeader {
            return Ok(());
        }
        let named = entry.path().context("the source is damaged")?.into_owned();
        let path = inside(&named).with_context(|| {
            format!("'{}' lies outside the application's directory", shown(&named))
        })?;
        if path.as_os_str().is_empty() {
            ensure!(kind == EntryType::Directory, "the source's root is no directory");
            return Ok(());
        }
        match kind {
            EntryType::Directory => self.make_directory(&path)?,
            EntryType::Regular | EntryType::Continuous => {
                self.links.remove(&path);
                self.write_file(&path, &mut entry)?;
            }
            EntryType::Symlink | EntryType::Link => {
                let target = entry.link_name().context("the source is damaged")?;
                let target = target.context("a link without a target")?.into_owned();
                if kind == EntryType::Symlink {
                    self.links.insert(path, target);
                } else {
                    let target = inside(&target).with_context(|| {
                        format!("'{}' is a link that leads outside", shown(&named))
                    })?;
                    self.hard.push((path, target));
                }
            }
            _ => bail!("'{}' is no file, directory or link", shown(&named)),
        }
        Ok(())
    }

    fn make_directory(&self, path: &Path) -> anyhow::Result<()> {
        let full = self.root.join(path);
        fs::create_dir_all(&full).with_context(|| format!("cannot create {}", full.display()))
    }

    fn write_file<R: Read>(&self, path: &Path, entry: &mut Entry<'_, R>) -> anyhow::Result<()> {
        self.make_parent(path)?;
        let full = self.root.join(path);
        let failed = || format!("cannot write {}", full.display());
        let executable = entry.header().mode().is_ok_and(|mode| mode & 0o111 != 0);
        let mode = if executable { EXECUTABLE_MODE } else { FILE_MODE };
        if full.symlink_metadata().is_ok() {
            fs::remove_file(&full).with_context(failed)?;
        }
        let mut options = fs::OpenOptions::new();
        let mut file =
            options.write(true).create_new(true).mode(mode).open(&full).with_context(failed)?;
        io::copy(entry, &mut file).with_context(failed)?;
        // This restores what the umask took away.
        file.set_permissions(fs::Permissions::from_mode(mode)).with_context(failed)
    }

    fn make_parent(&self, path: &Path) -> anyhow::Result<()> {
        path.parent().map_or(Ok(()), |parent| self.make_directory(parent))
    }

    fn make_links(&self) -> anyhow::Result<()> {
        for (path, target) in &self.hard {
            self.make_parent(path)?;
            let from = self.root.join(target);
            let is_file = from.symlink_metadata().is_ok_and(|metadata| metadata.is_file());
            ensure!(is_file, "'{}' is a link to what is not there", shown(path));
            let full = self.root.join(path);
            if from != full {
                fs::remove_file(&full).or_else(absent)?;
                fs::hard_link(&from, &full)
                    .with_context(|| format!("cannot make the link {}", full.display()))?;
            }
        }
        for (path, target) in &self.links {
            self.make_parent(path)?;
            let full = self.root.join(path);
            fs::remove_file(&full).or_else(absent)?;
            symlink(target, &full)
                .with_context(|| format!("cannot make the link {}", full.display()))?;
        }
        for path in self.links.keys() {
            let outside = || format!("'{}' is a link that leads outside", shown(path));
            resolve(self.root, path).with_context(outside)?;
        }
        Ok(())
    }
}

fn absent(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Returns the path without `./`; `None` when it climbs out.
pub fn inside(path: &Path) -> Option<PathBuf> {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(clean)
}

/// Follows all links on the way as the kernel would; fails when they lead out of `root` or in a
/// circle. What is not there counts as a plain file. The result is relative to `root`.
pub fn resolve(root: &Path, path: &Path) -> anyhow::Result<PathBuf> {
    resolve_in(&|path| fs::read_link(root.join(path)), path)
}

/// Follows links like `resolve`, by asking for the target of each.
pub fn resolve_in(
    read_link: &dyn Fn(&Path) -> io::Result<PathBuf>,
    path: &Path,
) -> anyhow::Result<PathBuf> {
    let mut done = PathBuf::new();
    let mut rest: Vec<PathBuf> = pieces(path)?;
    let mut followed = 0;
    while let Some(piece) = rest.pop() {
        if piece == Path::new("..") {
            ensure!(done.pop(), "it climbs out of the directory");
            continue;
        }
        let next = done.join(&piece);
        match read_link(&next) {
            Ok(target) => {
                followed += 1;
                ensure!(followed <= LINKS_FOLLOWED_MAX, "its links go in a circle");
                rest.extend(pieces(&target)?);
            }
            Err(_) => done = next,
        }
    }
    Ok(done)
}

/// Returns a path's components, the last one first.
fn pieces(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut pieces = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => pieces.push(PathBuf::from(name)),
            Component::ParentDir => pieces.push(PathBuf::from("..")),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => bail!("it is an absolute path"),
        }
    }
    pieces.reverse();
    Ok(pieces)
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().escape_debug().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            // `set_path` would refuse the hostile paths.
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o6755);
            let is_link = kind.is_symlink() || kind.is_hard_link();
            if is_link {
                header.set_link_name_literal(content).unwrap();
            }
            let content = if is_link { "" } else { content };
            header.set_size(content.len() as u64);
            header.set_cksum();
            builder.append(&header, content.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn unpacked(entries: &[(&str, EntryType, &str)]) -> (tempfile::TempDir, Result<(), String>) {
        let bytes = archive(entries);
        let place = tempfile::tempdir().unwrap();
        let hash = ContentHash(*blake3::hash(&bytes).as_bytes());
        let result = unpack(&bytes[..], hash, &place.path().join("deep/release"));
        (place, result.map_err(|error| format!("{error:#}")))
    }

    const FILE: EntryType = EntryType::Regular;
    const LINK: EntryType = EntryType::Symlink;

    #[test]
    fn files_links_and_modes_arrive() {
        let (place, result) = unpacked(&[
            ("./", EntryType::Directory, ""),
            ("./bin/run", FILE, "#!/bin/sh"),
            ("sub/link", LINK, "../bin/run"),
            ("hard", EntryType::Link, "bin/run"),
            ("later", LINK, "not/there/yet"),
        ]);
        result.unwrap();
        let root = place.path().join("deep/release");
        assert_eq!(fs::read_to_string(root.join("sub/link")).unwrap(), "#!/bin/sh");
        assert_eq!(fs::read_to_string(root.join("hard")).unwrap(), "#!/bin/sh");
        let mode = fs::metadata(root.join("bin/run")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755, "setuid and setgid are dropped");
    }

    #[test]
    fn hostile_entries_are_refused_and_nothing_is_written_outside() {
        for entries in [
            &[("../x", FILE, "")][..],
            &[("/tmp/x", FILE, "")],
            &[("a/../../x", FILE, "")],
            &[("link", LINK, "/etc/passwd")],
            &[("a/link", LINK, "../../x")],
            &[("link", LINK, ".."), ("link/x", FILE, "")],
            &[("a/link", LINK, ".."), ("a/link/x", FILE, "")],
            // Each link alone stays inside; one after the other they climb out.
            &[("a/b/up", LINK, "../.."), ("out", LINK, "a/b/up/..")],
            &[("one", LINK, "two"), ("two", LINK, "one")],
            &[("hard", EntryType::Link, "../x")],
            &[("link", LINK, "/etc/passwd"), ("hard", EntryType::Link, "link")],
            &[("device", EntryType::Block, "")],
            &[("pipe", EntryType::Fifo, "")],
            &[("file", FILE, ""), ("file/x", FILE, "")],
        ] {
            let (place, result) = unpacked(entries);
            result.expect_err(&format!("{entries:?}"));
            let beside: Vec<_> = fs::read_dir(place.path().join("deep")).unwrap().collect();
            assert_eq!(beside.len(), 1, "{entries:?}: {beside:?}");
        }
    }

    #[test]
    fn the_last_of_two_entries_wins() {
        let (place, result) =
            unpacked(&[("x", LINK, "y"), ("x", FILE, "file"), ("z", FILE, ""), ("z", LINK, "x")]);
        result.unwrap();
        let root = place.path().join("deep/release");
        assert!(root.join("x").symlink_metadata().unwrap().is_file());
        assert_eq!(fs::read_to_string(root.join("z")).unwrap(), "file");
    }

    #[test]
    fn a_damaged_archive_is_refused() {
        let bytes = archive(&[("app.py", FILE, &"x".repeat(5000))]);
        let place = tempfile::tempdir().unwrap();
        let hash = ContentHash(*blake3::hash(&bytes).as_bytes());
        let mut flipped = bytes.clone();
        flipped[600] ^= 1;
        for (name, bytes) in [("torn", &bytes[..3000]), ("flipped", &flipped[..])] {
            unpack(bytes, hash, &place.path().join(name)).expect_err(name);
        }
    }
}
