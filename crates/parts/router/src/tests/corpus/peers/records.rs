//! The records of what peers do: in each case's file, and counted in the manual.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use super::super::case::Case;
use super::server::Kind;
use super::verdict::{Class, Verdict};

/// The lines of the manual between which the results stand.
const TABLE_START: &str = "<!-- peers: written by the test -->\n";
const TABLE_END: &str = "<!-- /peers -->\n";

/// The columns of a line of the manual.
const COLUMNS_MAX: usize = 104;

/// The ways in which each peer treats a case, in the order of `Kind::ALL`: as a rule one.
pub type Habits = [Vec<String>; 2];

/// Returns the habits as they stand in the case's file.
pub fn recorded(case: &Case) -> Habits {
    Kind::ALL.map(|kind| {
        let mut habits: Vec<String> = Vec::new();
        let of_kind =
            case.others.split_inclusive('\n').filter(|line| line.starts_with(kind.name()));
        for line in of_kind {
            match habits.last_mut() {
                Some(last) if line[kind.name().len()..].starts_with(" | ") => *last += line,
                _ => habits.push(line.to_owned()),
            }
        }
        habits
    })
}

/// Adds another way that a peer treats a case; the one to be feared most stands first.
pub fn add(habits: &mut Habits, verdicts: &[Verdict; 2]) {
    for ((kind, verdict), known) in Kind::ALL.iter().zip(verdicts).zip(habits) {
        let lines = verdict.lines(kind.name());
        if !known.contains(&lines) {
            known.push(lines);
            known.sort_by_key(|lines| class(lines));
        }
    }
}

fn class(lines: &str) -> Option<Class> {
    let word = lines.split_whitespace().nth(1)?;
    Class::ALL.into_iter().find(|class| class.word() == word)
}

/// Returns whether this is a habit of that peer.
pub fn is_recorded(case: &Case, peer: usize, verdict: &Verdict) -> bool {
    recorded(case)[peer].contains(&verdict.lines(Kind::ALL[peer].name()))
}

/// Returns what is not as it is recorded.
pub fn differences(cases: &[&Case], verdicts: &[[Verdict; 2]]) -> Vec<String> {
    let mut differing = Vec::new();
    for (case, verdicts) in cases.iter().zip(verdicts) {
        let habits = recorded(case);
        for ((kind, verdict), known) in Kind::ALL.iter().zip(verdicts).zip(&habits) {
            let (name, now) = (&case.name, verdict.lines(kind.name()));
            if !known.contains(&now) {
                differing.push(format!("{name}, recorded:\n{}now:\n{now}", known.concat()));
            }
        }
    }
    let manual = manual();
    if manual.table != table(cases, &manual.versions()) {
        differing.push(format!("the table in {}\n", manual_path().display()));
    }
    differing
}

pub fn record(case: &Case, habits: &Habits) {
    fs::write(&case.path, format!("{}{}", case.own, habits.concat().concat())).unwrap();
}

pub fn record_table(cases: &[&Case], versions: &[String; 2]) {
    let (manual, table) = (manual(), table(cases, versions));
    fs::write(manual_path(), format!("{}{table}{}", manual.before, manual.after)).unwrap();
}

/// Returns the versions that are recorded.
pub fn recorded_versions() -> [String; 2] {
    manual().versions()
}

struct Manual {
    before: String,
    table: String,
    after: String,
}

fn manual_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/router.md")
}

fn manual() -> Manual {
    let text = fs::read_to_string(manual_path()).unwrap();
    let (before, rest) = text.split_once(TABLE_START).expect("the table's start is marked");
    let (table, after) = rest.split_once(TABLE_END).expect("the table's end is marked");
    Manual {
        before: format!("{before}{TABLE_START}"),
        table: table.to_owned(),
        after: format!("{TABLE_END}{after}"),
    }
}

impl Manual {
    fn versions(&self) -> [String; 2] {
        let head = self.table.lines().next().unwrap_or_default();
        Kind::ALL.map(|kind| {
            let after = head.split(&format!("{} ", kind.title())).nth(1).unwrap_or_default();
            after.split(' ').next().unwrap_or_default().to_owned()
        })
    }
}

/// Returns the table of what is recorded; of several habits the first counts.
fn table(cases: &[&Case], versions: &[String; 2]) -> String {
    let titles = Kind::ALL.iter().zip(versions);
    let titles: String = titles.map(|(kind, of)| format!(" {} {of} |", kind.title())).collect();
    let mut text = format!("| of {} cases |{titles}\n| --- | --- | --- |\n", cases.len());
    let habits: Vec<Habits> = cases.iter().map(|case| recorded(case)).collect();
    let is = |habits: &Habits, peer: usize, wanted: Class| {
        habits[peer].first().and_then(|lines| class(lines)) == Some(wanted)
    };
    for wanted in Class::ALL {
        let count = |peer| habits.iter().filter(|habits| is(habits, peer, wanted)).count();
        let (word, means) = (wanted.word(), wanted.means());
        writeln!(text, "| `{word}`: {means} | {} | {} |", count(0), count(1)).unwrap();
    }
    for (who, wanted) in
        [("both", [true, true]), ("nginx alone", [true, false]), ("HAProxy alone", [false, true])]
    {
        let unsafe_in = |habits: &Habits| [0, 1].map(|peer| is(habits, peer, Class::Unsafe));
        let named = cases.iter().zip(&habits).filter(|(_, habits)| unsafe_in(habits) == wanted);
        let names: Vec<String> = named.map(|(case, _)| format!("`{}`", case.name)).collect();
        write!(text, "\n{}\n", wrapped(&format!("`unsafe`, {who}: {}.", names.join(", "))))
            .unwrap();
    }
    text
}

fn wrapped(text: &str) -> String {
    let (mut lines, mut columns) = (String::new(), 0);
    for word in text.split(' ') {
        let fits = columns + word.len() < COLUMNS_MAX;
        columns = if fits { columns + word.len() + 1 } else { word.len() };
        lines += match (fits, lines.is_empty()) {
            (_, true) => "",
            (true, false) => " ",
            (false, false) => "\n",
        };
        lines += word;
    }
    lines
}
