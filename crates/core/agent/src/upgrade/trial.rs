//! One node's trial of another binary: if it is healthy for a while, it stays; if not so within the
//! limit, or if it ended, the node returns to the binary from before. The process from before
//! drives it.

use std::collections::BTreeSet;

use model::Timestamp;
use model::value::ContentHash;

/// The milliseconds for which it must be healthy without a break.
pub const HELD_MS: u64 = 2_000;
/// The milliseconds that a trial may take; a large store is opened within it, on a slow disk too.
pub const LIMIT_MS: u64 = 120_000;
/// The least limit in milliseconds; a shorter one would give no binary a chance.
pub const LIMIT_MIN_MS: u64 = 5_000;
/// The longest limit in milliseconds, as nobody waits longer for a node that does not serve.
pub const LIMIT_MAX_MS: u64 = 600_000;

/// What a node says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vitals {
    /// The binary that it runs; `None` if it does not know yet.
    pub binary: Option<ContentHash>,
    /// Whether it has taken hold of what ran before.
    pub adopted: bool,
    /// The instances that it has claimed, and of these the ready ones.
    pub claimed: BTreeSet<String>,
    pub ready: BTreeSet<String>,
    /// The public addresses that are open.
    pub ports: BTreeSet<String>,
    /// The number of other nodes that it finds alive.
    pub peers: usize,
}

impl Vitals {
    /// Returns what is not as it was; `None` if all is well.
    fn lacks(&self, before: &Vitals, binary: ContentHash) -> Option<String> {
        match self.binary {
            Some(running) if running == binary => {}
            Some(_) => return Some("another binary runs than the one to be tried".into()),
            None => return Some("it does not know yet which binary it is".into()),
        }
        if !self.adopted {
            return Some("it has not taken over the running instances yet".into());
        }
        let gone = |one: &&String| self.claimed.contains(*one) && !self.ready.contains(*one);
        if let Some(one) = before.ready.iter().find(gone) {
            return Some(format!("{one} is not ready"));
        }
        if let Some(port) = before.ports.difference(&self.ports).next() {
            return Some(format!("{port} is not open"));
        }
        if before.peers > 0 && self.peers == 0 {
            return Some("it reaches no other node".into());
        }
        None
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Said(Vitals),
    /// It does not answer, in this way.
    Silent(String),
    /// Its process is gone, in this way.
    Ended(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrialVerdict {
    GoOn,
    /// The new binary stays.
    Keep,
    /// The node returns to the binary from before, for this reason.
    Return(String),
}

#[derive(Clone, Debug)]
pub struct Trial {
    binary: ContentHash,
    before: Vitals,
    deadline: Timestamp,
    limit_ms: u64,
    healthy_since: Option<Timestamp>,
    lacks: String,
}

impl Trial {
    pub fn begin(now: Timestamp, limit_ms: u64, binary: ContentHash, before: Vitals) -> Trial {
        Trial {
            binary,
            before,
            deadline: Timestamp(now.0.saturating_add(limit_ms)),
            limit_ms,
            healthy_since: None,
            lacks: "it said nothing".into(),
        }
    }

    pub fn handle(&mut self, now: Timestamp, event: Event) -> TrialVerdict {
        let lacks = match event {
            Event::Ended(how) => return TrialVerdict::Return(format!("the new binary {how}")),
            Event::Silent(how) => Some(how),
            Event::Said(vitals) => vitals.lacks(&self.before, self.binary),
        };
        match lacks {
            None => {
                let since = *self.healthy_since.get_or_insert(now);
                if now.0 >= since.0.saturating_add(HELD_MS) {
                    return TrialVerdict::Keep;
                }
            }
            Some(lacks) => {
                self.healthy_since = None;
                self.lacks = lacks;
            }
        }
        self.tick(now)
    }

    pub fn tick(&self, now: Timestamp) -> TrialVerdict {
        if now < self.deadline {
            return TrialVerdict::GoOn;
        }
        let seconds = self.limit_ms.div_ceil(1000);
        let why = match self.healthy_since {
            Some(_) => "it was not healthy for long enough",
            None => &self.lacks,
        };
        TrialVerdict::Return(format!("the new binary was not healthy within {seconds} s: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BINARY: ContentHash = ContentHash([2; 32]);

    fn set(words: &[&str]) -> BTreeSet<String> {
        words.iter().map(|word| word.to_string()).collect()
    }

    fn well() -> Vitals {
        Vitals {
            binary: Some(BINARY),
            adopted: true,
            claimed: set(&["a/web.1", "a/web.2"]),
            ready: set(&["a/web.1", "a/web.2"]),
            ports: set(&["127.0.0.1:80"]),
            peers: 1,
        }
    }

    fn trial() -> Trial {
        let before = Vitals { binary: Some(ContentHash([1; 32])), ..well() };
        Trial::begin(Timestamp(0), 10_000, BINARY, before)
    }

    fn check(lacking: Vitals, needle: &str) {
        let mut trial = trial();
        let verdict = trial.handle(Timestamp(9_999), Event::Said(lacking));
        assert_eq!(verdict, TrialVerdict::GoOn, "{needle}");
        let TrialVerdict::Return(why) = trial.tick(Timestamp(10_000)) else { panic!("{needle}") };
        assert!(why.contains(needle) && why.contains("10 s"), "{why}");
    }

    #[test]
    fn a_binary_that_was_healthy_for_a_while_stays() {
        let mut trial = trial();
        let mut at = |ms, event| trial.handle(Timestamp(ms), event);
        assert_eq!(at(100, Event::Said(well())), TrialVerdict::GoOn);
        assert_eq!(at(200, Event::Silent("no answer".into())), TrialVerdict::GoOn);
        assert_eq!(at(300, Event::Said(well())), TrialVerdict::GoOn);
        assert_eq!(at(299 + HELD_MS, Event::Said(well())), TrialVerdict::GoOn, "it had a break");
        assert_eq!(at(300 + HELD_MS, Event::Said(well())), TrialVerdict::Keep);
    }

    #[test]
    fn a_binary_that_lacks_a_part_is_given_back() {
        check(Vitals { binary: None, ..well() }, "which binary");
        check(Vitals { binary: Some(ContentHash([1; 32])), ..well() }, "another binary");
        check(Vitals { adopted: false, ..well() }, "taken over");
        check(Vitals { ready: set(&["a/web.1"]), ..well() }, "a/web.2 is not ready");
        check(Vitals { ports: set(&[]), ..well() }, "127.0.0.1:80 is not open");
        check(Vitals { peers: 0, ..well() }, "no other node");
        check(well(), "not healthy for long enough");
    }

    #[test]
    fn instances_that_moved_to_other_nodes_are_not_missed() {
        let moved = Vitals { claimed: set(&["a/web.1"]), ready: set(&["a/web.1"]), ..well() };
        assert_eq!(moved.lacks(&well(), BINARY), None);
    }

    #[test]
    fn a_binary_that_ends_is_given_up_at_once() {
        let verdict = trial().handle(Timestamp(5), Event::Ended("ended with 1".into()));
        assert_eq!(verdict, TrialVerdict::Return("the new binary ended with 1".into()));
        assert!(matches!(trial().tick(Timestamp(10_000)), TrialVerdict::Return(why)
            if why.contains("it said nothing")));
    }
}
