//! The relay between a client and a command: one loop for all directions. A side that does not read
//! makes the other wait and costs no more memory than the bounds here; signals pass all the same.

use std::time::Duration;

use agent_core::application::Exit;
use anyhow::{Context, bail, ensure};
use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::watch;

use super::ends::{self, Ends};
use crate::launcher::Held;
use api_types::session::{
    DATA_BYTES_MAX, INPUT_WINDOW_BYTES, SessionDecoder, SessionEnd, SessionFrame,
};
use runtime::members::BoxedStream;

/// The maximum number of bytes of frames that wait for a slow client; beyond it the command waits.
const OUT_BYTES_MAX: usize = 256 << 10;
/// The maximum silence of the pipes after a command's end. All that it wrote is in them by then;
/// only a stranger that was handed one could keep it open.
const DRAIN_PAUSE_MAX: Duration = Duration::from_secs(2);
/// The byte that a terminal in its usual mode takes for the end of its input.
const END_OF_INPUT: u8 = 4;
/// The exit code of a command whose end nobody saw.
const CODE_UNKNOWN: u8 = 255;

/// How a session ended for the client.
#[derive(Clone, Debug, PartialEq)]
pub enum SessionOutcome {
    /// The client was told how the command ended.
    Told(SessionEnd),
    /// The client went away before that.
    Gone,
}

pub struct SessionClient {
    reader: ReadHalf<BoxedStream>,
    writer: WriteHalf<BoxedStream>,
    pub decoder: SessionDecoder,
}

impl SessionClient {
    pub fn new(stream: BoxedStream) -> SessionClient {
        let (reader, writer) = tokio::io::split(stream);
        SessionClient { reader, writer, decoder: SessionDecoder::default() }
    }

    pub async fn next(&mut self) -> anyhow::Result<SessionFrame> {
        loop {
            if let Some(frame) = self.decoder.frame()? {
                return Ok(frame);
            }
            let count = self.reader.read_buf(self.decoder.buffer()).await?;
            ensure!(count > 0, "the client went away");
        }
    }

    pub async fn tell(&mut self, frame: &SessionFrame) -> anyhow::Result<()> {
        let mut out = BytesMut::new();
        frame.write(&mut out);
        self.writer.write_all(&out).await?;
        self.writer.flush().await.context("the client went away")
    }

    /// Ends the stream; nothing more is sent.
    pub async fn close(&mut self) {
        self.writer.shutdown().await.ok();
    }
}

/// The state of one session: what goes back and forth.
struct Relay<'a> {
    held: &'a dyn Held,
    ends: Ends,
    /// Input that the command has not taken.
    input: BytesMut,
    input_ended: bool,
    out: BytesMut,
    unflushed: bool,
    ended: Option<SessionEnd>,
    told: bool,
}

/// Relays until the command's end was told, or the client is gone.
pub async fn relay(
    client: &mut SessionClient,
    ends: Ends,
    held: &dyn Held,
) -> anyhow::Result<SessionOutcome> {
    let mut relay = Relay {
        held,
        ends,
        input: BytesMut::new(),
        input_ended: false,
        out: BytesMut::new(),
        unflushed: false,
        ended: None,
        told: false,
    };
    let mut exits = held.exit();
    let (mut chunk, mut error_chunk) = (vec![0; DATA_BYTES_MAX], vec![0; DATA_BYTES_MAX]);
    while let Some(frame) = client.decoder.frame()? {
        relay.heard(frame).await?;
    }
    loop {
        relay.settle();
        if relay.told && relay.out.is_empty() && !relay.unflushed {
            client.close().await;
            return Ok(relay.ended.map_or(SessionOutcome::Gone, SessionOutcome::Told));
        }
        let (has_input, has_room) = (!relay.input.is_empty(), relay.out.len() < OUT_BYTES_MAX);
        let is_over = relay.ended.is_some() && !relay.told && has_room;
        let writes = !relay.out.is_empty() || relay.unflushed;
        tokio::select! {
            read = client.reader.read_buf(client.decoder.buffer()) => {
                if !matches!(read, Ok(1..)) {
                    return Ok(SessionOutcome::Gone);
                }
                while let Some(frame) = client.decoder.frame()? {
                    relay.heard(frame).await?;
                }
            }
            written = write(&relay.ends.input, &relay.input), if has_input => relay.took(written),
            read = read(&relay.ends.output, &mut chunk), if has_room => match read {
                Some(count) => relay.print(&chunk[..count], SessionFrame::Output),
                None => relay.ends.output = None,
            },
            read = read(&relay.ends.error, &mut error_chunk), if has_room => match read {
                Some(count) => relay.print(&error_chunk[..count], SessionFrame::Error),
                None => relay.ends.error = None,
            },
            sent = send(&mut client.writer, &mut relay.out, &mut relay.unflushed), if writes => {
                if sent.is_err() {
                    return Ok(SessionOutcome::Gone);
                }
            }
            exit = end_of(&mut exits), if relay.ended.is_none() => {
                let code = exit.code.unwrap_or(CODE_UNKNOWN);
                relay.ended = Some(SessionEnd { code, how: exit.how });
            }
            () = tokio::time::sleep(DRAIN_PAUSE_MAX), if is_over => {
                (relay.ends.output, relay.ends.error) = (None, None);
            }
        }
    }
}

async fn end_of(exits: &mut watch::Receiver<Option<Exit>>) -> Exit {
    let ended = exits.wait_for(Option::is_some).await;
    ended.ok().and_then(|exit| exit.clone()).unwrap_or_default()
}

/// Reads what comes next; waits for ever where there is nothing to read from.
async fn read(end: &Option<Receiver>, into: &mut [u8]) -> Option<usize> {
    match end {
        Some(end) => ends::read(end, into).await,
        None => std::future::pending().await,
    }
}

/// Writes what there is room for; where nobody reads, it is taken and dropped.
async fn write(end: &Option<Sender>, bytes: &[u8]) -> std::io::Result<usize> {
    match end {
        Some(end) => ends::write(end, bytes).await,
        None => Ok(bytes.len()),
    }
}

async fn send(
    writer: &mut (impl AsyncWrite + Unpin),
    out: &mut BytesMut,
    unflushed: &mut bool,
) -> std::io::Result<()> {
    if !out.is_empty() {
        let count = writer.write(out).await?;
        if count == 0 {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        out.advance(count);
        *unflushed = true;
    }
    if out.is_empty() {
        writer.flush().await?;
        *unflushed = false;
    }
    Ok(())
}

impl Relay<'_> {
    async fn heard(&mut self, frame: SessionFrame) -> anyhow::Result<()> {
        match frame {
            SessionFrame::Input(bytes) => {
                let waiting = self.input.len() + bytes.len();
                ensure!(waiting <= INPUT_WINDOW_BYTES, "more input than was asked for");
                self.input.extend_from_slice(&bytes);
            }
            SessionFrame::InputEnd => {
                self.input_ended = true;
                if self.ends.is_terminal() {
                    self.input.extend_from_slice(&[END_OF_INPUT]);
                }
            }
            SessionFrame::Resize(size) => self.ends.resize(size),
            SessionFrame::Signal(number) => self.held.signal(number.into()).await?,
            SessionFrame::Unknown(_) | SessionFrame::Note(_) => {}
            _ => bail!("the client said something out of turn"),
        }
        Ok(())
    }

    /// Drops the input that was taken, and tells the client that it may send as much again.
    fn took(&mut self, written: std::io::Result<usize>) {
        let count = match written {
            Ok(count) => count,
            // The command does not read any more; what else comes is dropped.
            Err(_) => {
                self.ends.input = None;
                self.input.len()
            }
        };
        self.input.advance(count);
        SessionFrame::Taken(u32::try_from(count).unwrap_or(u32::MAX)).write(&mut self.out);
    }

    fn print(&mut self, bytes: &[u8], frame: fn(bytes::Bytes) -> SessionFrame) {
        frame(bytes::Bytes::copy_from_slice(bytes)).write(&mut self.out);
    }

    /// Does what follows from all that was received.
    fn settle(&mut self) {
        if self.input_ended && self.input.is_empty() && !self.ends.is_terminal() {
            self.ends.input = None;
        }
        if let Some(ended) = &self.ended
            && !self.told
            && !self.ends.is_open()
        {
            SessionFrame::Exit(ended.clone()).write(&mut self.out);
            self.told = true;
        }
    }
}
