//! The files `.slugignore` and `.cortexignore` in what is pushed, whatever lists the rest: they say
//! more than version control does, and win over it. Knows paths and texts, no files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

/// The names of Heroku's file and ours, in the format of `.gitignore`; the later one wins.
pub const IGNORE_FILES: &[&str] = &[".slugignore", ".cortexignore"];

#[derive(Debug, Default)]
pub struct Ignored {
    /// The rules by the directory that their files lie in, the strongest last.
    files: BTreeMap<PathBuf, Vec<Gitignore>>,
}

/// The decision of these files on one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IgnoreDecision {
    Nothing,
    LeftOut,
    /// A line with `!` includes it, even where version control leaves it out.
    Wanted,
}

pub fn is_ignore_file(path: &Path) -> bool {
    IGNORE_FILES.iter().any(|name| path.file_name().is_some_and(|file| file == *name))
}

impl Ignored {
    /// Adds a file of one directory; to be called in the order of `IGNORE_FILES`.
    pub fn add(&mut self, directory: &Path, text: &[u8]) {
        let mut builder = GitignoreBuilder::new("");
        let text = String::from_utf8_lossy(text);
        for line in text.trim_start_matches('\u{feff}').lines() {
            // A line that is no pattern leaves nothing out, as in Git.
            builder.add_line(None, line).ok();
        }
        if let Ok(file) = builder.build() {
            self.files.entry(directory.to_path_buf()).or_default().push(file);
        }
    }

    /// Returns the decision on this path alone: the caller has asked about its parents before.
    pub fn said_of(&self, path: &Path, is_directory: bool) -> IgnoreDecision {
        for directory in path.ancestors().skip(1) {
            let Ok(inside) = path.strip_prefix(directory) else { continue };
            for file in self.files.get(directory).into_iter().flatten().rev() {
                match file.matched(inside, is_directory) {
                    Match::None => {}
                    Match::Ignore(_) => return IgnoreDecision::LeftOut,
                    Match::Whitelist(_) => return IgnoreDecision::Wanted,
                }
            }
        }
        IgnoreDecision::Nothing
    }

    /// Whether the path, or a directory that it lies in, is left out.
    pub fn leaves_out(&self, path: &Path, is_directory: bool) -> bool {
        if self.files.is_empty() {
            return false;
        }
        let parents = path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty());
        self.said_of(path, is_directory) == IgnoreDecision::LeftOut
            || parents
                .into_iter()
                .any(|parent| self.said_of(parent, true) == IgnoreDecision::LeftOut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_ignore_file_decides_and_ours_before_herokus() {
        let mut ignored = Ignored::default();
        ignored.add(Path::new(""), b"\xef\xbb\xbfdocs/\n*.bin\n/top\n");
        ignored.add(Path::new(""), b"!keep.bin\n");
        ignored.add(Path::new("sub"), b"/here\n!x.bin\r\n");
        for (path, is_directory, left_out) in [
            ("docs", true, true),
            ("docs", false, false),
            ("docs/a/b", false, true),
            ("a.bin", false, true),
            ("keep.bin", false, false),
            ("sub/x.bin", false, false),
            ("sub/y.bin", false, true),
            ("sub/here", false, true),
            ("sub/sub/here", false, false),
            ("top", false, true),
            ("sub/top", false, false),
        ] {
            assert_eq!(ignored.leaves_out(Path::new(path), is_directory), left_out, "{path}");
        }
        assert_eq!(ignored.said_of(Path::new("keep.bin"), false), IgnoreDecision::Wanted);
    }
}
