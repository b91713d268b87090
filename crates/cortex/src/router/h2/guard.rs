//! Watches the frames that a client sends: those that bring no request on are free to send and cost
//! work here, so a client that sends little else is stopped. Reads frames' heads alone.

use std::time::Instant;

/// Before the first frame.
const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
/// What a client may spend at once: 200 cancelled requests, or as many pings as a fast line brings.
const BUDGET_MAX: u32 = 10_000;
/// What it gets back each second.
const REFILL: u32 = 1_000;
/// A request that was answered pays for one that is given up.
const ANSWERED: u32 = COST_RESET;
const COST_RESET: u32 = 50;
const COST_SMALL: u32 = 10;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;

#[derive(Debug)]
pub struct Guard {
    head: [u8; HEAD_BYTES],
    /// Bytes of the present frame's head that have come.
    seen: usize,
    /// Bytes before the next head.
    skip: usize,
    budget: u32,
    refilled: Instant,
}

impl Guard {
    pub fn new(now: Instant) -> Guard {
        Guard {
            head: [0; HEAD_BYTES],
            seen: 0,
            skip: PREFACE_BYTES,
            budget: BUDGET_MAX,
            refilled: now,
        }
    }

    /// What the client sent next. False once it is too much.
    pub fn admits(&mut self, mut bytes: &[u8], now: Instant) -> bool {
        let seconds = now.duration_since(self.refilled).as_secs();
        if seconds > 0 {
            let more = u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(REFILL);
            self.budget = self.budget.saturating_add(more).min(BUDGET_MAX);
            self.refilled = now;
        }
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return true;
            }
            let taken = (HEAD_BYTES - self.seen).min(bytes.len());
            self.head[self.seen..self.seen + taken].copy_from_slice(&bytes[..taken]);
            self.seen += taken;
            bytes = &bytes[taken..];
            if self.seen == HEAD_BYTES {
                self.seen = 0;
                let [a, b, c, kind, flags, ..] = self.head;
                self.skip = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                let cost = cost(kind, flags, self.skip);
                if cost > self.budget {
                    return false;
                }
                self.budget -= cost;
            }
        }
    }

    pub fn answered(&mut self) {
        self.budget = self.budget.saturating_add(ANSWERED).min(BUDGET_MAX);
    }
}

fn cost(kind: u8, flags: u8, length: usize) -> u32 {
    match kind {
        DATA if length == 0 && flags & END_STREAM == 0 => COST_SMALL,
        DATA | HEADERS | WINDOW_UPDATE => 0,
        RST_STREAM => COST_RESET,
        SETTINGS | CONTINUATION => COST_SMALL,
        // Pings, priorities, and what nobody knows.
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const PING: u8 = 6;

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        frame.resize(HEAD_BYTES + usize::from(length), 0xff);
        frame
    }

    /// How many of these are admitted, in pieces of `size` bytes.
    fn admitted(frame: &[u8], size: usize) -> u32 {
        let now = Instant::now();
        let mut guard = Guard::new(now);
        assert!(guard.admits(&[0; PREFACE_BYTES], now));
        for count in 0..100_000 {
            if !frame.chunks(size).all(|piece| guard.admits(piece, now)) {
                return count;
            }
        }
        u32::MAX
    }

    #[test]
    fn what_brings_nothing_on_is_limited() {
        for size in [1, 4, 9, 100] {
            assert_eq!(admitted(&frame(RST_STREAM, 0, 4), size), BUDGET_MAX / COST_RESET);
            assert_eq!(admitted(&frame(SETTINGS, 0, 0), size), BUDGET_MAX / COST_SMALL);
            assert_eq!(admitted(&frame(DATA, 0, 0), size), BUDGET_MAX / COST_SMALL);
            assert_eq!(admitted(&frame(CONTINUATION, 0, 9), size), BUDGET_MAX / COST_SMALL);
            assert_eq!(admitted(&frame(PING, 0, 8), size), BUDGET_MAX);
        }
    }

    #[test]
    fn requests_bodies_and_windows_are_free() {
        for one in [
            frame(HEADERS, 5, 80),
            frame(DATA, 0, 1),
            frame(DATA, END_STREAM, 0),
            frame(WINDOW_UPDATE, 0, 4),
        ] {
            assert_eq!(admitted(&one, 50), u32::MAX);
        }
    }

    #[test]
    fn time_and_answers_pay() {
        let now = Instant::now();
        let mut guard = Guard::new(now);
        assert!(guard.admits(&[0; PREFACE_BYTES], now));
        let reset = frame(RST_STREAM, 0, 4);
        while guard.admits(&reset, now) {}
        guard = Guard { seen: 0, skip: 0, ..guard };
        guard.answered();
        assert!(guard.admits(&reset, now) && !guard.admits(&reset, now));
        guard = Guard { seen: 0, skip: 0, ..guard };
        assert!(guard.admits(&reset, now + Duration::from_secs(1)));
    }
}
