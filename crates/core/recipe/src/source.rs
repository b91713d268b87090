//! The tree that was pushed, as detection sees it: names, sizes and the text of small files. Pure:
//! the shell fills it while it reads the archive, and may leave out the text of files that `reads`
//! refuses.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a file whose text is kept. Larger files are data or bundles; nothing that reveals a
/// framework is that long.
pub const TEXT_BYTES_MAX: u64 = 256 * 1024;
/// Bytes of all texts of one tree together, so that a push cannot fill the node's memory.
pub const TEXTS_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Directories that hold other people's code: no framework is read out of them.
const FOREIGN_DIRECTORIES: &[&str] = &[
    "node_modules",
    ".venv",
    "venv",
    "vendor",
    "site-packages",
    ".git",
    ".hg",
    ".bzr",
    "__pycache__",
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceTree {
    /// The files by path relative to the root, with `/` between names. Directories are implied.
    pub files: BTreeMap<String, SourceFile>,
    texts_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFile {
    pub size: u64,
    pub executable: bool,
    /// The text of a file in UTF-8 or UTF-16 that is small enough, without a byte order mark.
    pub text: Option<String>,
    /// Whether it is in UTF-16, which most programs do not read.
    pub is_wide: bool,
}

/// Returns the text that an editor on any system has saved: UTF-8 or UTF-16, with a byte order mark
/// or, where that is beyond doubt, without; `None` for what is no text.
pub fn decoded(bytes: &[u8]) -> Option<Cow<'_, str>> {
    let wide = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        let (units, rest) = bytes.as_chunks::<2>();
        let units = units.iter().map(|pair| unit(*pair));
        let text: Option<String> = char::decode_utf16(units).collect::<Result<_, _>>().ok();
        text.filter(|_| rest.is_empty()).map(Cow::Owned)
    };
    match bytes {
        [0xef, 0xbb, 0xbf, text @ ..] => std::str::from_utf8(text).ok().map(Cow::Borrowed),
        [0xff, 0xfe, text @ ..] => wide(text, u16::from_le_bytes),
        [0xfe, 0xff, text @ ..] => wide(text, u16::from_be_bytes),
        text if is_wide_ascii(text, 1) => wide(text, u16::from_le_bytes),
        text if is_wide_ascii(text, 0) => wide(text, u16::from_be_bytes),
        text => std::str::from_utf8(text).ok().map(Cow::Borrowed),
    }
}

/// Returns whether every second byte is zero, beginning here, and none of the others.
fn is_wide_ascii(bytes: &[u8], zero: usize) -> bool {
    let fits = |(at, byte): (usize, &u8)| (at % 2 == zero) == (*byte == 0);
    bytes.len() >= 2 && bytes.len().is_multiple_of(2) && bytes.iter().enumerate().all(fits)
}

impl SourceTree {
    pub fn new() -> SourceTree {
        SourceTree::default()
    }

    /// Makes a tree from paths and texts, as tests and examples have them.
    pub fn from_pairs<P: AsRef<str>, T: Into<String>>(
        pairs: impl IntoIterator<Item = (P, T)>,
    ) -> SourceTree {
        let mut tree = SourceTree::new();
        for (path, text) in pairs {
            let text = text.into();
            tree.add(path.as_ref(), text.len() as u64, false, Some(text.as_bytes()));
        }
        tree
    }

    /// Returns whether detection would look into this file: the shell need not read the bytes of
    /// others.
    pub fn reads(path: &str, size: u64) -> bool {
        size <= TEXT_BYTES_MAX && !is_foreign(path)
    }

    /// Adds a file; `bytes` are the whole file, or `None` if `reads` refused it.
    pub fn add(&mut self, path: &str, size: u64, executable: bool, bytes: Option<&[u8]>) {
        let path = path.trim_start_matches("./").trim_matches('/');
        if path.is_empty() {
            return;
        }
        let text = bytes
            .filter(|bytes| {
                Self::reads(path, bytes.len() as u64)
                    && self.texts_bytes + bytes.len() as u64 <= TEXTS_BYTES_MAX
            })
            .and_then(decoded)
            .map(Cow::into_owned);
        self.texts_bytes += text.as_ref().map_or(0, |text| text.len() as u64);
        let is_utf8 = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok() && !bytes.contains(&0);
        let is_wide = text.is_some() && !bytes.is_some_and(is_utf8);
        self.files.insert(path.to_owned(), SourceFile { size, executable, text, is_wide });
    }

    /// Returns whether there is a file of this path.
    pub fn exists(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }

    pub fn has_directory(&self, path: &str) -> bool {
        self.under(path).next().is_some()
    }

    /// Returns the text of a file, if there is such a file and it is text.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.text.as_deref()
    }

    /// Returns whether the file exists and its text contains `needle`.
    pub fn mentions(&self, path: &str, needle: &str) -> bool {
        self.text(path).is_some_and(|text| text.contains(needle))
    }

    /// Returns all files in a directory and below it, in order; the empty path means the root.
    pub fn under(&self, directory: &str) -> impl Iterator<Item = (&str, &SourceFile)> {
        let prefix = match directory.trim_matches('/') {
            "" => String::new(),
            directory => format!("{directory}/"),
        };
        self.files
            .range(prefix.clone()..)
            .take_while(move |(path, _)| path.starts_with(&prefix))
            .map(|(path, file)| (path.as_str(), file))
    }

    /// Returns files anywhere in the project's own code whose name matches: `*` stands for any
    /// characters.
    pub fn named(&self, pattern: &str) -> impl Iterator<Item = (&str, &SourceFile)> {
        self.under("").filter(move |(path, _)| {
            let name = path.rsplit('/').next().unwrap_or(path);
            !is_foreign(path) && matches_pattern(name, pattern)
        })
    }

    /// Returns the names in the root, a `/` after directories, in order.
    pub fn root_entries(&self) -> Vec<String> {
        let entries: BTreeSet<String> = self
            .files
            .keys()
            .map(|path| match path.split_once('/') {
                Some((directory, _)) => format!("{directory}/"),
                None => path.clone(),
            })
            .collect();
        entries.into_iter().collect()
    }
}

fn is_foreign(path: &str) -> bool {
    let mut names = path.split('/');
    names.next_back();
    names.any(|name| FOREIGN_DIRECTORIES.contains(&name))
}

/// Returns whether the name matches. Linear in both: at a mismatch only the last `*` is tried
/// again.
fn matches_pattern(name: &str, pattern: &str) -> bool {
    let (name, pattern) = (name.as_bytes(), pattern.as_bytes());
    let (mut at, mut wanted) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while at < name.len() {
        match pattern.get(wanted) {
            Some(b'*') => {
                retry = Some((at, wanted));
                wanted += 1;
            }
            Some(byte) if *byte == name[at] => {
                at += 1;
                wanted += 1;
            }
            _ => match retry {
                Some((tried, star)) => {
                    retry = Some((tried + 1, star));
                    at = tried + 1;
                    wanted = star + 1;
                }
                None => return false,
            },
        }
    }
    pattern[wanted..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (name, pattern, expected) in [
            ("a.py", "*.py", true),
            ("a.pyc", "*.py", false),
            ("wsgi.py", "wsgi.py", true),
            ("next.config.mjs", "next.config.*", true),
            ("aab", "*ab", true),
            ("abc", "a*b*c*", true),
            ("", "*", true),
            ("abc", "a*d", false),
        ] {
            assert_eq!(matches_pattern(name, pattern), expected, "{name} {pattern}");
        }
    }

    #[test]
    fn directories_are_implied_and_foreign_code_is_not_read() {
        let tree = SourceTree::from_pairs([
            ("app.py", "x"),
            ("sub/b.py", "y"),
            ("subway.py", "z"),
            ("node_modules/x/c.py", "no"),
        ]);
        assert!(tree.has_directory("sub") && !tree.has_directory("su") && !tree.exists("sub"));
        assert_eq!(tree.under("sub").map(|(path, _)| path).collect::<Vec<_>>(), ["sub/b.py"]);
        let python: Vec<&str> = tree.named("*.py").map(|(path, _)| path).collect();
        assert_eq!(python, ["app.py", "sub/b.py", "subway.py"]);
        assert_eq!(tree.text("node_modules/x/c.py"), None);
        assert_eq!(tree.root_entries(), ["app.py", "node_modules/", "sub/", "subway.py"]);
    }

    #[test]
    fn texts_are_read_as_any_editor_saves_them() {
        let wide = |text: &str, unit: fn(u16) -> [u8; 2]| -> Vec<u8> {
            text.encode_utf16().flat_map(unit).collect()
        };
        let text = "web: run ü\r\n";
        for bytes in [
            text.as_bytes().to_vec(),
            format!("\u{feff}{text}").into_bytes(),
            wide(&format!("\u{feff}{text}"), u16::to_le_bytes),
            wide(&format!("\u{feff}{text}"), u16::to_be_bytes),
        ] {
            assert_eq!(decoded(&bytes).as_deref(), Some(text), "{bytes:?}");
        }
        assert_eq!(decoded(&wide("web: x", u16::to_le_bytes)).as_deref(), Some("web: x"));
        assert_eq!(decoded(&wide("web: x", u16::to_be_bytes)).as_deref(), Some("web: x"));
        assert_eq!(decoded(b"\xff\xfea"), None);
        assert_eq!(decoded(b"\xff\xfe\x00\xd8"), None, "half a pair");
        assert_eq!(decoded(b"caf\xe9"), None);
        assert_eq!(decoded(b"").as_deref(), Some(""));
        let mut tree = SourceTree::new();
        tree.add("a", 6, false, Some(&wide("web", u16::to_le_bytes)));
        tree.add("b", 3, false, Some(b"web"));
        assert!(tree.files["a"].is_wide && !tree.files["b"].is_wide);
    }

    #[test]
    fn texts_are_bounded_and_must_be_utf8() {
        let mut tree = SourceTree::new();
        tree.add("./image.png", 3, false, Some(&[0xff, 0xfe, 0]));
        assert!(tree.exists("image.png") && tree.text("image.png").is_none());
        let full = vec![b'a'; TEXT_BYTES_MAX as usize];
        let fitting = TEXTS_BYTES_MAX / TEXT_BYTES_MAX;
        for i in 0..=fitting {
            tree.add(&format!("{i:04}"), TEXT_BYTES_MAX, false, Some(&full));
        }
        let texts = tree.files.values().filter(|file| file.text.is_some()).count() as u64;
        assert_eq!(texts, fitting);
    }
}
