//! Scheduled commands: when one is due, and which node runs it. Standard five fields, in a time
//! zone of the system's own data. Pure; driven by the node's cron task, which brings the records,
//! the time and the zones. Must not know how a command is run.

mod calendar;
mod due;
mod schedule;

use model::cron::CronRun;
use model::{ApplicationName, NodeId, Timestamp, hash};

pub use due::{LOOK_BACK_MAX, latest_due};
pub use schedule::{Schedule, ScheduleError};
pub use tz::TimeZone;

/// Attempts at a run. One that its node did not survive is tried again once: one that takes its
/// node with it would go on for ever.
pub const ATTEMPTS_MAX: u32 = 2;
/// Entries of one application; more are a mistake.
pub const ENTRIES_MAX: usize = 100;

/// What is to be done about one entry now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The entry is not due, runs, or is another node's.
    Nothing,
    /// The entry is to run for this due time; `attempt` counts the tries, with this one.
    Run { due: Timestamp, attempt: u32 },
}

/// What is known of one entry.
#[derive(Debug)]
pub struct CronEntry<'a> {
    pub application: &'a ApplicationName,
    pub name: &'a str,
    pub schedule: &'a Schedule,
    pub zone: &'a TimeZone,
    /// The time before which nothing is due: when the release was made.
    pub since: Timestamp,
    /// The last run on record, on any node.
    pub last: Option<&'a CronRun>,
    /// Whether the node of the last run lives.
    pub alive: bool,
    /// Whether the last run goes on here.
    pub running: bool,
}

/// Decides what to do about an entry. Among nodes that see each other only one runs it; times that
/// passed meanwhile come to one run.
pub fn decide(now: Timestamp, node: &NodeId, able: &[NodeId], entry: &CronEntry<'_>) -> Decision {
    let owner = owner(entry.application, entry.name, able);
    if entry.running || owner != Some(node) {
        return Decision::Nothing;
    }
    let since = match entry.last {
        None => entry.since,
        Some(last) if last.ended_at.is_some() => last.due.max(entry.since),
        Some(last) => {
            if last.node != *node && entry.alive {
                return Decision::Nothing;
            }
            // The node of the last run is gone, or was started anew.
            if last.attempt < ATTEMPTS_MAX {
                return Decision::Run { due: last.due, attempt: last.attempt + 1 };
            }
            last.due.max(entry.since)
        }
    };
    match latest_due(entry.schedule, entry.zone, since, now) {
        Some(due) => Decision::Run { due, attempt: 1 },
        None => Decision::Nothing,
    }
}

/// Returns the owner by rendezvous: all nodes that agree on who is able agree on the owner, and few
/// owners change with that.
pub fn owner<'a>(
    application: &ApplicationName,
    name: &str,
    able: &'a [NodeId],
) -> Option<&'a NodeId> {
    let draw = |node| hash::spread(hash::fnv1a(format!("{application}/{name}/{node}").as_bytes()));
    able.iter().max_by_key(|node| (draw(*node), *node))
}

#[cfg(test)]
mod tests;
