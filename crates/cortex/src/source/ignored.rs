//! What `.gitignore` and files of its form leave out, as gitignore(5) has it. Knows one directory's
//! rules at a time; the walk asks those of the directories above, the nearest first.

/// The rules of one directory.
#[derive(Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    includes: bool,
    directories_only: bool,
    /// Below the directory of the rules; otherwise it is about names, however deep.
    path: Option<Vec<Step>>,
    name: Vec<u8>,
}

#[derive(Debug)]
enum Step {
    /// `**`: any number of directories, none too.
    Anywhere,
    Name(Vec<u8>),
}

impl Rules {
    /// Adds the lines of one file; later lines outweigh earlier ones.
    pub fn add(&mut self, text: &[u8]) {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        self.rules.extend(text.split(|byte| *byte == b'\n').filter_map(Rule::parse));
    }

    /// Whether what is at `path`, relative to the directory, is left out; none where no rule is
    /// about it.
    pub fn leave_out(&self, path: &[u8], is_directory: bool) -> Option<bool> {
        let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let about =
            |rule: &&Rule| (is_directory || !rule.directories_only) && rule.is_about(&names);
        self.rules.iter().rev().find(about).map(|rule| !rule.includes)
    }
}

impl Rule {
    fn parse(line: &[u8]) -> Option<Rule> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.starts_with(b"#") {
            return None;
        }
        let line = without_spaces(line);
        let (includes, line) = match line.strip_prefix(b"!") {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let (directories_only, line) = match line.strip_suffix(b"/") {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        if line.is_empty() {
            return None;
        }
        let path = line.contains(&b'/').then(|| {
            let line = line.strip_prefix(b"/").unwrap_or(line);
            let mut steps: Vec<Step> = line.split(|byte| *byte == b'/').map(Step::of).collect();
            if matches!(steps.last(), Some(Step::Anywhere)) {
                // What is in the directory, and not the directory itself.
                steps.push(Step::Name(b"*".to_vec()));
            }
            steps
        });
        Some(Rule { includes, directories_only, path, name: line.to_vec() })
    }

    fn is_about(&self, names: &[&[u8]]) -> bool {
        match &self.path {
            Some(steps) => leads_to(steps, names),
            None => names.last().is_some_and(|name| fits(&self.name, name)),
        }
    }
}

impl Step {
    fn of(text: &[u8]) -> Step {
        if text == b"**" { Step::Anywhere } else { Step::Name(text.to_vec()) }
    }
}

/// Spaces at the end count only after a backslash.
fn without_spaces(mut line: &[u8]) -> &[u8] {
    while let Some(rest) = line.strip_suffix(b" ") {
        let escapes = rest.iter().rev().take_while(|byte| **byte == b'\\').count();
        if escapes % 2 == 1 {
            break;
        }
        line = rest;
    }
    line
}

/// Only the last `**` is ever tried again: what an earlier one could take up, the later one can.
fn leads_to(steps: &[Step], names: &[&[u8]]) -> bool {
    let (mut step, mut name, mut again) = (0, 0, None);
    loop {
        match (steps.get(step), names.get(name)) {
            (None, None) => return true,
            (Some(Step::Anywhere), _) => {
                again = Some((step, name));
                step += 1;
            }
            (Some(Step::Name(pattern)), Some(found)) if fits(pattern, found) => {
                step += 1;
                name += 1;
            }
            _ => match again {
                Some((anywhere, taken)) if taken < names.len() => {
                    again = Some((anywhere, taken + 1));
                    (step, name) = (anywhere + 1, taken + 1);
                }
                _ => return false,
            },
        }
    }
}

/// One name: `*`, `?`, `[...]` and backslashes; as above, only the last star is tried again.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut read, mut again) = (0, 0, None);
    loop {
        if pattern.get(at) == Some(&b'*') {
            again = Some((at, read));
            at += 1;
            continue;
        }
        if at == pattern.len() && read == name.len() {
            return true;
        }
        let fitting = name.get(read).and_then(|byte| one(&pattern[at..], *byte));
        match (fitting, again) {
            (Some(length), _) => {
                at += length;
                read += 1;
            }
            (None, Some((star, taken))) if taken < name.len() => {
                again = Some((star, taken + 1));
                (at, read) = (star + 1, taken + 1);
            }
            _ => return false,
        }
    }
}

/// How much of the pattern stands for this byte, if its beginning does.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match (pattern.first()?, pattern.get(1)) {
        (b'?', _) => Some(1),
        (b'[', _) => class(pattern, byte),
        (b'\\', literal) => (literal == Some(&byte)).then_some(2),
        (literal, _) => (*literal == byte).then_some(1),
    }
}

/// `[a-z]`, `[!a]`; one without an end stands for nothing.
fn class(pattern: &[u8], byte: u8) -> Option<usize> {
    let inverted = matches!(pattern.get(1), Some(b'!' | b'^'));
    let first = 1 + usize::from(inverted);
    let (mut at, mut holds) = (first, false);
    while pattern.get(at) != Some(&b']') || at == first {
        let (low, next) = literal(pattern, at)?;
        let is_range =
            pattern.get(next) == Some(&b'-') && !matches!(pattern.get(next + 1), Some(b']') | None);
        let (high, after) = if is_range { literal(pattern, next + 1)? } else { (low, next) };
        holds |= (low..=high).contains(&byte);
        at = after;
    }
    (holds != inverted).then_some(at + 1)
}

fn literal(pattern: &[u8], at: usize) -> Option<(u8, usize)> {
    match *pattern.get(at)? {
        b'\\' => Some((*pattern.get(at + 1)?, at + 2)),
        byte => Some((byte, at + 1)),
    }
}
