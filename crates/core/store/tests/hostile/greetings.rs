//! Tests of who is let in: each lie of a hello has its refusal, is reported once, and again only
//! after it was over.

use model::Timestamp;
use store_core::event::{Alarm, Event};
use store_core::sync::compare;
use store_core::sync::message::{Body, ClusterId, Hello, SessionRefusal};
use store_core::{Commit, CommitAction, Expiry, Horizons, NodeTag, Position, Stamp};

use crate::node::{Node, START, delete, set, stamp, tag};

pub fn open(node: &mut Node, from: NodeTag, session: u64, hello: Hello) {
    let summaries = compare::opening(node.machine.replica().history());
    node.say(from, session, Body::Open { hello, summaries });
}

/// Greets as an honest peer does.
pub fn greet(node: &mut Node, from: NodeTag, session: u64) {
    open(node, from, session, node.hello_of(from));
}

/// Opens a session that gives nothing, as there is nothing.
pub fn good_session(node: &mut Node, from: NodeTag, session: u64) {
    greet(node, from, session);
    assert!(matches!(node.sent.last().unwrap().1.body, Body::Opened { .. }), "{:?}", node.sent);
    node.say(from, session, Body::Done { vector: [(from, stamp(node.now))].into() });
    assert!(matches!(node.sent.last().unwrap().1.body, Body::Noted { whole: true, .. }));
}

fn check(refusal: SessionRefusal, from: &str, lie: impl Fn(&mut Hello, Timestamp)) {
    let from = tag(from);
    let mut node = Node::founder();
    let head = node.machine.replica().history().head();
    let is_this = |alarm: &Alarm| {
        matches!(alarm, Alarm::Quarantined { reason, peer }
            if reason.kind() == refusal.kind() && *peer == from)
    };
    let expected = usize::from(refusal.alarms());
    let mut session = 100;
    for round in 1..=2 {
        for _ in 0..3 {
            for copies in [false, true] {
                session += 1;
                let mut hello = node.hello_of(from);
                lie(&mut hello, node.now);
                match copies {
                    true => node.say(from, session, Body::CopyFrom { hello }),
                    false => open(&mut node, from, session, hello),
                }
                assert_eq!(node.refusal_to(from).map(SessionRefusal::kind), Some(refusal.kind()));
                // Nothing goes on in the session that was refused.
                node.commits(from, session, 0, vec![]);
                assert_eq!(node.refusal_to(from), Some(SessionRefusal::OutOfPlace));
            }
        }
        let alarms = node.alarms.iter().filter(|alarm| is_this(alarm)).count();
        assert_eq!(alarms, expected * round, "once in each round: {:?}", node.alarms);
        if !node.machine.sync().members().is_member(from) {
            break;
        }
        session += 1;
        good_session(&mut node, from, session);
    }
    assert_eq!(node.machine.replica().history().head(), head);
    node.finish();
}

#[test]
fn a_peer_of_another_cluster_is_refused() {
    check(SessionRefusal::OtherCluster, "n2", |hello, _| hello.cluster = ClusterId([9; 16]));
    check(SessionRefusal::OtherCluster, "foe", |hello, _| hello.cluster = ClusterId([9; 16]));
}

#[test]
fn a_peer_that_is_unknown_or_gives_the_name_of_another_is_refused() {
    check(SessionRefusal::Unknown, "foe", |_, _| {});
    check(SessionRefusal::OutOfPlace, "n2", |hello, _| hello.node = tag("n3"));
    check(SessionRefusal::OutOfPlace, "n2", |hello, _| hello.node = tag("n1"));
}

#[test]
fn a_peer_whose_clock_is_apart_is_refused() {
    let apart = SessionRefusal::ClocksApart(0);
    check(apart, "n2", |hello, now| hello.clock = Timestamp(now.0 + 501));
    check(apart, "n2", |hello, now| hello.clock = Timestamp(now.0 - 2501));
    check(apart, "n2", |hello, _| hello.clock = Timestamp(0));
    check(apart, "n2", |hello, _| hello.clock = Timestamp(u64::MAX));
}

#[test]
fn implausible_horizons_are_refused() {
    let check = |horizons: fn(Timestamp) -> Horizons| {
        check(SessionRefusal::Implausible, "n2", |hello, now| hello.horizons = horizons(now));
    };
    check(|_| Horizons { squash: Stamp(u64::MAX), garbage: Stamp(0) });
    check(|now| Horizons { squash: stamp(Timestamp(now.0 + 502)), garbage: Stamp(0) });
    check(|now| Horizons { squash: stamp(now), garbage: Stamp(u64::MAX) });
    check(|now| Horizons { squash: stamp(now), garbage: stamp(now) });
}

#[test]
fn an_evicted_peer_is_refused_and_reported_once() {
    let mut node = Node::founder();
    let n3 = tag("n3");
    node.write("cluster::nodes::n3", false);
    for session in 1..4 {
        greet(&mut node, n3, session);
        assert_eq!(node.refusal_to(n3), Some(SessionRefusal::Evicted));
    }
    assert_eq!(node.alarms, [Alarm::Quarantined { peer: n3, reason: SessionRefusal::Evicted }]);
    node.finish();
}

#[test]
fn the_alarm_tells_how_far_apart_the_clocks_are() {
    let mut node = Node::founder();
    let hello = Hello { clock: Timestamp(node.now.0 + 777), ..node.hello_of(tag("n2")) };
    open(&mut node, tag("n2"), 1, hello);
    let reason = SessionRefusal::ClocksApart(777);
    assert_eq!(node.alarms, [Alarm::Quarantined { peer: tag("n2"), reason }]);
}

#[test]
fn an_answers_clock_lies_between_question_and_answer() {
    let n2 = tag("n2");
    for (offset, refused) in [(-501, true), (-500, false), (10, false), (3500, false), (3501, true)]
    {
        let mut node = Node::founder();
        node.event(Event::Reachable([n2].into()));
        node.pass(2000);
        let session = node.session_to(n2).expect("it opens a session");
        let asked = node.sent.iter().find_map(|(_, message)| match &message.body {
            Body::Open { hello, .. } if message.session == session => Some(hello.clock),
            _ => None,
        });
        // A slow wire does not count as a wrong clock.
        node.now = Timestamp(asked.unwrap().0 + 3000);
        let clock = Timestamp(asked.unwrap().0.saturating_add_signed(offset));
        let hello = Hello { clock, ..node.hello_of(n2) };
        node.say(n2, session, Body::Opened { hello, answers: Some(vec![]) });
        let apart = matches!(node.refusal_to(n2), Some(SessionRefusal::ClocksApart(501)));
        assert_eq!(apart, refused, "{offset}");
        assert_eq!(node.alarms.len(), usize::from(refused));
        node.finish();
    }
}

#[test]
fn acknowledgements_and_vectors_from_the_future_count_for_nothing() {
    let mut node = Node::founder();
    let future = stamp(Timestamp(node.now.0 + 3_600_000));
    let said = ["n1", "n2", "n3", "foe"].map(|name| (tag(name), future));
    for (session, from) in (1..).zip([tag("n2"), tag("n3")]) {
        let hello = Hello { acks: said.into(), ..node.hello_of(from) };
        open(&mut node, from, session, hello);
        node.say(from, session, Body::Done { vector: said.into() });
    }
    node.write("k", true);
    node.write("k", false);
    node.pass(400_000);
    node.event(Event::Squash { before: node.now });
    node.pass(100_000);
    assert!(node.machine.replica().newest("k").is_some(), "its delete is not collected");
    assert!(node.machine.sync().members().held().values().all(|stamp| *stamp < future));
    assert_eq!(node.alarms, []);
    node.finish();
}

#[test]
fn unknown_nodes_in_a_vector_are_not_remembered() {
    let mut node = Node::founder();
    for session in 1..20 {
        let names = (0..500).map(|n| tag(&format!("x{session}y{n}")));
        let vector = names.map(|name| (name, stamp(node.now))).collect();
        greet(&mut node, tag("n2"), session);
        node.say(tag("n2"), session, Body::Done { vector });
    }
    assert!(node.machine.sync().members().held().len() <= 3);
    node.finish();
}

#[test]
fn a_copy_is_lent_to_those_alone_who_lost_their_past() {
    let mut node = Node::founder();
    let hello = node.hello_of(tag("n2"));
    node.say(tag("n2"), 1, Body::CopyFrom { hello: hello.clone() });
    assert_eq!(node.refusal_to(tag("n2")), Some(SessionRefusal::OutOfPlace));
    node.say(tag("n2"), 2, Body::CopyFrom { hello: Hello { fresh: true, ..hello } });
    assert!(matches!(node.sent.last().unwrap().1.body, Body::Commits { .. }));
    node.finish();
}

#[test]
fn commits_below_the_garbage_horizon_are_refused() {
    let mut node = Node::founder();
    let n2 = tag("n2");
    let garbage = Stamp(node.machine.sync().members().told().0 - 1);
    let mut hello = node.hello_of(n2);
    hello.horizons = Horizons { squash: stamp(node.now), garbage };
    open(&mut node, n2, 1, hello);
    assert_eq!(node.machine.replica().horizons().garbage, garbage);
    let at = |stamp| Position { stamp: Stamp(stamp), node: n2 };
    let now = stamp(node.now).0;
    node.commits(n2, 1, 0, vec![set(at(now), "new"), set(at(1000), "old"), delete(at(1001), "b")]);
    assert_eq!(node.refusal_to(n2), Some(SessionRefusal::BelowGarbage));
    let reason = SessionRefusal::BelowGarbage;
    assert_eq!(node.alarms, [Alarm::Quarantined { peer: n2, reason }]);
    assert!(node.machine.replica().newest("old").is_none());
    node.finish();
}

/// An end that everybody was said to know takes no value from a node that holds one.
#[test]
fn a_delete_below_the_garbage_horizon_takes_no_value_from_a_node_that_holds_one() {
    let n2 = tag("n2");
    let expired = |at| {
        let expires = Some(Expiry::at(Timestamp(START.0 - 100_000)));
        let action = CommitAction::Set { hash: [1; 32], sha1: [1; 20], size: 0, expires };
        Commit { action, ..set(at, "k") }
    };
    for end in [|at| delete(at, "k"), expired] {
        let mut node = Node::founder();
        let old = |n| Position { stamp: Stamp(stamp(START).0 - n), node: n2 };
        greet(&mut node, n2, 1);
        node.commits(n2, 1, 0, vec![set(old(9), "k")]);
        let garbage = Stamp(node.machine.sync().members().told().0 - 1);
        let mut hello = node.hello_of(n2);
        hello.horizons = Horizons { squash: stamp(node.now), garbage };
        open(&mut node, n2, 2, hello);
        assert_eq!(node.machine.replica().horizons().garbage, garbage);
        node.commits(n2, 2, 0, vec![end(old(8))]);
        assert_eq!(node.refusal_to(n2), Some(SessionRefusal::BelowGarbage));
        assert!(node.machine.replica().newest("k").is_some());
        node.finish();
    }
}

/// Returns a founder that wrote and deleted a key, whose delete everybody was said to know and is
/// collected.
fn collected(key: &str) -> (Node, NodeTag, Position) {
    let mut node = Node::founder();
    let n2 = tag("n2");
    node.write(key, true);
    let written = node.machine.replica().newest(key).unwrap().at;
    node.write(key, false);
    node.pass(40_000);
    good_session(&mut node, n2, 1);
    good_session(&mut node, tag("n3"), 2);
    node.pass(40_000);
    let garbage = Stamp(node.machine.sync().members().told().0 - 1);
    assert!(garbage > written.stamp, "the delete is below it");
    let mut hello = node.hello_of(n2);
    hello.horizons = Horizons { squash: stamp(node.now), garbage };
    open(&mut node, n2, 3, hello);
    assert_eq!(node.machine.replica().horizons().garbage, garbage);
    assert!(node.machine.replica().newest(key).is_none(), "nothing is left of it");
    (node, n2, written)
}

#[test]
fn a_value_whose_delete_was_collected_does_not_come_back() {
    let (mut node, n2, written) = collected("k");
    let head = node.machine.replica().history().head();
    // Neither the very commit nor another one of that time is taken, alone or among others.
    let other = Position { stamp: Stamp(written.stamp.0 + 1), node: n2 };
    let new = Position { stamp: stamp(node.now), node: n2 };
    for (session, commits) in [
        (10, vec![set(written, "k")]),
        (11, vec![set(other, "k")]),
        (12, vec![set(other, "k"), set(new, "new")]),
    ] {
        greet(&mut node, n2, session);
        node.commits(n2, session, 0, commits);
        assert_eq!(node.refusal_to(n2), Some(SessionRefusal::BelowGarbage));
        assert_eq!(node.machine.replica().history().head(), head, "nothing of it is kept");
    }
    // What is older than a value that is held is no news, and no reason to refuse the rest.
    greet(&mut node, n2, 13);
    node.commits(n2, 13, 0, vec![set(new, "k")]);
    node.commits(n2, 13, 1, vec![set(other, "k"), delete(written, "k")]);
    assert_eq!(node.machine.replica().newest("k").unwrap().at, new);
    assert_eq!(node.machine.replica().history().len(), 4, "the roster, and the newest value");
    node.finish();
}

/// Tests that the horizon may rise while a commit waits for the disk.
#[test]
fn a_commit_that_a_horizon_overtakes_is_not_written() {
    let mut node = Node::founder();
    let (n2, n3) = (tag("n2"), tag("n3"));
    node.pass(40_000);
    good_session(&mut node, n2, 1);
    good_session(&mut node, n3, 2);
    node.pass(40_000);
    greet(&mut node, n2, 3);
    node.slow_disk = true;
    // The first write is under way to the disk; what comes next waits.
    node.write("first", true);
    let garbage = Stamp(node.machine.sync().members().told().0 - 1);
    let mut hello = node.hello_of(n3);
    hello.horizons = Horizons { squash: stamp(node.now), garbage };
    open(&mut node, n3, 4, hello);
    let late = Position { stamp: Stamp(garbage.0 - 1), node: n2 };
    node.commits(n2, 3, 0, vec![set(late, "k")]);
    assert!(node.machine.replica().horizons().garbage < garbage, "it is not known to be late yet");
    node.slow_disk = false;
    node.disk_writes();
    assert_eq!(node.machine.replica().horizons().garbage, garbage);
    assert!(node.machine.replica().newest("k").is_none());
    assert_eq!(node.refusal_to(n2), Some(SessionRefusal::HorizonsRose));
    node.finish();
}
