//! The time that a write may wait for the other side: for each piece, and for a client that is sent
//! an answer, for all of it, too. It knows no socket.

use std::cell::Cell;
use std::io::Result;
use std::time::Duration;

use tokio::time::Instant;

use super::limits::patience;
use super::time_limit::within;

/// The time after which a client that takes nothing is gone.
pub const WRITE_TIME_MAX: Duration = Duration::from_secs(60);

/// The pace at which a client takes what it is sent. By a byte at a time it would take its answer
/// for ever.
#[derive(Debug, Default)]
pub struct Pace {
    taken: Cell<u64>,
    /// The time waited while there was something to send.
    waited: Cell<Duration>,
}

#[derive(Clone, Copy, Debug)]
pub enum Patience<'a> {
    /// The limit for each piece.
    Each(Duration),
    /// For each piece the limit of any client, in all a second more for each 240 bytes.
    Paced(&'a Pace),
}

impl Pace {
    pub fn took(&self, count: usize) {
        self.taken.set(self.taken.get() + count as u64);
    }

    /// Returns whether the client did not take everything at once.
    pub fn has_waited(&self) -> bool {
        !self.waited.get().is_zero()
    }

    /// Waits until `ready`, within `limit` and what is left for all.
    pub async fn wait<T>(
        &self,
        limit: Duration,
        ready: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let left = patience(limit, self.taken.get()).saturating_sub(self.waited.get());
        let asked = Instant::now();
        let result = within(limit.min(left), ready).await;
        self.waited.set(self.waited.get().saturating_add(asked.elapsed()));
        result
    }

    #[cfg(test)]
    pub fn spent() -> Pace {
        Pace { taken: Cell::new(0), waited: Cell::new(Duration::MAX) }
    }
}

impl Patience<'_> {
    pub fn piece(self) -> Duration {
        match self {
            Patience::Each(limit) => limit,
            Patience::Paced(_) => WRITE_TIME_MAX,
        }
    }

    pub fn took(self, count: usize) {
        if let Patience::Paced(pace) = self {
            pace.took(count);
        }
    }

    pub async fn wait<T>(self, ready: impl Future<Output = Result<T>>) -> Result<T> {
        match self {
            Patience::Each(limit) => within(limit, ready).await,
            Patience::Paced(pace) => pace.wait(WRITE_TIME_MAX, ready).await,
        }
    }
}

#[cfg(test)]
mod tests;
