//! The repair of what went wrong with this node's own past: a clock that ran ahead, and commits of
//! its own that its disk no longer holds.

use std::time::Duration;

use model::Timestamp;

use crate::clock::Stamp;
use crate::commit::{NodeTag, Position};
use crate::event::{Alarm, Effect, Write};
use crate::machine::StoreMachine;
use crate::machine::queue::QueuedItem;
use crate::sync::Aside;
use crate::sync::park::newest_admitted;
use model::time::CLOCK_AHEAD_MAX_MS;

/// The time off after which a node asks before it trusts its clock.
const CLOCK_LEAP_MAX: Duration = Duration::from_secs(24 * 3600);
/// The wait after an unclean end, after which the stamps given out before it are in the past.
pub(crate) const UNCLEAN_WAIT: Duration = Duration::from_millis(CLOCK_AHEAD_MAX_MS);

/// The reason why writes are refused until somebody says that the clock is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockDoubt {
    /// The log knows later times than the clock shows.
    Behind { by_ms: u64 },
    /// The log's newest time is more than a day ago.
    Leapt { by_ms: u64 },
}

pub(crate) fn doubt(now: Timestamp, newest: Stamp) -> Option<ClockDoubt> {
    let newest = newest.time();
    let behind = newest.0.saturating_sub(now.0);
    let leapt = now.since(newest);
    if behind > CLOCK_AHEAD_MAX_MS {
        Some(ClockDoubt::Behind { by_ms: behind })
    } else if leapt > CLOCK_LEAP_MAX && newest.0 > 0 {
        Some(ClockDoubt::Leapt { by_ms: u64::try_from(leapt.as_millis()).unwrap_or(u64::MAX) })
    } else {
        None
    }
}

impl StoreMachine {
    pub fn doubt(&self) -> Option<ClockDoubt> {
        self.doubt
    }

    pub(crate) fn doubts_clock(&self, now: Timestamp) -> bool {
        self.doubt.is_some() || self.clock.last() >= newest_admitted(now)
    }

    /// Trusts the clock: what was stamped beyond it is issued anew.
    pub(crate) fn trust_clock(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        self.doubt = None;
        let limit = newest_admitted(now);
        if self.clock.last() < limit || self.is_mending() || self.on_its_way.is_some() {
            return;
        }
        let beyond: Vec<_> =
            self.replica.history().iter_from(Position::start_of(limit)).cloned().collect();
        let right = self.stamp_of_the_rest(limit).max(Stamp::start_of(now));
        self.clock.reset(right);
        self.sync.members.take_back(right);
        self.durable_stamp = self.durable_stamp.min(right);
        self.sync.giving = None;
        self.sync.taking.clear();
        self.sync.lending.clear();
        let wins = |at: Position, key: &str| {
            self.replica.newest(key).is_some_and(|newest| newest.at == at)
        };
        let anew = beyond
            .iter()
            .filter(|commit| wins(commit.at, &commit.key))
            .map(|commit| (commit.at, commit.key.clone()))
            .collect();
        self.sync.mending = true;
        self.sync.aside = Some(Aside::Mend);
        effects.push(Effect::SetAside { commits: beyond, anew });
    }

    fn stamp_of_the_rest(&self, limit: Stamp) -> Stamp {
        let history = self.replica.history();
        let index = history.rank(Position::start_of(limit));
        let newest = index.checked_sub(1).and_then(|index| history.nth(index));
        newest.map_or(Stamp::default(), |commit| commit.at.stamp)
    }

    /// Issues anew, by these writes, what had to be set aside first.
    pub(crate) fn issue_anew(
        &mut self,
        now: Timestamp,
        writes: Vec<Write>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(aside) = self.sync.aside.take() else { return };
        let counts = match aside {
            Aside::Mend => true,
            // A copy that was cut off meanwhile begins again.
            Aside::Copy(session) => {
                self.sync.copying.as_ref().is_some_and(|c| c.session == session)
            }
        };
        for write in writes {
            if counts {
                self.wait(QueuedItem::Anew(write), effects);
            } else {
                effects.push(Effect::Acknowledge { ticket: write.ticket, cid: None });
            }
        }
        if aside != Aside::Mend {
            if counts {
                self.copy_end(effects);
            }
            return;
        }
        let limit = newest_admitted(now);
        let beyond = self.replica.history().iter_from(Position::start_of(limit));
        let positions: Vec<Position> = beyond.map(|commit| commit.at).collect();
        if positions.is_empty() {
            // The log learns all the same what time it is.
            self.wait(QueuedItem::Forget(positions), effects);
        } else {
            self.forget(&positions, effects);
        }
    }

    /// Returns whether what was set aside or copied is not in the log yet: nothing else may begin.
    pub(crate) fn is_mending(&self) -> bool {
        self.sync.mending || self.sync.concluding || self.sync.aside.is_some()
    }

    /// Handles that a peer knows more of this node's past than the node itself: its disk was set
    /// back.
    pub(crate) fn lose_past(
        &mut self,
        now: Timestamp,
        authority: NodeTag,
        until: Stamp,
        effects: &mut Vec<Effect>,
    ) {
        if until <= self.sync.standing.fresh_until {
            return;
        }
        self.alarm(Alarm::LostPast { authority }, effects);
        self.sync.standing.incarnation = self.clock.next(now).0;
        self.sync.standing.fresh_until = until;
        self.keep_standing(effects);
    }

    pub(crate) fn keep_standing(&mut self, effects: &mut Vec<Effect>) {
        self.sync.standing_kept = false;
        self.wait(QueuedItem::Standing, effects);
    }
}
