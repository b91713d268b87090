//! The packer: writes entries of what is pushed into one tar stream, and collects what people
//! should hear about them afterwards. Knows no repository and no directory.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use tar::{Builder, Entry, EntryType, Header};

use os::archive::header;

/// The maximum number of names that are listed: enough to see what it is about.
const SHOWN_MAX: usize = 5;
/// The beginning of a pointer of Git LFS, by its specification.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";
/// The maximum length of a pointer in bytes, by its specification.
const POINTER_BYTES_MAX: u64 = 1024;

/// The size of an entry's header in bytes, and what its content is filled up to.
const BLOCK_BYTES: u64 = 512;

/// The error that a source is larger than what takes it, before any of the file is read that would
/// be too much.
#[derive(Debug, thiserror::Error)]
#[error(
    "the source is larger than {} GiB: {} is {} MiB of it. Leave out what is generated or data: list \
     it in .cortexignore", .bytes_max >> 30, shown(.file), .size.div_ceil(1 << 20)
)]
struct TooLarge {
    bytes_max: u64,
    /// The largest file that came.
    file: PathBuf,
    size: u64,
}

pub struct Packer<'a> {
    archive: Builder<&'a mut dyn Write>,
    /// The bytes that may still come.
    left: u64,
    bytes_max: u64,
    largest: (u64, PathBuf),
    pointers: BTreeSet<PathBuf>,
    /// The names that are not UTF-8.
    odd: BTreeSet<PathBuf>,
}

impl<'a> Packer<'a> {
    /// Makes a packer of an archive of a bounded size.
    pub fn new(to: &'a mut dyn Write, bytes_max: u64) -> Packer<'a> {
        Packer {
            archive: Builder::new(to),
            left: bytes_max,
            bytes_max,
            largest: (0, PathBuf::new()),
            pointers: BTreeSet::new(),
            odd: BTreeSet::new(),
        }
    }

    pub fn directory(&mut self, path: &Path) -> io::Result<()> {
        self.append(header(EntryType::Directory, 0o755, 0), path, io::empty())
    }

    pub fn link(&mut self, path: &Path, target: &Path) -> io::Result<()> {
        self.note(path);
        self.archive.append_link(&mut header(EntryType::Symlink, 0o777, 0), path, target)
    }

    pub fn file(
        &mut self,
        path: &Path,
        mode: u32,
        size: u64,
        content: impl Read,
    ) -> io::Result<()> {
        self.append(header(EntryType::Regular, mode, size), path, content)
    }

    /// Packs an entry of a version control system's own archive, with its mode. Its time is that of
    /// the commit: with it, each commit would change every file.
    pub fn copy(&mut self, path: &Path, entry: Entry<'_, impl Read>) -> io::Result<()> {
        let from = entry.header().clone();
        let mode = from.mode()?;
        let kind = from.entry_type();
        let size = if kind.is_file() { entry.size() } else { 0 };
        let mut header = header(kind, mode, size);
        if kind.is_symlink() || kind.is_hard_link() {
            self.note(path);
            let target = entry.link_name()?.unwrap_or_default().into_owned();
            return self.archive.append_link(&mut header, path, target);
        }
        self.append(header, path, entry)
    }

    fn append(&mut self, mut header: Header, path: &Path, content: impl Read) -> io::Result<()> {
        self.note(path);
        self.take(path, header.size()?)?;
        let mut content = content;
        let mut start = Vec::new();
        if (1..=POINTER_BYTES_MAX).contains(&header.size()?) {
            content.by_ref().take(POINTER.len() as u64).read_to_end(&mut start)?;
        }
        if start == POINTER {
            self.pointers.insert(path.to_path_buf());
        }
        self.archive.append_data(&mut header, path, start.chain(content))
    }

    fn take(&mut self, path: &Path, size: u64) -> io::Result<()> {
        if size > self.largest.0 {
            self.largest = (size, path.to_path_buf());
        }
        let packed = size.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(u64::MAX);
        match self.left.checked_sub(packed.saturating_add(BLOCK_BYTES)) {
            Some(left) => self.left = left,
            None => {
                let (bytes_max, (size, file)) = (self.bytes_max, self.largest.clone());
                return Err(io::Error::other(TooLarge { bytes_max, file, size }));
            }
        }
        Ok(())
    }

    fn note(&mut self, path: &Path) {
        if path.to_str().is_none() {
            self.odd.insert(path.to_path_buf());
        }
    }

    /// Ends the archive; returns warnings about what was packed.
    pub fn finish(mut self) -> io::Result<Vec<String>> {
        self.archive.finish()?;
        let mut warnings = Vec::new();
        if !self.pointers.is_empty() {
            warnings.push(format!(
                "of files in Git LFS only the pointers are pushed, not what they stand for: {}. Run \
                 `git lfs install` and `git lfs pull`, then push again",
                listed(&self.pointers)
            ));
        }
        if !self.odd.is_empty() {
            warnings.push(format!(
                "names that are not UTF-8 are pushed as they are, and many programs do not find \
                 such files: {}",
                listed(&self.odd)
            ));
        }
        Ok(warnings)
    }
}

/// Lists as many names as a person reads.
pub fn listed<'a>(names: impl IntoIterator<Item = &'a PathBuf>) -> String {
    let mut names = names.into_iter();
    let shown = names.by_ref().take(SHOWN_MAX).map(|name| shown(name));
    let mut text = shown.collect::<Vec<_>>().join(", ");
    match names.count() {
        0 => {}
        more => text.push_str(&format!(" and {more} more")),
    }
    text
}

/// Returns a name as text; bytes that are no text are shown like `\xe9`.
fn shown(name: &Path) -> String {
    let bytes = name.as_os_str().as_encoded_bytes();
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.extend(chunk.valid().chars().flat_map(char::escape_debug));
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn pointers_and_odd_names_are_told() {
        let mut bytes = Vec::new();
        let mut packer = Packer::new(&mut bytes, u64::MAX);
        let pointer = [POINTER, b"v1\noid sha256:00\nsize 5\n"].concat();
        packer.file(Path::new("a.bin"), 0o644, pointer.len() as u64, &pointer[..]).unwrap();
        packer.file(Path::new("b.bin"), 0o644, 7, &b"version"[..]).unwrap();
        packer.file(Path::new("empty"), 0o644, 0, io::empty()).unwrap();
        packer.directory(Path::new(OsStr::from_bytes(b"caf\xe9"))).unwrap();
        let warnings = packer.finish().unwrap();
        assert!(warnings[0].contains("stand for: a.bin. Run"), "{warnings:?}");
        assert!(warnings[1].ends_with("caf\\xe9"), "{warnings:?}");
        let mut archive = tar::Archive::new(&bytes[..]);
        let texts: Vec<Vec<u8>> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let mut text = Vec::new();
                entry.unwrap().read_to_end(&mut text).unwrap();
                text
            })
            .collect();
        assert_eq!(texts, [pointer, b"version".to_vec(), Vec::new(), Vec::new()]);
    }

    #[test]
    fn what_is_too_large_is_told_before_it_is_read() {
        let mut bytes = Vec::new();
        let mut packer = Packer::new(&mut bytes, 3 << 30);
        packer.file(Path::new("a.txt"), 0o644, 5, &b"hello"[..]).unwrap();
        let error = packer.file(Path::new("dump.sql"), 0o644, 5 << 30, Unread).unwrap_err();
        let said = error.to_string();
        assert!(
            said.starts_with("the source is larger than 3 GiB: dump.sql is 5120 MiB"),
            "{said}"
        );
        // A sum that is too large names what most of it is.
        let mut others = Vec::new();
        let mut packer = Packer::new(&mut others, 4 * BLOCK_BYTES + 100);
        packer.file(Path::new("large"), 0o644, 513, &[1; 513][..]).unwrap();
        let said = packer.file(Path::new("small"), 0o644, 1, &b"x"[..]).unwrap_err().to_string();
        assert!(said.contains("large is 1 MiB of it"), "{said}");
    }

    /// Content that must not be asked for.
    struct Unread;

    impl Read for Unread {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            panic!("it was read");
        }
    }

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<PathBuf> = (0..8).map(|i| format!("f{i}").into()).collect();
        assert_eq!(listed(&names), "f0, f1, f2, f3, f4 and 3 more");
    }
}
