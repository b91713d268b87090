//! The repair of what went wrong with this node's own past: what was stamped by a clock that ran
//! ahead, or what a copy does not have, is set aside, forgotten and issued anew.

use std::sync::Arc;
use std::time::Duration;

use model::Timestamp;
use model::time::CLOCK_AHEAD_MAX_MS;

use crate::clock::Stamp;
use crate::commit::{Commit, Position};
use crate::event::Effect;
use crate::history::History;
use crate::machine::context::Context;
use crate::machine::queue::QueuedItem;
use crate::sync::park::newest_admitted;

/// The wait after an unclean end, after which the stamps given out before it are in the past.
pub(crate) const UNCLEAN_WAIT: Duration = Duration::from_millis(CLOCK_AHEAD_MAX_MS);

/// The reason why something is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aside {
    /// The clock was wrong.
    Mend,
    /// The copy of this session replaces it.
    Copy(u64),
}

/// Commits to be set aside, and those of them that are to be issued anew, with their new keys.
#[derive(Default)]
pub(crate) struct Doubtful {
    pub commits: Vec<Commit>,
    pub anew: Vec<(Position, Arc<str>)>,
}

#[derive(Default)]
pub(crate) struct Mending {
    /// Whether commits from beyond the clock are being issued anew: meanwhile nothing is said to
    /// peers.
    beyond_clock: bool,
    /// The reason why the shell was asked to set something aside; `None` if it was not asked or is
    /// done.
    aside: Option<Aside>,
}

impl Mending {
    /// Returns whether commits from beyond the clock are being issued anew.
    pub fn is_of_clock(&self) -> bool {
        self.beyond_clock
    }

    /// Returns whether anything is being set aside or issued anew.
    pub fn is_under_way(&self) -> bool {
        self.beyond_clock || self.aside.is_some()
    }

    /// Sets aside what was stamped beyond the clock, so that it can be issued anew.
    pub fn mend_clock(&mut self, cx: &mut Context<'_>) {
        let beyond = beyond(cx.replica.history(), cx.now);
        let commits: Vec<Commit> = beyond.cloned().collect();
        let wins =
            |at: Position, key: &str| cx.replica.newest(key).is_some_and(|newest| newest.at == at);
        let anew = commits
            .iter()
            .filter(|commit| wins(commit.at, &commit.key))
            .map(|commit| (commit.at, commit.key.clone()))
            .collect();
        self.beyond_clock = true;
        self.set_aside(Aside::Mend, Doubtful { commits, anew }, cx);
    }

    pub fn set_aside(&mut self, aside: Aside, doubtful: Doubtful, cx: &mut Context<'_>) {
        self.aside = Some(aside);
        let Doubtful { commits, anew } = doubtful;
        cx.effects.push(Effect::SetAside { commits, anew });
    }

    /// Notes that the shell has set aside what it was asked to, and returns why it was asked.
    pub fn take_aside(&mut self) -> Option<Aside> {
        self.aside.take()
    }

    /// Notes that the log has forgotten something; what was beyond the clock is mended once nothing
    /// more is to be forgotten.
    pub fn forgotten(&mut self, has_to_forget: bool) {
        self.beyond_clock &= has_to_forget;
    }
}

/// Returns the commits that were stamped beyond the clock.
fn beyond(history: &History, now: Timestamp) -> impl Iterator<Item = &Commit> {
    history.iter_from(Position::start_of(newest_admitted(now)))
}

/// Returns the stamp at which the clock would stand without the commits beyond it.
pub(crate) fn right_stamp(history: &History, now: Timestamp) -> Stamp {
    let index = history.rank(Position::start_of(newest_admitted(now)));
    let newest = index.checked_sub(1).and_then(|index| history.nth(index));
    let rest = newest.map_or(Stamp::default(), |commit| commit.at.stamp);
    rest.max(Stamp::start_of(now))
}

/// Forgets the commits beyond the clock; those that are issued anew are queued before this.
pub(crate) fn forget_beyond_clock(cx: &mut Context<'_>) {
    let beyond = beyond(cx.replica.history(), cx.now);
    let positions: Vec<Position> = beyond.map(|commit| commit.at).collect();
    if positions.is_empty() {
        // The log learns all the same what time it is.
        cx.wait(QueuedItem::Forget(positions));
    } else {
        cx.queue.forget(&positions, cx.effects);
    }
}
