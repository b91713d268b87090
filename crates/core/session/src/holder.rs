//! The end that holds the command: what it keeps of the output, what it has of the input, who is
//! attached, and when nobody has been for too long. Driven by the process that holds the command's
//! terminal or pipes, with frames that may be wrong in any way: one that is refused changes
//! nothing.

use bytes::{Buf, BytesMut};
use model::Timestamp;

use crate::frame::{Attach, Attached, DATA_BYTES_MAX, SessionEnd, SessionFrame, Size};
use crate::output_log::OutputLog;
pub use crate::output_log::OutputStream;
use crate::{
    CUT_KEPT, ENDED_KEPT, INPUT_WINDOW_BYTES, OUTPUT_KEPT_BYTES, PROTOCOL, SCREEN_BYTES, VERSION,
};

/// A consequence for the command, or for the session as a whole.
#[derive(Clone, Debug, PartialEq)]
pub enum HolderEffect {
    /// Signals the command's process group.
    Signal(u8),
    Resize(Size),
    /// Sets the size so that a program draws its whole screen again: somebody sees it anew.
    Redraw(Size),
    /// Hangs up: the command is told that nobody is there any more.
    HangUp,
    /// Forgets the session: whoever was to be told knows its end, or does not come.
    Forget,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attendance {
    /// Somebody is attached, or was cut off and may come back.
    Awaited,
    /// The state in which no client is attached or waited for.
    Left,
}

/// What was said to the client that is attached.
#[derive(Debug)]
struct Attachment {
    greeting: Option<Attached>,
    /// The number behind the last byte of output that was sent.
    sent: u64,
    owes_pong: bool,
    owes_taken: bool,
    exit_sent: bool,
}

#[derive(Debug)]
pub struct Holder {
    terminal: bool,
    /// Whether the command goes on when nobody is attached.
    detached: bool,
    log: OutputLog,
    /// The number behind the last byte that a client has printed.
    printed: u64,
    /// Input that the command has not taken; its first byte has the number `taken`.
    input: BytesMut,
    taken: u64,
    input_end: Option<u64>,
    /// Whether the command was told so, or reads no more.
    input_closed: bool,
    signals: u32,
    attachments: u64,
    /// The person who attached last.
    by: String,
    attendance: Attendance,
    attachment: Option<Attachment>,
    heard_at: Timestamp,
    hung_up: bool,
    end: Option<SessionEnd>,
    ended_at: Option<Timestamp>,
    forgotten: bool,
}

impl Holder {
    pub fn new(terminal: bool, detached: bool, by: String, now: Timestamp) -> Holder {
        Holder {
            terminal,
            detached,
            log: OutputLog::default(),
            printed: 0,
            input: BytesMut::new(),
            taken: 0,
            input_end: None,
            input_closed: false,
            signals: 0,
            attachments: 0,
            by,
            attendance: if detached { Attendance::Left } else { Attendance::Awaited },
            attachment: None,
            heard_at: now,
            hung_up: false,
            end: None,
            ended_at: None,
            forgotten: false,
        }
    }

    fn received(&self) -> u64 {
        self.taken + self.input.len() as u64
    }

    pub fn is_attached(&self) -> bool {
        self.attachment.is_some()
    }

    /// Attaches a client in place of the one before. The error is the frame with which it is
    /// refused.
    pub fn attach(
        &mut self,
        now: Timestamp,
        attach: &Attach,
        by: &str,
        effects: &mut Vec<HolderEffect>,
    ) -> Result<(), SessionFrame> {
        let failed = |why: &str| Err(SessionFrame::Failed(why.into()));
        if attach.v != VERSION {
            let why = format!("the command is held by {PROTOCOL}: use `cortex` of that version");
            return failed(&why);
        }
        let output = match attach.resume {
            None => {
                self.attachments += 1;
                self.by = by.into();
                let again = if self.terminal { SCREEN_BYTES as u64 } else { 0 };
                self.printed.saturating_sub(again).max(self.log.base())
            }
            Some(resume) if resume.attachment > self.attachments => {
                return failed("this session has had no such client");
            }
            Some(resume) if resume.attachment < self.attachments => {
                return Err(SessionFrame::TakenOver(self.by.clone()));
            }
            Some(resume) if resume.received > self.log.end() => {
                return failed("the client has more output than there is");
            }
            Some(resume) => resume.received,
        };
        let greeting = Attached {
            v: VERSION,
            attachment: self.attachments,
            output,
            input: self.received(),
            taken: self.taken,
            signals: self.signals,
            terminal: self.terminal,
            detached: self.detached,
        };
        self.attachment = Some(Attachment {
            greeting: Some(greeting),
            sent: output,
            owes_pong: false,
            owes_taken: false,
            exit_sent: false,
        });
        self.attendance = Attendance::Awaited;
        self.heard_at = now;
        match attach.size {
            Some(size) if attach.resume.is_none() && self.attachments > 1 => {
                effects.push(HolderEffect::Redraw(size));
            }
            Some(size) => effects.push(HolderEffect::Resize(size)),
            None => {}
        }
        Ok(())
    }

    /// Notes that the connection of the client is gone.
    pub fn cut(&mut self, now: Timestamp) {
        if self.attachment.take().is_some() {
            self.heard_at = now;
        }
    }

    /// Takes a frame of the client that is attached. An error ends its connection alone.
    pub fn hear(
        &mut self,
        now: Timestamp,
        frame: SessionFrame,
        effects: &mut Vec<HolderEffect>,
    ) -> Result<(), String> {
        let received = self.received();
        let Some(attachment) = &mut self.attachment else {
            return Err("it has not attached".into());
        };
        match frame {
            SessionFrame::Input { offset, bytes } => {
                if offset != received || self.input_end.is_some() {
                    return Err(format!("input of byte {offset} after {received} bytes"));
                }
                if self.input.len() + bytes.len() > INPUT_WINDOW_BYTES {
                    return Err("more input than was asked for".into());
                }
                self.input.extend_from_slice(&bytes);
                if self.input_closed {
                    self.drop_input();
                }
            }
            SessionFrame::InputEnd(offset) => {
                if offset != received || self.input_end.is_some_and(|end| end != offset) {
                    return Err(format!("an end of the input at {offset} after {received} bytes"));
                }
                self.input_end = Some(offset);
            }
            SessionFrame::Signal { place, signal } => {
                if self.signals.checked_add(1) != Some(place) {
                    return Err(format!("signal {place} after {} signals", self.signals));
                }
                self.signals = place;
                attachment.owes_taken = true;
                effects.push(HolderEffect::Signal(signal));
            }
            SessionFrame::Printed(offset) => {
                if offset > attachment.sent {
                    return Err(format!("it printed {offset} bytes of {}", attachment.sent));
                }
                self.printed = self.printed.max(offset);
                self.trim();
            }
            SessionFrame::Resize(size) => effects.push(HolderEffect::Resize(size)),
            SessionFrame::Ping => attachment.owes_pong = true,
            SessionFrame::Done => {
                if !attachment.exit_sent {
                    return Err("it knows of an end that has not come".into());
                }
                self.forget(effects);
            }
            SessionFrame::Leave => self.leave(effects),
            SessionFrame::Unknown(_) | SessionFrame::Note(_) | SessionFrame::Pong => {}
            _ => return Err("it said something out of turn".into()),
        }
        self.heard_at = now;
        Ok(())
    }

    /// Does what follows from a client that goes for good, or will not come back.
    pub fn leave(&mut self, effects: &mut Vec<HolderEffect>) {
        self.attendance = Attendance::Left;
        if self.ended_at.is_some() && !self.detached {
            self.forget(effects);
        } else if !self.detached {
            self.hang_up(effects);
        }
        self.trim();
    }

    fn hang_up(&mut self, effects: &mut Vec<HolderEffect>) {
        if !self.hung_up && self.ended_at.is_none() {
            self.hung_up = true;
            self.attendance = Attendance::Left;
            self.close_input();
            effects.push(HolderEffect::HangUp);
        }
    }

    fn forget(&mut self, effects: &mut Vec<HolderEffect>) {
        if !self.forgotten {
            self.forgotten = true;
            effects.push(HolderEffect::Forget);
        }
    }

    /// Returns how much output there is room for: less is read from the command then, and it waits.
    pub fn room(&self) -> usize {
        if self.drops() {
            return OUTPUT_KEPT_BYTES;
        }
        let unprinted = usize::try_from(self.log.end() - self.printed).unwrap_or(usize::MAX);
        OUTPUT_KEPT_BYTES.saturating_sub(unprinted)
    }

    /// Whether old output makes room for new one, as nobody waits for it.
    fn drops(&self) -> bool {
        self.attendance == Attendance::Left && self.attachment.is_none() || self.hung_up
    }

    /// Takes output of the command.
    pub fn print(&mut self, stream: OutputStream, bytes: &[u8]) {
        self.log.push(stream, bytes);
        self.trim();
    }

    fn trim(&mut self) {
        if self.drops() {
            let kept = self.log.end().saturating_sub(OUTPUT_KEPT_BYTES as u64);
            self.printed = self.printed.max(kept);
        }
        let again = if self.terminal { SCREEN_BYTES as u64 } else { 0 };
        self.log.drop_before(self.printed.saturating_sub(again));
    }

    /// Returns the input that the command is to get.
    pub fn input(&self) -> &[u8] {
        &self.input
    }

    /// Notes that the command has taken so much of it.
    pub fn took(&mut self, count: usize) {
        let count = count.min(self.input.len());
        self.input.advance(count);
        self.taken += count as u64;
        if let Some(attachment) = &mut self.attachment {
            attachment.owes_taken |= count > 0;
        }
    }

    /// Whether the command is to be told now that no more input comes.
    pub fn input_is_over(&self) -> bool {
        !self.input_closed && self.input_end.is_some() && self.input.is_empty()
    }

    /// Notes that the command knows the end of its input, or reads no more: what still comes is
    /// taken and dropped.
    pub fn close_input(&mut self) {
        self.input_closed = true;
        self.drop_input();
    }

    fn drop_input(&mut self) {
        self.took(self.input.len());
    }

    /// Notes that the command has ended and that all its output is here.
    pub fn finish(
        &mut self,
        now: Timestamp,
        code: u8,
        how: String,
        effects: &mut Vec<HolderEffect>,
    ) {
        let output = self.log.end();
        self.end = Some(SessionEnd { code, how, output });
        self.ended_at = Some(now);
        self.heard_at = now;
        if self.attendance == Attendance::Left && !self.detached {
            self.forget(effects);
        }
    }

    /// Appends what there is to say to the client that is attached, until `out` has this length.
    pub fn speak(&mut self, out: &mut BytesMut, length: usize) {
        let Some(attachment) = &mut self.attachment else { return };
        if let Some(greeting) = attachment.greeting.take() {
            SessionFrame::Attached(greeting).write(out);
        }
        if out.len() >= length {
            return;
        }
        if std::mem::take(&mut attachment.owes_pong) {
            SessionFrame::Pong.write(out);
        }
        if std::mem::take(&mut attachment.owes_taken) {
            SessionFrame::Taken { input: self.taken, signals: self.signals }.write(out);
        }
        while out.len() < length {
            if attachment.sent < self.log.base() {
                attachment.sent = self.log.base();
                SessionFrame::Skipped(attachment.sent).write(out);
            }
            let offset = attachment.sent;
            let Some((stream, bytes)) = self.log.piece(offset, DATA_BYTES_MAX) else { break };
            attachment.sent += bytes.len() as u64;
            match stream {
                OutputStream::Output => SessionFrame::Output { offset, bytes }.write(out),
                OutputStream::Error => SessionFrame::Error { offset, bytes }.write(out),
            }
        }
        if let Some(end) = &self.end
            && attachment.sent == self.log.end()
            && !attachment.exit_sent
        {
            attachment.exit_sent = true;
            SessionFrame::Exit(end.clone()).write(out);
        }
    }

    /// Returns when `tick` has something to do.
    pub fn deadline(&self) -> Option<Timestamp> {
        match (self.ended_at, self.attendance) {
            _ if self.forgotten => None,
            (Some(ended_at), _) => Some(self.heard_at.max(ended_at).after(ENDED_KEPT)),
            (None, Attendance::Awaited) => Some(self.heard_at.after(CUT_KEPT)),
            (None, Attendance::Left) => None,
        }
    }

    pub fn tick(&mut self, now: Timestamp, effects: &mut Vec<HolderEffect>) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        if self.ended_at.is_some() {
            return self.forget(effects);
        }
        // A connection on which nothing was heard for so long leads nowhere.
        self.attachment = None;
        self.attendance = Attendance::Left;
        if !self.detached {
            self.hang_up(effects);
        }
        self.trim();
    }
}

#[cfg(test)]
mod tests;
