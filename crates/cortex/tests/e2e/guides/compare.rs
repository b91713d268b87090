//! Whether a command printed what a guide shows. A guide shows real output of one run, and what
//! differs from run to run is known by its form: see `FORMS`. It runs nothing.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::{Captures, Regex};

/// What differs from run to run, by how it looks in a guide and how it may look. Where a form
/// holds a group, its text stands for the same text throughout the guide, also in commands that
/// are typed later: a reader copies it from the screen.
const FORMS: [(&str, &str); 9] = [
    ("…", ".*?"),
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", r"\d{4}-\d\d-\d\dT[\d:.]+Z"),
    (r"\d{4}[-/]\d\d[-/]\d\d", r"\d{4}[-/]\d\d[-/]\d\d"),
    (r"\d\d?/[A-Z][a-z]{2}/\d{4}", r"\d\d?/[A-Z][a-z]{2}/\d{4}"),
    (r"\d\d:\d\d(:\d\d)?\b", r"\d\d:\d\d(?::\d\d)?"),
    // Process numbers, with the memory in use once it was measured, and the ports of instances.
    (r"pid \d+(, [\d.]+ [kMG]?B)?", r"pid (\d+)(?:, [\d.]+ [kMG]?B)?"),
    (r"2\d{4}\b", r"(2\d{4})"),
    // Sizes, durations and loads.
    (
        r"\d+(\.\d+)? ?((B|kB|MB|GB|ms|s|min|m|h|d)\b|%)",
        r"\d+(?:\.\d+)? ?(?:[kMG]?B|ms|s|min|m|h|d|%)",
    ),
    // Identifiers of nodes, and hashes.
    (r"([a-z0-9]{8}|[0-9a-f]{12,64})\b", r"([a-z0-9]{8}|[0-9a-f]{12,64})"),
];

/// The forms as they are looked for, and whether the real one holds a group.
static FORMS_BUILT: LazyLock<Vec<(Regex, &str, bool)>> = LazyLock::new(|| {
    let built = |text: &str| Regex::new(text).expect("a form");
    let whole = |(shown, real): (&str, &'static str)| {
        (built(&format!("^(?:{shown})")), real, built(real).captures_len() > 1)
    };
    FORMS.into_iter().map(whole).collect()
});

/// What the words of a guide stand for in this run.
#[derive(Default)]
pub struct Meant(BTreeMap<String, String>);

impl Meant {
    /// Returns a command as a reader types it who has followed the guide so far.
    pub fn typed(&self, command: &str) -> String {
        if self.0.is_empty() {
            return command.to_owned();
        }
        let mut words: Vec<String> = self.0.keys().map(|word| regex::escape(word)).collect();
        // The first that fits is taken: the longest of those that begin alike.
        words.sort_by_key(|word| std::cmp::Reverse(word.len()));
        let any = Regex::new(&words.join("|")).expect("words");
        any.replace_all(command, |found: &Captures<'_>| self.0[&found[0]].clone()).into_owned()
    }

    /// Takes in what a command printed; the error says which line of the guide is not in it.
    pub fn compare(&mut self, shown: &[String], printed: &str) -> Result<(), String> {
        let shown: Vec<&str> = without_empty_end(shown.iter().map(String::as_str));
        let printed: Vec<&str> = without_empty_end(printed.lines());
        let mut meant = self.0.clone();
        follow(&shown, &printed, &mut meant)?;
        self.0 = meant;
        Ok(())
    }
}

fn without_empty_end<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut lines: Vec<&str> = lines.collect();
    while lines.last().is_some_and(|line| line.trim().is_empty()) {
        lines.pop();
    }
    lines
}

/// Compares line by line; a line of `…` alone stands for any number of lines.
fn follow(
    shown: &[&str],
    printed: &[&str],
    meant: &mut BTreeMap<String, String>,
) -> Result<(), String> {
    let Some((line, rest)) = shown.split_first() else {
        let Some(more) = printed.first() else { return Ok(()) };
        return Err(format!("it printed more: {more}"));
    };
    if line.trim() == "…" {
        let mut last = Ok(());
        for skipped in 0..=printed.len() {
            let mut now = meant.clone();
            last = follow(rest, &printed[skipped..], &mut now);
            if last.is_ok() {
                *meant = now;
                return Ok(());
            }
        }
        return last;
    }
    let Some((first, others)) = printed.split_first() else {
        return Err(format!("it did not print: {line}"));
    };
    match_line(line, first, meant)?;
    follow(rest, others, meant)
}

fn match_line(
    shown: &str,
    printed: &str,
    meant: &mut BTreeMap<String, String>,
) -> Result<(), String> {
    let differs = || format!("shown:   {shown}\nprinted: {printed}");
    let (pattern, words) = pattern(shown);
    let whole = Regex::new(&pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
    let captures: Captures<'_> = whole.captures(printed.trim_end()).ok_or_else(differs)?;
    for (word, real) in words.into_iter().zip(captures.iter().skip(1)) {
        let real = real.map_or("", |real| real.as_str());
        // What is shown by its beginning alone is what was printed last.
        let before = match word.contains('…') {
            true => None,
            false => meant.get(&word),
        };
        if let Some(before) = before.filter(|before| *before != real) {
            return Err(format!("{}\n`{word}` was {before} before", differs()));
        }
        meant.insert(word, real.to_owned());
    }
    Ok(())
}

/// Returns the pattern of a shown line, and what the guide calls the text of each of its groups.
fn pattern(shown: &str) -> (String, Vec<String>) {
    let (mut pattern, mut words) = ("^".to_owned(), Vec::new());
    let mut rest = shown.trim_end();
    let mut inside_word = false;
    while let Some(first) = rest.chars().next() {
        let word = rest.split_whitespace().next().unwrap_or_default();
        let form = FORMS_BUILT.iter().find_map(|(form, real, groups)| {
            let found = form.find(rest)?.as_str();
            (!inside_word && varies(found)).then_some((found, *real, *groups))
        });
        let is_part = word.trim_end_matches([',', '.', ';', ':', ')']) != "…";
        if !inside_word && !first.is_whitespace() && word.contains('…') && is_part {
            let pieces: Vec<String> = word.split('…').map(regex::escape).collect();
            pattern.push_str(&format!("({})", pieces.join(r"\S*")));
            words.push(word.to_owned());
            rest = &rest[word.len()..];
        } else if let Some((found, real, groups)) = form {
            pattern.push_str(real);
            if groups {
                let word = found.strip_prefix("pid ").unwrap_or(found);
                words.push(word.split(',').next().unwrap_or_default().to_owned());
            }
            rest = &rest[found.len()..];
            inside_word = true;
        } else if first.is_whitespace() {
            // Columns are as wide as their longest word of that run.
            pattern.push_str(r"\s+");
            rest = rest.trim_start();
            inside_word = false;
        } else {
            pattern.push_str(&regex::escape(&first.to_string()));
            rest = &rest[first.len_utf8()..];
            inside_word = first.is_alphanumeric() || matches!(first, '_' | '.');
        }
    }
    pattern.push('$');
    (pattern, words)
}

/// Returns whether it is no ordinary word or number of eight or more characters.
fn varies(word: &str) -> bool {
    let plain = word.len() >= 8 && word.bytes().all(|byte| byte.is_ascii_alphanumeric());
    !plain
        || (word.bytes().any(|byte| byte.is_ascii_digit())
            && word.bytes().any(|byte| byte.is_ascii_alphabetic()))
}

#[test]
fn what_varies_is_known_by_its_form() {
    let check =
        |shown: &str, printed: &str| Meant::default().compare(&[shown.to_owned()], printed).is_ok();
    for (shown, printed) in [
        (
            "web.1: up 2026/11/27 04:30:14 (~ 0s ago), v1, on xdzjk5eu, pid 255",
            "web.1: up 2027/01/02 10:31:00 (~ 12s ago), v1, on abcdefgh, pid 9",
        ),
        ("2026-11-28T00:44:50.262Z app[web.1]: x", "2026-12-01T01:02:03Z app[web.1]: x"),
        ("Load: 5 %   10.2 MB", "Load:    653 %      9 kB"),
        ("127.0.0.1:29233", "127.0.0.1:20001"),
        ("Python 3.… is here", "Python 3.13.1 is here"),
        ("push of d838c4ba9dcb", "push of 0123456789ab"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("pid …, 1 restart", "pid 7, 11.0 MB, 1 restart"),
        ("'x' (…)", "'x' (/usr/lib)"),
    ] {
        assert!(check(shown, printed), "{shown} | {printed}");
    }
    for (shown, printed) in [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8001"),
        ("v1 is serving", "v2 is serving"),
        ("=== web (4)", "=== web (3)"),
        ("it is deployed", "it is detected"),
        ("web.1: up", "web.2: up"),
        ("one", "one\ntwo"),
        ("one", ""),
        ("Python 3.… is here", "Python 2.7 is here"),
        ("pid 7", "pid x"),
    ] {
        assert!(!check(shown, printed), "{shown} | {printed}");
    }
}

#[test]
fn a_word_that_varies_means_the_same_throughout() {
    let mut meant = Meant::default();
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let shown = lines("pid 4711, on xdzjk5eu\ncortex up --join 192.0.2.1:8205#…");
    let printed = "pid 17, on aaaabbb2\ncortex up --join 192.0.2.1:8205#0123.456";
    meant.compare(&shown, printed).expect("it is the same");
    assert_eq!(meant.typed("kill -9 4711"), "kill -9 17");
    let join = meant.typed("cortex up --join 192.0.2.1:8205#…");
    assert_eq!(join, "cortex up --join 192.0.2.1:8205#0123.456");
    meant.compare(&lines("on xdzjk5eu"), "on cccccccc").expect_err("it is another one");
    meant.compare(&lines("a\n…\non xdzjk5eu"), "a\nb\nc\non aaaabbb2").expect("lines between");
    meant.compare(&lines("a\n…\non xdzjk5eu"), "a\non aaaabbb2\nmore").expect_err("more");
}
