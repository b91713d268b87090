//! The comparison of two histories: their difference is found by fingerprints of ranges in a
//! handful of messages, however old it is. After Meyer, "Range-Based Set Reconciliation" (SRDS
//! 2023), with the newest commits first, where most differences are.

use std::collections::BTreeSet;

use crate::clock::Stamp;
use crate::commit::Position;
use crate::history::History;
use crate::sync::message::{RangeHoldings, RangeSummary, ShortId, StampRange, SummaryAnswer};

/// Commits of a range that are named one by one; naming these costs about as much as two more
/// rounds.
pub const IDS_MAX: usize = 24;
/// The factor by which each older suffix is longer than the one before it.
const SUFFIX_GROWTH: usize = 4;
/// Parts in which a range that differs is looked at: 16 would take half the rounds and half as many
/// bytes more.
const PARTS: usize = 4;
/// Summaries in a message. Each is answered by at most 24 ids of 16 bytes: a message stays below
/// 450 kB.
pub const SUMMARIES_MAX: usize = 1024;
/// Commits that a session pushes before the next one begins: 6 MiB of positions.
pub const LACKING_MAX: usize = 1 << 18;
/// Rounds of a comparison. Each cuts ranges to a quarter, so no history takes as many.
pub const ROUNDS_MAX: u32 = 64;

/// Commits that a node looks through for ids because of one message: a fifth of a second. Ranges
/// beyond that are taken in parts, or many of them would cost a whole history each.
const LOOKED_THROUGH_MAX: usize = 1 << 18;

/// Returns what a comparison begins with: the newest commits as ids, then suffixes of growing
/// length; together everything.
pub fn opening(history: &History) -> Vec<RangeSummary> {
    let mut summaries = Vec::new();
    let mut until = StampRange::ALL.until;
    let (mut left, mut length) = (history.len(), IDS_MAX);
    loop {
        left = left.saturating_sub(length);
        let from = start_of(history, left);
        if from < until {
            summaries.push(summarise(history, StampRange { from, until }));
            until = from;
        }
        if left == 0 {
            return summaries;
        }
        length = length.saturating_mul(SUFFIX_GROWTH);
    }
}

/// Returns the stamp of the commit with this index, from which on it and the later ones are; zero
/// for the first.
fn start_of(history: &History, index: usize) -> Stamp {
    let commit = if index == 0 { None } else { history.nth(index) };
    commit.map_or(StampRange::ALL.from, |commit| commit.at.stamp)
}

/// Returns true, and pays for the range, while it fits into what may still be looked through.
fn afford(history: &History, range: StampRange, left: &mut usize) -> bool {
    let (from, until) = range.bounds();
    let end = until.map_or(history.len(), |until| history.rank(until));
    let count = end.saturating_sub(from.map_or(0, |from| history.rank(from)));
    let rest = left.checked_sub(count);
    *left = rest.unwrap_or(*left);
    rest.is_some()
}

fn ids(history: &History, range: StampRange) -> Vec<ShortId> {
    history.range(range).map(ShortId::of).collect()
}

fn summarise(history: &History, range: StampRange) -> RangeSummary {
    let (from, until) = range.bounds();
    let sum = history.sum(from, until);
    let held = if sum.count as usize <= IDS_MAX {
        RangeHoldings::Ids(ids(history, range))
    } else {
        RangeHoldings::Sum { fingerprint: sum.fingerprint(), count: sum.count }
    };
    RangeSummary { range, held }
}

/// Splits the range into parts of about as many commits each; a range of one stamp is named by ids.
fn parts(history: &History, range: StampRange) -> Vec<RangeSummary> {
    let (from, until) = range.bounds();
    let count = history.sum(from, until).count as usize;
    let first = history.rank(Position::start_of(range.from));
    let mut starts: Vec<Stamp> = (1..PARTS)
        .filter_map(|part| history.nth(first + count * part / PARTS))
        .map(|commit| commit.at.stamp)
        .filter(|start| *start > range.from && *start < range.until)
        .collect();
    starts.dedup();
    if starts.is_empty() {
        return vec![RangeSummary { range, held: RangeHoldings::Ids(ids(history, range)) }];
    }
    starts.insert(0, range.from);
    let ends = starts.iter().skip(1).copied().chain([range.until]);
    let ranges = starts.iter().zip(ends).map(|(from, until)| StampRange { from: *from, until });
    ranges
        .map(|range| {
            let (from, until) = range.bounds();
            let sum = history.sum(from, until);
            let held = RangeHoldings::Sum { fingerprint: sum.fingerprint(), count: sum.count };
            RangeSummary { range, held }
        })
        .collect()
}

/// Returns what the taker answers to the giver's summaries.
pub fn answer(history: &History, summaries: &[RangeSummary]) -> Vec<SummaryAnswer> {
    let mut answers = Vec::new();
    let mut left = LOOKED_THROUGH_MAX;
    for RangeSummary { range, held } in summaries {
        let range = *range;
        match held {
            RangeHoldings::Ids(_) if !afford(history, range, &mut left) => {
                answers.push(SummaryAnswer::Holds(parts(history, range)));
            }
            RangeHoldings::Ids(theirs) => {
                let mine: BTreeSet<ShortId> = history.range(range).map(ShortId::of).collect();
                let missing: Vec<u32> = (0u32..)
                    .zip(theirs)
                    .filter(|(_, id)| !mine.contains(id))
                    .map(|(index, _)| index)
                    .collect();
                if !missing.is_empty() {
                    answers.push(SummaryAnswer::Lacks { range, missing });
                }
            }
            RangeHoldings::Sum { fingerprint, count } => {
                let (from, until) = range.bounds();
                let mine = history.sum(from, until);
                if mine.fingerprint() == *fingerprint && mine.count == *count {
                    continue;
                }
                answers.push(SummaryAnswer::Holds(if mine.count as usize <= IDS_MAX {
                    vec![summarise(history, range)]
                } else {
                    parts(history, range)
                }));
            }
        }
    }
    answers
}

/// Returns whether a taker may say this much in reply to one message.
pub fn is_answer(answers: &[SummaryAnswer]) -> bool {
    answers.len() <= SUMMARIES_MAX
        && answers.iter().all(|answer| match answer {
            SummaryAnswer::Lacks { .. } => true,
            SummaryAnswer::Holds(summaries) => summaries.len() <= PARTS,
        })
}

/// What the giver learns from answers.
#[derive(Debug, Default)]
pub struct Learned {
    pub lacking: Vec<Position>,
    pub ask: Vec<RangeSummary>,
}

pub fn learn(history: &History, answers: &[SummaryAnswer]) -> Learned {
    let mut learned = Learned::default();
    let mut left = LOOKED_THROUGH_MAX;
    for answer in answers {
        match answer {
            // This range was never asked about: what is named by ids is short.
            SummaryAnswer::Lacks { range, .. } if !afford(history, *range, &mut left) => {}
            SummaryAnswer::Lacks { range, missing } => {
                let mine: Vec<Position> = history.range(*range).map(|c| c.at).collect();
                let missing = missing.iter().filter_map(|index| mine.get(*index as usize));
                learned.lacking.extend(missing);
            }
            SummaryAnswer::Holds(summaries) => {
                for theirs in summaries {
                    learn_part(history, theirs, &mut left, &mut learned);
                }
            }
        }
    }
    learned
}

fn learn_part(history: &History, theirs: &RangeSummary, left: &mut usize, learned: &mut Learned) {
    let range = theirs.range;
    match &theirs.held {
        RangeHoldings::Ids(_) if !afford(history, range, left) => {
            learned.ask.extend(parts(history, range));
        }
        RangeHoldings::Ids(ids) => {
            let ids: BTreeSet<&ShortId> = ids.iter().collect();
            let lacking = history.range(range).filter(|c| !ids.contains(&ShortId::of(c)));
            learned.lacking.extend(lacking.map(|commit| commit.at));
        }
        RangeHoldings::Sum { fingerprint, count } => {
            let (from, until) = range.bounds();
            let mine = history.sum(from, until);
            if mine.count == 0 || mine.fingerprint() == *fingerprint && mine.count == *count {
                return;
            }
            if mine.count as usize <= IDS_MAX {
                learned.ask.push(summarise(history, range));
            } else {
                learned.ask.extend(parts(history, range));
            }
        }
    }
}
