//! The time at which a certificate is renewed: in the window that its authority suggests (RFC
//! 9773), and without one when two thirds of its lifetime are over, be that 90 days, 45 or 6.

use std::time::Duration;

use model::Timestamp;
use model::acme::RenewalWindow;
use model::hash;

/// What of a certificate decides when it is renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    /// The name that its authority knows it by (RFC 9773, section 4.1); `None` if it has none.
    pub id: Option<String>,
}

/// The part of its lifetime that a certificate still has when it is renewed at the latest, whatever
/// its authority suggests: 11 days of 90, and 18 hours of 6 days.
const MARGIN_PART: u32 = 8;
/// How often an authority is asked at the most and at the least, whatever it says (RFC 9773,
/// section 4.3).
const ASKED_MIN: Duration = Duration::from_secs(60);
const ASKED_MAX: Duration = Duration::from_secs(24 * 3600);
/// The pause after an authority that could not be asked, and the longest one.
const UNHEARD_FIRST: Duration = Duration::from_secs(60);
const UNHEARD_MAX: Duration = Duration::from_secs(6 * 3600);

impl Facts {
    pub fn lifetime(&self) -> Duration {
        self.not_after.since(self.not_before)
    }

    /// Returns when it is to be renewed. All nodes come to the same time.
    pub fn due(&self, window: Option<&RenewalWindow>) -> Timestamp {
        let latest =
            Timestamp(self.not_after.0.saturating_sub(millis(self.lifetime() / MARGIN_PART)));
        match window.filter(|window| self.id.as_ref() == Some(&window.certificate)) {
            Some(window) if window.start < window.end => pick(window).min(latest),
            _ => self.not_before.after(self.lifetime() * 2 / 3),
        }
    }

    /// Returns whether this is another certificate than the one that is there, and none from before
    /// it. It may end sooner: authorities shorten their lifetimes, and replace what they revoke.
    pub fn succeeds(&self, other: Option<&Facts>) -> bool {
        other.is_none_or(|other| {
            let is_older = self.not_before < other.not_before && self.not_after <= other.not_after;
            self != other && !is_older
        })
    }
}

/// Returns the moment of the window at which this certificate is renewed: by chance, so that not
/// all come at once, and the same one on every node.
fn pick(window: &RenewalWindow) -> Timestamp {
    let chance = hash::bytes(window.certificate.as_bytes());
    Timestamp(window.start.0 + chance % (window.end.0 - window.start.0))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns after how long the authority is asked again.
pub fn ask_again(said: Duration) -> Duration {
    said.clamp(ASKED_MIN, ASKED_MAX)
}

/// Returns after how long an authority is asked again that could not be asked so many times.
pub fn ask_again_unheard(failures: u32) -> Duration {
    UNHEARD_FIRST.saturating_mul(1 << failures.min(16)).min(UNHEARD_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: u64 = 24 * 3_600_000;

    #[test]
    fn a_shorter_certificate_may_follow_a_longer_one_but_never_itself_or_an_older_one() {
        let made = |id: &str, from: u64, days: u64| Facts {
            not_before: Timestamp(from * DAY_MS),
            not_after: Timestamp((from + days) * DAY_MS),
            id: Some(id.into()),
        };
        let held = made("held", 100, 90);
        assert!(held.succeeds(None));
        assert!(!held.succeeds(Some(&held)));
        for next in [made("next", 100, 6), made("next", 101, 45), made("next", 99, 200)] {
            assert!(next.succeeds(Some(&held)), "{next:?}");
        }
        for former in [made("former", 40, 90), made("former", 99, 91)] {
            assert!(!former.succeeds(Some(&held)), "{former:?}");
        }
    }

    fn facts(days: u64) -> Facts {
        let not_before = Timestamp(1_800_000_000_000);
        let not_after = Timestamp(not_before.0 + days * DAY_MS);
        Facts { not_before, not_after, id: Some("a.b".into()) }
    }

    fn window(facts: &Facts, from: u64, to: u64) -> RenewalWindow {
        let at = |day: u64| Timestamp(facts.not_before.0 + day * DAY_MS);
        RenewalWindow { certificate: "a.b".into(), start: at(from), end: at(to), explanation: None }
    }

    #[test]
    fn two_thirds_of_every_lifetime() {
        for (days, after) in [(90, 60), (45, 30), (6, 4)] {
            let facts = facts(days);
            assert_eq!(facts.due(None).0 - facts.not_before.0, after * DAY_MS);
        }
    }

    #[test]
    fn the_window_of_the_authority_decides() {
        let facts = facts(90);
        let window = window(&facts, 20, 22);
        let due = facts.due(Some(&window));
        assert!(window.start <= due && due < window.end);
        assert_eq!(due, facts.due(Some(&window)));
        // That of another certificate, and one without an extent, say nothing.
        let other = RenewalWindow { certificate: "c.d".into(), ..window.clone() };
        assert_eq!(facts.due(Some(&other)), facts.due(None));
        let none = RenewalWindow { end: window.start, ..window };
        assert_eq!(facts.due(Some(&none)), facts.due(None));
    }

    #[test]
    fn no_window_lets_a_certificate_expire() {
        let facts = facts(6);
        let due = facts.due(Some(&window(&facts, 30, 40)));
        assert_eq!(facts.not_after.0 - due.0, 6 * DAY_MS / 8);
    }

    #[test]
    fn authorities_are_asked_between_once_a_minute_and_once_a_day() {
        let seconds = |n| Duration::from_secs(n);
        assert_eq!(ask_again(seconds(0)), seconds(60));
        assert_eq!(ask_again(seconds(1 << 40)), seconds(86_400));
        assert_eq!(ask_again_unheard(0), seconds(60));
        assert_eq!(ask_again_unheard(40), seconds(21_600));
    }
}
