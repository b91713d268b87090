//! The inputs that fuzzing starts from, made of real encodings: `cargo run -p store-core --example
//! fuzz_seeds -- fuzz/seeds`. It writes the same bytes every time so that a change of an encoding
//! shows. It owns no format; the crate's encoders do the work.

use std::path::{Path, PathBuf};

use model::{NodeId, Timestamp};
use store_core::event::{Standing, Ticket};
use store_core::frame::{self, Secret};
use store_core::history::History;
use store_core::record::Record;
use store_core::sync::compare;
use store_core::sync::message::{
    Body, Carried, ClusterId, Hello, Message, SessionRefusal, StampRange, SummaryAnswer, Vector,
};
use store_core::sync::wire;
use store_core::{Commit, CommitAction, Expiry, Horizons, Location, NodeTag, Position, Stamp};

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| PathBuf::from("fuzz/seeds"));
    for (target, inputs) in [
        ("resp", resp()),
        ("sync", messages()),
        ("log", log()),
        ("machine", scripts()),
        ("commit", commits().iter().map(encoded).collect()),
    ] {
        write(&folder.join(target), &inputs)?;
    }
    Ok(())
}

/// Writes the inputs. Files of other inputs, such as crashes that were found and fixed, stay.
fn write(folder: &Path, inputs: &[Vec<u8>]) -> std::io::Result<()> {
    #![allow(clippy::disallowed_methods)]
    std::fs::create_dir_all(folder)?;
    for (number, input) in inputs.iter().enumerate() {
        std::fs::write(folder.join(format!("{number:02}")), input)?;
    }
    println!("{}: {} files", folder.display(), inputs.len());
    Ok(())
}

fn tag(name: &str) -> NodeTag {
    NodeTag::from(&name.parse::<NodeId>().expect("a node id"))
}

fn at(ms: u64, node: &str) -> Position {
    Position { stamp: Stamp::start_of(Timestamp(1_700_000_000_000 + ms)), node: tag(node) }
}

fn set(ms: u64, node: &str, key: &str, size: u64, expires: Option<Expiry>) -> Commit {
    let action = CommitAction::Set { hash: [7; 32], sha1: [8; 20], size, expires };
    Commit { at: at(ms, node), key: key.into(), action, location: Location::Nowhere }
}

fn commits() -> Vec<Commit> {
    let soon = Expiry::at(Timestamp(1_700_000_009_000));
    let delete = Commit { action: CommitAction::Delete, ..set(4, "n2", "a::b", 0, None) };
    vec![
        set(1, "n1", "a", 3, None),
        set(2, "n2", "a::b", 0, None),
        set(3, "n3", "cluster::nodes::n3", 2, Some(soon)),
        delete,
        set(5, "n1", "große::datei", 1 << 30, None),
    ]
}

fn encoded(commit: &Commit) -> Vec<u8> {
    let mut bytes = Vec::new();
    commit.encode(&mut bytes);
    bytes
}

fn hello() -> Hello {
    Hello {
        cluster: ClusterId([7; 16]),
        node: tag("n2"),
        incarnation: 9,
        clock: Timestamp(1_700_000_000_100),
        horizons: Horizons { squash: at(2, "n1").stamp, garbage: at(1, "n1").stamp },
        head: history().head(),
        count: 40,
        acks: vector(),
        fresh: false,
    }
}

fn vector() -> Vector {
    [("n1", 1), ("n2", 2), ("n3", 3)].map(|(node, ms)| (tag(node), at(ms, node).stamp)).into()
}

fn history() -> History {
    let mut history = History::default();
    for n in 0..40 {
        history.insert(set(n, "n1", &format!("k::{n}"), 1, None));
    }
    history
}

fn messages() -> Vec<Vec<u8>> {
    let history = history();
    let summaries = compare::opening(&history);
    let mut fewer = history.clone();
    fewer.remove(at(7, "n1"));
    fewer.remove(at(30, "n1"));
    let answers = compare::answer(&fewer, &summaries);
    let compared = compare::learn(&history, &answers).ask;
    let lacks = SummaryAnswer::Lacks { range: StampRange::ALL, missing: vec![0, 3, 200] };
    let carried = |commit: Commit| Carried { ticket: Ticket(0), commit };
    let all = || commits().into_iter().map(carried).collect();
    let bodies = vec![
        Body::Open { hello: hello(), summaries },
        Body::Opened { hello: hello(), answers: Some(answers.clone()) },
        Body::Opened { hello: hello(), answers: None },
        Body::Compare(compared),
        Body::Answers(answers),
        Body::Answers(vec![lacks]),
        Body::Commits { batch: 3, commits: all() },
        Body::Durable { batch: 300 },
        Body::Done { vector: vector() },
        Body::Noted { whole: true, head: history.head() },
        Body::CopyFrom { hello: hello() },
        Body::Copying { hello: hello() },
        Body::Copied { vector: vector(), horizons: hello().horizons },
        Body::Refused(SessionRefusal::ClocksApart(501)),
        Body::Refused(SessionRefusal::OutOfPlace),
    ];
    let inside: [Option<&[u8]>; 3] = [Some(b"abc"), Some(b""), Some(b"{}")];
    let message = |body| {
        let mut bytes = Vec::new();
        let message = Message { session: 1 << 40, body };
        wire::encode(&message, &inside, &mut bytes);
        bytes
    };
    bodies.into_iter().map(message).collect()
}

fn records() -> Vec<Vec<u8>> {
    let commits = commits();
    let in_log = Location::Log { segment: 0, offset: 0 };
    let located = |commit: &Commit, location| Commit { location, ..commit.clone() };
    let horizons = hello().horizons;
    let (promise, clock) = (at(9, "n1").stamp, at(8, "n1").stamp);
    let standing = Standing {
        cluster: ClusterId([7; 16]),
        incarnation: 9,
        fresh_until: clock,
        ..Standing::default()
    };
    let block = vec![located(&commits[0], in_log), commits[3].clone()];
    let positions = vec![commits[0].at, commits[1].at];
    let records = [
        Record::Segment { format: 2, number: 1, capacity: 1 << 20 },
        Record::Commit { commit: located(&commits[0], in_log), value: b"abc" },
        Record::Commit { commit: located(&commits[4], Location::File), value: b"" },
        Record::Moved { commit: located(&commits[0], in_log), value: b"abc" },
        Record::Horizons(horizons),
        Record::Vector { promise, held: vector() },
        Record::Standing(standing),
        Record::Forgotten { positions, clock },
        Record::Closed,
        Record::Snapshot { format: 2, next: 2, batch: 3, clock, horizons },
        Record::Block(block),
        Record::SnapshotEnd { commits: 2, head: history().head() },
    ];
    let encode = |record: &Record<'_>| {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        bytes
    };
    records.iter().map(encode).collect()
}

/// Returns inputs of the fuzzed log; the first byte says what the rest is taken for.
fn log() -> Vec<Vec<u8>> {
    let records = records();
    let first = |choice: u8, rest: &[u8]| [&[choice], rest].concat();
    let mut inputs: Vec<Vec<u8>> = records.iter().map(|payload| first(0, payload)).collect();
    let mut segment = Vec::new();
    for (batch, payload) in (1..).zip(&records[1..5]) {
        frame::write(&mut segment, batch, false, payload);
        frame::write(&mut segment, batch, true, payload);
        segment.extend_from_slice(&Secret::NONE.mark(batch));
    }
    inputs.push(first(2, &segment));
    let torn = segment.len() - 40;
    segment[torn..].fill(0);
    inputs.push(first(1, &segment));
    inputs.push(first(3, &[200, 3, b'a', b'b', b'c', 0, 2, b'd', b'e']));
    inputs
}

fn resp() -> Vec<Vec<u8>> {
    let texts = [
        "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nvalue\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
        "*1\r\n$4\r\nPING\r\n*0\r\n*-1\r\n",
        "set a 'b c'\r\nget \"a\\x41\\n\"\r\n",
        "*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\n\r\n",
        "*3\r\n:1\r\n+OK\r\n$-1\r\n",
        "-ERR no\r\n",
        "%1\r\n$1\r\na\r\n_\r\n",
        ">2\r\n$7\r\nmessage\r\n#t\r\n",
        "k::[a-c]?*\\*\nk::bx*",
        // A value that comes in pieces; the fuzzed connection takes it for much shorter.
        "*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$65537\r\nv\r\n$2\r\nEX\r\n$1\r\n9\r\n",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Returns scripts of a hostile peer. They have no encoding: any bytes are one, and these are
/// always the same.
fn scripts() -> Vec<Vec<u8>> {
    let script = |seed: u64| {
        let mut chance = seed;
        let byte = |_| {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
            (chance >> 56) as u8
        };
        (0..100 + 20 * seed).map(byte).collect()
    };
    (1..=12).map(script).collect()
}
