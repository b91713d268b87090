//! Tests of schedules against times that people can check in a calendar.

use model::record::Unknown;

use super::*;

fn utc() -> TimeZone {
    TimeZone::fixed(0).unwrap()
}

/// Returns the rules of Berlin, as zone data end with them.
fn berlin() -> TimeZone {
    let text = b"TZif2".iter().chain(&[0; 15]).chain(&[0; 16]).chain(&[0, 0, 0, 1, 0, 0, 0, 4]);
    let block = b"\0\0\0\0\0\0CET\0";
    let mut data: Vec<u8> = text.copied().chain(*block).collect();
    let second = data.clone();
    data.extend(second);
    data.extend(b"\nCET-1CEST,M3.5.0,M10.5.0/3\n");
    TimeZone::from_tz_data(&data).unwrap()
}

/// Returns the time of seconds after 1970, as `date -u -d … +%s` prints them.
fn at(seconds: u64) -> Timestamp {
    Timestamp(seconds * 1_000)
}

fn due(schedule: &str, zone: &TimeZone, since: u64, now: u64) -> Option<u64> {
    let schedule = schedule.parse().unwrap();
    latest_due(&schedule, zone, at(since), at(now)).map(|due| due.0 / 1_000)
}

/// 2026-11-21 00:00 UTC, a Saturday, in seconds.
const SATURDAY: u64 = 1_795_219_200;
const HOUR: u64 = 3_600;
const DAY: u64 = 86_400;

#[test]
fn the_latest_due_time_is_found() {
    let now = SATURDAY + 12 * HOUR + 34 * 60 + 56;
    for (schedule, expected) in [
        ("* * * * *", Some(SATURDAY + 12 * HOUR + 34 * 60)),
        ("*/10 * * * *", Some(SATURDAY + 12 * HOUR + 30 * 60)),
        ("5-20/5 9-11 * * *", Some(SATURDAY + 11 * HOUR + 20 * 60)),
        ("@daily", Some(SATURDAY)),
        ("0 4 * * mon-fri", Some(SATURDAY - DAY + 4 * HOUR)),
        ("0 0 * * 7", Some(SATURDAY - 6 * DAY)),
        ("15 3 1 * *", Some(SATURDAY - 20 * DAY + 3 * HOUR + 15 * 60)),
        // Either day is enough where both are restricted.
        ("0 0 1 * fri", Some(SATURDAY - DAY)),
        ("0 0 1 jan *", Some(1_767_225_600)),
        ("0 0 29 2 *", None),
    ] {
        assert_eq!(due(schedule, &utc(), 0, now), expected, "{schedule}");
    }
    assert_eq!(due("* * * * *", &utc(), now, now), None, "each time once");
    assert_eq!(due("@daily", &utc(), SATURDAY, now), None);
}

#[test]
fn changed_clocks_leave_nothing_out_and_repeat_nothing() {
    let zone = berlin();
    // 2026-03-29: 02:00 to 03:00 is left out, at 01:00 UTC.
    let spring = 1_774_746_000;
    assert_eq!(due("30 2 * * *", &zone, spring - HOUR, spring + HOUR), Some(spring));
    assert_eq!(due("30 3 * * *", &zone, spring, spring + HOUR), Some(spring + HOUR / 2));
    // 2026-10-25: 02:00 to 03:00 comes twice, from 00:00 UTC.
    let autumn = 1_792_886_400;
    let half = autumn + HOUR / 2;
    assert_eq!(due("30 2 * * *", &zone, autumn - HOUR, autumn + 2 * HOUR), Some(half));
    let hourly = due("30 * * * *", &zone, autumn - HOUR, autumn + 2 * HOUR);
    assert_eq!(hourly, Some(half + HOUR), "what comes each hour comes each hour");
}

#[test]
fn mistakes_are_named() {
    for (schedule, said) in [
        ("* * * *", "not a schedule"),
        ("60 * * * *", "'60' is not a valid minute: use 0 to 59"),
        ("* 5-3 * * *", "not a valid hour"),
        ("* * 0 * *", "not a valid day of month"),
        ("* * * foo *", "not a valid month"),
        ("* * * * 8", "not a valid day of week"),
        ("*/0 * * * *", "not a valid minute"),
        ("+1 * * * *", "not a valid minute"),
        ("0 0 31 2 *", "never comes"),
        ("", "not a schedule"),
    ] {
        let error = schedule.parse::<Schedule>().unwrap_err().to_string();
        assert!(error.contains(said), "{schedule}: {error}");
    }
}

struct Case {
    last: Option<CronRun>,
    running: bool,
    able: Vec<NodeId>,
}

fn run(due: u64, node: &str, ended: bool, attempt: u32) -> CronRun {
    CronRun {
        v: 1,
        due: at(due),
        node: node.parse().unwrap(),
        started_at: at(due),
        attempt,
        ended_at: ended.then(|| at(due + 1)),
        success: ended,
        how: None,
        pid: None,
        unknown: Unknown::new(),
    }
}

impl Case {
    fn decide(&self, node: &str) -> Decision {
        let (application, zone) = ("shop".parse().unwrap(), utc());
        let schedule = "@hourly".parse().unwrap();
        let entry = CronEntry {
            application: &application,
            name: "clean",
            schedule: &schedule,
            zone: &zone,
            since: at(SATURDAY - HOUR / 2),
            last: self.last.as_ref(),
            alive: self.last.as_ref().is_some_and(|last| self.able.contains(&last.node)),
            running: self.running,
        };
        decide(at(SATURDAY + 5 * HOUR + 7), &node.parse().unwrap(), &self.able, &entry)
    }
}

#[test]
fn one_node_runs_what_is_due_once() {
    let able: Vec<NodeId> = ["a", "b", "c"].map(|node| node.parse().unwrap()).into();
    let owner = owner(&"shop".parse().unwrap(), "clean", &able).unwrap().to_string();
    let other = able.iter().find(|node| node.as_str() != owner).unwrap().to_string();
    let mut case = Case { last: None, running: false, able };
    let five = SATURDAY + 5 * HOUR;
    let first = Decision::Run { due: at(five), attempt: 1 };
    assert_eq!(case.decide(&owner), first, "five were missed: one is made up for");
    assert_eq!(case.decide(&other), Decision::Nothing);
    case.last = Some(run(five, &other, true, 1));
    assert_eq!(case.decide(&owner), Decision::Nothing, "another one ran it");
    case.last = Some(run(five - HOUR, &owner, true, 1));
    assert_eq!(case.decide(&owner), first);
    case.running = true;
    assert_eq!(case.decide(&owner), Decision::Nothing, "the one before still runs");
    case.running = false;
    case.last = Some(run(five - HOUR, &other, false, 1));
    assert_eq!(case.decide(&owner), Decision::Nothing, "it runs elsewhere");
    // The node of the last run is gone.
    case.last = Some(run(five - HOUR, "z", false, 1));
    let again = Decision::Run { due: at(five - HOUR), attempt: 2 };
    assert_eq!(case.decide(&owner), again);
    case.last = Some(run(five - HOUR, "z", false, ATTEMPTS_MAX));
    assert_eq!(case.decide(&owner), first, "given up");
}
