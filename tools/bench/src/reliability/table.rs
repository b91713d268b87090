//! The table for people: the figures beside those of the thesis and the required ones.

use std::fmt::Write;

use super::Report;
use super::client::Window;
use super::kills::Kill;
use super::numbered::Numbered;
use super::pair::Round;
use super::thesis::Level;
use crate::median;

/// The number of requests at a time for which the thesis's own figures are known.
const THESIS_AT: usize = 12;

pub fn print(report: &Report) -> String {
    let mut text = format!("seed {}, version {}\n", report.seed, report.version);
    if let Some(levels) = &report.thesis {
        thesis(&mut text, levels);
    }
    if let Some(figures) = &report.numbered {
        numbered(&mut text, figures);
    }
    if let Some(rounds) = &report.pair {
        pair(&mut text, rounds);
    }
    if let Some(why) = &report.incomplete {
        line(&mut text, format!("\nincomplete: {why}"));
    }
    text
}

fn line(text: &mut String, line: impl AsRef<str>) {
    // Writing into a string cannot fail.
    writeln!(text, "{}", line.as_ref()).ok();
}

fn thesis(text: &mut String, levels: &[Level]) {
    line(text, "\nas in the thesis: ab, 4 nodes, 12 instances; the thesis's own figures in ()");
    line(
        text,
        format!(
            "{:>7} {:<8} {:>8} {:>7} {:>14} {:>11} {:>11} {:>10}",
            "at once", "", "requests", "failed", "requests/s", "95 %, ms", "98 %, ms", "processes"
        ),
    );
    for level in levels {
        for (what, served) in [("calm", &level.calm), ("kills", &level.killed)] {
            let known = |figure: &str| match level.concurrency {
                THESIS_AT => format!(" ({figure})"),
                _ => String::new(),
            };
            line(
                text,
                format!(
                    "{:>7} {what:<8} {:>8} {:>7} {:>14} {:>11} {:>11} {:>10}",
                    level.concurrency,
                    served.requests,
                    format!("{} (0)", served.failed),
                    format!("{:.0}{}", served.per_second, known("315")),
                    format!("{}{}", served.p95_ms, known("63")),
                    format!("{}{}", served.p98_ms, known("80")),
                    served.answers.len(),
                ),
            );
            served.complaints.iter().for_each(|complaint| line(text, format!("  {complaint}")));
        }
        let ratio = level.killed.per_second / level.calm.per_second;
        line(text, format!("        {}", change("requests/s with kills", ratio, "within 5 %")));
        line(text, format!("        {}", replaced(&level.kills, "2 s at most")));
    }
}

fn change(what: &str, ratio: f64, known: &str) -> String {
    format!("{what}: {:+.1} % ({known})", (ratio - 1.0) * 100.0)
}

fn replaced(kills: &[Kill], owed: &str) -> String {
    let ready = times(kills.iter().map(|kill| kill.ready_s));
    let instances: usize = kills.iter().map(|kill| kill.instances).sum();
    format!("{} kills, {instances} instances, replaced after {ready} ({owed})", kills.len())
}

/// Formats the median and the maximum.
fn times(seconds: impl Iterator<Item = f64>) -> String {
    let seconds: Vec<f64> = seconds.collect();
    let most = seconds.iter().copied().fold(0.0, f64::max);
    format!("{:.2} s, {most:.2} s at most", median(seconds))
}

fn window(text: &mut String, what: &str, window: &Window) {
    line(
        text,
        format!(
            "{what:<34} {:>8} {:>7} {:>8} {:>9} {:>10.0} {:>8.1} {:>8.1}",
            window.requests,
            window.failed,
            window.failed_on_the_wire,
            window.repeated,
            window.per_second,
            window.p50_ms,
            window.p99_ms
        ),
    );
    window.failures.iter().for_each(|failure| line(text, format!("  {failure}")));
}

fn window_head(text: &mut String) {
    line(
        text,
        format!(
            "{:<34} {:>8} {:>7} {:>8} {:>9} {:>10} {:>8} {:>8}",
            "", "requests", "failed", "on wire", "repeated", "requests/s", "p50, ms", "p99, ms"
        ),
    );
}

fn numbered(text: &mut String, figures: &Numbered) {
    line(
        text,
        format!(
            "\nnumbered requests, {} callers, answers after {} ms; what is owed in ()",
            figures.callers, figures.pause_ms
        ),
    );
    window_head(text);
    let calm = &figures.calm.entry;
    let phases = [
        ("calm", &figures.calm, ""),
        ("nodes killed", &figures.nodes_killed, "median 3 s, 5 s at most"),
        ("instances killed", &figures.instances_killed, "median 1 s, 2 s at most"),
    ];
    for (what, phase, owed) in phases {
        window(text, what, &phase.entry);
        window(text, &format!("{what}: via those nodes"), &phase.agents);
        if phase.kills.is_empty() {
            continue;
        }
        line(text, format!("  failed: {} (0)", phase.entry.failed));
        let ratio = phase.entry.per_second / calm.per_second;
        line(text, format!("  {}", change("requests/s", ratio, "within 5 %")));
        let ratio = phase.entry.p99_ms / calm.p99_ms;
        line(text, format!("  {}", change("p99", ratio, "within 25 %")));
        line(text, format!("  {}", replaced(&phase.kills, owed)));
        let answered = phase.kills.iter().map(|kill| kill.answered_s.unwrap_or(f64::INFINITY));
        line(text, format!("  each had answered after {}", times(answered)));
    }
}

fn pair(text: &mut String, rounds: &[Round]) {
    line(text, "\ntwo nodes, one of which is lost; failed beyond those on the wire: 0 are owed");
    window_head(text);
    for round in rounds {
        let what = format!("node {} lost, {:?}", round.lost + 1, round.during);
        window(text, &what, &round.survivor);
        window(text, "  a client that knows both", &round.both);
        let beyond = round.survivor.unexplained() + round.both.unexplained();
        line(text, format!("  beyond: {beyond}; all runs again after {:.2} s", round.ready_s));
        if let Some(push) = &round.push {
            let said = match push.said_success {
                true => "said that it succeeded".into(),
                false => format!("said '{}'", push.said),
            };
            let serves = if push.serves { "serves" } else { "does not serve" };
            let right = if push.right { "right" } else { "WRONG" };
            let after = push.lost_after_ms;
            line(text, format!("  push, lost after {after} ms: {said}, {serves}: {right}"));
        }
    }
    let ready = times(rounds.iter().map(|round| round.ready_s));
    line(text, format!("all runs on the other node after {ready}"));
}
