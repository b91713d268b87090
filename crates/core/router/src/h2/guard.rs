//! The guard against frames that bring no request on: they are free to send and cost work here, so
//! a client that sends little else is stopped.

use std::time::Duration;

use super::frame::{self, FrameType};

/// Units that a client may spend at once: 200 cancelled requests, or as many pings as a fast line
/// brings.
const BUDGET_MAX: u32 = 10_000;
/// Units that it gets back each second.
const REFILL: u32 = 1_000;
/// Units that a request that was answered gives back: it pays for one that is given up.
const ANSWERED: u32 = COST_RESET;
const COST_RESET: u32 = 50;
const COST_SMALL: u32 = 10;

#[derive(Debug)]
pub struct Guard {
    budget: u32,
    /// The age of the connection at the last refill.
    refilled: Duration,
}

impl Default for Guard {
    fn default() -> Guard {
        Guard { budget: BUDGET_MAX, refilled: Duration::ZERO }
    }
}

impl Guard {
    /// Refills the budget; called before frames are admitted.
    pub fn refill(&mut self, age: Duration) {
        let seconds = age.saturating_sub(self.refilled).as_secs();
        if seconds > 0 {
            let more = u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(REFILL);
            self.budget = self.budget.saturating_add(more).min(BUDGET_MAX);
            self.refilled = age;
        }
    }

    /// Admits the frame that the client sent next. Returns false once it is too much.
    pub fn admits(&mut self, head: &frame::FrameHead) -> bool {
        let cost = match head.kind {
            FrameType::DATA if head.length == 0 && !head.has(frame::END_STREAM) => COST_SMALL,
            FrameType::DATA | FrameType::HEADERS | FrameType::WINDOW_UPDATE => 0,
            FrameType::RST_STREAM => COST_RESET,
            FrameType::SETTINGS | FrameType::CONTINUATION => COST_SMALL,
            // Pings, priorities, and unknown frames.
            _ => 1,
        };
        self.spend(cost)
    }

    /// Admits a stream that had to be ended for what the client did in it. Returns false once it is
    /// too much.
    pub fn admits_error(&mut self) -> bool {
        self.spend(COST_RESET)
    }

    fn spend(&mut self, cost: u32) -> bool {
        let left = self.budget.checked_sub(cost);
        self.budget = left.unwrap_or(self.budget);
        left.is_some()
    }

    pub fn answered(&mut self) {
        self.budget = self.budget.saturating_add(ANSWERED).min(BUDGET_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: FrameType, flags: u8, length: usize) -> frame::FrameHead {
        frame::FrameHead { length, kind, flags, stream: 1 }
    }

    /// Returns how many of these are admitted.
    fn admitted(head: &frame::FrameHead) -> u32 {
        let mut guard = Guard::default();
        (0..100_000).find(|_| !guard.admits(head)).unwrap_or(u32::MAX)
    }

    #[test]
    fn frames_without_progress_are_limited() {
        assert_eq!(admitted(&frame(FrameType::RST_STREAM, 0, 4)), BUDGET_MAX / COST_RESET);
        assert_eq!(admitted(&frame(FrameType::SETTINGS, 0, 0)), BUDGET_MAX / COST_SMALL);
        assert_eq!(admitted(&frame(FrameType::DATA, 0, 0)), BUDGET_MAX / COST_SMALL);
        assert_eq!(admitted(&frame(FrameType::CONTINUATION, 0, 9)), BUDGET_MAX / COST_SMALL);
        assert_eq!(admitted(&frame(FrameType::PING, 0, 8)), BUDGET_MAX);
        assert_eq!(admitted(&frame(FrameType(99), 0, 8)), BUDGET_MAX);
    }

    #[test]
    fn requests_bodies_and_windows_cost_nothing() {
        for one in [
            frame(FrameType::HEADERS, 5, 80),
            frame(FrameType::DATA, 0, 1),
            frame(FrameType::DATA, frame::END_STREAM, 0),
            frame(FrameType::WINDOW_UPDATE, 0, 4),
        ] {
            assert_eq!(admitted(&one), u32::MAX);
        }
    }

    #[test]
    fn time_and_answers_restore_the_allowance() {
        let (mut guard, reset) = (Guard::default(), frame(FrameType::RST_STREAM, 0, 4));
        while guard.admits(&reset) {}
        guard.answered();
        assert!(guard.admits(&reset) && !guard.admits(&reset));
        guard.refill(Duration::from_millis(900));
        assert!(!guard.admits(&reset));
        guard.refill(Duration::from_secs(1));
        assert!(guard.admits(&reset));
    }
}
