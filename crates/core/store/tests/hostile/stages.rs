//! Tests of every message in every stage of every session, and of sessions that stall or are cut
//! there.

use store_core::event::Event;
use store_core::sync::compare;
use store_core::sync::message::{Body, SessionRefusal, StampRange, SummaryAnswer};
use store_core::{Horizons, NodeTag, Position, Stamp};

use crate::greetings::greet;
use crate::node::{CLUSTER, Node, set, stamp, tag};

const STAGES: [&str; 10] = [
    "idle",
    "taking",
    "storing",
    "opening",
    "comparing",
    "pushing",
    "ending",
    "asking",
    "copying",
    "lending",
];

/// Returns a node in a stage of a session with n2.
fn at_stage(stage: &str) -> (Node, NodeTag, u64) {
    let n2 = tag("n2");
    let mut node = Node::founder();
    (0..26).for_each(|n| node.write(&format!("k{n}"), true));
    let mut session = 5;
    match stage {
        "idle" => {}
        "taking" => greet(&mut node, n2, session),
        "storing" => {
            greet(&mut node, n2, session);
            node.slow_disk = true;
            let at = Position { stamp: stamp(node.now), node: n2 };
            node.commits(n2, session, 7, vec![set(at, "stored")]);
        }
        "lending" => {
            let hello = store_core::sync::message::Hello { fresh: true, ..node.hello_of(n2) };
            node.say(n2, session, Body::CopyFrom { hello });
        }
        "asking" | "copying" => {
            node.event(Event::Join { cluster: CLUSTER, listed: Stamp(0) });
            node.event(Event::Reachable([n2].into()));
            node.pass(2000);
            session = node.session_to(n2).expect("it asks for a copy");
            if stage == "copying" {
                node.say(n2, session, Body::Copying { hello: node.hello_of(n2) });
            }
        }
        _ => {
            node.event(Event::Reachable([n2].into()));
            node.pass(2000);
            session = node.session_to(n2).expect("it opens a session");
            give(&mut node, n2, session, stage);
        }
    }
    (node, n2, session)
}

fn give(node: &mut Node, n2: NodeTag, session: u64, stage: &str) {
    let history = node.machine.replica().history().clone();
    let answers = match stage {
        "opening" => return,
        "ending" => vec![],
        "pushing" => vec![SummaryAnswer::Lacks { range: StampRange::ALL, missing: vec![0, 1, 2] }],
        _ => {
            let mut other = history.clone();
            let nth = history.nth(1).unwrap().at;
            other.remove(nth);
            compare::answer(&other, &compare::opening(&history))
        }
    };
    let hello = node.hello_of(n2);
    node.say(n2, session, Body::Opened { hello, answers: Some(answers) });
}

/// Returns every kind of message, as if it were its turn.
fn bodies(node: &Node, n2: NodeTag) -> Vec<Body> {
    let hello = node.hello_of(n2);
    let history = node.machine.replica().history();
    let summaries = compare::opening(history);
    let vector: store_core::sync::message::Vector = [(n2, stamp(node.now))].into();
    let ticket = store_core::Ticket(0);
    let commit = set(Position { stamp: stamp(node.now), node: n2 }, "said");
    let commits = vec![store_core::sync::message::Carried { ticket, commit }];
    vec![
        Body::Open { hello: hello.clone(), summaries: summaries.clone() },
        Body::Opened { hello: hello.clone(), answers: Some(vec![]) },
        Body::Opened { hello: hello.clone(), answers: None },
        Body::Compare(summaries),
        Body::Answers(vec![]),
        Body::Commits { batch: 1, commits },
        Body::Durable { batch: 0 },
        Body::Done { vector: vector.clone() },
        Body::Noted { whole: true, head: history.head() },
        Body::CopyFrom { hello: hello.clone() },
        Body::Copying { hello },
        Body::Copied { vector, horizons: Horizons::default() },
        Body::Refused(SessionRefusal::Behind),
        Body::Refused(SessionRefusal::Busy),
    ]
}

#[test]
fn no_two_messages_in_any_stage_change_what_is_kept() {
    for stage in STAGES {
        let count = {
            let (node, n2, _) = at_stage(stage);
            bodies(&node, n2).len()
        };
        for first in 0..count {
            for second in 0..count {
                let (mut node, n2, session) = at_stage(stage);
                let mine = node.machine.replica().newest("k0").cloned();
                let bodies = bodies(&node, n2);
                node.say(n2, session, bodies[first].clone());
                node.say(n2, session, bodies[second].clone());
                node.finish();
                let kept = node.machine.replica().newest("k0").cloned();
                assert!(
                    kept.map(|c| c.at) >= mine.map(|c| c.at)
                        || stage == "copying"
                        || stage == "asking",
                    "{stage}"
                );
            }
        }
    }
}

#[test]
fn a_session_that_stalls_is_given_up() {
    for stage in STAGES.into_iter().skip(1) {
        let (mut node, n2, session) = at_stage(stage);
        node.sent.clear();
        // Signs of life that are no progress do not keep it.
        for _ in 0..4 {
            node.pass(3000);
            node.say(n2, session, Body::Durable { batch: 99 });
        }
        let stalled = node.sent.iter().any(|(to, message)| {
            *to == n2
                && message.session == session
                && message.body == Body::Refused(SessionRefusal::Stalled)
        });
        assert!(stalled, "{stage}: {:?}", node.sent.len());
        node.finish();
    }
}

#[test]
fn a_connection_that_is_lost_ends_whatever_went_on() {
    for stage in STAGES {
        let (mut node, n2, session) = at_stage(stage);
        node.event(Event::Lost { peer: n2 });
        node.sent.clear();
        node.commits(n2, session, 50, vec![]);
        assert_eq!(node.refusal_to(n2), Some(SessionRefusal::OutOfPlace), "{stage}");
        node.sent.clear();
        node.event(Event::Reachable([].into()));
        node.pass(15_000);
        let mut later = node.sent.iter().filter(|(_, message)| message.session == session);
        assert_eq!(later.next(), None, "{stage}: nothing of it is left");
        node.finish();
    }
}
