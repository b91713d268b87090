//! Tests of the replica, the history and the frames against the plainest model of each.

use std::collections::BTreeMap;

use model::{NodeId, Prefix, Timestamp};
use proptest::prelude::*;
use store_core::commit::{Commit, CommitAction, Location, NodeTag, Position};
use store_core::frame::{self, Damage, Ending, NextFrame, SECRET_LENGTH, Secret};
use store_core::history::{History, Inserted};
use store_core::record::{LogRecordError, Record};
use store_core::replica::{Admitted, Restoring};
use store_core::{CommitSum, Expiry, Horizons, Replica, Stamp};

const KEYS: [&str; 7] = ["a", "a::b", "a::bc", "a::b::c", "a!", "b::c", "b::c::d"];
const PREFIXES: [&str; 7] = ["", "a", "a::b", "a::b::c", "b", "c", "b::c::d::e"];

/// Returns the stamp with this number, four to a millisecond, so that instants of expiry fall
/// between and upon them.
fn stamp_of(number: u64) -> Stamp {
    Stamp(number << 14)
}

fn position(stamp: u64, node: u8) -> Position {
    let node: NodeId = ["n1", "n2", "n3"][node as usize % 3].parse().unwrap();
    Position { stamp: stamp_of(stamp), node: NodeTag::from(&node) }
}

/// Returns one content for each position, as positions are never used twice.
fn commit(stamp: u64, node: u8) -> Commit {
    let mix = (stamp * 31 + u64::from(node % 3) * 17) as usize;
    let expires = mix.is_multiple_of(3).then(|| Expiry::at(Timestamp(mix as u64 % 50)));
    let set = CommitAction::Set { hash: [mix as u8; 32], sha1: [node; 20], size: stamp, expires };
    Commit {
        at: position(stamp, node),
        key: KEYS[mix % KEYS.len()].into(),
        action: if mix.is_multiple_of(4) { CommitAction::Delete } else { set },
        location: match mix % 4 {
            0 => Location::Nowhere,
            1 => Location::File,
            _ => Location::Log { segment: (mix % 3) as u32, offset: 8 },
        },
    }
}

#[derive(Clone, Debug)]
enum Step {
    Admit {
        stamp: u64,
        node: u8,
    },
    Raise {
        squash: u64,
        garbage: u64,
    },
    /// The clock goes on, and every expiry that it passed is noticed.
    Wait {
        to: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1u64..200, 0u8..3).prop_map(|(stamp, node)| Step::Admit { stamp, node }),
        1 => (0u64..200, 0u64..150).prop_map(|(squash, garbage)| Step::Raise { squash, garbage }),
        1 => (0u64..60).prop_map(|to| Step::Wait { to }),
    ]
}

/// Applies the rule of normalising, word by word.
fn normalise(held: &mut BTreeMap<Position, Commit>, horizons: Horizons) {
    loop {
        let unwanted = held.values().find(|c| {
            let stamp = c.at.stamp;
            let superseded = held.values().any(|other| other.key == c.key && other.at > c.at);
            if superseded {
                stamp < horizons.squash || stamp <= horizons.garbage
            } else {
                let passed = |e: Expiry| e.time() < horizons.squash.time();
                let ended = c.is_delete() || c.expires().is_some_and(passed);
                ended && stamp <= horizons.garbage
            }
        });
        let Some(at) = unwanted.map(|commit| commit.at) else { return };
        held.remove(&at);
    }
}

fn check_against(replica: &Replica, held: &BTreeMap<Position, Commit>, now: Timestamp) {
    replica.check_invariants();
    assert!(replica.history().iter().eq(held.values()));
    let mut restoring = Restoring::new(replica.horizons());
    for commit in replica.history().iter() {
        assert!(restoring.take(commit.clone(), &commit.cid()));
    }
    let restored = restoring.finish();
    restored.check_invariants();
    assert_eq!(restored.live(now), replica.live(now));
    assert_eq!(restored.segments(), replica.segments());
    let prefix = Prefix::all();
    assert!(restored.prefix(&prefix, now).into_iter().eq(replica.prefix(&prefix, now)));
    let mut winners: BTreeMap<&str, &Commit> = BTreeMap::new();
    for commit in held.values() {
        winners.insert(&commit.key, commit);
    }
    winners.retain(|_, commit| commit.lives(now));
    assert_eq!(replica.live(now), winners.len());
    for text in PREFIXES {
        let prefix: Prefix = text.parse().unwrap();
        let expected = winners.values().filter(|c| prefix.matches(&c.key.parse().unwrap()));
        assert!(replica.prefix(&prefix, now).into_iter().eq(expected.copied()), "{text}");
    }
    for text in PREFIXES {
        let prefix: Prefix = text.parse().unwrap();
        let expected: Vec<&str> = replica.prefix(&prefix, now).iter().map(|c| &*c.key).collect();
        for after in KEYS.iter().chain(&["", "a::b::a", "b", "zz"]) {
            let later = expected.iter().filter(|key| *key > after);
            for limit in [2, 100] {
                let page = replica.page(&prefix, after, limit, now);
                let keys = page.iter().map(|commit| &*commit.key);
                assert!(keys.eq(later.clone().copied().take(limit)), "{text} {after} {limit}");
            }
        }
    }
    for key in KEYS {
        assert_eq!(replica.get(key, now), winners.get(key).copied());
    }
    let in_log = |commit: &&Commit| matches!(commit.location, Location::Log { segment: 1, .. });
    let expected: Vec<&Commit> = held.values().filter(in_log).collect();
    assert!(replica.located_in(1).eq(expected.iter().copied()));
    assert_eq!(replica.segments().contains_key(&1), !expected.is_empty());
    for value in 0..=255u8 {
        let refers = |c: &Commit| {
            c.location == Location::File
                && matches!(c.action, CommitAction::Set { hash, .. } if hash == [value; 32])
        };
        assert_eq!(replica.refers_to(&[value; 32]), held.values().any(refers));
    }
}

proptest! {
    #[test]
    fn a_replica_holds_what_the_rule_says(steps in prop::collection::vec(step(), 0..60)) {
        let mut replica = Replica::default();
        let mut held = BTreeMap::new();
        let mut horizons = Horizons::default();
        let mut now = Timestamp(0);
        for step in steps {
            match step {
                Step::Admit { stamp, node } => {
                    let commit = commit(stamp, node);
                    held.insert(commit.at, commit.clone());
                    replica.admit(commit);
                }
                Step::Raise { squash, garbage } => {
                    let raised = Horizons { squash: stamp_of(squash), garbage: stamp_of(garbage) };
                    horizons = horizons.max(raised);
                    replica.raise(raised);
                }
                Step::Wait { to } => {
                    now = now.max(Timestamp(to));
                    while let Some(commit) = replica.notice_expiry(now) {
                        prop_assert!(!commit.lives(now));
                    }
                    prop_assert!(replica.next_expiry().is_none_or(|e| !e.has_passed(now)));
                }
            }
            normalise(&mut held, horizons);
            check_against(&replica, &held, now);
        }
    }

    #[test]
    fn the_order_of_arrival_does_not_matter(
        mut commits in prop::collection::vec((1u64..500, 0u8..3), 1..80),
        seed: u64,
    ) {
        commits.sort();
        commits.dedup();
        let load = |commits: &[(u64, u8)]| {
            let mut replica = Replica::default();
            for (stamp, node) in commits {
                replica.admit(commit(*stamp, *node));
            }
            replica
        };
        let one = load(&commits);
        commits.sort_by_key(|(stamp, node)| {
            (stamp ^ seed).wrapping_mul(0x9e37_79b9) ^ u64::from(*node)
        });
        let other = load(&commits);
        prop_assert_eq!(one.history().head(), other.history().head());
        let all = |replica: &Replica| -> Vec<Commit> {
            replica.prefix(&Prefix::all(), Timestamp(0)).into_iter().cloned().collect()
        };
        prop_assert_eq!(all(&one), all(&other));
    }

    #[test]
    fn no_payload_panics(bytes: Vec<u8>, kind in 0u8..10) {
        let mut payload = vec![kind];
        payload.extend_from_slice(&bytes);
        let _ = Record::decode(&payload);
    }

    #[test]
    fn no_segment_panics(bytes: Vec<u8>, at in 0usize..64) {
        let mut whole = segment(&[3]);
        whole.truncate(at.min(whole.len()));
        whole.extend_from_slice(&bytes);
        let _ = Secret::NONE.check(&whole, 0, None, Ending::MayBeTorn);
        let _ = Secret::NONE.check(&whole, 0, Some(1), Ending::Sealed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn sums_and_fingerprints_of_any_range_are_right(
        stamps in prop::collection::vec((1u64..4000, 0u8..3, any::<bool>()), 1500..3000),
        ranges in prop::collection::vec((0u64..4000, 0u64..4000), 20),
        limit in 0u64..4000,
    ) {
        let mut history = History::default();
        let mut model = BTreeMap::new();
        for (i, (stamp, node, removes)) in stamps.into_iter().enumerate() {
            // Stamps are mostly appended, as in life; then blocks fill before they are split.
            let stamp = if i < 1000 { i as u64 * 2 } else { stamp };
            let commit = commit(stamp, node);
            if removes && i > 1200 {
                prop_assert_eq!(history.remove(commit.at), model.remove(&commit.at));
            } else {
                let known = model.insert(commit.at, commit.clone());
                let expected = known.map_or(Inserted::New, Inserted::Known);
                prop_assert_eq!(history.insert(commit), expected);
            }
        }
        history.check_invariants();
        let frozen = history.clone();
        let before = frozen.head();
        let dropped = history.retain_before(position(limit, 0), |c| c.is_delete());
        prop_assert!(dropped.iter().all(|c| model.contains_key(&c.at) && !c.is_delete()));
        prop_assert_eq!(frozen.head(), before);
        frozen.check_invariants();
        model.retain(|at, c| *at >= position(limit, 0) || c.is_delete());
        history.check_invariants();
        prop_assert!(history.iter().eq(model.values()));
        let naive = |from: Position, to: Position| {
            let within = model.values().filter(|c| from <= c.at && c.at < to);
            within.fold(CommitSum::default(), |sum, c| sum.plus(CommitSum::of(&c.cid())))
        };
        for (from, to) in ranges {
            let (from, to) = (position(from, 1), position(to, 2));
            let range = history.fingerprint(Some(from), Some(to));
            prop_assert_eq!(range, naive(from, to).fingerprint());
            let lower = history.fingerprint(None, Some(to));
            prop_assert_eq!(lower, naive(position(0, 0), to).fingerprint());
        }
        if let Some(some) = model.values().nth(model.len() / 2) {
            let before = naive(position(0, 0), some.at).fingerprint().0;
            let chained = blake3::hash(&[&some.cid()[..], &before].concat());
            prop_assert_eq!(history.chained_id(some.at), Some(*chained.as_bytes()));
        }
    }
}

/// Returns a segment of batches with these numbers of frames, then zeros.
fn segment(batches: &[usize]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (i, frames) in batches.iter().enumerate() {
        for n in 0..*frames {
            let payload = vec![0x40 + i as u8; 3 + n];
            frame::write(&mut bytes, 1 + i as u64, n + 1 == *frames, &payload);
        }
    }
    bytes.resize(bytes.len() + 80, 0);
    bytes
}

/// Returns where the batches end.
fn ends(bytes: &[u8]) -> Vec<usize> {
    let all = Secret::NONE.frames(bytes, 0, bytes.len());
    all.filter(|(_, frame)| frame.last).map(|(at, frame)| at + frame.length).collect()
}

#[test]
fn a_write_torn_at_any_byte_costs_its_own_batch_only() {
    let whole = segment(&[1, 3, 1, 2]);
    let ends = ends(&whole);
    for cut in 0..whole.len() {
        let mut torn = whole.clone();
        torn[cut..].fill(0);
        let extent = Secret::NONE.check(&torn, 0, Some(1), Ending::MayBeTorn).unwrap();
        // A payload's last bytes are never zero here, so the batch is whole once it is there.
        let padding = |end: &&usize| **end <= cut || whole[cut..**end].iter().all(|b| *b == 0);
        let kept = ends.iter().filter(padding).count();
        assert_eq!(extent.end, kept.checked_sub(1).map_or(0, |last| ends[last]), "{cut}");
        assert_eq!(extent.batches, (kept > 0).then_some((1, kept as u64)), "{cut}");
    }
}

#[test]
fn pages_of_the_last_write_may_be_missing_in_any_order() {
    let whole = segment(&[1, 4]);
    let first = ends(&whole)[0];
    for start in (first..whole.len() - 80).step_by(8) {
        let mut torn = whole.clone();
        torn[start..start + 8].fill(0xee);
        let extent = Secret::NONE.check(&torn, 0, Some(1), Ending::MayBeTorn).unwrap();
        assert!(extent.torn && extent.end == first, "{start}");
    }
}

#[test]
fn one_flipped_byte_is_never_overlooked() {
    let whole = segment(&[1, 3, 1, 2]);
    let acknowledged = *ends(&whole).iter().rev().nth(1).unwrap();
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        let damage = Secret::NONE.check(&flipped, 0, Some(1), Ending::Sealed).unwrap_err();
        assert!(damage.offset() <= at, "{at}: {damage}");
        let last = Secret::NONE.check(&flipped, 0, Some(1), Ending::MayBeTorn);
        if at < acknowledged {
            assert!(matches!(last, Err(Damage::Followed { .. })), "{at}: {last:?}");
        } else {
            assert!(last.unwrap().torn, "{at}");
        }
    }
}

#[test]
fn batches_out_of_order_are_damage() {
    let mut bytes = segment(&[1]);
    let damage = Secret::NONE.check(&bytes, 0, Some(2), Ending::MayBeTorn).unwrap_err();
    assert_eq!(damage, Damage::OutOfOrder { offset: 0, expected: 2, found: 1 });
    let end = ends(&bytes)[0];
    bytes.truncate(end);
    frame::write(&mut bytes, 3, true, b"x");
    let damage = Secret::NONE.check(&bytes, 0, Some(1), Ending::Sealed).unwrap_err();
    assert_eq!(damage, Damage::OutOfOrder { offset: end, expected: 2, found: 3 });
    assert_eq!(frame::read(&[0; 40]), NextFrame::Blank);
}

#[test]
fn records_round_trip_and_unknown_kinds_are_named() {
    let set = commit(1, 1);
    let mut inline = Commit { location: Location::Log { segment: 0, offset: 0 }, ..commit(5, 2) };
    inline.action = CommitAction::Set { hash: [1; 32], sha1: [2; 20], size: 3, expires: None };
    let horizons = Horizons { squash: Stamp(4), garbage: Stamp(3) };
    let head = CommitSum::default().fingerprint();
    let (format, next, batch, clock) = (1, 9, 77, Stamp(8));
    for record in [
        Record::Segment { format: 1, number: 2, capacity: 4096 },
        Record::Secret([7; SECRET_LENGTH]),
        Record::Commit { commit: inline.clone(), value: b"abc" },
        Record::Moved { commit: inline, value: b"abc" },
        Record::Commit { commit: commit(4, 0), value: b"" },
        Record::Horizons(horizons),
        Record::Closed,
        Record::Snapshot { format, next, batch, clock, horizons },
        Record::Block(vec![set, commit(2, 0), commit(3, 1)]),
        Record::SnapshotEnd { commits: 3, head },
    ] {
        let mut payload = Vec::new();
        record.encode(&mut payload);
        assert_eq!(Record::decode(&payload).as_ref(), Ok(&record));
        payload.push(0);
        assert!(Record::decode(&payload).is_err(), "{record:?}");
    }
    assert_eq!(Record::decode(&[200]), Err(LogRecordError::Kind(200)));
}

#[test]
fn two_commits_at_one_position_are_a_conflict() {
    let mut replica = Replica::default();
    replica.admit(commit(1, 1));
    let other = Commit { key: "other".into(), ..commit(1, 1) };
    assert_eq!(replica.admit(other), Admitted::Conflict);
    replica.check_invariants();
    assert_eq!(replica.history().len(), 1);
}

#[test]
fn a_delete_that_nobody_needs_ends_what_it_follows() {
    let mut replica = Replica::default();
    let set = Commit { key: "k".into(), ..commit(1, 0) };
    let delete = |node| Commit {
        action: CommitAction::Delete,
        location: Location::Nowhere,
        ..commit(2, node)
    };
    let delete = |node| Commit { key: "k".into(), ..delete(node) };
    replica.admit(set);
    let garbage = delete(1).at.stamp;
    replica.raise(Horizons { squash: Stamp(garbage.0 + 1), garbage });
    assert_eq!(replica.history().len(), 1);
    assert_eq!(replica.admit(delete(0)), Admitted::Ended);
    assert_eq!(replica.admit(delete(1)), Admitted::Dropped);
    replica.check_invariants();
    assert_eq!(replica.history().len(), 0);
}
