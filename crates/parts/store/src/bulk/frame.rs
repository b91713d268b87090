//! The frames of a bulk stream: a length (4 bytes, little-endian), a kind and a body. Requests and
//! answers alternate; a request may be sent before the last answer has come.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};

use super::{ASKED_MAX, BUFFER_BYTES, BulkError, Cv, GROUP_BYTES, SPAN_GROUPS, ValueName};
use model::value::VALUE_BYTES_MAX;
use runtime::members::Stream;

/// The length of the longest frame's body in bytes: the hashes of the spans of the longest value.
const BODY_MAX: usize = {
    let spans = VALUE_BYTES_MAX as usize / (GROUP_BYTES * SPAN_GROUPS) * size_of::<Cv>();
    if spans > GROUP_BYTES { spans } else { GROUP_BYTES }
};
/// The length in bytes up to which a peer's reason is shown.
const REASON_BYTES_MAX: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkFrameKind {
    AskHeld = 1,
    AskSpans = 2,
    AskGroups = 3,
    /// One bit per name that was asked for, lowest first.
    Held = 17,
    Spans = 18,
    /// The hashes of all groups of a span; the groups asked for follow.
    Page = 19,
    Group = 20,
    /// The peer is still reading the file; the answer follows.
    Wait = 21,
    Lacks = 22,
    Unable = 23,
}

impl BulkFrameKind {
    fn of(byte: u8) -> Option<BulkFrameKind> {
        use BulkFrameKind::*;
        let all = [AskHeld, AskSpans, AskGroups, Held, Spans, Page, Group, Wait, Lacks, Unable];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BulkRequest {
    Held(Vec<[u8; 32]>),
    Spans(ValueName),
    Groups(WantedGroups),
}

/// The groups of one span to send, from `from` and before `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedGroups {
    pub value: ValueName,
    pub span: u64,
    pub from: usize,
    pub until: usize,
}

pub struct Framed<S> {
    stream: BufReader<S>,
    body: Vec<u8>,
}

impl<S: Stream> Framed<S> {
    pub fn new(stream: S) -> Framed<S> {
        Framed { stream: BufReader::with_capacity(BUFFER_BYTES, stream), body: Vec::new() }
    }

    /// Receives a frame and appends its body, of at most `BODY_MAX` bytes, to `into`. Returns
    /// `None` if the stream ended between frames.
    pub async fn receive(
        &mut self,
        into: &mut Vec<u8>,
    ) -> Result<Option<(BulkFrameKind, usize)>, BulkError> {
        if tokio::io::AsyncBufReadExt::fill_buf(&mut self.stream).await?.is_empty() {
            return Ok(None);
        }
        let length = self.stream.read_u32_le().await? as usize;
        let Some(length) = length.checked_sub(1).filter(|length| *length <= BODY_MAX) else {
            return Err(BulkError::False("a frame of an impossible length"));
        };
        let kind = BulkFrameKind::of(self.stream.read_u8().await?);
        let kind = kind.ok_or(BulkError::False("a frame of an unknown kind"))?;
        let start = into.len();
        into.resize(start + length, 0);
        self.stream.read_exact(&mut into[start..]).await?;
        Ok(Some((kind, length)))
    }

    /// Writes a frame, which may stay in the stream's own buffer until `flush`.
    pub async fn send(&mut self, kind: BulkFrameKind, body: &[u8]) -> io::Result<()> {
        self.body.clear();
        self.body.extend_from_slice(&(body.len() as u32 + 1).to_le_bytes());
        self.body.push(kind as u8);
        self.body.extend_from_slice(body);
        self.stream.write_all(&self.body).await
    }

    pub async fn flush(&mut self) -> io::Result<()> {
        self.stream.flush().await
    }

    pub async fn ask(&mut self, request: &BulkRequest) -> io::Result<()> {
        let mut body = Vec::new();
        let kind = match request {
            BulkRequest::Held(hashes) => {
                hashes.iter().for_each(|hash| body.extend_from_slice(hash));
                BulkFrameKind::AskHeld
            }
            BulkRequest::Spans(value) => {
                put_name(&mut body, value);
                BulkFrameKind::AskSpans
            }
            BulkRequest::Groups(WantedGroups { value, span, from, until }) => {
                put_name(&mut body, value);
                body.extend_from_slice(&span.to_le_bytes());
                body.extend_from_slice(&(*from as u32).to_le_bytes());
                body.extend_from_slice(&(*until as u32).to_le_bytes());
                BulkFrameKind::AskGroups
            }
        };
        self.send(kind, &body).await?;
        self.flush().await
    }
}

fn put_name(body: &mut Vec<u8>, value: &ValueName) {
    body.extend_from_slice(&value.hash);
    body.extend_from_slice(&value.size.to_le_bytes());
}

const MALFORMED: BulkError = BulkError::False("a malformed request");

impl BulkRequest {
    pub fn decode(kind: BulkFrameKind, body: &[u8]) -> Result<BulkRequest, BulkError> {
        match kind {
            BulkFrameKind::AskHeld => {
                let hashes = decode_hashes(body)
                    .filter(|hashes| (1..=ASKED_MAX).contains(&hashes.len()))
                    .ok_or(MALFORMED)?;
                Ok(BulkRequest::Held(hashes))
            }
            BulkFrameKind::AskSpans => match take_name(body) {
                Some((value, [])) => Ok(BulkRequest::Spans(value)),
                _ => Err(MALFORMED),
            },
            BulkFrameKind::AskGroups => {
                decode_wanted(body).map(BulkRequest::Groups).ok_or(MALFORMED)
            }
            _ => Err(BulkError::False("an answer where a request is due")),
        }
    }
}

fn decode_wanted(body: &[u8]) -> Option<WantedGroups> {
    let (value, rest) = take_name(body)?;
    let (span, rest) = rest.split_first_chunk::<8>()?;
    let (from, rest) = rest.split_first_chunk::<4>()?;
    let until = <[u8; 4]>::try_from(rest).ok()?;
    let from = u32::from_le_bytes(*from) as usize;
    let until = u32::from_le_bytes(until) as usize;
    let sound = from < until && until <= SPAN_GROUPS;
    sound.then_some(WantedGroups { value, span: u64::from_le_bytes(*span), from, until })
}

fn take_name(body: &[u8]) -> Option<(ValueName, &[u8])> {
    let (hash, rest) = body.split_first_chunk::<32>()?;
    let (size, rest) = rest.split_first_chunk::<8>()?;
    let size = u64::from_le_bytes(*size);
    (size <= VALUE_BYTES_MAX).then_some((ValueName { hash: *hash, size }, rest))
}

/// Splits a body into hashes; `None` if the last one is not whole.
pub fn decode_hashes(body: &[u8]) -> Option<Vec<Cv>> {
    let (hashes, rest) = body.as_chunks::<32>();
    rest.is_empty().then(|| hashes.to_vec())
}

pub fn encode_bits(bits: &[bool]) -> Vec<u8> {
    let byte = |eight: &[bool]| (0..).zip(eight).map(|(n, bit)| u8::from(*bit) << n).sum();
    bits.chunks(8).map(byte).collect()
}

/// Decodes `count` bits; `None` if the body is not exactly that long.
pub fn decode_bits(body: &[u8], count: usize) -> Option<Vec<bool>> {
    let bit = |n: usize| body[n / 8] >> (n % 8) & 1 == 1;
    (body.len() == count.div_ceil(8)).then(|| (0..count).map(bit).collect())
}

/// Returns a peer's reason for people to read, without characters that a log or terminal would
/// obey.
pub fn reason(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(REASON_BYTES_MAX)]);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
