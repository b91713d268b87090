//! Tests of the comparison of histories: a difference is found exactly, whatever the histories, in
//! a bounded number of messages and bytes; and every message means the same after the wire.

use std::collections::BTreeSet;

use model::Timestamp;
use proptest::prelude::*;
use store_core::history::History;
use store_core::sync::compare::{self, SUMMARIES_MAX};
use store_core::sync::message::{
    Body, Carried, ClusterId, Hello, Message, RangeHoldings, RangeSummary, SessionRefusal, ShortId,
    StampRange, SummaryAnswer, Vector,
};
use store_core::sync::wire::{self, MESSAGE_BYTES_MAX};
use store_core::{
    Commit, CommitAction, Expiry, Fingerprint, Horizons, Location, NodeTag, Position, Stamp, Ticket,
};

fn tag(name: &str) -> NodeTag {
    NodeTag::from(&name.parse::<model::NodeId>().unwrap())
}

fn commit(stamp: u64, node: u8, value: u8) -> Commit {
    let action = CommitAction::Set { hash: [value; 32], sha1: [0; 20], size: 0, expires: None };
    let at = Position { stamp: Stamp(stamp), node: tag(&format!("n{node}")) };
    Commit { at, key: "k".into(), action, location: Location::Nowhere }
}

fn history(commits: &[Commit]) -> History {
    let mut history = History::default();
    for commit in commits {
        history.insert(commit.clone());
    }
    history
}

#[derive(Debug, Default)]
struct Exchange {
    lacking: BTreeSet<Position>,
    messages: usize,
    bytes: usize,
}

fn through(body: Body, exchange: &mut Exchange) -> Body {
    let mut bytes = Vec::new();
    wire::encode(&Message { session: 1, body }, &[], &mut bytes);
    assert!(bytes.len() <= MESSAGE_BYTES_MAX);
    exchange.messages += 1;
    exchange.bytes += bytes.len();
    wire::decode(&bytes).unwrap().message.body
}

/// Returns what the giver finds that the taker lacks, over the wire.
fn exchange(giver: &History, taker: &History) -> Exchange {
    let mut exchange = Exchange::default();
    let mut ask = compare::opening(giver);
    while !ask.is_empty() {
        let rest = ask.split_off(ask.len().min(SUMMARIES_MAX));
        let Body::Compare(asked) = through(Body::Compare(ask), &mut exchange) else { panic!() };
        let answers = compare::answer(taker, &asked);
        assert!(compare::is_answer(&answers), "a giver accepts what a taker says");
        let answers = Body::Answers(answers);
        let Body::Answers(answers) = through(answers, &mut exchange) else { panic!() };
        let learned = compare::learn(giver, &answers);
        exchange.lacking.extend(learned.lacking);
        ask = [learned.ask, rest].concat();
        assert!(exchange.messages < 200, "it ends");
    }
    exchange
}

fn lacking(giver: &History, taker: &History) -> BTreeSet<Position> {
    let has = |commit: &&Commit| taker.get(commit.at).is_none_or(|c| c.cid() != commit.cid());
    giver.iter().filter(has).map(|commit| commit.at).collect()
}

fn check(giver: &[Commit], taker: &[Commit]) -> Result<(), TestCaseError> {
    let (giver, taker) = (history(giver), history(taker));
    for (giver, taker) in [(&giver, &taker), (&taker, &giver)] {
        let found = exchange(giver, taker);
        let differ = lacking(giver, taker).len() + lacking(taker, giver).len();
        // Ranges shrink to a sixteenth each time.
        prop_assert!(found.messages <= 2 * 8, "{} messages", found.messages);
        prop_assert!(found.bytes <= 2000 + 2500 * differ, "{} for {differ}", found.bytes);
        prop_assert_eq!(found.lacking, lacking(giver, taker));
    }
    Ok(())
}

/// Generates commits with stamps so close together that several nodes share many of them.
fn commits(max: usize) -> impl Strategy<Value = Vec<Commit>> {
    let one = (1..400u64, 0..4u8, 0..2u8);
    let one = one.prop_map(|(stamp, node, value)| commit(stamp, node, value));
    prop::collection::vec(one, 0..max)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_two_histories_are_made_equal(giver in commits(300), taker in commits(300)) {
        check(&giver, &taker)?;
    }

    #[test]
    fn a_history_and_a_part_of_it_are_made_equal(
        all in commits(600),
        without in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let mut part = all.clone();
        for index in without {
            if !part.is_empty() {
                part.swap_remove(index.index(part.len()));
            }
        }
        check(&all, &part)?;
    }

    #[test]
    fn histories_with_a_long_common_past_are_made_equal(
        length in 0..3000u64,
        giver in commits(40),
        taker in commits(40),
        late: bool,
    ) {
        let common: Vec<Commit> = (1..=length).map(|n| commit(1000 + 3 * n, 9, 0)).collect();
        let own = |commits: Vec<Commit>| {
            let moved = commits.into_iter().map(|mut commit| {
                commit.at.stamp.0 += if late { 20_000 } else { 3000 };
                commit
            });
            [common.clone(), moved.collect()].concat()
        };
        check(&own(giver), &own(taker))?;
    }

    #[test]
    fn commits_of_many_nodes_at_one_stamp_are_made_equal(giver in 0..200u8, taker in 0..200u8) {
        let of = |count: u8| (0..count).map(|node| commit(5, node, 0)).collect::<Vec<_>>();
        check(&of(giver), &of(taker))?;
    }

    #[test]
    fn every_message_means_the_same_after_the_wire(message in message()) {
        let inside: Vec<Option<&[u8]>> = match &message.body {
            Body::Commits { commits, .. } => commits
                .iter()
                .map(|c| matches!(c.commit.location, Location::Log { .. }))
                .map(|inside| inside.then_some(&b"abc"[..]))
                .collect(),
            _ => Vec::new(),
        };
        let mut bytes = Vec::new();
        wire::encode(&message, &inside, &mut bytes);
        for cut in 0..bytes.len() {
            prop_assert!(wire::decode(&bytes[..cut]).is_err());
        }
        let decoded = wire::decode(&bytes).unwrap();
        prop_assert_eq!(&decoded.message, &message);
        prop_assert_eq!(decoded.values, inside);
        bytes.push(0);
        prop_assert!(wire::decode(&bytes).is_err());
    }

    #[test]
    fn lies_about_what_is_held_only_cost_time(
        mine in commits(200),
        summaries in prop::collection::vec(summary(), 0..40),
        answers in prop::collection::vec(answer(), 0..40),
    ) {
        let mine = history(&mine);
        prop_assert!(compare::is_answer(&compare::answer(&mine, &summaries)));
        let learned = compare::learn(&mine, &answers);
        prop_assert!(learned.lacking.iter().all(|at| mine.get(*at).is_some()));
    }
}

fn range() -> impl Strategy<Value = StampRange> {
    let ends = (any::<u64>(), any::<u64>()).prop_map(|(a, b)| {
        let (from, until) = (a.min(b), a.max(b).max(a.min(b).saturating_add(1)));
        StampRange { from: Stamp(from.min(u64::MAX - 1)), until: Stamp(until) }
    });
    prop_oneof![Just(StampRange::ALL), ends]
}

fn summary() -> impl Strategy<Value = RangeSummary> {
    let ids = prop::collection::vec(any::<[u8; 16]>().prop_map(ShortId), 0..5)
        .prop_map(RangeHoldings::Ids);
    let sum = (any::<[u8; 16]>(), any::<u64>())
        .prop_map(|(sum, count)| RangeHoldings::Sum { fingerprint: Fingerprint(sum), count });
    (range(), prop_oneof![ids, sum]).prop_map(|(range, held)| RangeSummary { range, held })
}

fn answer() -> impl Strategy<Value = SummaryAnswer> {
    let missing = prop::collection::vec(any::<u32>(), 0..5);
    let lacks =
        (range(), missing).prop_map(|(range, missing)| SummaryAnswer::Lacks { range, missing });
    prop_oneof![lacks, prop::collection::vec(summary(), 0..5).prop_map(SummaryAnswer::Holds)]
}

fn vector() -> impl Strategy<Value = Vector> {
    let node = "[a-z0-9]{1,16}".prop_map(|name| tag(&name));
    prop::collection::btree_map(node, any::<u64>().prop_map(Stamp), 0..5)
}

fn horizons() -> impl Strategy<Value = Horizons> {
    let pair = (any::<u64>(), any::<u64>());
    pair.prop_map(|(squash, garbage)| Horizons { squash: Stamp(squash), garbage: Stamp(garbage) })
}

fn hello() -> impl Strategy<Value = Hello> {
    let who = (any::<[u8; 16]>(), any::<u64>(), any::<u64>());
    let what = (horizons(), any::<[u8; 16]>(), any::<u64>(), vector(), any::<bool>());
    let made = |((cluster, incarnation, clock), (horizons, head, count, acks, fresh))| Hello {
        cluster: ClusterId(cluster),
        node: tag("n2"),
        incarnation,
        clock: Timestamp(clock),
        horizons,
        head: Fingerprint(head),
        count,
        acks,
        fresh,
    };
    (who, what).prop_map(made)
}

fn carried() -> impl Strategy<Value = Carried> {
    let expires = prop::option::of((1..=u64::MAX).prop_map(|at| Expiry::at(Timestamp(at))));
    let made = |(stamp, kind, expires)| {
        let size = if kind == 1 { 3 } else { u64::MAX };
        let set = CommitAction::Set { hash: [1; 32], sha1: [2; 20], size, expires };
        let action = if kind == 0 { CommitAction::Delete } else { set };
        let location = match kind {
            1 => Location::Log { segment: 0, offset: 0 },
            _ => Location::Nowhere,
        };
        let commit = Commit { action, location, ..commit(stamp, 3, 0) };
        Carried { ticket: Ticket(0), commit }
    };
    (1..=u64::MAX, 0..3u8, expires).prop_map(made)
}

fn body() -> impl Strategy<Value = Body> {
    let summaries = || prop::collection::vec(summary(), 0..5);
    let answers = || prop::collection::vec(answer(), 0..5);
    let refusal = prop_oneof![
        any::<u64>().prop_map(SessionRefusal::ClocksApart),
        prop::sample::select(vec![
            SessionRefusal::OtherCluster,
            SessionRefusal::Evicted,
            SessionRefusal::OutOfPlace
        ]),
    ];
    let commits = prop::collection::vec(carried(), 0..4);
    prop_oneof![
        (hello(), summaries()).prop_map(|(hello, summaries)| Body::Open { hello, summaries }),
        (hello(), prop::option::of(answers()))
            .prop_map(|(hello, answers)| Body::Opened { hello, answers }),
        summaries().prop_map(Body::Compare),
        answers().prop_map(Body::Answers),
        (any::<u32>(), commits).prop_map(|(batch, commits)| Body::Commits { batch, commits }),
        any::<u32>().prop_map(|batch| Body::Durable { batch }),
        vector().prop_map(|vector| Body::Done { vector }),
        (any::<bool>(), any::<[u8; 16]>())
            .prop_map(|(whole, head)| Body::Noted { whole, head: Fingerprint(head) }),
        hello().prop_map(|hello| Body::CopyFrom { hello }),
        hello().prop_map(|hello| Body::Copying { hello }),
        (vector(), horizons()).prop_map(|(vector, horizons)| Body::Copied { vector, horizons }),
        refusal.prop_map(Body::Refused),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    (any::<u64>(), body()).prop_map(|(session, body)| Message { session, body })
}
