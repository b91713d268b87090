//! Tests of what peers say once they are let in: commits that cannot be, batches without end, last
//! words too early, whole sessions again.

use model::Timestamp;
use store_core::event::{Alarm, Event};
use store_core::sync::compare::{self, ROUNDS_MAX, SUMMARIES_MAX};
use store_core::sync::message::{
    Body, RangeHoldings, RangeSummary, SessionRefusal, StampRange, SummaryAnswer,
};
use store_core::{Commit, CommitAction, Fingerprint, Horizons, NodeTag, Position, Stamp};

use crate::greetings::{good_session, greet, open};
use crate::node::{CLUSTER, Node, set, stamp, tag};

fn at(node: &Node, ago: u64, of: &str) -> Position {
    Position { stamp: stamp(Timestamp(node.now.0 - ago)), node: tag(of) }
}

fn opened() -> (Node, NodeTag) {
    let mut node = Node::founder();
    node.write("mine", true);
    node.pass(50);
    greet(&mut node, tag("n2"), 1);
    (node, tag("n2"))
}

fn quarantined(node: &Node, reason: SessionRefusal) -> usize {
    let alarm = Alarm::Quarantined { peer: tag("n2"), reason };
    node.alarms.iter().filter(|found| **found == alarm).count()
}

#[test]
fn two_commits_at_one_position_are_a_conflict_and_the_first_stays() {
    let (mut node, n2) = opened();
    let place = at(&node, 10, "n2");
    let other = CommitAction::Set { hash: [9; 32], sha1: [9; 20], size: 0, expires: None };
    let other = Commit { action: other, ..set(place, "k") };
    for (session, batch) in [(1, 0), (2, 1), (3, 2)] {
        greet(&mut node, n2, session);
        node.commits(n2, session, batch, vec![set(place, "k"), other.clone(), other.clone()]);
        assert_eq!(node.refusal_to(n2), Some(SessionRefusal::Conflict));
    }
    let kept = node.machine.replica().newest("k").unwrap().clone();
    assert_eq!(kept.cid(), set(place, "k").cid(), "the first one stays");
    assert_eq!(quarantined(&node, SessionRefusal::Conflict), 1);
    assert_eq!(node.alarms.len(), 2, "{:?}", node.alarms);
    assert!(node.alarms.contains(&Alarm::Conflict { position: place, peer: n2 }));
    node.finish();
}

#[test]
fn a_conflict_is_over_when_both_hold_the_same_and_is_told_again_after_that() {
    let (mut node, n2) = opened();
    let place = at(&node, 10, "n2");
    let conflict = Alarm::Conflict { position: place, peer: n2 };
    let clash = |node: &mut Node, session| {
        greet(node, n2, session);
        node.commits(n2, session, 0, vec![set(place, "k"), set(place, "l")]);
        assert_eq!(node.refusal_to(n2), Some(SessionRefusal::Conflict));
        node.pass(100);
    };
    let told = |node: &Node| node.alarms.iter().filter(|alarm| **alarm == conflict).count();
    clash(&mut node, 2);
    // A session with another peer changes nothing about it.
    good_session(&mut node, tag("n3"), 3);
    assert!(node.machine.alarms().any(|alarm| *alarm == conflict));
    clash(&mut node, 4);
    assert_eq!(told(&node), 1);
    good_session(&mut node, n2, 5);
    assert_eq!(node.machine.alarms().count(), 0);
    clash(&mut node, 6);
    assert_eq!(told(&node), 2);
    // A removed peer is nobody's concern any more.
    node.write("cluster::nodes::n2", false);
    node.pass(100);
    assert_eq!(node.machine.alarms().count(), 0);
    node.finish();
}

#[test]
fn a_lost_past_is_over_once_everything_is_here_again() {
    let (mut node, n2) = opened();
    let mut hello = node.hello_of(n2);
    hello.acks.insert(tag("n1"), stamp(Timestamp(node.now.0 + 100)));
    open(&mut node, n2, 2, hello);
    let lost = Alarm::LostPast { authority: n2 };
    assert!(node.machine.alarms().any(|alarm| *alarm == lost), "{:?}", node.alarms);
    assert!(node.machine.is_fresh());
    node.pass(2000);
    good_session(&mut node, n2, 3);
    assert!(node.machine.alarms().any(|alarm| *alarm == lost), "n3 may have more");
    // Their vectors reach the log now and then.
    for session in 4..20 {
        node.pass(20_000);
        good_session(&mut node, [n2, tag("n3")][session as usize % 2], session);
    }
    assert!(!node.machine.is_fresh());
    assert_eq!(node.machine.alarms().count(), 0);
    assert_eq!(node.alarms.iter().filter(|alarm| **alarm == lost).count(), 1);
    node.finish();
}

#[test]
fn any_number_of_conflicts_fills_no_memory() {
    let (mut node, n2) = opened();
    for session in 2..60 {
        greet(&mut node, n2, session);
        let place =
            |n| Position { stamp: Stamp(stamp(node.now).0 - 100_000 * session - n), node: n2 };
        let twice = (0..20).flat_map(|n| [set(place(n), "k"), set(place(n), "l")]).collect();
        node.commits(n2, session, 0, twice);
    }
    assert!(node.alarms.len() <= 300, "{}", node.alarms.len());
    node.finish();
}

/// A node whose disk was set back meets its own commits like that: it takes them back.
#[test]
fn a_node_takes_back_a_commit_of_its_own_that_it_lost() {
    let (mut node, n2) = opened();
    let place = at(&node, 0, "n1");
    node.commits(n2, 1, 0, vec![set(place, "k")]);
    assert_eq!(node.machine.replica().newest("k").map(|c| c.at), Some(place));
    node.write("k", true);
    assert!(node.machine.replica().newest("k").unwrap().at > place, "its own are above it");
    node.finish();
}

#[test]
fn another_commit_at_a_position_of_this_node_is_a_conflict() {
    let (mut node, n2) = opened();
    let mine = node.machine.replica().newest("mine").unwrap().clone();
    node.commits(n2, 1, 0, vec![set(mine.at, "other")]);
    assert_eq!(node.refusal_to(n2), Some(SessionRefusal::Conflict));
    assert!(node.alarms.contains(&Alarm::Conflict { position: mine.at, peer: n2 }));
    assert_eq!(node.machine.replica().newest("mine"), Some(&mine));
    node.finish();
}

#[test]
fn commits_from_the_future_are_parked_until_their_time() {
    let (mut node, n2) = opened();
    let ahead = Position { stamp: stamp(Timestamp(node.now.0 + 2000)), node: n2 };
    node.commits(n2, 1, 0, vec![set(ahead, "k"), set(ahead, "k")]);
    assert!(node.machine.replica().newest("k").is_none());
    assert_eq!(node.machine.sync().parked(), 1);
    node.say(n2, 1, Body::Done { vector: [(n2, stamp(node.now))].into() });
    assert!(matches!(node.sent.last().unwrap().1.body, Body::Noted { whole: false, .. }));
    assert!(node.machine.sync().members().held().get(&n2).is_none());
    node.pass(1600);
    assert_eq!(node.machine.replica().newest("k").map(|c| c.at), Some(ahead));
    // Any number of them may come: no more wait than fit.
    greet(&mut node, n2, 2);
    let place = |n| Position { stamp: Stamp(u64::MAX - n), node: n2 };
    node.commits(n2, 2, 0, (0..3000).map(|n| set(place(n), "far")).collect());
    assert_eq!(node.machine.sync().parked(), 1024);
    node.finish();
}

#[test]
fn too_many_batches_or_one_twice_end_the_session() {
    for batches in [vec![0, 1, 2, 3, 4], vec![0, 0]] {
        let (mut node, n2) = opened();
        node.slow_disk = true;
        let last = batches.len() - 1;
        for (n, batch) in batches.into_iter().enumerate() {
            assert_eq!(node.refusal_to(n2), None);
            let commit = set(at(&node, n as u64, "n2"), "k");
            node.commits(n2, 1, batch, vec![commit]);
            assert_eq!(node.refusal_to(n2).is_some(), n == last);
        }
        assert_eq!(node.refusal_to(n2), Some(SessionRefusal::OutOfPlace));
        assert_eq!(quarantined(&node, SessionRefusal::OutOfPlace), 1);
        node.finish();
    }
}

#[test]
fn a_session_cannot_end_before_its_commits_are_durable() {
    let (mut node, n2) = opened();
    node.slow_disk = true;
    node.commits(n2, 1, 0, vec![set(at(&node, 1, "n2"), "k")]);
    node.say(n2, 1, Body::Done { vector: [(n2, stamp(node.now))].into() });
    assert_eq!(node.refusal_to(n2), Some(SessionRefusal::OutOfPlace));
    assert!(node.machine.sync().members().held().get(&n2).is_none(), "nothing is concluded");
    node.finish();
    assert!(node.machine.replica().newest("k").is_some(), "what came is kept");
}

#[test]
fn a_full_disk_ends_the_session_once() {
    let (mut node, n2) = opened();
    node.slow_disk = true;
    let many = (0..50).map(|n| set(at(&node, n, "n2"), &format!("k{n}"))).collect();
    node.commits(n2, 1, 0, many);
    let before = node.sent.len();
    node.disk_refuses();
    let refused = |(_, m): &&(NodeTag, _)| {
        let store_core::sync::message::Message { body, .. } = m;
        matches!(body, Body::Refused(SessionRefusal::NoRoom))
    };
    assert_eq!(node.sent[before..].iter().filter(refused).count(), 1);
    node.finish();
}

/// What a copy made a node forget stays forgotten because of the horizons that came with it.
#[test]
fn a_full_disk_at_the_end_of_a_copy_loses_nothing_of_it() {
    let (mut node, n2) = (Node::new("n1"), tag("n2"));
    node.write("alone", true);
    node.event(Event::Join { cluster: CLUSTER, listed: Stamp(0) });
    node.event(Event::Reachable([n2].into()));
    node.pass(2000);
    let session = node.session_to(n2).expect("it asks for a copy");
    node.say(n2, session, Body::Copying { hello: node.hello_of(n2) });
    let names = ["cluster::nodes::n1", "cluster::nodes::n2"];
    let commits = (1..).zip(names).map(|(n, key)| set(at(&node, n, "n2"), key)).collect();
    node.commits(n2, session, 0, commits);
    let horizons = Horizons { squash: stamp(node.now), garbage: Stamp(stamp(node.now).0 - 1) };
    node.slow_disk = true;
    node.say(n2, session, Body::Copied { vector: [(n2, stamp(node.now))].into(), horizons });
    node.disk_refuses();
    assert!(node.machine.is_copying(), "its end is owed");
    node.slow_disk = false;
    node.pass(600);
    assert!(!node.machine.is_copying());
    assert_eq!(node.machine.replica().horizons(), horizons);
    node.finish();
}

#[test]
fn repeated_sessions_change_nothing() {
    let (mut node, n2) = opened();
    let said = [
        Body::Open { hello: node.hello_of(n2), summaries: vec![] },
        Body::Commits { batch: 0, commits: vec![] },
        Body::Done { vector: [(n2, stamp(node.now))].into() },
    ];
    let commit = set(at(&node, 1, "n2"), "k");
    for round in 0..20 {
        for body in said.clone() {
            match body {
                Body::Commits { batch, .. } => node.commits(n2, 1, batch, vec![commit.clone(); 3]),
                other => node.say(n2, 1, other),
            }
        }
        assert_eq!(node.machine.replica().newest("k"), node.machine.replica().newest("k"));
        node.write("k", round % 2 == 0);
    }
    let newest = node.machine.replica().newest("k").unwrap();
    assert_eq!(newest.at.node, tag("n1"), "nothing old comes back");
    assert_eq!(node.alarms, []);
    node.finish();
}

#[test]
fn a_giver_that_compares_for_ever_is_given_up() {
    let (mut node, n2) = opened();
    let lie = RangeHoldings::Sum { fingerprint: Fingerprint([3; 16]), count: 9 };
    let compare = Body::Compare(vec![RangeSummary { range: StampRange::ALL, held: lie.clone() }]);
    for _ in 0..ROUNDS_MAX {
        node.say(n2, 1, compare.clone());
        assert!(matches!(node.sent.last().unwrap().1.body, Body::Answers(_)));
    }
    node.say(n2, 1, compare);
    assert_eq!(node.refusal_to(n2), Some(SessionRefusal::Stalled));
    // They may not all come at once either.
    greet(&mut node, n2, 2);
    let all = vec![RangeSummary { range: StampRange::ALL, held: lie }; SUMMARIES_MAX + 1];
    node.say(n2, 2, Body::Compare(all));
    assert_eq!(node.refusal_to(n2), Some(SessionRefusal::OutOfPlace));
    node.finish();
}

/// Returns a node that has opened a session with n2 as its giver.
fn giving() -> (Node, NodeTag, u64) {
    let mut node = Node::founder();
    (0..100).for_each(|n| node.write(&format!("k{n}"), true));
    node.event(Event::Reachable([tag("n2")].into()));
    node.pass(2000);
    let session = node.session_to(tag("n2")).expect("it opens a session");
    (node, tag("n2"), session)
}

#[test]
fn a_taker_that_never_agrees_is_given_up() {
    let (mut node, n2, session) = giving();
    let held = RangeHoldings::Sum { fingerprint: Fingerprint([3; 16]), count: 9 };
    let never = vec![SummaryAnswer::Holds(vec![RangeSummary { range: StampRange::ALL, held }])];
    let hello = node.hello_of(n2);
    node.say(n2, session, Body::Opened { hello, answers: Some(never.clone()) });
    for _ in 0..ROUNDS_MAX {
        node.say(n2, session, Body::Answers(never.clone()));
    }
    assert_eq!(node.refusal_to(n2), Some(SessionRefusal::Stalled));
    node.finish();
}

#[test]
fn a_taker_that_asks_for_missing_commits_gets_those_that_exist_once() {
    let (mut node, n2, session) = giving();
    let missing = vec![9999, u32::MAX, 5, 5];
    let hello = node.hello_of(n2);
    let answers = Some(vec![SummaryAnswer::Lacks { range: StampRange::ALL, missing }]);
    node.say(n2, session, Body::Opened { hello, answers });
    let commits = node.sent.iter().find_map(|(_, message)| match &message.body {
        Body::Commits { commits, .. } => Some(commits.len()),
        _ => None,
    });
    assert_eq!(commits, Some(1), "the one that exists, once");
    node.say(n2, session, Body::Durable { batch: 0 });
    assert!(matches!(node.sent.last().unwrap().1.body, Body::Done { .. }));
    node.finish();
}

#[test]
fn an_acknowledgement_of_nothing_ends_no_comparison() {
    let (mut node, n2, session) = giving();
    let history = node.machine.replica().history().clone();
    let answers = compare::answer(&Default::default(), &compare::opening(&history));
    let half = SummaryAnswer::Holds(vec![RangeSummary {
        range: StampRange::ALL,
        held: RangeHoldings::Sum { fingerprint: Fingerprint([3; 16]), count: 90 },
    }]);
    let hello = node.hello_of(n2);
    node.say(n2, session, Body::Opened { hello, answers: Some(vec![half]) });
    assert!(matches!(node.sent.last().unwrap().1.body, Body::Compare(_)));
    let before = node.sent.len();
    (0..9).for_each(|batch| node.say(n2, session, Body::Durable { batch }));
    assert_eq!(node.sent.len(), before, "it still waits for the answers");
    node.say(n2, session, Body::Answers(answers));
    assert!(node.sent.iter().any(|(_, m)| matches!(m.body, Body::Commits { .. })));
    node.finish();
}

#[test]
fn a_copy_with_implausible_horizons_is_refused() {
    let mut node = Node::new("n1");
    let n2 = tag("n2");
    node.write("mine", true);
    node.event(Event::Join { cluster: CLUSTER, listed: Stamp(0) });
    node.event(Event::Reachable([n2].into()));
    node.pass(2000);
    let session = node.session_to(n2).unwrap();
    node.say(n2, session, Body::Copying { hello: node.hello_of(n2) });
    let horizons = Horizons { squash: Stamp(u64::MAX), garbage: Stamp(u64::MAX - 1) };
    node.say(n2, session, Body::Copied { vector: [].into(), horizons });
    assert_eq!(node.refusal_to(n2), Some(SessionRefusal::Implausible));
    assert_eq!(node.machine.replica().horizons(), Horizons::default());
    assert!(node.machine.replica().newest("mine").is_some());
    node.finish();
}

#[test]
fn an_alarm_is_raised_again_after_it_was_over() {
    let (mut node, n2) = opened();
    for round in 1..4 {
        node.slow_disk = true;
        let session = 10 * round as u64;
        greet(&mut node, n2, session);
        node.commits(n2, session, 0, vec![set(at(&node, 2, "n2"), &format!("k{round}"))]);
        node.say(n2, session, Body::Done { vector: [].into() });
        node.slow_disk = false;
        node.disk_writes();
        assert_eq!(quarantined(&node, SessionRefusal::OutOfPlace), round);
        good_session(&mut node, n2, session + 1);
        node.pass(100);
    }
    node.finish();
}
