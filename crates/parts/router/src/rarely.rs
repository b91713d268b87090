//! An event that may come with every connection of a flood, and is logged once in a while: how
//! often it happened and who was the last. It knows no log.

use std::cell::Cell;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

/// The time between two log lines: a flood's client is named once in it, not with each connection.
const INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub struct Rarely {
    /// The count since it was told last, and the last address.
    seen: Cell<Option<(u64, IpAddr)>>,
    told: Cell<Option<Instant>>,
}

impl Rarely {
    pub fn saw(&self, who: IpAddr) {
        let before = self.seen.get().map_or(0, |(count, _)| count);
        self.seen.set(Some((before + 1, who)));
    }

    /// Returns how often it happened, and who was the last, if it is time to say so.
    pub fn tell(&self) -> Option<(u64, IpAddr)> {
        if self.told.get().is_some_and(|at| at.elapsed() < INTERVAL) {
            return None;
        }
        let seen = self.seen.take()?;
        self.told.set(Some(Instant::now()));
        Some(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_event_is_logged_at_once_and_the_others_together() {
        let (rarely, one, other) =
            (Rarely::default(), [192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        assert_eq!(rarely.tell(), None);
        rarely.saw(one);
        assert_eq!(rarely.tell(), Some((1, one)));
        rarely.saw(one);
        rarely.saw(other);
        assert_eq!(rarely.tell(), None);
        tokio::time::advance(INTERVAL).await;
        assert_eq!((rarely.tell(), rarely.tell()), (Some((2, other)), None));
    }
}
