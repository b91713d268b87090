//! The expiry of values. The instant travels in the commit and each node judges it by its own
//! clock: from then on the key reads as absent. The horizons alone decide when the commit is
//! dropped.

use std::collections::BTreeSet;
use std::num::NonZeroU64;

use model::Timestamp;

use crate::commit::Position;

/// The first millisecond at which a value is no longer there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Expiry(NonZeroU64);

impl Expiry {
    /// Returns the expiry at this time. Instants before the epoch's first millisecond have passed
    /// just as that one has, so they become that one.
    pub fn at(time: Timestamp) -> Expiry {
        Expiry(NonZeroU64::new(time.0).unwrap_or(NonZeroU64::MIN))
    }

    pub fn time(self) -> Timestamp {
        Timestamp(self.0.get())
    }

    pub fn has_passed(self, now: Timestamp) -> bool {
        self.time() <= now
    }
}

/// The winners that will expire, by instant: 32 bytes for each such key, nothing for the others.
#[derive(Clone, Debug, Default)]
pub struct Expiring {
    ahead: BTreeSet<(Expiry, Position)>,
    /// The number of winners whose instant has been noticed; they are in no set any more.
    noticed: usize,
}

impl Expiring {
    pub fn enter(&mut self, expires: Expiry, at: Position) {
        self.ahead.insert((expires, at));
    }

    /// Removes a commit that is no longer a winner.
    pub fn leave(&mut self, expires: Expiry, at: Position) {
        if !self.ahead.remove(&(expires, at)) {
            self.noticed -= 1;
        }
    }

    pub fn first(&self) -> Option<Expiry> {
        self.ahead.first().map(|(expires, _)| *expires)
    }

    /// Takes one winner whose instant has passed.
    pub fn notice(&mut self, now: Timestamp) -> Option<Position> {
        if !self.first()?.has_passed(now) {
            return None;
        }
        let (_, at) = self.ahead.pop_first()?;
        self.noticed += 1;
        Some(at)
    }

    pub fn noticed(&self) -> usize {
        self.noticed
    }

    /// Returns how many have expired, noticed or not.
    pub fn passed(&self, now: Timestamp) -> usize {
        let unnoticed = self.ahead.iter().take_while(|(expires, _)| expires.has_passed(now));
        self.noticed + unnoticed.count()
    }

    pub fn contains(&self, expires: Expiry, at: Position) -> bool {
        self.ahead.contains(&(expires, at))
    }

    pub fn ahead(&self) -> usize {
        self.ahead.len()
    }
}
