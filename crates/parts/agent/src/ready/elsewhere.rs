//! The limit on how long a process may listen only on the wrong address before it is given up.

use std::time::{Duration, Instant};

use os::observe::Snapshot;

/// The time before such a process is judged: some servers open a port for their own purposes first
/// and go on starting.
const WRONG_ADDRESS_PATIENCE: Duration = Duration::from_secs(5);
/// The part of one core that a server at rest stays below, whatever else the machine does; a
/// process that uses more meanwhile is still starting.
const AT_REST_PERCENT: u64 = 5;

/// The last detail, since when it has been seen, and the processor time that the tree had used by
/// then.
#[derive(Debug, Default)]
pub struct Elsewhere {
    seen: Option<(String, Instant, u64)>,
}

impl Elsewhere {
    /// Returns true when the tree of `pid` has done nothing else for too long.
    pub fn lasts(&mut self, pid: u32, detail: &str) -> bool {
        let long = match &self.seen {
            Some((before, since, _)) if before == detail => {
                since.elapsed() >= WRONG_ADDRESS_PATIENCE
            }
            _ => {
                self.seen = Some((detail.to_owned(), Instant::now(), used_ticks(pid)));
                false
            }
        };
        let Some((_, since, used)) = self.seen.as_mut().filter(|_| long) else { return false };
        let (now, ticks) = (Instant::now(), used_ticks(pid));
        let at_rest = is_at_rest(ticks.abs_diff(*used), now.duration_since(*since));
        (*since, *used) = (now, ticks);
        at_rest
    }
}

fn is_at_rest(ticks: u64, time: Duration) -> bool {
    let per_second = rustix::param::clock_ticks_per_second();
    let all = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).saturating_mul(per_second) / 1000;
    ticks.saturating_mul(100) <= all.saturating_mul(AT_REST_PERCENT)
}

/// Returns the processor time of the whole tree, as far as it lives.
fn used_ticks(pid: u32) -> u64 {
    let Ok(snapshot) = Snapshot::take() else { return 0 };
    let tree = snapshot.tree(pid);
    tree.iter().filter_map(|pid| snapshot.stat(*pid)).map(|stat| stat.used_ticks).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_at_rest_uses_next_to_nothing() {
        let second = rustix::param::clock_ticks_per_second();
        let time = Duration::from_secs(5);
        assert!(is_at_rest(0, time));
        assert!(is_at_rest(second / 5, time));
        assert!(!is_at_rest(second / 2, time));
    }

    #[test]
    fn patience_begins_anew_when_something_else_is_seen() {
        let mut elsewhere = Elsewhere::default();
        let own = std::process::id();
        assert!(!elsewhere.lasts(own, "listens on a"));
        let (_, since, _) = elsewhere.seen.as_mut().unwrap();
        *since = since.checked_sub(WRONG_ADDRESS_PATIENCE).unwrap();
        assert!(!elsewhere.lasts(own, "listens on a and b"));
        let (_, since, used) = elsewhere.seen.as_mut().unwrap();
        *since = since.checked_sub(WRONG_ADDRESS_PATIENCE).unwrap();
        *used = used_ticks(own);
        assert!(elsewhere.lasts(own, "listens on a and b"));
    }
}
