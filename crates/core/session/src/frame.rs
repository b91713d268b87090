//! The frames: a channel, a length and a payload. Pure: bytes in, frames out.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

/// The most bytes of input or output in one frame; a frame behind it waits for no more than these.
pub const DATA_BYTES_MAX: usize = 32 << 10;
/// The limit of any frame, of which a command is the largest; Linux takes 128 KiB in one argument
/// and 2 MiB in all.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// The size of a frame's head: a channel's number and a length.
const HEAD_BYTES: usize = 5;
/// The size of the number of the first byte, at the head of what is sent of a stream.
const OFFSET_BYTES: usize = 8;

#[derive(Clone, Debug, PartialEq)]
pub enum SessionFrame {
    /// The client's first frame where a command is to be started.
    Start(SessionStart),
    /// The node's answer: the session's id, by which it is attached to.
    Started(String),
    /// The client's first frame to whatever holds the command.
    Attach(Attach),
    /// The answer to it: where both streams go on.
    Attached(Attached),
    Input {
        offset: u64,
        bytes: Bytes,
    },
    /// The end of the input, by the number of its bytes.
    InputEnd(u64),
    Output {
        offset: u64,
        bytes: Bytes,
    },
    /// Output of the second kind. Both kinds are counted together, in the order in which they came.
    Error {
        offset: u64,
        bytes: Bytes,
    },
    /// The output goes on at this number: what lies before it was not kept.
    Skipped(u64),
    Resize(Size),
    /// A signal for the command's process group, and its place among all signals of the session.
    Signal {
        place: u32,
        signal: u8,
    },
    /// What has gone to the command so far.
    Taken {
        input: u64,
        signals: u32,
    },
    /// The output that the client has printed, and that need not be kept for it.
    Printed(u64),
    /// The command ended, and all of its output was sent.
    Exit(SessionEnd),
    /// The client knows the end; nothing need be kept.
    Done,
    /// The client goes for good.
    Leave,
    /// The last frame to a client in whose place somebody else attached, and who that is.
    TakenOver(String),
    /// The last frame to a client that gets nothing of what it asked for, and why.
    Failed(String),
    /// A remark for people, besides what the command prints.
    Note(String),
    Ping,
    Pong,
    /// A frame of a later version; nothing depends on it.
    Unknown(u8),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionStart {
    pub v: u32,
    /// The command: one word is a shell's command line, several are a program and its arguments.
    pub command: Vec<String>,
    /// The terminal of the command; `None` if it is to have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<Terminal>,
    /// Whether it goes on when nobody is attached.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detached: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attach {
    pub v: u32,
    /// The place at which this client goes on; `None` if it was not attached before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Resume>,
    /// The size of the client's terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resume {
    /// The number of this client among those that attached.
    pub attachment: u64,
    /// The number of bytes of output that it has received.
    pub received: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attached {
    pub v: u32,
    pub attachment: u64,
    /// The number of the first byte of output that follows.
    pub output: u64,
    /// The number of bytes of input that were received.
    pub input: u64,
    /// The number of those that have gone to the command.
    pub taken: u64,
    /// The number of signals that have.
    pub signals: u32,
    pub terminal: bool,
    /// Whether the session goes on when nobody is attached.
    #[serde(default)]
    pub detached: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Terminal {
    /// The value of `TERM`, such as `xterm-256color`.
    pub name: String,
    pub size: Size,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    pub rows: u16,
    pub columns: u16,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionEnd {
    /// The exit code as a shell counts it: 128 and the signal's number if a signal killed it.
    pub code: u8,
    /// The end in words for people: "exit status 1".
    pub how: String,
    /// The number of bytes of output there were.
    #[serde(default)]
    pub output: u64,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {0} bytes: is the other side of another version?")]
    TooLong(usize),
    #[error("a frame of kind {0} that is not understood: is the other side of another version?")]
    Malformed(u8),
}

mod channel {
    pub const START: u8 = 0;
    pub const INPUT: u8 = 1;
    pub const OUTPUT: u8 = 2;
    pub const ERROR: u8 = 3;
    pub const RESIZE: u8 = 4;
    pub const SIGNAL: u8 = 5;
    pub const TAKEN: u8 = 6;
    pub const EXIT: u8 = 7;
    pub const FAILED: u8 = 8;
    pub const NOTE: u8 = 9;
    pub const STARTED: u8 = 10;
    pub const ATTACH: u8 = 11;
    pub const ATTACHED: u8 = 12;
    pub const INPUT_END: u8 = 13;
    pub const SKIPPED: u8 = 14;
    pub const PRINTED: u8 = 15;
    pub const DONE: u8 = 16;
    pub const LEAVE: u8 = 17;
    pub const TAKEN_OVER: u8 = 18;
    pub const PING: u8 = 19;
    pub const PONG: u8 = 20;
}

impl SessionFrame {
    /// Appends the frame. Data longer than a frame becomes several; empty data none.
    pub fn write(&self, out: &mut BytesMut) {
        match self {
            SessionFrame::Start(start) => json(out, channel::START, start),
            SessionFrame::Started(id) => text(out, channel::STARTED, id),
            SessionFrame::Attach(attach) => json(out, channel::ATTACH, attach),
            SessionFrame::Attached(attached) => json(out, channel::ATTACHED, attached),
            SessionFrame::Input { offset, bytes } => data(out, channel::INPUT, *offset, bytes),
            SessionFrame::InputEnd(offset) => number(out, channel::INPUT_END, *offset),
            SessionFrame::Output { offset, bytes } => data(out, channel::OUTPUT, *offset, bytes),
            SessionFrame::Error { offset, bytes } => data(out, channel::ERROR, *offset, bytes),
            SessionFrame::Skipped(offset) => number(out, channel::SKIPPED, *offset),
            SessionFrame::Resize(size) => {
                head(out, channel::RESIZE, 4);
                out.put_u16(size.rows);
                out.put_u16(size.columns);
            }
            SessionFrame::Signal { place, signal } => {
                head(out, channel::SIGNAL, 5);
                out.put_u32(*place);
                out.put_u8(*signal);
            }
            SessionFrame::Taken { input, signals } => {
                head(out, channel::TAKEN, 12);
                out.put_u64(*input);
                out.put_u32(*signals);
            }
            SessionFrame::Printed(offset) => number(out, channel::PRINTED, *offset),
            SessionFrame::Exit(ended) => json(out, channel::EXIT, ended),
            SessionFrame::Done => head(out, channel::DONE, 0),
            SessionFrame::Leave => head(out, channel::LEAVE, 0),
            SessionFrame::TakenOver(by) => text(out, channel::TAKEN_OVER, by),
            SessionFrame::Failed(why) => text(out, channel::FAILED, why),
            SessionFrame::Note(said) => text(out, channel::NOTE, said),
            SessionFrame::Ping => head(out, channel::PING, 0),
            SessionFrame::Pong => head(out, channel::PONG, 0),
            SessionFrame::Unknown(_) => {}
        }
    }

    fn read(kind: u8, mut payload: Bytes) -> Result<SessionFrame, FrameError> {
        let malformed = FrameError::Malformed(kind);
        let length = payload.len();
        let holds = |is: bool| if is { Ok(()) } else { Err(FrameError::Malformed(kind)) };
        Ok(match kind {
            channel::START => SessionFrame::Start(from_json(&payload).ok_or(malformed)?),
            channel::STARTED => SessionFrame::Started(from_text(&payload)),
            channel::ATTACH => SessionFrame::Attach(from_json(&payload).ok_or(malformed)?),
            channel::ATTACHED => SessionFrame::Attached(from_json(&payload).ok_or(malformed)?),
            channel::INPUT | channel::OUTPUT | channel::ERROR => {
                holds((OFFSET_BYTES + 1..=OFFSET_BYTES + DATA_BYTES_MAX).contains(&length))?;
                let (offset, bytes) = (payload.get_u64(), payload);
                // A stream that ends behind the last number there is would be counted wrongly.
                holds(offset.checked_add(bytes.len() as u64).is_some())?;
                match kind {
                    channel::INPUT => SessionFrame::Input { offset, bytes },
                    channel::OUTPUT => SessionFrame::Output { offset, bytes },
                    _ => SessionFrame::Error { offset, bytes },
                }
            }
            channel::INPUT_END | channel::SKIPPED | channel::PRINTED => {
                holds(length == OFFSET_BYTES)?;
                let offset = payload.get_u64();
                match kind {
                    channel::INPUT_END => SessionFrame::InputEnd(offset),
                    channel::SKIPPED => SessionFrame::Skipped(offset),
                    _ => SessionFrame::Printed(offset),
                }
            }
            channel::RESIZE => {
                holds(length == 4)?;
                let (rows, columns) = (payload.get_u16(), payload.get_u16());
                SessionFrame::Resize(Size { rows, columns })
            }
            channel::SIGNAL => {
                holds(length == 5)?;
                SessionFrame::Signal { place: payload.get_u32(), signal: payload.get_u8() }
            }
            channel::TAKEN => {
                holds(length == 12)?;
                SessionFrame::Taken { input: payload.get_u64(), signals: payload.get_u32() }
            }
            channel::EXIT => SessionFrame::Exit(from_json(&payload).ok_or(malformed)?),
            channel::DONE => SessionFrame::Done,
            channel::LEAVE => SessionFrame::Leave,
            channel::TAKEN_OVER => SessionFrame::TakenOver(from_text(&payload)),
            channel::FAILED => SessionFrame::Failed(from_text(&payload)),
            channel::NOTE => SessionFrame::Note(from_text(&payload)),
            channel::PING => SessionFrame::Ping,
            channel::PONG => SessionFrame::Pong,
            other => SessionFrame::Unknown(other),
        })
    }
}

fn head(out: &mut BytesMut, channel: u8, length: usize) {
    out.put_u8(channel);
    out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}

fn payload(out: &mut BytesMut, channel: u8, bytes: &[u8]) {
    head(out, channel, bytes.len());
    out.put_slice(bytes);
}

fn data(out: &mut BytesMut, channel: u8, mut offset: u64, bytes: &[u8]) {
    for piece in bytes.chunks(DATA_BYTES_MAX) {
        head(out, channel, OFFSET_BYTES + piece.len());
        out.put_u64(offset);
        out.put_slice(piece);
        offset += piece.len() as u64;
    }
}

fn number(out: &mut BytesMut, channel: u8, number: u64) {
    payload(out, channel, &number.to_be_bytes());
}

fn text(out: &mut BytesMut, channel: u8, text: &str) {
    payload(out, channel, &text.as_bytes()[..text.len().min(DATA_BYTES_MAX)]);
}

fn from_text(payload: &[u8]) -> String {
    String::from_utf8_lossy(payload).into_owned()
}

fn json(out: &mut BytesMut, channel: u8, value: &impl Serialize) {
    // These are structures of texts and numbers, which always have a form in JSON.
    payload(out, channel, &serde_json::to_vec(value).unwrap_or_default());
}

fn from_json<T: serde::de::DeserializeOwned>(payload: &[u8]) -> Option<T> {
    serde_json::from_slice(payload).ok()
}

/// Puts frames together from bytes as they come.
#[derive(Debug, Default)]
pub struct SessionDecoder {
    bytes: BytesMut,
}

impl SessionDecoder {
    /// Returns the buffer to which received bytes are appended.
    pub fn buffer(&mut self) -> &mut BytesMut {
        self.bytes.reserve(DATA_BYTES_MAX + OFFSET_BYTES + HEAD_BYTES);
        &mut self.bytes
    }

    /// Returns the next whole frame. After an error the stream is of no more use.
    pub fn frame(&mut self) -> Result<Option<SessionFrame>, FrameError> {
        let Some(&[kind, a, b, c, d]) = self.bytes.first_chunk() else { return Ok(None) };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(FrameError::TooLong(length));
        }
        if self.bytes.len() < HEAD_BYTES + length {
            return Ok(None);
        }
        self.bytes.advance(HEAD_BYTES);
        let payload = self.bytes.split_to(length).freeze();
        SessionFrame::read(kind, payload).map(Some)
    }

    /// Returns what came behind the last frame, for whoever goes on with the stream.
    pub fn into_rest(self) -> BytesMut {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn size() -> impl Strategy<Value = Size> {
        (any::<u16>(), any::<u16>()).prop_map(|(rows, columns)| Size { rows, columns })
    }

    fn bytes() -> impl Strategy<Value = Bytes> {
        prop::collection::vec(any::<u8>(), 1..200).prop_map(Bytes::from)
    }

    fn start() -> impl Strategy<Value = SessionFrame> {
        let terminal = prop::option::of(("[a-z]{0,9}", size()))
            .prop_map(|made| made.map(|(name, size)| Terminal { name, size }));
        (prop::collection::vec(".*", 0..4), terminal, any::<bool>()).prop_map(
            |(command, terminal, detached)| {
                SessionFrame::Start(SessionStart {
                    v: super::super::VERSION,
                    command,
                    terminal,
                    detached,
                })
            },
        )
    }

    fn attach() -> impl Strategy<Value = SessionFrame> {
        let resume = prop::option::of(any::<(u64, u64)>());
        (any::<u32>(), resume, prop::option::of(size())).prop_map(|(v, resume, size)| {
            let resume = resume.map(|(attachment, received)| Resume { attachment, received });
            SessionFrame::Attach(Attach { v, resume, size })
        })
    }

    fn attached() -> impl Strategy<Value = SessionFrame> {
        any::<(u32, u64, u64, u64, u64, u32, bool, bool)>().prop_map(
            |(v, attachment, output, input, taken, signals, terminal, detached)| {
                let ends =
                    Attached { v, attachment, output, input, taken, signals, terminal, detached };
                SessionFrame::Attached(ends)
            },
        )
    }

    fn frame() -> impl Strategy<Value = SessionFrame> {
        let offset = 0..u64::MAX - 1000;
        prop_oneof![
            start(),
            attach(),
            attached(),
            (offset.clone(), bytes())
                .prop_map(|(offset, bytes)| SessionFrame::Input { offset, bytes }),
            (offset.clone(), bytes())
                .prop_map(|(offset, bytes)| SessionFrame::Output { offset, bytes }),
            (offset, bytes()).prop_map(|(offset, bytes)| SessionFrame::Error { offset, bytes }),
            any::<u64>().prop_map(SessionFrame::InputEnd),
            any::<u64>().prop_map(SessionFrame::Skipped),
            any::<u64>().prop_map(SessionFrame::Printed),
            size().prop_map(SessionFrame::Resize),
            any::<(u32, u8)>().prop_map(|(place, signal)| SessionFrame::Signal { place, signal }),
            any::<(u64, u32)>().prop_map(|(input, signals)| SessionFrame::Taken { input, signals }),
            (any::<u8>(), ".*", any::<u64>()).prop_map(|(code, how, output)| {
                SessionFrame::Exit(SessionEnd { code, how, output })
            }),
            ".*".prop_map(SessionFrame::Started),
            ".*".prop_map(SessionFrame::Failed),
            ".*".prop_map(SessionFrame::TakenOver),
            ".*".prop_map(SessionFrame::Note),
            prop::sample::select(vec![
                SessionFrame::Done,
                SessionFrame::Leave,
                SessionFrame::Ping,
                SessionFrame::Pong,
            ]),
        ]
    }

    fn decode(decoder: &mut SessionDecoder, bytes: &[u8]) -> Result<Vec<SessionFrame>, FrameError> {
        decoder.buffer().extend_from_slice(bytes);
        let mut frames = Vec::new();
        while let Some(frame) = decoder.frame()? {
            frames.push(frame);
        }
        Ok(frames)
    }

    proptest! {
        #[test]
        fn frames_arrive_as_they_were_sent_however_the_stream_is_cut(
            frames in prop::collection::vec(frame(), 0..8),
            piece in 1usize..64,
        ) {
            let mut sent = BytesMut::new();
            frames.iter().for_each(|frame| frame.write(&mut sent));
            let (mut decoder, mut received) = (SessionDecoder::default(), Vec::new());
            for bytes in sent.chunks(piece) {
                received.extend(decode(&mut decoder, bytes).unwrap());
            }
            prop_assert_eq!(received, frames);
        }

        #[test]
        fn no_bytes_make_it_panic(
            kind in 0u8..24,
            length in 0u32..40,
            bytes in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let [a, b, c, d] = length.to_be_bytes();
            let framed = [&[kind, a, b, c, d], &bytes[..]].concat();
            decode(&mut SessionDecoder::default(), &framed).ok();
            decode(&mut SessionDecoder::default(), &bytes).ok();
        }
    }

    #[test]
    fn long_data_becomes_several_frames_that_are_numbered_on() {
        let long = Bytes::from(vec![7; 3 * DATA_BYTES_MAX + 5]);
        let mut sent = BytesMut::new();
        SessionFrame::Output { offset: 11, bytes: long.clone() }.write(&mut sent);
        let frames = decode(&mut SessionDecoder::default(), &sent).unwrap();
        assert_eq!(frames.len(), 4);
        let mut next = 11;
        for frame in frames {
            let SessionFrame::Output { offset, bytes } = frame else { panic!("{frame:?}") };
            assert_eq!(offset, next);
            next += bytes.len() as u64;
        }
        assert_eq!(next, 11 + long.len() as u64);
    }

    #[test]
    fn what_a_later_version_adds_is_passed_over() {
        let frames = decode(
            &mut SessionDecoder::default(),
            &[99, 0, 0, 0, 1, 7, 5, 0, 0, 0, 5, 0, 0, 0, 2, 15],
        );
        let signal = SessionFrame::Signal { place: 2, signal: 15 };
        assert_eq!(frames.unwrap(), [SessionFrame::Unknown(99), signal]);
    }

    #[test]
    fn a_frame_that_lies_about_its_length_or_its_place_is_refused() {
        let long = decode(&mut SessionDecoder::default(), &[1, 0xff, 0, 0, 0]);
        assert_eq!(long, Err(FrameError::TooLong(0xff00_0000)));
        let mut at_the_end = vec![channel::INPUT, 0, 0, 0, 9];
        at_the_end.extend([0xff; 9]);
        for (kind, bytes) in [
            (channel::SIGNAL, &[channel::SIGNAL, 0, 0, 0, 0][..]),
            (channel::PRINTED, &[channel::PRINTED, 0, 0, 0, 2, 1, 1]),
            (channel::INPUT, &[channel::INPUT, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0]),
            (channel::INPUT, &at_the_end),
        ] {
            let refused = decode(&mut SessionDecoder::default(), bytes);
            assert_eq!(refused, Err(FrameError::Malformed(kind)));
        }
    }
}
