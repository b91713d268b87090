//! Tests of pictures of a few nodes, and what each makes of them.

use super::*;

const OLD: ContentHash = ContentHash([1; 32]);
const NEW: ContentHash = ContentHash([2; 32]);

fn id(name: &str) -> NodeId {
    name.parse().unwrap()
}

fn roll() -> Roll {
    Roll {
        v: 1,
        id: "r1".into(),
        binary: NEW,
        version: "2".into(),
        nodes: vec![id("a"), id("b"), id("c")],
        limit_ms: 1000,
        asked_at: Timestamp(0),
        unknown: Default::default(),
    }
}

fn record(binary: ContentHash, phase: Option<TrialPhase>) -> NodeUpgrade {
    let trial = phase.map(|phase| TrialRecord {
        roll: "r1".into(),
        binary: NEW,
        phase,
        why: None,
        since: Timestamp(1000),
    });
    NodeUpgrade { v: 1, binary, trial, unknown: Default::default() }
}

/// Checks nodes `a`, `b`, `c`, of which `down` are not alive.
fn check(phases: [Option<TrialPhase>; 3], down: &[&str], now: u64, expected: RollStanding) {
    let names = ["a", "b", "c"];
    let of = |phase| record(if phase == Some(TrialPhase::Done) { NEW } else { OLD }, phase);
    let nodes = names.iter().zip(phases).map(|(name, phase)| (id(name), of(phase)));
    let alive = names.iter().filter(|name| !down.contains(name)).map(|name| id(name));
    let picture = Picture { roll: Some(roll()), nodes: nodes.collect(), alive: alive.collect() };
    assert_eq!(picture.standing(Timestamp(now)), expected, "{phases:?} {down:?} {now}");
}

const DONE: Option<TrialPhase> = Some(TrialPhase::Done);
const TRYING: Option<TrialPhase> = Some(TrialPhase::Trying);
const RETURNED: Option<TrialPhase> = Some(TrialPhase::Returned);
const LATER: u64 = 1000 + SETTLE_MS;

#[test]
fn nodes_take_turns() {
    check([None, None, None], &[], 0, RollStanding::Turn(id("a")));
    check([TRYING, None, None], &[], LATER, RollStanding::Trying(id("a")));
    check([DONE, None, None], &[], LATER, RollStanding::Turn(id("b")));
    check([DONE, DONE, None], &[], LATER, RollStanding::Turn(id("c")));
    check([DONE, DONE, DONE], &[], LATER, RollStanding::Finished);
    assert_eq!(Picture::default().standing(Timestamp(0)), RollStanding::None);
}

#[test]
fn the_next_one_waits_until_the_last_is_settled_and_alive() {
    let until = Timestamp(LATER);
    check([DONE, None, None], &[], LATER - 1, RollStanding::Settling { until });
    check([DONE, None, None], &["a"], LATER, RollStanding::Down(id("a")));
    check([DONE, None, None], &["b"], LATER, RollStanding::Down(id("b")));
    check([DONE, None, None], &["c"], LATER, RollStanding::Turn(id("b")));
    // While it tries, it may well be silent for a moment.
    check([TRYING, None, None], &["a"], LATER, RollStanding::Trying(id("a")));
}

#[test]
fn a_failure_stops_everybody() {
    check([DONE, RETURNED, None], &[], LATER, RollStanding::Stopped(id("b")));
    check([None, None, Some(TrialPhase::Refused)], &[], LATER, RollStanding::Stopped(id("c")));
}

#[test]
fn nodes_that_run_the_binary_have_no_turn_and_other_rolls_do_not_count() {
    let mut failed = record(OLD, RETURNED);
    failed.trial.as_mut().unwrap().roll = "r0".into();
    let nodes = BTreeMap::from([(id("a"), record(NEW, None)), (id("b"), failed)]);
    let alive = [id("a"), id("b"), id("c")].into();
    let picture = Picture { roll: Some(roll()), nodes, alive };
    assert_eq!(picture.standing(Timestamp(0)), RollStanding::Turn(id("b")));
}

#[test]
fn the_node_that_was_asked_comes_last() {
    let all = ["b", "a", "c", "a"].map(id);
    assert_eq!(order(all, &id("a")), ["b", "c", "a"].map(id));
}

#[test]
fn a_start_in_the_middle_of_a_trial_tells_how_it_ended() {
    let now = Timestamp(7);
    let done = at_start(Some(record(OLD, TRYING)), NEW, now);
    assert_eq!((done.binary, done.trial.unwrap().phase), (NEW, TrialPhase::Done));
    let back = at_start(Some(record(OLD, TRYING)), OLD, now).trial.unwrap();
    assert_eq!((back.phase, back.since), (TrialPhase::Returned, now));
    assert!(back.why.unwrap().contains("started anew"));
    assert_eq!(at_start(None, OLD, now).trial, None);
    let kept = at_start(Some(record(OLD, RETURNED)), NEW, now);
    assert_eq!((kept.binary, kept.trial.unwrap().phase), (NEW, TrialPhase::Returned));
}
