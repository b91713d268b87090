//! The lines of an output that say what went wrong, where there is no room for all: the beginning
//! of the last report of an error that a language's runtime printed, its messages, and the last
//! lines. Some runtimes say the reason first (Ruby, Node, Go, Rust, PHP), some last (Python), some
//! both (Java, and any that names its causes). Pure: text in, text out.

use std::collections::BTreeSet;

/// Lines at the start of a report that are kept before all others: its head and what was called
/// first, or the reason.
const REPORT_HEAD_LINES: usize = 3;
/// The divisor of the lines that are left after that: one part of so many is the report's
/// beginning.
const HEAD_PART: usize = 3;
/// Reasons in one report: causes of causes.
const REASONS_MAX: usize = 6;
/// Lines between a reason and the first place in the program: hints, quoted source.
const REASON_LINES_MAX: usize = 8;
/// The beginning and the end of a line that says what was left out.
const LEFT_OUT: (&str, &str) = ("… ", " left out");

/// Returns at most `lines_max` lines and about `bytes_max` bytes of an output; all of it if that
/// fits.
pub fn pick(output: &str, lines_max: usize, bytes_max: usize) -> String {
    let output = output.trim_end();
    let all: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    if all.len() <= lines_max && output.len() <= bytes_max {
        return output.trim_start_matches('\n').to_string();
    }
    let report = find(&all);
    let start = report.as_ref().map_or(0, |report| report.start);
    let mut chosen =
        Chosen { lines: &all, kept: BTreeSet::new(), left: lines_max.max(1), bytes_max };
    // The very end comes first: it may be all that there is room for.
    chosen.take(all.len().wrapping_sub(1));
    if let Some(report) = &report {
        let head = start..all.len().min(start + REPORT_HEAD_LINES);
        head.chain(report.reasons.iter().copied()).for_each(|line| chosen.take(line));
    }
    let for_head = chosen.left / HEAD_PART;
    let beginning = (start..all.len()).filter(|line| !chosen.kept.contains(line));
    let beginning: Vec<usize> = beginning.take(for_head).collect();
    let bytes_for_tail = chosen.bytes_max / 2;
    chosen.bytes_max -= bytes_for_tail;
    beginning.into_iter().for_each(|line| chosen.take(line));
    chosen.bytes_max += bytes_for_tail;
    (0..all.len()).rev().for_each(|line| chosen.take(line));
    chosen.text()
}

struct Chosen<'a> {
    lines: &'a [&'a str],
    kept: BTreeSet<usize>,
    left: usize,
    bytes_max: usize,
}

impl Chosen<'_> {
    fn take(&mut self, line: usize) {
        let Some(text) = self.lines.get(line) else { return };
        let size = text.len() + 1;
        if self.left == 0 || self.kept.contains(&line) {
            return;
        }
        if size > self.bytes_max {
            // A line that is far too long ends in the middle; nothing follows.
            if self.kept.is_empty() {
                self.kept.insert(line);
            }
            self.left = 0;
            return;
        }
        self.bytes_max -= size;
        self.left -= 1;
        self.kept.insert(line);
    }

    fn text(self) -> String {
        let mut text = String::new();
        let mut next = 0;
        let gap = |from: usize, to: usize, text: &mut String| {
            let count: usize = self.lines[from..to].iter().map(|line| left_out(line)).sum();
            if count > 0 {
                let noun = if count == 1 { "line" } else { "lines" };
                text.push_str(&format!("{}{count} {noun}{}\n", LEFT_OUT.0, LEFT_OUT.1));
            }
        };
        let only = self.kept.len() == 1;
        for line in &self.kept {
            gap(next, *line, &mut text);
            let whole = self.lines[*line];
            text.push_str(if only { end(whole, self.bytes_max) } else { whole });
            text.push('\n');
            next = line + 1;
        }
        gap(next, self.lines.len(), &mut text);
        text.truncate(text.trim_end().len());
        text
    }
}

/// Returns how many lines a line stands for: a line that says what was left out counts for that
/// many.
fn left_out(line: &str) -> usize {
    let inner = line.trim_start_matches([' ', '|']).strip_prefix(LEFT_OUT.0);
    let count =
        inner.and_then(|rest| rest.strip_suffix(LEFT_OUT.1)?.split(' ').next()?.parse().ok());
    count.unwrap_or(1)
}

/// Returns at most this many bytes of the end, cut between characters.
fn end(text: &str, bytes_max: usize) -> &str {
    let from = text.len().saturating_sub(bytes_max.max(1));
    let from = (from..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    &text[from..]
}

struct Report {
    start: usize,
    /// The lines that say what went wrong.
    reasons: Vec<usize>,
}

/// Finds the last report in an output.
fn find(lines: &[&str]) -> Option<Report> {
    let marked = (0..lines.len()).rev().find(|line| is_head(lines[*line]));
    let placed = lines.iter().rposition(|line| is_place(line)).map(|place| before(lines, place));
    let start = chain_start(lines, marked.max(placed)?);
    let mut reasons: Vec<usize> =
        (start..lines.len()).filter(|line| is_reason(lines, start, *line)).collect();
    if reasons.len() > REASONS_MAX {
        // The first and the last ones stay: what failed, and why in the end.
        reasons.drain(REASONS_MAX / 2..reasons.len() - REASONS_MAX / 2);
    }
    Some(Report { start, reasons })
}

/// Returns whether the line is a report's head, of runtimes that say so in words.
fn is_head(line: &str) -> bool {
    let line = line.trim_start();
    line.contains("Traceback (most recent call last):")
        || [
            "panic: ",
            "fatal error: ",
            "Exception in thread ",
            "PHP Fatal error: ",
            "Fatal error: ",
        ]
        .iter()
        .any(|head| line.starts_with(head))
        || (line.starts_with("thread '") && line.contains("panicked at"))
        || ["rails aborted!", "rake aborted!"].iter().any(|head| line.ends_with(head))
}

/// Returns whether the line is a place in the program, as runtimes that have said the reason before
/// list them.
fn is_place(line: &str) -> bool {
    let indented = line.starts_with([' ', '\t']);
    let line = line.trim_start();
    indented && (line.starts_with("at ") || (line.starts_with("from ") && line.contains(":in ")))
}

/// Returns whether the line may come between places: it says how many were left out, or is the name
/// of one that has a number.
fn is_between(line: &str) -> bool {
    let line = line.trim_start();
    let numbered = line.trim_start_matches(|c: char| c.is_ascii_digit());
    (line.starts_with("... ") && line.contains(" more"))
        || (numbered.len() < line.len() && numbered.starts_with(": "))
}

fn is_cause(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("Caused by:")
        || line.starts_with("[cause]:")
        || line.starts_with("Suppressed:")
}

fn names_an_error(line: &str) -> bool {
    let name = line.split([':', '(']).next().unwrap_or_default();
    name.contains("Error") || name.contains("Exception") || line.ends_with("Error)")
}

/// Returns the line with the reason before a list of places, of which `place` is the last.
fn before(lines: &[&str], place: usize) -> usize {
    let mut first = place;
    while first > 0 && (is_place(lines[first - 1]) || is_between(lines[first - 1])) {
        first -= 1;
    }
    let above = first.saturating_sub(REASON_LINES_MAX)..first;
    let is_reason = |line: &usize| {
        let text = lines[*line];
        is_cause(text)
            || is_head(text)
            || (names_an_error(text) && !is_place(text))
            || text.contains(":in ")
    };
    let reason = above.clone().rev().find(is_reason).unwrap_or(first.saturating_sub(1));
    // Node quotes the line that threw above it, with its place first and a mark below.
    let quoted = (reason.saturating_sub(4)..reason).rev().find(|line| {
        let text = lines[*line].trim();
        !text.is_empty() && text.bytes().all(|byte| byte == b'^' || byte == b'~')
    });
    quoted.map_or(reason, |mark| mark.saturating_sub(2))
}

/// Returns the start of the first of several reports that led to each other.
fn chain_start(lines: &[&str], start: usize) -> usize {
    if is_cause(lines[start]) {
        let above = (0..start).rev().find(|line| is_place(lines[*line]));
        // What comes between a cause and the report before it is that report's end.
        return match above.filter(|place| start - place <= REASON_LINES_MAX) {
            Some(place) => {
                let earlier = before(lines, place);
                if earlier < start { chain_start(lines, earlier) } else { start }
            }
            None => start,
        };
    }
    let joins = |line: &usize| {
        lines[*line].contains("another exception occurred:")
            || lines[*line].contains("direct cause of the following exception:")
    };
    let from = start.saturating_sub(2);
    match (from..start).rev().find(joins) {
        Some(joint) => match (0..joint).rev().find(|line| is_head(lines[*line])) {
            Some(earlier) => chain_start(lines, earlier),
            None => start,
        },
        None => start,
    }
}

fn is_reason(lines: &[&str], start: usize, line: usize) -> bool {
    let text = lines[line];
    if is_cause(text) || (line > start && is_cause(lines[line - 1]) && !is_place(text)) {
        return true;
    }
    if line == start {
        return true;
    }
    // After an indented place in the program, a line at the margin is Python's reason.
    let after_place = lines[line - 1].starts_with([' ', '\t']) && !text.starts_with([' ', '\t']);
    let in_python =
        (start..line).any(|at| lines[at].contains("Traceback (most recent call last):"));
    let names = names_an_error(text) && !is_place(text) && !text.starts_with(['\t', '[']);
    (in_python && after_place && !is_head(text)) || (names && !text.starts_with("  "))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTES: usize = 4096;

    fn frames(count: usize, frame: impl Fn(usize) -> String) -> String {
        (0..count).map(frame).collect()
    }

    /// Checks that within ten lines, among noise before and after, these are there in this order.
    fn check(report: &str, expected: &[&str]) {
        let noise = frames(50, |n| format!("INFO request {n}\n"));
        for after in
            ["", "[INFO] Worker exiting (pid: 7)\n[ERROR] Reason: Worker failed to boot.\n"]
        {
            let output = format!("{noise}{report}{after}");
            let picked = pick(&output, 12, BYTES);
            assert!(picked.lines().count() <= 12 + 4, "gaps are all that is added: {picked}");
            let mut rest = picked.as_str();
            for needle in expected {
                let at = rest.find(needle).unwrap_or_else(|| panic!("no '{needle}' in:\n{picked}"));
                rest = &rest[at + needle.len()..];
            }
            assert!(picked.contains(" left out"), "{picked}");
            let last = output.trim_end().lines().last().unwrap();
            assert!(picked.ends_with(last), "{picked}");
        }
    }

    #[test]
    fn output_that_fits_is_left_as_it_is() {
        assert_eq!(pick("one\n\ntwo\n", 10, BYTES), "one\n\ntwo");
        assert_eq!(pick("", 10, BYTES), "");
        assert_eq!(pick("\n\n", 10, BYTES), "");
    }

    #[test]
    fn without_a_report_the_beginning_and_the_end_are_kept() {
        let lines = frames(100, |n| format!("line {n}\n"));
        let picked = pick(&lines, 10, BYTES);
        let shown: Vec<&str> = picked.lines().collect();
        assert_eq!(shown[..4], ["line 0", "line 1", "line 2", "… 90 lines left out"]);
        assert_eq!(
            shown[4..],
            ["line 93", "line 94", "line 95", "line 96", "line 97", "line 98", "line 99"]
        );
    }

    #[test]
    fn python_says_the_reason_last() {
        let places =
            frames(40, |n| format!("  File \"/app/m{n}.py\", line {n}, in f\n    call()\n"));
        let report =
            format!("Traceback (most recent call last):\n{places}KeyError: 'DATABASE_URL'\n");
        let head = ["Traceback (most recent", "m0.py", "left out", "KeyError: 'DATABASE_URL'"];
        check(&report, &head);
    }

    #[test]
    fn python_names_each_exception_of_a_chain() {
        let places =
            frames(20, |n| format!("  File \"/app/m{n}.py\", line {n}, in f\n    call()\n"));
        let head = "Traceback (most recent call last):\n";
        let joint = "During handling of the above exception, another exception occurred:\n";
        let cause = "The above exception was the direct cause of the following exception:\n";
        let report = format!(
            "{head}{places}KeyError: 'a'\n\n{joint}\n{head}{places}ValueError: b\n\n{cause}\n\
             {head}{places}django.core.exceptions.ImproperlyConfigured: c\n"
        );
        check(
            &report,
            &["Traceback", "m0.py", "KeyError: 'a'", "ValueError: b", "ImproperlyConfigured: c"],
        );
    }

    #[test]
    fn ruby_says_the_reason_first() {
        let places = frames(60, |n| format!("\tfrom /app/m{n}.rb:{n}:in 'block in load'\n"));
        let message = "/app/config.rb:3:in 'fetch': key not found: \"SECRET\" (KeyError)\n";
        check(
            &format!("{message}{places}"),
            &["key not found: \"SECRET\" (KeyError)", "left out", "m59.rb"],
        );
        let aborted = frames(40, |n| format!("/app/m{n}.rb:{n}:in `load'\n"));
        let report = format!(
            "bin/rails aborted!\nActiveRecord::ConnectionNotEstablished: no server\n{aborted}\n\
             Caused by:\nPG::ConnectionBad: connection refused\n{aborted}\nTasks: TOP => db:migrate\n"
        );
        let expected = ["rails aborted!", "no server", "Caused by:", "PG::ConnectionBad", "TOP =>"];
        check(&report, &expected);
    }

    #[test]
    fn node_quotes_the_line_and_says_the_reason_first() {
        let places = frames(30, |n| format!("    at f{n} (/app/m{n}.js:{n}:5)\n"));
        let report = format!(
            "node:internal/modules/cjs/loader:1080\n  throw err;\n  ^\n\n\
             Error: Cannot find module './missing'\nRequire stack:\n- /app/index.js\n{places}\
             \nNode.js v20.1.0\n"
        );
        check(&report, &["loader:1080", "throw err", "Cannot find module", "left out"]);
        let typed = format!("TypeError: x is not a function\n{places}");
        check(&typed, &["TypeError: x is not a function", "f0", "left out"]);
    }

    #[test]
    fn java_names_its_causes() {
        let places = |of: &str| frames(25, |n| format!("\tat com.shop.{of}{n}(App.java:{n})\n"));
        let report = format!(
            "Exception in thread \"main\" java.lang.IllegalStateException: no context\n{}\
             Caused by: org.sql.ConnectException: no server\n{}\t... 12 more\n\
             Caused by: java.net.SocketException: refused\n{}\t... 14 more\n",
            places("A"),
            places("B"),
            places("C")
        );
        let expected =
            ["no context", "A0", "Caused by: org.sql", "Caused by: java.net", "left out"];
        check(&report, &expected);
        let logged = report.split_once("main\" ").unwrap().1;
        check(logged, &["no context", "Caused by: org.sql", "Caused by: java.net"]);
    }

    #[test]
    fn go_php_and_rust_say_the_reason_first() {
        let places = frames(40, |n| format!("main.f{n}(...)\n\t/app/m{n}.go:{n} +0x1d\n"));
        let go =
            format!("panic: no configuration\n\ngoroutine 1 [running]:\n{places}exit status 2\n");
        check(&go, &["panic: no configuration", "goroutine 1", "left out"]);
        let places = frames(40, |n| format!("#{n} /app/m{n}.php({n}): f()\n"));
        let php = format!(
            "PHP Fatal error:  Uncaught Exception: no file in /app/a.php:3\nStack trace:\n{places}  \
             thrown in /app/a.php on line 3\n"
        );
        check(&php, &["Uncaught Exception: no file", "Stack trace", "left out", "thrown in"]);
        let places =
            frames(40, |n| format!("  {n}: app::f{n}\n             at /app/m{n}.rs:{n}:5\n"));
        let rust = format!(
            "thread 'main' (77) panicked at src/main.rs:4:5:\nno configuration\nstack backtrace:\n\
             {places}note: run with `RUST_BACKTRACE=full`\n"
        );
        check(&rust, &["panicked at src/main.rs", "no configuration", "left out"]);
    }

    #[test]
    fn the_last_report_counts() {
        let report = |what: &str| {
            let places = frames(9, |n| format!("  File \"m{n}.py\", line 1, in f\n    {what}()\n"));
            format!("Traceback (most recent call last):\n{places}{what}: it\n")
        };
        let picked = pick(&format!("{}{}", report("Old"), report("New")), 8, BYTES);
        assert!(picked.contains("New: it") && !picked.contains("Old"), "{picked}");
    }

    #[test]
    fn what_was_left_out_once_is_counted_on() {
        let lines = frames(100, |n| format!("line {n}\n"));
        let picked = pick(&pick(&lines, 20, BYTES), 6, BYTES);
        assert!(picked.contains("… 94 lines left out"), "{picked}");
    }

    #[test]
    fn one_endless_line_is_cut() {
        let picked = pick(&"ä".repeat(10_000), 10, 100);
        assert!(picked.len() <= 200 && picked.ends_with('ä'), "{}", picked.len());
    }

    proptest! {
        #[test]
        fn whatever_the_output_it_stays_within_its_limits(
            lines in prop::collection::vec(
                prop_oneof![
                    ".{0,30}",
                    Just("Traceback (most recent call last):".to_string()),
                    Just("    at f (x.js:1:2)".to_string()),
                    Just("Caused by: an Error".to_string()),
                    Just("\tfrom a:1:in b".to_string()),
                    Just("^".to_string()),
                ],
                0..80,
            ),
            lines_max in 1usize..30,
            bytes_max in 100usize..2000,
        ) {
            let output = lines.join("\n");
            let picked = pick(&output, lines_max, bytes_max);
            prop_assert!(picked.len() <= bytes_max + 40 * (lines_max + 1), "{}", picked);
            if let Some(last) = output.lines().rfind(|line| !line.trim().is_empty()) {
                prop_assert!(picked.trim_end().ends_with(last.trim_end()), "{}", picked);
            }
        }
    }
}
