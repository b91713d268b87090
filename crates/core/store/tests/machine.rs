//! Tests of the machine: nothing is seen, acknowledged or announced before it is durable.

use std::collections::BTreeMap;

use model::{Machine, Prefix, Timestamp};
use proptest::prelude::*;
use store_core::event::{BatchEntry, Change, Effect, Event, Ticket, Unwritten, Write};
use store_core::machine::{
    BATCH_WRITES_MAX, DROPPABLE_MAX, EXPIRIES_PER_TICK_MAX, SQUASH_AGE, SQUASH_INTERVAL,
    WRITES_WAITING_MAX,
};
use store_core::sync::message::ClusterId;
use store_core::{Expiry, Location, Past, StoreMachine};

const NOW: Timestamp = Timestamp(1_000_000_000);

fn machine() -> StoreMachine {
    let node = "n1".parse().unwrap();
    StoreMachine::new(&node, NOW, Past::default(), ClusterId::default())
}

fn write(ticket: u64, key: &str, value: Option<u8>) -> Write {
    let change = match value {
        Some(v) => set(v, None),
        None => Change::Delete,
    };
    Write { ticket: Ticket(ticket), key: key.parse().unwrap(), change, only_over: None }
}

fn set(v: u8, expires: Option<Timestamp>) -> Change {
    let expires = expires.map(Expiry::at);
    Change::SetInline { hash: [v; 32], sha1: [v; 20], size: v.into(), expires }
}

/// Makes the writes durable and returns the effects.
fn commit(machine: &mut StoreMachine, now: Timestamp, writes: Vec<Write>) -> Vec<Effect> {
    let mut effects = Vec::new();
    machine.handle(now, Event::Write(writes), &mut effects);
    if let Some((batch, entries)) = batch_of(&effects) {
        machine.handle(now, persisted(batch, &entries), &mut effects);
    }
    effects
}

fn feed(machine: &mut StoreMachine, event: Event) -> Vec<Effect> {
    let mut effects = Vec::new();
    machine.handle(NOW, event, &mut effects);
    effects
}

fn batch_of(effects: &[Effect]) -> Option<(u64, Vec<BatchEntry>)> {
    effects.iter().find_map(|effect| match effect {
        Effect::Persist { batch, entries } => Some((*batch, entries.to_vec())),
        _ => None,
    })
}

fn persisted(batch: u64, entries: &[BatchEntry]) -> Event {
    let location = |(i, entry): (usize, &BatchEntry)| match entry {
        BatchEntry::Commit { commit, .. } if !commit.is_delete() => {
            Location::Log { segment: batch as u32, offset: i as u32 }
        }
        _ => Location::Nowhere,
    };
    Event::Persisted { batch, locations: entries.iter().enumerate().map(location).collect() }
}

fn acknowledged(effects: &[Effect]) -> Vec<(u64, bool)> {
    let answers = effects.iter().filter_map(|effect| match effect {
        Effect::Acknowledge { ticket, cid } => Some((ticket.0, cid.is_some())),
        _ => None,
    });
    answers.collect()
}

proptest! {
    #[test]
    fn what_is_durable_and_only_that_is_seen(
        steps in prop::collection::vec(
            (prop::collection::vec((0usize..4, prop::option::of(1u8..9)), 0..5), 0u8..3), 1..30,
        ),
    ) {
        let keys = ["a", "a::b", "b", "c"];
        let mut machine = machine();
        let mut model: BTreeMap<&str, u8> = BTreeMap::new();
        let mut on_its_way: Option<(u64, Vec<BatchEntry>)> = None;
        let mut ticket = 0;
        for (writes, answer) in steps {
            let writes = writes.into_iter().map(|(key, value)| {
                ticket += 1;
                write(ticket, keys[key], value)
            });
            let mut effects = feed(&mut machine, Event::Write(writes.collect()));
            if let Some((batch, entries)) = on_its_way.take() {
                prop_assert!(batch_of(&effects).is_none(), "one batch at a time");
                match answer {
                    0 => on_its_way = Some((batch, entries)),
                    1 => effects.extend(feed(&mut machine, Event::Refused { batch })),
                    _ => {
                        for entry in &entries {
                            let BatchEntry::Commit { commit, .. } = entry else { continue };
                            let key = keys.iter().find(|key| **key == &*commit.key).unwrap();
                            if commit.is_delete() {
                                prop_assert!(model.remove(key).is_some(), "deletes what is there");
                            } else {
                                model.insert(key, commit.size() as u8);
                            }
                        }
                        effects.extend(feed(&mut machine, persisted(batch, &entries)));
                    }
                }
            }
            on_its_way = on_its_way.or_else(|| batch_of(&effects));
            machine.replica().check_invariants();
            let seen: BTreeMap<&str, u8> = machine
                .replica()
                .prefix(&Prefix::all(), NOW)
                .into_iter()
                .map(|commit| (&*commit.key, commit.size() as u8))
                .collect();
            prop_assert_eq!(&seen, &model);
        }
    }
}

#[test]
fn writers_that_wait_share_the_next_batch() {
    let mut machine = machine();
    let (first, entries) =
        batch_of(&feed(&mut machine, Event::Write(vec![write(1, "a", Some(1))])))
            .expect("the first goes at once");
    for ticket in 2..5 {
        assert_eq!(feed(&mut machine, Event::Write(vec![write(ticket, "b", Some(2))])), []);
    }
    let effects = feed(&mut machine, persisted(first, &entries));
    let notify = effects.iter().position(|e| matches!(e, Effect::Notify { .. })).unwrap();
    let persist = effects.iter().position(|e| matches!(e, Effect::Persist { .. })).unwrap();
    assert!(notify < persist);
    assert_eq!(acknowledged(&effects), [(1, true)]);
    let (second, entries) = batch_of(&effects).unwrap();
    assert_eq!((second, entries.len()), (first + 1, 3));
    // A late report of an earlier batch changes nothing.
    assert_eq!(feed(&mut machine, persisted(first, &entries)), []);
    let effects = feed(&mut machine, persisted(second, &entries));
    assert_eq!(acknowledged(&effects), [(2, true), (3, true), (4, true)]);
}

#[test]
fn a_refused_batch_leaves_no_gap_and_no_trace() {
    let mut machine = machine();
    let effects = feed(&mut machine, Event::Write(vec![write(1, "a", Some(1))]));
    let (batch, _) = batch_of(&effects).unwrap();
    let effects = feed(&mut machine, Event::Refused { batch });
    assert_eq!(effects, [Effect::Refuse { ticket: Ticket(1), reason: Unwritten::NoRoom }]);
    assert!(machine.replica().history().is_empty());
    let effects =
        feed(&mut machine, Event::Write(vec![write(2, "a", None), write(3, "a", Some(1))]));
    assert_eq!(acknowledged(&effects), [(2, false)]);
    assert_eq!(batch_of(&effects).unwrap().0, batch);
}

#[test]
fn the_queue_and_the_batches_are_bounded() {
    let mut machine = machine();
    let many = |from: u64, count: usize| {
        Event::Write((0..count as u64).map(|n| write(from + n, "a", Some(1))).collect())
    };
    let (_, first) = batch_of(&feed(&mut machine, many(0, BATCH_WRITES_MAX + 5))).unwrap();
    assert_eq!(first.len(), BATCH_WRITES_MAX);
    let effects = feed(&mut machine, many(10_000, WRITES_WAITING_MAX));
    // The first batch has the node's standing too.
    assert_eq!(effects.len(), 6);
    assert!(effects.iter().all(|effect| matches!(effect, Effect::Refuse { .. })));
}

#[test]
fn the_hourly_squash_keeps_a_day_and_drops_deletes_for_good() {
    let mut machine = machine();
    let mut at = NOW;
    commit(&mut machine, at, vec![write(1, "kept", Some(1))]);
    commit(&mut machine, at, vec![write(2, "kept", Some(2))]);
    commit(&mut machine, at, vec![write(3, "gone", Some(1))]);
    commit(&mut machine, at, vec![write(4, "gone", None)]);
    assert_eq!(machine.replica().history().len(), 4);
    at = at.after(SQUASH_AGE);
    commit(&mut machine, at, vec![write(5, "kept", Some(3))]);
    let mut effects = Vec::new();
    machine.tick(at.after(SQUASH_INTERVAL), &mut effects);
    assert!(machine.deadline().unwrap() > at.after(SQUASH_INTERVAL));
    let (batch, entries) = batch_of(&effects).unwrap();
    machine.handle(at, persisted(batch, &entries), &mut effects);
    machine.replica().check_invariants();
    // Superseded values of more than a day ago go, and so does the delete.
    let left: Vec<u64> = machine.replica().history().iter().map(|c| c.size()).collect();
    assert_eq!(left, [3]);
    assert_eq!(machine.replica().live(at), 1);
}

#[test]
fn what_newer_writes_have_replaced_is_bounded_before_a_day_has_passed() {
    let (mut machine, mut now, mut most) = (machine(), NOW, 0);
    // Beside horizons and the like there is room for these in one batch.
    const WRITES: u64 = BATCH_WRITES_MAX as u64 / 2;
    for round in 0..2 * DROPPABLE_MAX as u64 / WRITES {
        now = now.after(std::time::Duration::from_millis(1));
        let value = round as u8;
        let of_one = |ticket| write(ticket, &format!("a{}", ticket % 8), Some(value));
        commit(&mut machine, now, (0..WRITES).map(of_one).collect());
        most = most.max(machine.replica().droppable());
    }
    let bound = DROPPABLE_MAX + 2 * BATCH_WRITES_MAX;
    assert!(DROPPABLE_MAX < most && most <= bound, "{most} of {bound}");
    assert_eq!(machine.replica().live(now), 8);
    // The newer half of it still tells who set what.
    assert!(machine.replica().history().len() > DROPPABLE_MAX / 3);
}

#[test]
fn a_moved_commit_that_was_dropped_meanwhile_stays_dropped() {
    let mut machine = machine();
    let effects =
        feed(&mut machine, Event::Write(vec![write(1, "a", Some(1)), write(2, "a", None)]));
    let (batch, entries) = batch_of(&effects).unwrap();
    let Some(BatchEntry::Commit { commit, .. }) = entries.get(1) else { panic!("a commit") };
    let at = commit.at;
    feed(&mut machine, persisted(batch, &entries));
    // The squash and the move travel in one batch, as both waited for the same fdatasync.
    let effects = feed(&mut machine, Event::Write(vec![write(3, "b", Some(1))]));
    let (batch, entries) = batch_of(&effects).unwrap();
    let later = Timestamp(NOW.0 + 10);
    feed(&mut machine, Event::Squash { before: later });
    feed(&mut machine, Event::Move(vec![(Ticket(4), at)]));
    let effects = feed(&mut machine, persisted(batch, &entries));
    let (batch, entries) = batch_of(&effects).unwrap();
    // What this node promises comes first, as it collects what it alone had to know.
    assert_eq!(entries.len(), 3);
    let effects = feed(&mut machine, persisted(batch, &entries));
    assert_eq!(acknowledged(&effects), [(4, false)]);
    assert!(machine.replica().get("a", NOW).is_none());
    machine.replica().check_invariants();
}

#[test]
fn an_expired_value_is_absent_at_once_announced_once_and_dropped_by_the_horizons() {
    let mut machine = machine();
    let later = Timestamp(NOW.0 + 50);
    let expiring = Write { change: set(1, Some(later)), ..write(1, "a", None) };
    commit(&mut machine, NOW, vec![expiring, write(2, "b", Some(2))]);
    assert_eq!(machine.deadline(), Some(later));
    assert!(machine.replica().get("a", Timestamp(later.0 - 1)).is_some());
    assert!(machine.replica().get("a", later).is_none());
    assert_eq!(machine.replica().live(later), 1);
    // What is not there cannot be deleted.
    assert_eq!(acknowledged(&commit(&mut machine, later, vec![write(3, "a", None)])), [(3, false)]);
    let mut effects = Vec::new();
    machine.tick(later, &mut effects);
    assert!(matches!(&effects[..], [Effect::Expired { commit, .. }] if &*commit.key == "a"));
    assert!(machine.deadline().unwrap() > later);
    // A squash at that very millisecond keeps it, as another node's clock may be behind.
    for (before, left) in [(later, 2), (Timestamp(later.0 + 1), 1)] {
        let end = Timestamp(later.0 + 10);
        commit(&mut machine, end, vec![write(4, "b", Some(3))]);
        effects.clear();
        machine.handle(end, Event::Squash { before }, &mut effects);
        let (batch, entries) = batch_of(&effects).unwrap();
        machine.handle(end, persisted(batch, &entries), &mut effects);
        machine.replica().check_invariants();
        let keys: std::collections::BTreeSet<&str> =
            machine.replica().history().iter().map(|commit| &*commit.key).collect();
        assert_eq!(keys.len(), left);
    }
}

#[test]
fn a_tick_announces_a_bounded_number_and_moves_its_deadline() {
    let mut machine = machine();
    let later = Timestamp(NOW.0 + 5);
    let many = EXPIRIES_PER_TICK_MAX + 7;
    for i in 0..many {
        let change = set(1, Some(later));
        commit(&mut machine, NOW, vec![Write { change, ..write(0, &format!("k{i}"), None) }]);
    }
    let mut effects = Vec::new();
    machine.tick(later, &mut effects);
    assert_eq!(effects.len(), EXPIRIES_PER_TICK_MAX);
    let next = machine.deadline().unwrap();
    assert!(next > later);
    machine.tick(next, &mut effects);
    assert_eq!(effects.len(), many);
    assert!(machine.deadline().unwrap() > next);
}

#[test]
fn what_rests_on_a_read_is_refused_when_another_write_came_between() {
    let mut machine = machine();
    commit(&mut machine, NOW, vec![write(1, "a", Some(1))]);
    let held = machine.replica().get("a", NOW).map(|commit| commit.at);
    let over = |ticket, value| Write { only_over: held, ..write(ticket, "a", value) };
    // The first write of a batch overtakes the second, although neither is durable yet.
    let effects = commit(&mut machine, NOW, vec![over(2, Some(2)), over(3, Some(3))]);
    assert_eq!(acknowledged(&effects), [(3, false), (2, true)]);
    assert_eq!(acknowledged(&commit(&mut machine, NOW, vec![over(4, None)])), [(4, false)]);
    assert_eq!(machine.replica().get("a", NOW).unwrap().size(), 2);
}
