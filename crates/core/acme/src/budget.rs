//! How many orders are made, and how soon after a failure: well below what Let's Encrypt allows
//! (its page "Rate Limits"), so that a cluster never finds the door shut when it needs a
//! certificate.

use std::time::Duration;

use model::Timestamp;
use model::acme::AcmeOrder;

use crate::problem::{Problem, Remedy};

pub const HOUR: Duration = Duration::from_secs(3600);
pub const DAY: Duration = Duration::from_secs(24 * 3600);
pub const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

/// Orders for one name in an hour: one, another one by a node that goes on for a lost one, and one
/// after a failure.
pub const ORDERS_PER_HOUR: usize = 3;
/// Orders for one name in a week. A name that fails all the time has used 14 by then.
pub const ORDERS_PER_WEEK: usize = 20;
/// Certificates for one name in a week; Let's Encrypt gives out five of the same names.
pub const ISSUED_PER_WEEK: usize = 4;
/// Failures of one name in an hour; Let's Encrypt shuts the door after five.
pub const FAILED_PER_HOUR: usize = 3;
/// Orders of the whole cluster in three hours; Let's Encrypt takes 300 from an account.
pub const ORDERS_OF_ALL: usize = 150;
pub const ORDERS_OF_ALL_WINDOW: Duration = Duration::from_secs(3 * 3600);

/// The pause after the first failure of a name; each next one is four times as long.
const PAUSE_FIRST: Duration = Duration::from_secs(300);
/// The pause after an authority could not be reached or had a failure of its own; each next one is
/// twice as long, up to an hour.
const PAUSE_TRANSIENT: Duration = Duration::from_secs(60);
/// The pause when the authority said that it has had too much, and not until when.
const PAUSE_RATE_LIMITED: Duration = Duration::from_secs(3600);
/// The longest pause that an authority can impose: the longest window of Let's Encrypt's limits.
const PAUSE_IMPOSED_MAX: Duration = WEEK;
/// The pause where a person has to do something first; they say when it is done.
const PAUSE_PERSON: Duration = Duration::from_secs(6 * 3600);
/// The shortest pause for a certificate that is about to expire: no more than three in an hour.
const PAUSE_URGENT_MIN: Duration = Duration::from_secs(1200);
/// The part of what is left of a certificate that one pause takes.
const URGENT_PART: u32 = 8;

/// Returns from when on another order of this name may be made.
pub fn allowed_from(record: Option<&AcmeOrder>, now: Timestamp) -> Timestamp {
    let Some(record) = record else { return now };
    [
        freed(&record.orders, ORDERS_PER_HOUR, HOUR),
        freed(&record.orders, ORDERS_PER_WEEK, WEEK),
        freed(&record.issued, ISSUED_PER_WEEK, WEEK),
        freed(&record.failed, FAILED_PER_HOUR, HOUR),
        record.rest_until,
    ]
    .into_iter()
    .fold(now, Timestamp::max)
}

/// Returns from when on the cluster may make another order, of the times of all its orders.
pub fn allowed_for_all(mut orders: Vec<Timestamp>, now: Timestamp) -> Timestamp {
    orders.retain(|at| now.since(*at) < ORDERS_OF_ALL_WINDOW);
    orders.sort_unstable();
    freed(&orders, ORDERS_OF_ALL, ORDERS_OF_ALL_WINDOW).max(now)
}

/// Returns when fewer than `max` of these times, the oldest first, lie within the window.
fn freed(times: &[Timestamp], max: usize, window: Duration) -> Timestamp {
    match times.len().checked_sub(max) {
        Some(index) => times[index].after(window),
        None => Timestamp(0),
    }
}

/// Adds a time, and forgets those that no limit asks for any more.
pub fn note(times: &mut Vec<Timestamp>, now: Timestamp, window: Duration, max: usize) {
    times.retain(|at| now.since(*at) < window);
    times.push(now);
    // A clock that was set back leaves times that lie ahead.
    times.sort_unstable();
    let excess = times.len().saturating_sub(max);
    times.drain(..excess);
}

/// Returns how long a name rests after its failure number `failures`, which is at least one.
/// `expires` is the end of the certificate that it has.
pub fn pause(
    problem: &Problem,
    failures: u32,
    expires: Option<Timestamp>,
    now: Timestamp,
) -> Duration {
    let growing = |first: Duration, factor: u32, max: Duration| {
        let times = factor.saturating_pow(failures.saturating_sub(1).min(16));
        first.saturating_mul(times).min(max)
    };
    let usual = match problem.remedy() {
        Remedy::Wait => {
            let imposed = problem.retry_after.unwrap_or(PAUSE_RATE_LIMITED);
            return imposed.clamp(PAUSE_TRANSIENT, PAUSE_IMPOSED_MAX);
        }
        Remedy::Again => growing(PAUSE_TRANSIENT, 2, HOUR),
        Remedy::Mend => growing(PAUSE_FIRST, 4, DAY),
        Remedy::Person => growing(PAUSE_PERSON, 2, DAY),
    };
    let Some(expires) = expires.filter(|at| *at > now) else { return usual };
    usual.min((expires.since(now) / URGENT_PART).max(PAUSE_URGENT_MIN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::kind;

    const T: Timestamp = Timestamp(1_800_000_000_000);

    fn pauses(kind: &str, expires: Option<Timestamp>) -> Vec<u64> {
        let problem = Problem::new(kind, "");
        (1..=6).map(|n| pause(&problem, n, expires, T).as_secs()).collect()
    }

    #[test]
    fn pauses_grow_and_end_at_a_day() {
        assert_eq!(pauses("connection", None), [300, 1200, 4800, 19_200, 76_800, 86_400]);
        assert_eq!(pauses(kind::UNREACHABLE, None), [60, 120, 240, 480, 960, 1920]);
        assert_eq!(pauses("rejectedIdentifier", None)[..3], [21_600, 43_200, 86_400]);
    }

    #[test]
    fn a_certificate_that_is_about_to_expire_is_tried_for_more_often() {
        let soon = T.after(Duration::from_secs(48 * 3600));
        assert_eq!(pauses("connection", Some(soon))[4], 6 * 3600);
        let now = T.after(Duration::from_secs(60));
        assert_eq!(pauses("connection", Some(now))[4], 1200);
    }

    #[test]
    fn what_the_authority_imposes_is_kept_to() {
        let mut problem = Problem::new("rateLimited", "too many certificates");
        assert_eq!(pause(&problem, 1, None, T), HOUR);
        for (said, kept) in [(7200, 7200), (1, 60), (90 * 24 * 3600, 7 * 24 * 3600)] {
            problem.retry_after = Some(Duration::from_secs(said));
            let soon = Some(T.after(Duration::from_secs(60)));
            assert_eq!(pause(&problem, 1, soon, T).as_secs(), kept);
        }
    }

    #[test]
    fn each_limit_holds_by_itself() {
        let ago = |minutes: u64| Timestamp(T.0 - minutes * 60_000);
        let at = |minutes: u64| Timestamp(T.0 + minutes * 60_000);
        let node = "n1".parse().unwrap();
        let fresh = || crate::orderer::fresh(&node);
        let allowed = |record: AcmeOrder| allowed_from(Some(&record), T);
        assert_eq!(allowed(fresh()), T);
        let three = vec![ago(50), ago(40), ago(30)];
        assert_eq!(allowed(AcmeOrder { orders: three.clone(), ..fresh() }), at(10));
        assert_eq!(allowed(AcmeOrder { failed: three, ..fresh() }), at(10));
        let day = 24 * 60;
        let issued = vec![ago(6 * day), ago(5 * day), ago(4 * day), ago(3 * day)];
        assert_eq!(allowed(AcmeOrder { issued, ..fresh() }), at(day));
        assert_eq!(allowed(AcmeOrder { rest_until: at(3), ..fresh() }), at(3));
        let many = (0..20).rev().map(|n| ago(6 * day - n * 60)).rev().collect();
        assert_eq!(allowed(AcmeOrder { orders: many, ..fresh() }), at(day));
    }

    #[test]
    fn the_oldest_of_too_many_says_when() {
        let minutes = |n: u64| Timestamp(T.0 + n * 60_000);
        let times = [minutes(0), minutes(5), minutes(25)];
        assert_eq!(freed(&times, 3, HOUR), minutes(60));
        assert_eq!(freed(&times[1..], 3, HOUR), Timestamp(0));
        let mut kept = times.to_vec();
        note(&mut kept, minutes(62), HOUR, 20);
        assert_eq!(kept, [minutes(5), minutes(25), minutes(62)]);
        note(&mut kept, minutes(63), HOUR, 3);
        assert_eq!(kept, [minutes(25), minutes(62), minutes(63)]);
    }
}
