//! The client's end: what it has received and printed, what it has sent and the other end has not
//! taken yet. Driven by the command line, which reads and prints, and connects again when told that
//! a connection is of no more use.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};
use model::Timestamp;

use crate::frame::{Attach, Attached, DATA_BYTES_MAX, Resume, SessionEnd, SessionFrame, Size};
pub use crate::output_log::OutputStream;
use crate::{INPUT_WINDOW_BYTES, PING_AFTER, SIGNALS_WAITING_MAX, SILENCE_MAX, VERSION};

/// The number beyond which no stream is believed to have come.
const OFFSET_MAX: u64 = 1 << 62;

/// What the client has to do about a frame.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientAction {
    /// The command was started under this id.
    Started(String),
    /// The session goes on from here; whether it has a terminal, and goes on without a client.
    Attached {
        terminal: bool,
        detached: bool,
    },
    Print(OutputStream, Bytes),
    /// The number of bytes of output that were not kept.
    Skipped(u64),
    Note(String),
    TakenOver(String),
    Failed(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Cut,
    /// The command is being started; that may take as long as a build.
    Starting,
    Asked,
    Attached,
}

#[derive(Debug)]
pub struct Client {
    link: Link,
    attachment: Option<u64>,
    /// The number of bytes of output that came.
    received: u64,
    printed: u64,
    printed_told: u64,
    /// Input that the other end may not have; its first byte has the number `input_base`.
    input: BytesMut,
    input_base: u64,
    /// What has gone to the command.
    taken: u64,
    /// The number behind the last byte of input that was sent on this connection.
    sent: u64,
    input_ended: bool,
    end_sent: bool,
    /// Signals that the other end may not have.
    signals: VecDeque<u8>,
    signals_taken: u32,
    /// The number of those in `signals` that were sent on this connection.
    signals_sent: usize,
    size: Option<Size>,
    size_sent: Option<Size>,
    owes_pong: bool,
    leaves: bool,
    end: Option<SessionEnd>,
    done_sent: bool,
    heard_at: Timestamp,
    said_at: Timestamp,
}

impl Client {
    /// Returns the client of a session, with the size of its terminal.
    pub fn new(size: Option<Size>, now: Timestamp) -> Client {
        Client {
            link: Link::Cut,
            attachment: None,
            received: 0,
            printed: 0,
            printed_told: 0,
            input: BytesMut::new(),
            input_base: 0,
            taken: 0,
            sent: 0,
            input_ended: false,
            end_sent: false,
            signals: VecDeque::new(),
            signals_taken: 0,
            signals_sent: 0,
            size,
            size_sent: None,
            owes_pong: false,
            leaves: false,
            end: None,
            done_sent: false,
            heard_at: now,
            said_at: now,
        }
    }

    /// Begins on a fresh connection, on which the command is started first if `starts`.
    pub fn connect(&mut self, now: Timestamp, starts: bool, out: &mut BytesMut) {
        let received = self.received;
        let resume = self.attachment.map(|attachment| Resume { attachment, received });
        SessionFrame::Attach(Attach { v: VERSION, resume, size: self.size }).write(out);
        self.size_sent = self.size;
        self.link = if starts { Link::Starting } else { Link::Asked };
        (self.heard_at, self.said_at) = (now, now);
    }

    /// Notes that the connection is of no more use.
    pub fn cut(&mut self) {
        self.link = Link::Cut;
    }

    /// Notes that nothing is read from the connection for now, as what came is not printed yet: the
    /// silence is this end's own.
    pub fn deaf(&mut self, now: Timestamp) {
        self.heard_at = now;
    }

    /// Returns how much input there is room for.
    pub fn room(&self) -> usize {
        let under_way = self.input_base + self.input.len() as u64 - self.taken;
        let under_way = usize::try_from(under_way).unwrap_or(usize::MAX);
        if self.input_ended { 0 } else { INPUT_WINDOW_BYTES.saturating_sub(under_way) }
    }

    /// Takes input; at most as much as there is room for.
    pub fn type_in(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    pub fn end_input(&mut self) {
        self.input_ended = true;
    }

    /// Takes a signal to pass on; false if too many wait.
    pub fn signal(&mut self, signal: u8) -> bool {
        let has_room = self.signals.len() < SIGNALS_WAITING_MAX;
        if has_room {
            self.signals.push_back(signal);
        }
        has_room
    }

    pub fn resize(&mut self, size: Size) {
        self.size = Some(size);
    }

    /// Goes for good.
    pub fn leave(&mut self) {
        self.leaves = true;
    }

    /// Notes that so many bytes of output more were printed.
    pub fn printed(&mut self, count: usize) {
        self.printed = (self.printed + count as u64).min(self.received);
    }

    /// Returns how the command ended, once all its output was printed.
    pub fn end(&self) -> Option<&SessionEnd> {
        self.end.as_ref().filter(|_| self.printed == self.received)
    }

    /// Whether everything came that there is; no other connection is needed.
    pub fn has_all(&self) -> bool {
        self.end.is_some()
    }

    /// Takes a frame. An error means that the other end cannot be understood.
    pub fn hear(
        &mut self,
        now: Timestamp,
        frame: SessionFrame,
    ) -> Result<Option<ClientAction>, String> {
        self.heard_at = now;
        let is_attached = self.link == Link::Attached;
        let action = match frame {
            SessionFrame::Started(id) if self.link == Link::Starting => {
                self.link = Link::Asked;
                ClientAction::Started(id)
            }
            SessionFrame::Attached(attached) if self.link == Link::Asked => {
                self.attached(attached)?;
                let Attached { terminal, detached, .. } = attached;
                ClientAction::Attached { terminal, detached }
            }
            SessionFrame::Output { offset, bytes } if is_attached => {
                self.take(offset, bytes, OutputStream::Output)?
            }
            SessionFrame::Error { offset, bytes } if is_attached => {
                self.take(offset, bytes, OutputStream::Error)?
            }
            SessionFrame::Skipped(offset) if is_attached => {
                let skipped = offset.checked_sub(self.received).filter(|_| offset <= OFFSET_MAX);
                let skipped = skipped.ok_or("output goes on where it cannot be")?;
                // What is waiting to be printed is still waited for.
                self.printed += skipped;
                self.received = offset;
                ClientAction::Skipped(skipped)
            }
            SessionFrame::Taken { input, signals } if is_attached => {
                self.taken_so_far(input, signals)?;
                return Ok(None);
            }
            SessionFrame::Exit(end) if is_attached => {
                if end.output != self.received {
                    return Err(format!("{} of {} bytes came", self.received, end.output));
                }
                self.end = Some(end);
                return Ok(None);
            }
            SessionFrame::Ping => {
                self.owes_pong = true;
                return Ok(None);
            }
            SessionFrame::Note(said) => ClientAction::Note(said),
            SessionFrame::TakenOver(by) => ClientAction::TakenOver(by),
            SessionFrame::Failed(why) => ClientAction::Failed(why),
            SessionFrame::Pong | SessionFrame::Unknown(_) => return Ok(None),
            _ => return Err("it said something out of turn".into()),
        };
        Ok(Some(action))
    }

    fn attached(&mut self, attached: Attached) -> Result<(), String> {
        let Attached { attachment, output, input, taken, signals, .. } = attached;
        if taken > input || output.max(input) > OFFSET_MAX {
            return Err(format!("output from {output}, {taken} bytes of input taken of {input}"));
        }
        match self.attachment {
            None => {
                // This client's own input begins behind that of others.
                (self.received, self.printed, self.printed_told) = (output, output, output);
                (self.input_base, self.taken) = (input, taken);
                self.signals_taken = signals;
            }
            Some(own) => {
                let ours = self.input_base..=self.input_base + self.input.len() as u64;
                let pending = self.signals.len() as u64;
                let signalled = u64::from(signals).checked_sub(self.signals_taken.into());
                if own != attachment
                    || output != self.received
                    || !ours.contains(&input)
                    || taken < self.taken
                    || signalled.is_none_or(|count| count > pending)
                {
                    return Err("the session is not where it was left".into());
                }
                // What was said on the connection before may not have come.
                self.printed_told = 0;
            }
        }
        (self.attachment, self.link) = (Some(attachment), Link::Attached);
        (self.sent, self.end_sent, self.signals_sent) = (input, false, 0);
        self.taken_so_far(taken, signals)
    }

    fn taken_so_far(&mut self, input: u64, signals: u32) -> Result<(), String> {
        if input > self.sent || input < self.taken {
            return Err(format!("{input} bytes of input were taken of {}", self.sent));
        }
        let signalled = signals.checked_sub(self.signals_taken).map(|count| count as usize);
        let signalled = signalled.filter(|count| *count <= self.signals.len());
        let signalled = signalled.ok_or("signals were taken that were not sent")?;
        self.taken = input;
        if let Some(count) = input.checked_sub(self.input_base) {
            let count = usize::try_from(count).unwrap_or(usize::MAX).min(self.input.len());
            self.input.advance(count);
            self.input_base = input;
        }
        self.signals.drain(..signalled);
        self.signals_taken = signals;
        self.signals_sent = self.signals_sent.saturating_sub(signalled);
        Ok(())
    }

    fn take(
        &mut self,
        offset: u64,
        bytes: Bytes,
        stream: OutputStream,
    ) -> Result<ClientAction, String> {
        if offset != self.received {
            return Err(format!("output of byte {offset} after {} bytes", self.received));
        }
        self.received += bytes.len() as u64;
        Ok(ClientAction::Print(stream, bytes))
    }

    /// Appends what there is to say, until `out` has this length.
    pub fn speak(&mut self, now: Timestamp, out: &mut BytesMut, length: usize) {
        let before = out.len();
        if self.link != Link::Attached || before >= length {
            return;
        }
        if std::mem::take(&mut self.owes_pong) {
            SessionFrame::Pong.write(out);
        }
        if let Some(size) = self.size.filter(|size| self.size_sent != Some(*size)) {
            SessionFrame::Resize(size).write(out);
            self.size_sent = Some(size);
        }
        for (number, signal) in (1..).zip(&self.signals).skip(self.signals_sent) {
            let place = self.signals_taken.saturating_add(number);
            SessionFrame::Signal { place, signal: *signal }.write(out);
        }
        self.signals_sent = self.signals.len();
        let end = self.input_base + self.input.len() as u64;
        while out.len() < length && self.sent < end {
            let from = usize::try_from(self.sent - self.input_base).unwrap_or(usize::MAX);
            let piece = &self.input[from..];
            let bytes = Bytes::copy_from_slice(&piece[..piece.len().min(DATA_BYTES_MAX)]);
            let offset = self.sent;
            self.sent += bytes.len() as u64;
            SessionFrame::Input { offset, bytes }.write(out);
        }
        if self.input_ended && self.sent == end && !self.end_sent {
            SessionFrame::InputEnd(end).write(out);
            self.end_sent = true;
        }
        if self.printed > self.printed_told {
            SessionFrame::Printed(self.printed).write(out);
            self.printed_told = self.printed;
        }
        if self.end().is_some() && !self.done_sent {
            SessionFrame::Done.write(out);
            self.done_sent = true;
        }
        if std::mem::take(&mut self.leaves) {
            SessionFrame::Leave.write(out);
        }
        if out.len() > before {
            self.said_at = now;
        }
    }

    pub fn deadline(&self) -> Option<Timestamp> {
        // Once the end has come nothing more is to be heard, however long printing takes.
        if self.end.is_some() {
            return None;
        }
        let is_silent = self.heard_at.after(SILENCE_MAX);
        match self.link {
            Link::Cut | Link::Starting => None,
            Link::Asked => Some(is_silent),
            Link::Attached => Some(is_silent.min(self.said_at.after(PING_AFTER))),
        }
    }

    /// Says that the client is there, where that is due; returns whether the connection still
    /// counts as one.
    pub fn tick(&mut self, now: Timestamp, out: &mut BytesMut) -> bool {
        if self.end.is_some() || matches!(self.link, Link::Cut | Link::Starting) {
            return true;
        }
        if now >= self.heard_at.after(SILENCE_MAX) {
            return false;
        }
        if self.link == Link::Attached && now >= self.said_at.after(PING_AFTER) {
            SessionFrame::Ping.write(out);
            self.said_at = now;
        }
        true
    }
}
