//! Clients that were just answered and are likely to write next, and whether a turn's writes wait
//! for theirs. One wait for the disk then serves all, whereas clients that take turns otherwise
//! form two groups of which each waits for the other's, or need three waits for two if they look
//! something up in between. Owns the patience; must not know connections. Asked by the code that
//! ends a thread's turn.

use std::time::{Duration, Instant};

/// The longest wait; a client on this machine answers in a third of it.
const PATIENCE_MAX: Duration = Duration::from_micros(100);
/// The wait is at most the last commit's time here divided by this: what may be saved is one
/// commit.
const PATIENCE_SHARE: u32 = 2;
/// A wait has paid if it brought one more write for this many that waited.
const GAIN_SHARE: u32 = 8;
/// The number of waits in a row that may fail to pay, as clients fall out of step and into it
/// again.
const VAIN_FREE: u32 = 8;
/// The number of turns without a wait after many more: clients that do not come back cost one turn
/// in this many.
const PAUSE_TURNS_MAX: u32 = 64;

#[derive(Debug, Default)]
pub struct Returning {
    /// The number of clients that were answered and have not written since. Those for which a wait
    /// was in vain are no longer counted.
    awaited: u32,
    /// The number of clients whose writes the turn has.
    writers: u32,
    /// The beginning of the wait, and how many clients had written then; `None` if there is no
    /// wait.
    wait: Option<(Instant, u32)>,
    took: Duration,
    /// The number of waits in a row that did not pay; `pause` is the number of turns that are not
    /// to wait.
    vain: u32,
    pause: u32,
}

impl Returning {
    /// Records that a client has nothing to wait for any more. One that only looks something up
    /// changes nothing: it was counted before, and still is.
    pub fn answered(&mut self) {
        self.awaited = self.awaited.saturating_add(1);
    }

    pub fn wrote(&mut self) {
        self.awaited = self.awaited.saturating_sub(1);
        self.writers += 1;
    }

    /// Returns whether more is to be read before the turn's writes are committed.
    pub fn is_worth_waiting(&mut self, now: Instant) -> bool {
        if self.awaited == 0 || self.writers == 0 || self.pause > 0 {
            return false;
        }
        let (since, _) = *self.wait.get_or_insert((now, self.writers));
        now.duration_since(since) < PATIENCE_MAX.min(self.took / PATIENCE_SHARE)
    }

    /// Records how long committing the turn's writes took: no time if another thread commits.
    pub fn committed(&mut self, took: Duration) {
        if self.writers == 0 {
            return;
        }
        self.pause = self.pause.saturating_sub(1);
        if let Some((_, before)) = self.wait.take() {
            let gained = (self.writers - before) * GAIN_SHARE >= before;
            self.vain = if gained { 0 } else { self.vain.saturating_add(1) };
            let beyond = self.vain.saturating_sub(VAIN_FREE);
            self.pause = if beyond > 0 { 1 << beyond.min(PAUSE_TURNS_MAX.ilog2()) } else { 0 };
            if !gained {
                self.awaited = 0;
            }
        }
        (self.writers, self.took) = (0, took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Duration = Duration::from_micros(150);
    const SOON: Duration = Duration::from_micros(20);

    fn after_a_commit() -> Returning {
        let mut returning = Returning::default();
        returning.wrote();
        returning.committed(DISK);
        returning
    }

    /// Runs a turn: `here` writers are here and `answered` were answered; then `come` of the latter
    /// write too. Returns whether the turn waited.
    fn turn(returning: &mut Returning, here: u32, answered: u32, come: u32) -> bool {
        let now = Instant::now();
        (0..here + answered).for_each(|_| returning.answered());
        (0..here).for_each(|_| returning.wrote());
        let waits = returning.is_worth_waiting(now);
        (0..come).for_each(|_| returning.wrote());
        let rest = returning.awaited > 0;
        assert_eq!(returning.is_worth_waiting(now + SOON), waits && rest);
        assert!(!returning.is_worth_waiting(now + DISK), "half of what the disk takes");
        returning.committed(DISK);
        waits
    }

    #[test]
    fn two_groups_of_writers_become_one() {
        let mut returning = after_a_commit();
        for _ in 0..10 {
            assert!(turn(&mut returning, 5, 5, 5), "those who wait for the disk wait together");
            assert!(!turn(&mut returning, 10, 0, 0), "all are here");
        }
    }

    #[test]
    fn who_does_not_come_is_not_awaited_any_more() {
        let mut returning = after_a_commit();
        assert!(turn(&mut returning, 6, 3, 2), "one of them stays away");
        assert!(turn(&mut returning, 6, 0, 0), "and is waited for once more");
        assert!(!turn(&mut returning, 6, 0, 0));
        assert!(turn(&mut returning, 6, 1, 1), "the others are waited for as before");
    }

    #[test]
    fn a_turn_without_writes_says_nothing_of_the_disk() {
        let mut returning = after_a_commit();
        assert!(turn(&mut returning, 1, 1, 1));
        returning.committed(Duration::from_nanos(300));
        assert!(turn(&mut returning, 1, 1, 1));
    }

    #[test]
    fn nobody_waits_where_another_thread_commits() {
        let mut returning = Returning::default();
        returning.answered();
        returning.wrote();
        returning.committed(Duration::ZERO);
        returning.answered();
        returning.answered();
        returning.wrote();
        assert!(!returning.is_worth_waiting(Instant::now()));
    }

    #[test]
    fn clients_who_never_come_back_are_hardly_ever_waited_for() {
        let mut returning = after_a_commit();
        let waits = (0..1_000).filter(|_| turn(&mut returning, 8, 8, 0)).count();
        assert!((20..40).contains(&waits), "{waits}");
        let waits = (0..200).filter(|_| turn(&mut returning, 8, 4, 4)).count();
        assert!(waits > 100, "soon again when they do: {waits}");
    }
}
