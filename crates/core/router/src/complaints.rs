//! What an application's owner is told of faults in its answers, and how often: each kind of fault
//! at most once a minute, with how many there were since. Driven by the router's threads.

use std::collections::BTreeMap;

use model::ApplicationName;

/// Milliseconds between two notes of a kind; a page that is always broken would fill the log
/// otherwise.
pub const INTERVAL_MS: u64 = 60_000;
/// Applications times kinds of fault that are known. Beyond it the oldest is forgotten, and told
/// once too often.
const KNOWN_MAX: usize = 512;

#[derive(Debug, Default)]
pub struct Complaints {
    known: BTreeMap<(ApplicationName, &'static str), Known>,
}

#[derive(Debug)]
struct Known {
    told_at_ms: u64,
    /// The number of faults since then.
    more: u64,
}

impl Complaints {
    /// Counts a fault, and returns `Some` if it is to be told: with how many others there were of
    /// this kind.
    pub fn heard(
        &mut self,
        now_ms: u64,
        application: &ApplicationName,
        rule: &'static str,
    ) -> Option<u64> {
        let key = (application.clone(), rule);
        if let Some(known) = self.known.get_mut(&key) {
            if now_ms < known.told_at_ms.saturating_add(INTERVAL_MS) {
                known.more += 1;
                return None;
            }
            known.told_at_ms = now_ms;
            return Some(std::mem::take(&mut known.more));
        }
        if self.known.len() >= KNOWN_MAX {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.told_at_ms);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.known.remove(&oldest);
            }
        }
        self.known.insert(key, Known { told_at_ms: now_ms, more: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_told_once_a_minute_with_how_many_there_were() {
        let (mut complaints, shop) = (Complaints::default(), "shop".parse().unwrap());
        assert_eq!(complaints.heard(0, &shop, "a"), Some(0));
        assert_eq!(complaints.heard(1, &shop, "a"), None);
        assert_eq!(complaints.heard(2, &shop, "b"), Some(0));
        assert_eq!(complaints.heard(3, &"other".parse().unwrap(), "a"), Some(0));
        assert_eq!(complaints.heard(INTERVAL_MS - 1, &shop, "a"), None);
        assert_eq!(complaints.heard(INTERVAL_MS, &shop, "a"), Some(2));
        assert_eq!(complaints.heard(INTERVAL_MS + 1, &shop, "a"), None);
    }

    #[test]
    fn what_is_known_is_bounded() {
        let mut complaints = Complaints::default();
        for number in 0..2_000 {
            let name = format!("app-{number}").parse().unwrap();
            assert_eq!(complaints.heard(number, &name, "a"), Some(0));
        }
        assert_eq!(complaints.known.len(), KNOWN_MAX);
        assert_eq!(complaints.heard(2_000, &"app-1999".parse().unwrap(), "a"), None);
    }
}
