//! How often somebody may do something: so many times at once, and then once in a while. The
//! generic cell rate algorithm (ITU-T I.371, appendix A), which keeps one time for each of them.

use std::collections::BTreeMap;
use std::time::Duration;

use model::Timestamp;

/// An allowance for each key, such as an address or a user. A key that has all of its allowance is
/// not kept, and of the others at most so many, since addresses cost a stranger nothing.
#[derive(Debug)]
pub struct Allowance<K> {
    at_once: u32,
    every: Duration,
    keys_max: usize,
    /// The times at which each has all of its allowance again.
    whole_at: BTreeMap<K, Timestamp>,
}

impl<K: Ord + Clone> Allowance<K> {
    pub fn new(at_once: u32, every: Duration, keys_max: usize) -> Allowance<K> {
        Allowance { at_once, every, keys_max, whole_at: BTreeMap::new() }
    }

    /// Returns how long to wait for the next time, if it is not now.
    pub fn wait(&self, key: &K, now: Timestamp) -> Option<Duration> {
        let whole_at = self.whole_at.get(key)?;
        let used = whole_at.since(now);
        let most = self.every * self.at_once.saturating_sub(1);
        used.checked_sub(most).filter(|wait| !wait.is_zero())
    }

    /// Takes one time off, whether it was allowed or not.
    pub fn take(&mut self, key: &K, now: Timestamp) {
        if self.whole_at.len() >= self.keys_max && !self.whole_at.contains_key(key) {
            self.make_room(now);
        }
        let whole_at = self.whole_at.entry(key.clone()).or_insert(now);
        let from = (*whole_at).max(now);
        // Whoever goes on asking waits no longer for it than after the last that was allowed.
        let latest = now.after(self.every * self.at_once);
        *whole_at = from.after(self.every).min(latest);
    }

    /// Forgets those that have all of their allowance; if that is none, the one that will have it
    /// first.
    fn make_room(&mut self, now: Timestamp) {
        self.whole_at.retain(|_, whole_at| *whole_at > now);
        while self.whole_at.len() >= self.keys_max {
            let first = self.whole_at.iter().min_by_key(|(_, whole_at)| **whole_at);
            let Some(first) = first.map(|(key, _)| key.clone()) else { return };
            self.whole_at.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const START: Timestamp = Timestamp(1_000_000);

    #[test]
    fn so_many_are_allowed_at_once_and_then_one_at_a_time() {
        let mut allowance = Allowance::new(3, SECOND, 8);
        let mut take = |now| match allowance.wait(&"a", now) {
            None => {
                allowance.take(&"a", now);
                None
            }
            wait => wait,
        };
        assert_eq!([take(START), take(START), take(START)], [None; 3]);
        assert_eq!(take(START), Some(SECOND));
        let half = START.after(SECOND / 2);
        assert_eq!(take(half), Some(SECOND / 2));
        let next = START.after(SECOND);
        assert_eq!([take(next), take(next)], [None, Some(SECOND)]);
        let later = next.after(SECOND * 3);
        assert_eq!(
            [take(later), take(later), take(later), take(later)].map(|w| w.is_none()),
            [true, true, true, false]
        );
    }

    #[test]
    fn each_has_its_own_and_going_on_costs_no_more() {
        let mut allowance = Allowance::new(2, SECOND, 8);
        (0..100).for_each(|_| allowance.take(&1, START));
        assert_eq!(allowance.wait(&1, START), Some(SECOND));
        assert_eq!(allowance.wait(&2, START), None);
        assert_eq!(allowance.wait(&1, START.after(SECOND)), None);
    }

    #[test]
    fn strangers_do_not_fill_the_memory() {
        let mut allowance = Allowance::new(1, SECOND, 4);
        (0..100).for_each(|key| allowance.take(&key, START.after(Duration::from_millis(key))));
        assert_eq!(allowance.whole_at.len(), 4);
        assert!(allowance.wait(&99, START.after(Duration::from_millis(99))).is_some());
    }
}
