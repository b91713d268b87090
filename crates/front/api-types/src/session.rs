//! The protocol of a command that runs for somebody who is connected: what both sides send
//! meanwhile, as frames over one stream, each with a channel, a length and a payload. Pure: bytes
//! in, frames out; must not know where the stream leads or how the command is held.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

/// The protocol to which an HTTP connection is upgraded.
pub const PROTOCOL: &str = "cortex-stream/1";
pub const VERSION: u32 = 1;
/// The most bytes of input or output in one frame; a frame behind it waits for no more than these.
pub const DATA_BYTES_MAX: usize = 32 << 10;
/// The limit of any frame, of which a command is the largest; Linux takes 128 KiB in one argument
/// and 2 MiB in all.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// The most bytes of input that were sent and are not yet with the command. Frames that follow it
/// in the stream, such as a signal, never wait for a command that does not read.
pub const INPUT_WINDOW_BYTES: usize = 256 << 10;
/// The size of a frame's head: a channel's number and a length.
const HEAD_BYTES: usize = 5;

#[derive(Clone, Debug, PartialEq)]
pub enum SessionFrame {
    /// The client's first frame: what to run.
    Start(SessionStart),
    Input(Bytes),
    /// The end of the input.
    InputEnd,
    Output(Bytes),
    Error(Bytes),
    Resize(Size),
    /// A signal by its number, for the command's process group.
    Signal(u8),
    /// The number of bytes of input that have gone to the command.
    Taken(u32),
    /// The node's last frame: the command ended.
    Exit(SessionEnd),
    /// The node's last frame: the command could not be started, and why.
    Failed(String),
    /// A remark for people, besides what the command prints.
    Note(String),
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
}

impl SessionFrame {
    /// Appends the frame. Data longer than a frame becomes several; an empty piece of input would
    /// be its end and is left out, as are empty pieces of output.
    pub fn write(&self, out: &mut BytesMut) {
        match self {
            SessionFrame::Start(start) => json(out, channel::START, start),
            SessionFrame::Input(bytes) => data(out, channel::INPUT, bytes),
            SessionFrame::InputEnd => head(out, channel::INPUT, 0),
            SessionFrame::Output(bytes) => data(out, channel::OUTPUT, bytes),
            SessionFrame::Error(bytes) => data(out, channel::ERROR, bytes),
            SessionFrame::Resize(size) => {
                head(out, channel::RESIZE, 4);
                out.put_u16(size.rows);
                out.put_u16(size.columns);
            }
            SessionFrame::Signal(number) => payload(out, channel::SIGNAL, &[*number]),
            SessionFrame::Taken(count) => payload(out, channel::TAKEN, &count.to_be_bytes()),
            SessionFrame::Exit(ended) => json(out, channel::EXIT, ended),
            SessionFrame::Failed(why) => text(out, channel::FAILED, why),
            SessionFrame::Note(said) => text(out, channel::NOTE, said),
            SessionFrame::Unknown(_) => {}
        }
    }

    fn read(kind: u8, payload: Bytes) -> Result<SessionFrame, FrameError> {
        let malformed = || FrameError::Malformed(kind);
        Ok(match kind {
            channel::START => {
                SessionFrame::Start(serde_json::from_slice(&payload).map_err(|_| malformed())?)
            }
            channel::INPUT if payload.is_empty() => SessionFrame::InputEnd,
            channel::INPUT => SessionFrame::Input(payload),
            channel::OUTPUT => SessionFrame::Output(payload),
            channel::ERROR => SessionFrame::Error(payload),
            channel::RESIZE => {
                let [a, b, c, d] = payload[..].try_into().map_err(|_| malformed())?;
                let (rows, columns) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
                SessionFrame::Resize(Size { rows, columns })
            }
            channel::SIGNAL => match payload[..] {
                [number] => SessionFrame::Signal(number),
                _ => return Err(malformed()),
            },
            channel::TAKEN => {
                let count = payload[..].try_into().map_err(|_| malformed())?;
                SessionFrame::Taken(u32::from_be_bytes(count))
            }
            channel::EXIT => {
                SessionFrame::Exit(serde_json::from_slice(&payload).map_err(|_| malformed())?)
            }
            channel::FAILED => SessionFrame::Failed(String::from_utf8_lossy(&payload).into_owned()),
            channel::NOTE => SessionFrame::Note(String::from_utf8_lossy(&payload).into_owned()),
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

fn data(out: &mut BytesMut, channel: u8, bytes: &[u8]) {
    for piece in bytes.chunks(DATA_BYTES_MAX) {
        payload(out, channel, piece);
    }
}

fn text(out: &mut BytesMut, channel: u8, text: &str) {
    payload(out, channel, &text.as_bytes()[..text.len().min(DATA_BYTES_MAX)]);
}

fn json(out: &mut BytesMut, channel: u8, value: &impl Serialize) {
    // These are structures of texts and numbers, which always have a form in JSON.
    payload(out, channel, &serde_json::to_vec(value).unwrap_or_default());
}

/// Puts frames together from bytes as they come.
#[derive(Debug, Default)]
pub struct SessionDecoder {
    bytes: BytesMut,
}

impl SessionDecoder {
    /// Returns the buffer to which received bytes are appended.
    pub fn buffer(&mut self) -> &mut BytesMut {
        self.bytes.reserve(DATA_BYTES_MAX + HEAD_BYTES);
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

    fn frame() -> impl Strategy<Value = SessionFrame> {
        let terminal = prop::option::of(("[a-z]{0,9}", size()))
            .prop_map(|made| made.map(|(name, size)| Terminal { name, size }));
        prop_oneof![
            (prop::collection::vec(".*", 0..4), terminal).prop_map(|(command, terminal)| {
                SessionFrame::Start(SessionStart { v: VERSION, command, terminal })
            }),
            bytes().prop_map(SessionFrame::Input),
            Just(SessionFrame::InputEnd),
            bytes().prop_map(SessionFrame::Output),
            bytes().prop_map(SessionFrame::Error),
            size().prop_map(SessionFrame::Resize),
            any::<u8>().prop_map(SessionFrame::Signal),
            any::<u32>().prop_map(SessionFrame::Taken),
            (any::<u8>(), ".*")
                .prop_map(|(code, how)| SessionFrame::Exit(SessionEnd { code, how })),
            ".*".prop_map(SessionFrame::Failed),
            ".*".prop_map(SessionFrame::Note),
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
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            decode(&mut SessionDecoder::default(), &bytes).ok();
        }
    }

    #[test]
    fn long_data_becomes_several_frames_and_stays_whole() {
        let long = Bytes::from(vec![7; 3 * DATA_BYTES_MAX + 5]);
        let mut sent = BytesMut::new();
        SessionFrame::Output(long.clone()).write(&mut sent);
        let frames = decode(&mut SessionDecoder::default(), &sent).unwrap();
        assert_eq!(frames.len(), 4);
        let mut whole = BytesMut::new();
        for frame in frames {
            let SessionFrame::Output(bytes) = frame else { panic!("{frame:?}") };
            whole.extend_from_slice(&bytes);
        }
        assert_eq!(whole, long);
    }

    #[test]
    fn what_a_later_version_adds_is_passed_over() {
        let frames =
            decode(&mut SessionDecoder::default(), &[99, 0, 0, 0, 1, 7, 5, 0, 0, 0, 1, 15]);
        assert_eq!(frames.unwrap(), [SessionFrame::Unknown(99), SessionFrame::Signal(15)]);
    }

    #[test]
    fn a_frame_that_is_too_long_or_torn_is_refused() {
        let long = decode(&mut SessionDecoder::default(), &[1, 0xff, 0, 0, 0]);
        assert_eq!(long, Err(FrameError::TooLong(0xff00_0000)));
        assert_eq!(
            decode(&mut SessionDecoder::default(), &[5, 0, 0, 0, 0]),
            Err(FrameError::Malformed(5))
        );
    }
}
