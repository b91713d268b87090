//! A life of a node made out of bytes: messages of two peers and a stranger in any order, honest
//! answers now and then so that it gets somewhere, writes, a disk that is slow or full, clocks that
//! jump. Fuzzing and the property tests run the same scripts; `node` judges.

use model::Timestamp;
use store_core::event::{Change, Event};
use store_core::sync::compare;
use store_core::sync::message::{
    Body, Carried, ClusterId, Hello, Message, RangeHoldings, RangeSummary, SessionRefusal, ShortId,
    StampRange, SummaryAnswer, Vector,
};
use store_core::sync::wire;
use store_core::{Commit, CommitAction, Expiry, Horizons, Location, NodeTag, Position, Stamp};

use crate::node::{CLUSTER, Node, delete, set, stamp, tag};

const NODES: [&str; 4] = ["n1", "n2", "n3", "stranger"];
const KEYS: [&str; 6] = ["a", "b", "c::d", "c::e", "cluster::nodes::n3", "cluster::nodes::n4"];
/// Steps of a script; longer ones say nothing new and make fuzzing slow.
const STEPS_MAX: usize = 200;
const REMEMBERED_MAX: usize = 64;

/// The bytes of a script; once they run out, they read as zeros.
struct Source<'a>(&'a [u8]);

impl<'a> Source<'a> {
    fn byte(&mut self) -> u8 {
        let Some((byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *byte
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn take(&mut self, count: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        front
    }
}

struct Life<'a> {
    source: Source<'a>,
    node: Node,
    /// What peers said, to be said again.
    said: Vec<(NodeTag, Message)>,
    /// The session that the peers open, if they do not use an older one.
    session: u64,
    batch: u32,
}

pub fn run(bytes: &[u8]) {
    let mut source = Source(bytes);
    let node = if source.byte() % 4 == 0 { Node::joined() } else { Node::founder() };
    let mut life = Life { source, node, said: Vec::new(), session: 1 << 50, batch: 0 };
    life.node.event(Event::Reachable([tag("n2"), tag("n3")].into()));
    for _ in 0..STEPS_MAX {
        if life.source.0.is_empty() {
            break;
        }
        life.step();
        life.node.sent.drain(..life.node.sent.len().saturating_sub(REMEMBERED_MAX));
    }
    life.node.finish();
}

impl Life<'_> {
    fn step(&mut self) {
        match self.source.byte() % 24 {
            0..6 => self.answer(),
            6..10 => self.lie(),
            10..13 => self.open_and_give(),
            13 => self.repeat(),
            14 => self.raw(),
            15 | 16 => self.write(),
            17..19 => {
                let ms = self.source.pick(&[1, 20, 500, 1000, 5000, 11_000, 31_000, 31_000]);
                self.node.pass(ms);
            }
            19 => self.node.disk_writes(),
            20 => self.node.disk_refuses(),
            21 => self.node.slow_disk ^= true,
            22 => self.circumstances(),
            _ => self.clock_jumps(),
        }
    }

    fn peer(&mut self) -> NodeTag {
        tag(self.source.pick(&["n2", "n2", "n2", "n3", "n3", "stranger"]))
    }

    fn say(&mut self, from: NodeTag, session: u64, body: Body) {
        if self.said.len() < REMEMBERED_MAX {
            self.said.push((from, Message { session, body: body.clone() }));
        }
        self.node.say(from, session, body);
    }

    fn write(&mut self) {
        let key = self.source.pick(&KEYS);
        let expires = match self.source.byte() % 8 {
            0 => Some(Expiry::at(Timestamp(self.node.now.0 + 50 * u64::from(self.source.byte())))),
            _ => None,
        };
        let (hash, sha1, size) = ([5; 32], [5; 20], 0);
        self.node.change(
            key,
            match self.source.byte() % 3 {
                0 => Change::Delete,
                1 => Change::SetInline { hash, sha1, size, expires },
                _ => Change::SetFile { hash, sha1, size, expires },
            },
        );
    }

    fn circumstances(&mut self) {
        let peer = self.peer();
        let event = match self.source.byte() % 8 {
            0 => Event::Lost { peer },
            1 => Event::Sync,
            2 => Event::Join {
                cluster: self.source.pick(&[CLUSTER, ClusterId([9; 16])]),
                listed: self.source.pick(&[Stamp(0), stamp(self.node.now)]),
            },
            3 => Event::TrustClock,
            4 => Event::Fetched(vec![[1; 32], [5; 32], [6; 32]]),
            5 => Event::Squash { before: self.node.now },
            6 => Event::Reachable([tag("n2"), peer].into()),
            _ => Event::Reachable([tag("n2"), tag("n3")].into()),
        };
        self.node.event(event);
    }

    fn clock_jumps(&mut self) {
        let by: i64 = self.source.pick(&[600, 3_600_000, -600, -3_600_000, 100_000_000]);
        self.node.now = Timestamp(self.node.now.0.saturating_add_signed(by));
        self.node.tick();
    }

    /// Says what an honest peer would say to one of the last things it was told, more or less.
    fn answer(&mut self) {
        let back = self.source.below(4);
        let Some((peer, message)) = self.node.sent.iter().rev().nth(back).cloned() else { return };
        let session = message.session;
        let history = self.node.machine.replica().history().clone();
        match message.body {
            Body::Open { summaries, .. } => {
                let fewer = self.part_of(&history);
                let answers = compare::answer(&fewer, &summaries);
                let answers = (!self.source.byte().is_multiple_of(4)).then_some(answers);
                let hello = self.hello(peer);
                self.say(peer, session, Body::Opened { hello, answers });
            }
            Body::Compare(summaries) => {
                let fewer = self.part_of(&history);
                let answers = compare::answer(&fewer, &summaries);
                self.say(peer, session, Body::Answers(answers));
            }
            Body::Commits { batch, .. } => self.say(peer, session, Body::Durable { batch }),
            Body::Done { .. } => {
                self.say(peer, session, Body::Noted { whole: true, head: history.head() });
            }
            Body::CopyFrom { .. } => {
                let hello = self.hello(peer);
                self.say(peer, session, Body::Copying { hello });
                self.give(peer, session);
            }
            Body::Opened { .. } | Body::Answers(_) => self.give(peer, session),
            Body::Durable { .. } => {
                let (vector, horizons) = (self.vector(), self.horizons());
                self.say(peer, session, Body::Done { vector: vector.clone() });
                self.say(peer, session, Body::Copied { vector, horizons });
            }
            _ => self.give(peer, session),
        }
    }

    fn part_of(&mut self, history: &store_core::history::History) -> store_core::history::History {
        let mut fewer = history.clone();
        let drops = self.source.byte();
        for (index, commit) in history.iter().enumerate().take(8) {
            if drops >> index & 1 == 1 {
                fewer.remove(commit.at);
            }
        }
        fewer
    }

    fn open_and_give(&mut self) {
        let peer = self.peer();
        self.session += 1;
        self.batch = 0;
        let (hello, summaries) = (self.hello(peer), self.summaries());
        let session = self.session;
        self.say(peer, session, Body::Open { hello, summaries });
        self.give(peer, session);
    }

    fn give(&mut self, peer: NodeTag, session: u64) {
        self.batch = self.batch.wrapping_add(1);
        let commits = (0..self.source.below(4)).map(|_| self.commit()).collect::<Vec<_>>();
        let carried = |commit| Carried { ticket: store_core::Ticket(0), commit };
        let commits = commits.into_iter().map(carried).collect();
        self.say(peer, session, Body::Commits { batch: self.batch, commits });
    }

    fn repeat(&mut self) {
        if self.said.is_empty() {
            return;
        }
        let index = self.source.below(self.said.len());
        let (from, message) = self.said[index].clone();
        self.node.say(from, message.session, message.body);
    }

    fn raw(&mut self) {
        let from = self.peer();
        let length = self.source.below(256);
        let bytes = self.source.take(length);
        if let Ok(decoded) = wire::decode(bytes) {
            self.node.say(from, decoded.message.session, decoded.message.body);
        }
    }

    /// Says any message in any session.
    fn lie(&mut self) {
        let from = self.peer();
        let session = match self.source.byte() % 4 {
            0 => self.session,
            1 => u64::from(self.source.byte()),
            _ => self.node.session_to(from).unwrap_or(self.session),
        };
        let body = match self.source.byte() % 12 {
            0 => Body::Open { hello: self.hello(from), summaries: self.summaries() },
            1 => Body::Opened { hello: self.hello(from), answers: Some(self.answers()) },
            2 => Body::Compare(self.summaries()),
            3 => Body::Answers(self.answers()),
            4 => return self.give(from, session),
            5 => Body::Durable { batch: self.source.below(6) as u32 },
            6 => Body::Done { vector: self.vector() },
            7 => Body::Noted { whole: true, head: self.node.hello_of(from).head },
            8 => Body::CopyFrom { hello: self.hello(from) },
            9 => Body::Copying { hello: self.hello(from) },
            10 => Body::Copied { vector: self.vector(), horizons: self.horizons() },
            _ => Body::Refused(self.source.pick(&[
                SessionRefusal::Behind,
                SessionRefusal::Evicted,
                SessionRefusal::Busy,
                SessionRefusal::ClocksApart(u64::MAX),
            ])),
        };
        self.say(from, session, body);
    }

    fn stamp(&mut self) -> Stamp {
        let now = self.node.now;
        let history = self.node.machine.replica().history();
        let choice = self.source.byte();
        let held = history.nth(usize::from(choice) % history.len().max(1));
        match choice % 12 {
            0..3 => held.map_or(Stamp(1), |commit| commit.at.stamp),
            3 => Stamp(1),
            4 => Stamp(u64::MAX),
            5 => stamp(Timestamp(now.0.saturating_sub(3_600_000))),
            6 => stamp(Timestamp(now.0 + 400)),
            7 => stamp(Timestamp(now.0 + 501)),
            8 => stamp(Timestamp(now.0 + 5000)),
            9 => self.node.machine.stamp(),
            10 => Stamp(stamp(now).0 + u64::from(self.source.byte())),
            _ => stamp(Timestamp(now.0.saturating_sub(u64::from(self.source.byte())))),
        }
    }

    fn commit(&mut self) -> Commit {
        let at =
            Position { stamp: Stamp(self.stamp().0.max(1)), node: tag(self.source.pick(&NODES)) };
        let key = self.source.pick(&KEYS);
        let (sha1, size) = ([6; 20], u64::MAX);
        match self.source.byte() % 4 {
            0 => delete(at, key),
            1 => {
                let action = CommitAction::Set { hash: [6; 32], sha1, size, expires: None };
                Commit { action, location: Location::Nowhere, ..set(at, key) }
            }
            2 => {
                let expires = Some(Expiry::at(Timestamp(self.stamp().time().0.max(1))));
                let action = CommitAction::Set { hash: [6; 32], sha1, size: 0, expires };
                Commit { action, ..set(at, key) }
            }
            _ => set(at, key),
        }
    }

    fn horizons(&mut self) -> Horizons {
        let mine = self.node.machine.replica().horizons();
        match self.source.byte() % 6 {
            0 => Horizons { squash: self.stamp(), garbage: mine.garbage },
            1 => Horizons { squash: self.stamp(), garbage: self.stamp() },
            2 => {
                let squash = self.stamp().max(mine.squash);
                Horizons { squash, garbage: Stamp(squash.0.saturating_sub(1)) }
            }
            3 => Horizons::default(),
            _ => mine,
        }
    }

    fn vector(&mut self) -> Vector {
        (0..self.source.below(4)).map(|_| (tag(self.source.pick(&NODES)), self.stamp())).collect()
    }

    fn hello(&mut self, from: NodeTag) -> Hello {
        let mut hello = self.node.hello_of(from);
        let now = self.node.now.0;
        match self.source.byte() % 16 {
            0 => hello.cluster = ClusterId([9; 16]),
            1 => hello.node = tag(self.source.pick(&NODES)),
            2 => hello.clock = Timestamp(now + 500),
            3 => hello.clock = Timestamp(self.source.pick(&[now + 501, now - 2501, 0, u64::MAX])),
            4 | 5 => hello.horizons = self.horizons(),
            6 | 7 => hello.acks = self.vector(),
            8 => hello.fresh = true,
            _ => {}
        }
        hello
    }

    fn range(&mut self) -> StampRange {
        let (one, other) = (self.stamp(), self.stamp());
        match self.source.byte() % 3 {
            0 => StampRange::ALL,
            1 => StampRange { from: one.min(other), until: one.max(other) },
            _ => StampRange { from: one, until: StampRange::ALL.until },
        }
    }

    fn summary(&mut self) -> RangeSummary {
        let range = self.range();
        let history = self.node.machine.replica().history();
        let held = match self.source.byte() % 3 {
            0 => RangeHoldings::Ids(history.range(range).map(ShortId::of).collect()),
            1 => RangeHoldings::Ids(vec![ShortId([self.source.byte(); 16]); 3]),
            _ => {
                RangeHoldings::Sum { fingerprint: history.head(), count: self.source.byte().into() }
            }
        };
        RangeSummary { range, held }
    }

    fn summaries(&mut self) -> Vec<RangeSummary> {
        if self.source.byte().is_multiple_of(2) {
            return compare::opening(self.node.machine.replica().history());
        }
        (0..self.source.below(4)).map(|_| self.summary()).collect()
    }

    fn answers(&mut self) -> Vec<SummaryAnswer> {
        let one = |life: &mut Self| match life.source.byte() % 2 {
            0 => SummaryAnswer::Lacks { range: life.range(), missing: vec![0, 1, 1, u32::MAX] },
            _ => SummaryAnswer::Holds(life.summaries()),
        };
        (0..self.source.below(4)).map(|_| one(self)).collect()
    }
}
