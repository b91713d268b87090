//! The files of the corpus: what they say of the router, and what they say of its peers.

use std::path::{Path, PathBuf};

/// The fewest cases: fewer files than once were written would pass unnoticed.
const REQUESTS_MIN: usize = 300;
const ANSWERS_MIN: usize = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folder {
    Requests,
    Answers,
}

impl Folder {
    fn name(self) -> &'static str {
        match self {
            Folder::Requests => "requests",
            Folder::Answers => "answers",
        }
    }

    pub fn cases(self) -> Vec<Case> {
        let root = place().join(self.name());
        let entries = std::fs::read_dir(&root).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let min = if self == Folder::Requests { REQUESTS_MIN } else { ANSWERS_MIN };
        assert!(paths.len() >= min, "{} files in {}", paths.len(), root.display());
        paths.into_iter().map(Case::read).collect()
    }
}

pub fn place() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/corpus")
}

/// The case that one file describes.
pub struct Case {
    pub path: PathBuf,
    pub name: String,
    /// The bytes after `>` and after `<`.
    pub sent: Vec<u8>,
    pub got: Vec<u8>,
    /// The words after `=`.
    pub outcome: Vec<String>,
    /// The text that follows a `=` line and a colon.
    pub body: Option<Vec<u8>>,
    /// The lines about the router, and those about others, as they stand there.
    pub own: String,
    pub others: String,
}

impl Case {
    fn read(path: PathBuf) -> Case {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(text.starts_with("# "), "{name} does not say what it is about");
        let (sent, got, outcome) = (vec![], vec![], vec![]);
        let (own, others) = (String::new(), String::new());
        let mut case = Case { path, name, sent, got, outcome, body: None, own, others };
        for line in text.split_inclusive('\n') {
            case.take(line);
        }
        assert!(!case.outcome.is_empty(), "{} expects nothing", case.name);
        case
    }

    fn take(&mut self, line: &str) {
        let is_others = ["nginx", "haproxy"].iter().any(|name| line.starts_with(name));
        if is_others {
            self.others += line;
            return;
        }
        self.own += line;
        match line.trim_end_matches('\n').split_once(' ') {
            Some(("#", _)) => {}
            Some((">", bytes)) => self.sent.extend(unescape(bytes)),
            Some(("<", bytes)) => self.got.extend(unescape(bytes)),
            Some(("=", words)) => {
                let (words, body) = words.split_once(": ").unwrap_or((words, ""));
                self.outcome.extend(words.split(' ').map(str::to_owned));
                self.body = Some(unescape(body));
            }
            _ => panic!("{}: {line}", self.name),
        }
    }

    pub fn is_head(&self) -> bool {
        self.sent.starts_with(b"HEAD ")
    }
}

fn unescape(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text.chars());
    while let Some(c) = rest.next() {
        if c != '\\' {
            bytes.push(u8::try_from(c).unwrap());
            continue;
        }
        match rest.next().unwrap() {
            'r' => bytes.push(b'\r'),
            'n' => bytes.push(b'\n'),
            't' => bytes.push(b'\t'),
            '\\' => bytes.push(b'\\'),
            'x' => {
                let digits: String = rest.by_ref().take(2).collect();
                bytes.push(u8::from_str_radix(&digits, 16).unwrap());
            }
            '*' => {
                let count: String = rest.by_ref().take_while(|c| *c != ';').collect();
                let part: String = rest.by_ref().take_while(|c| *c != ';').collect();
                bytes.extend(unescape(&part).repeat(count.parse().unwrap()));
            }
            other => panic!("\\{other} is no escape"),
        }
    }
    bytes
}
