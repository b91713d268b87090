//! Messages as bytes. Everything that comes in is hostile: lengths are checked against what is
//! there before anything is reserved, and no bytes panic. Values of commits follow their commit.

use model::{NodeId, Timestamp};
use thiserror::Error;

use crate::clock::Stamp;
use crate::commit::{Commit, CommitError, Location, NodeTag, Reader};
use crate::event::Ticket;
use crate::replica::Horizons;
use crate::sum::Fingerprint;
use crate::sync::message::{
    Body, Carried, ClusterId, Hello, Message, RangeHoldings, RangeSummary, SessionRefusal, ShortId,
    StampRange, SummaryAnswer, Vector,
};

/// Bytes of a message. A batch of commits has at most 256 KiB, a comparison less; the vectors of
/// 10,000 nodes in a hello have 250 kB each.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

const OPEN: u8 = 1;
const OPENED: u8 = 2;
const COMPARE: u8 = 3;
const ANSWERS: u8 = 4;
const COMMITS: u8 = 5;
const DURABLE: u8 = 6;
const DONE: u8 = 7;
const NOTED: u8 = 8;
const COPY_FROM: u8 = 9;
const COPYING: u8 = 10;
const COPIED: u8 = 11;
const REFUSED: u8 = 12;

const HELD_IDS: u8 = 0;
const HELD_SUM: u8 = 1;
const ANSWER_LACKS: u8 = 0;
const ANSWER_HOLDS: u8 = 1;
const VALUE_APART: u8 = 0;
const VALUE_INSIDE: u8 = 1;

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum WireError {
    #[error("a message of an unknown kind {0}")]
    Kind(u8),
    #[error("a message with {0} bytes too many")]
    Surplus(usize),
    #[error("a number that is no number here")]
    Number,
    #[error(transparent)]
    Commit(#[from] CommitError),
}

/// A message whose commits' values are in the bytes it was read from.
#[derive(Debug, PartialEq, Eq)]
pub struct Decoded<'a> {
    pub message: Message,
    /// The value of each commit of a `Commits`, in order; `None` if it travels apart or there is
    /// none.
    pub values: Vec<Option<&'a [u8]>>,
}

/// Encodes a message with `values` as `Decoded` has them; only `Commits` has any.
pub fn encode(message: &Message, values: &[Option<&[u8]>], out: &mut Vec<u8>) {
    let kind_at = out.len();
    out.push(0);
    put_number(message.session, out);
    out[kind_at] = match &message.body {
        Body::Open { hello, summaries } => {
            put_hello(hello, out);
            put_summaries(summaries, out);
            OPEN
        }
        Body::Opened { hello, answers } => {
            put_hello(hello, out);
            out.push(answers.is_some().into());
            put_answers(answers.as_deref().unwrap_or_default(), out);
            OPENED
        }
        Body::Compare(summaries) => {
            put_summaries(summaries, out);
            COMPARE
        }
        Body::Answers(answers) => {
            put_answers(answers, out);
            ANSWERS
        }
        Body::Commits { batch, commits } => {
            put_number((*batch).into(), out);
            put_number(commits.len() as u64, out);
            for (index, carried) in commits.iter().enumerate() {
                let value = values.get(index).copied().flatten();
                out.push(if value.is_some() { VALUE_INSIDE } else { VALUE_APART });
                carried.commit.encode(out);
                out.extend_from_slice(value.unwrap_or_default());
            }
            COMMITS
        }
        Body::Durable { batch } => {
            put_number((*batch).into(), out);
            DURABLE
        }
        Body::Done { vector } => {
            put_vector(vector, out);
            DONE
        }
        Body::Noted { whole, head } => {
            out.push((*whole).into());
            out.extend_from_slice(&head.0);
            NOTED
        }
        Body::CopyFrom { hello } => {
            put_hello(hello, out);
            COPY_FROM
        }
        Body::Copying { hello } => {
            put_hello(hello, out);
            COPYING
        }
        Body::Copied { vector, horizons } => {
            put_vector(vector, out);
            put_horizons(horizons, out);
            COPIED
        }
        Body::Refused(refusal) => {
            put_refusal(*refusal, out);
            REFUSED
        }
    };
}

pub fn decode(bytes: &[u8]) -> Result<Decoded<'_>, WireError> {
    let mut reader = Reader(bytes);
    let kind = reader.byte()?;
    let session = take_number(&mut reader)?;
    let mut values = Vec::new();
    let body = match kind {
        OPEN => {
            Body::Open { hello: take_hello(&mut reader)?, summaries: take_summaries(&mut reader)? }
        }
        OPENED => {
            let hello = take_hello(&mut reader)?;
            let compared = take_flag(&mut reader)?;
            let answers = take_answers(&mut reader)?;
            Body::Opened { hello, answers: compared.then_some(answers) }
        }
        COMPARE => Body::Compare(take_summaries(&mut reader)?),
        ANSWERS => Body::Answers(take_answers(&mut reader)?),
        COMMITS => {
            let batch = take_small(&mut reader)?;
            let mut commits = Vec::new();
            for _ in 0..take_number(&mut reader)? {
                let (commit, value) = take_commit(&mut reader)?;
                commits.push(Carried { ticket: Ticket(0), commit });
                values.push(value);
            }
            Body::Commits { batch, commits }
        }
        DURABLE => Body::Durable { batch: take_small(&mut reader)? },
        DONE => Body::Done { vector: take_vector(&mut reader)? },
        NOTED => {
            let whole = take_flag(&mut reader)?;
            Body::Noted { whole, head: Fingerprint(reader.array()?) }
        }
        COPY_FROM => Body::CopyFrom { hello: take_hello(&mut reader)? },
        COPYING => Body::Copying { hello: take_hello(&mut reader)? },
        COPIED => Body::Copied {
            vector: take_vector(&mut reader)?,
            horizons: take_horizons(&mut reader)?,
        },
        REFUSED => Body::Refused(take_refusal(&mut reader)?),
        other => return Err(WireError::Kind(other)),
    };
    match reader.0.len() {
        0 => Ok(Decoded { message: Message { session, body }, values }),
        surplus => Err(WireError::Surplus(surplus)),
    }
}

fn take_commit<'a>(reader: &mut Reader<'a>) -> Result<(Commit, Option<&'a [u8]>), WireError> {
    let place = reader.byte()?;
    let (mut commit, rest) = Commit::decode(reader.0)?;
    reader.0 = rest;
    if place == VALUE_APART {
        return Ok((commit, None));
    }
    let size = usize::try_from(commit.size()).map_err(|_| WireError::Number)?;
    let value = reader.take(size)?;
    commit.location = Location::Log { segment: 0, offset: 0 };
    Ok((commit, Some(value)))
}

/// Writes a number as LEB128: seven bits a byte, the lowest first.
pub fn put_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub fn take_number(reader: &mut Reader<'_>) -> Result<u64, WireError> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = reader.byte()?;
        let bits = u64::from(byte & 0x7f);
        if bits.checked_shl(shift).map(|b| b >> shift) != Some(bits) {
            return Err(WireError::Number);
        }
        number |= bits << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(WireError::Number)
}

fn take_small(reader: &mut Reader<'_>) -> Result<u32, WireError> {
    u32::try_from(take_number(reader)?).map_err(|_| WireError::Number)
}

fn take_flag(reader: &mut Reader<'_>) -> Result<bool, WireError> {
    match reader.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Number),
    }
}

pub fn put_node(node: &NodeTag, out: &mut Vec<u8>) {
    let text = node.as_str().as_bytes();
    out.push(text.len() as u8);
    out.extend_from_slice(text);
}

pub fn take_node(reader: &mut Reader<'_>) -> Result<NodeTag, CommitError> {
    let length = reader.byte()?;
    let text = std::str::from_utf8(reader.take(length.into())?).map_err(|_| CommitError::Node)?;
    let node: NodeId = text.parse().map_err(|_| CommitError::Node)?;
    Ok(NodeTag::from(&node))
}

pub fn put_vector(vector: &Vector, out: &mut Vec<u8>) {
    out.extend_from_slice(&(vector.len() as u32).to_le_bytes());
    for (node, stamp) in vector {
        put_node(node, out);
        out.extend_from_slice(&stamp.0.to_le_bytes());
    }
}

pub fn take_vector(reader: &mut Reader<'_>) -> Result<Vector, CommitError> {
    let mut vector = Vector::new();
    for _ in 0..u32::from_le_bytes(reader.array()?) {
        let node = take_node(reader)?;
        vector.insert(node, Stamp(u64::from_le_bytes(reader.array()?)));
    }
    Ok(vector)
}

fn put_horizons(horizons: &Horizons, out: &mut Vec<u8>) {
    out.extend_from_slice(&horizons.squash.0.to_le_bytes());
    out.extend_from_slice(&horizons.garbage.0.to_le_bytes());
}

fn take_horizons(reader: &mut Reader<'_>) -> Result<Horizons, WireError> {
    let squash = Stamp(u64::from_le_bytes(reader.array()?));
    let garbage = Stamp(u64::from_le_bytes(reader.array()?));
    Ok(Horizons { squash, garbage })
}

fn put_hello(hello: &Hello, out: &mut Vec<u8>) {
    out.extend_from_slice(&hello.cluster.0);
    put_node(&hello.node, out);
    out.extend_from_slice(&hello.incarnation.to_le_bytes());
    out.extend_from_slice(&hello.clock.0.to_le_bytes());
    put_horizons(&hello.horizons, out);
    out.extend_from_slice(&hello.head.0);
    put_number(hello.count, out);
    put_vector(&hello.acks, out);
    out.push(hello.fresh.into());
}

fn take_hello(reader: &mut Reader<'_>) -> Result<Hello, WireError> {
    Ok(Hello {
        cluster: ClusterId(reader.array()?),
        node: take_node(reader)?,
        incarnation: u64::from_le_bytes(reader.array()?),
        clock: Timestamp(u64::from_le_bytes(reader.array()?)),
        horizons: take_horizons(reader)?,
        head: Fingerprint(reader.array()?),
        count: take_number(reader)?,
        acks: take_vector(reader)?,
        fresh: take_flag(reader)?,
    })
}

/// Writes the start relative to what was named before and the end relative to the start: neighbours
/// are close. The end of everything is 0, which no range is long.
fn put_range(range: StampRange, last: &mut Stamp, out: &mut Vec<u8>) {
    put_number(range.from.0.wrapping_sub(last.0), out);
    let endless = range.until == StampRange::ALL.until;
    put_number(if endless { 0 } else { range.until.0.wrapping_sub(range.from.0) }, out);
    *last = if endless { range.from } else { range.until };
}

fn take_range(reader: &mut Reader<'_>, last: &mut Stamp) -> Result<StampRange, WireError> {
    let from = Stamp(last.0.wrapping_add(take_number(reader)?));
    let length = take_number(reader)?;
    let until = match length {
        0 => StampRange::ALL.until,
        _ => Stamp(from.0.checked_add(length).ok_or(WireError::Number)?),
    };
    *last = if length == 0 { from } else { until };
    Ok(StampRange { from, until })
}

fn put_summaries(summaries: &[RangeSummary], out: &mut Vec<u8>) {
    put_number(summaries.len() as u64, out);
    let mut last = Stamp::default();
    for summary in summaries {
        put_range(summary.range, &mut last, out);
        match &summary.held {
            RangeHoldings::Ids(ids) => {
                out.push(HELD_IDS);
                put_number(ids.len() as u64, out);
                ids.iter().for_each(|id| out.extend_from_slice(&id.0));
            }
            RangeHoldings::Sum { fingerprint, count } => {
                out.push(HELD_SUM);
                out.extend_from_slice(&fingerprint.0);
                put_number(*count, out);
            }
        }
    }
}

fn take_summaries(reader: &mut Reader<'_>) -> Result<Vec<RangeSummary>, WireError> {
    let mut summaries = Vec::new();
    let mut last = Stamp::default();
    for _ in 0..take_number(reader)? {
        let range = take_range(reader, &mut last)?;
        let held = match reader.byte()? {
            HELD_IDS => {
                let mut ids = Vec::new();
                for _ in 0..take_number(reader)? {
                    ids.push(ShortId(reader.array()?));
                }
                RangeHoldings::Ids(ids)
            }
            HELD_SUM => RangeHoldings::Sum {
                fingerprint: Fingerprint(reader.array()?),
                count: take_number(reader)?,
            },
            other => return Err(WireError::Kind(other)),
        };
        summaries.push(RangeSummary { range, held });
    }
    Ok(summaries)
}

fn put_answers(answers: &[SummaryAnswer], out: &mut Vec<u8>) {
    put_number(answers.len() as u64, out);
    for answer in answers {
        match answer {
            SummaryAnswer::Lacks { range, missing } => {
                out.push(ANSWER_LACKS);
                put_range(*range, &mut Stamp::default(), out);
                put_number(missing.len() as u64, out);
                missing.iter().for_each(|index| put_number((*index).into(), out));
            }
            SummaryAnswer::Holds(summaries) => {
                out.push(ANSWER_HOLDS);
                put_summaries(summaries, out);
            }
        }
    }
}

fn take_answers(reader: &mut Reader<'_>) -> Result<Vec<SummaryAnswer>, WireError> {
    let mut answers = Vec::new();
    for _ in 0..take_number(reader)? {
        answers.push(match reader.byte()? {
            ANSWER_LACKS => {
                let range = take_range(reader, &mut Stamp::default())?;
                let mut missing = Vec::new();
                for _ in 0..take_number(reader)? {
                    missing.push(take_small(reader)?);
                }
                SummaryAnswer::Lacks { range, missing }
            }
            ANSWER_HOLDS => SummaryAnswer::Holds(take_summaries(reader)?),
            other => return Err(WireError::Kind(other)),
        });
    }
    Ok(answers)
}

const REFUSALS: [SessionRefusal; 14] = [
    SessionRefusal::OtherCluster,
    SessionRefusal::ClocksApart(0),
    SessionRefusal::Unknown,
    SessionRefusal::Evicted,
    SessionRefusal::Behind,
    SessionRefusal::Implausible,
    SessionRefusal::BelowGarbage,
    SessionRefusal::Conflict,
    SessionRefusal::ValueMismatch,
    SessionRefusal::HorizonsRose,
    SessionRefusal::NoRoom,
    SessionRefusal::Busy,
    SessionRefusal::Stalled,
    SessionRefusal::OutOfPlace,
];

fn put_refusal(refusal: SessionRefusal, out: &mut Vec<u8>) {
    let (alike, number) = match refusal {
        SessionRefusal::ClocksApart(apart) => (SessionRefusal::ClocksApart(0), apart),
        other => (other, 0),
    };
    let code = REFUSALS.iter().position(|known| *known == alike).unwrap_or_default();
    out.push(code as u8);
    put_number(number, out);
}

fn take_refusal(reader: &mut Reader<'_>) -> Result<SessionRefusal, WireError> {
    let code = reader.byte()?;
    let number = take_number(reader)?;
    match REFUSALS.get(usize::from(code)) {
        Some(SessionRefusal::ClocksApart(_)) => Ok(SessionRefusal::ClocksApart(number)),
        Some(refusal) => Ok(*refusal),
        None => Err(WireError::Kind(code)),
    }
}
