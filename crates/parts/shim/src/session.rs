//! A session that this shim holds: the command's terminal or pipes, and whoever is attached to it.
//! What is kept, sent and refused is decided by `session_core::holder`; this file reads and writes.
//! Told by the shim's loop what is ready, and tells it what follows for the command.

mod ends;

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use model::Timestamp;
use rustix::event::{PollFd, PollFlags};
use session_core::frame::{DATA_BYTES_MAX, SessionDecoder, SessionFrame};
use session_core::holder::{Holder, HolderEffect, OutputStream};

use self::ends::Ends;
use crate::child::Attached;
use crate::spec::SessionSpec;

/// The connections of clients: the one that is attached, and those that are about to be.
const CLIENTS_MAX: usize = 4;
/// The most bytes that wait for a client's connection; what else there is stays in the session.
const OUT_BYTES_MAX: usize = 64 << 10;
/// The reads from one source before others get their turn.
const READS_MAX: u32 = 4;
/// The most silence of the pipes after a command's end. All that it wrote is in them by then; a
/// stranger that was handed one could keep it open.
const DRAIN_PAUSE_MAX: Duration = Duration::from_secs(2);
/// The exit code of a command whose end is not known.
const CODE_UNKNOWN: u8 = 255;
/// The byte that a terminal in its usual mode takes for the end of its input.
const END_OF_INPUT: u8 = 4;

/// Something that the loop waits for on behalf of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Input,
    Output(OutputStream),
    /// A client, by its place.
    Client(usize),
}

pub struct HeldSession {
    began: Instant,
    holder: Holder,
    ends: Ends,
    clients: Vec<Client>,
    /// How the command ended, while its output is not all here.
    ended: Option<(u8, String)>,
    /// The time at which the command's end was seen, or output came after it.
    stirred_at: Instant,
}

struct Client {
    stream: UnixStream,
    /// The person at its other end.
    by: String,
    decoder: SessionDecoder,
    out: BytesMut,
    attached: bool,
    gone: bool,
}

impl HeldSession {
    pub fn new(spec: &SessionSpec) -> anyhow::Result<(HeldSession, Attached)> {
        let (ends, attached) = match spec.terminal {
            Some(size) => Ends::terminal(size)?,
            None => Ends::pipes()?,
        };
        let by = spec.by.clone();
        let mut session = HeldSession {
            began: Instant::now(),
            holder: Holder::new(spec.terminal.is_some(), spec.detached, by, Timestamp(0)),
            ends,
            clients: Vec::new(),
            ended: None,
            stirred_at: Instant::now(),
        };
        if spec.detached && spec.terminal.is_none() {
            // Nobody is there to type anything.
            session.ends.input = None;
            session.holder.close_input();
        }
        Ok((session, attached))
    }

    /// Returns the time since its start. It stands still while the machine is asleep.
    fn now(&self) -> Timestamp {
        Timestamp(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Takes a connection on which a client says where it goes on, with what came already.
    pub fn connect(&mut self, stream: UnixStream, by: String, received: &[u8]) {
        if self.clients.len() >= CLIENTS_MAX
            && let Some(oldest) = self.clients.iter().position(|client| !client.attached)
        {
            self.clients.remove(oldest);
        }
        let mut decoder = SessionDecoder::default();
        decoder.buffer().extend_from_slice(received);
        let (out, attached, gone) = (BytesMut::new(), false, false);
        self.clients.push(Client { stream, by, decoder, out, attached, gone });
    }

    /// Returns what to wait for.
    pub fn sources(&self) -> Vec<(Source, PollFd<'_>)> {
        let mut sources = Vec::new();
        if let Some(input) = &self.ends.input
            && !self.holder.input().is_empty()
        {
            sources.push((Source::Input, PollFd::new(input, PollFlags::OUT)));
        }
        for stream in [OutputStream::Output, OutputStream::Error] {
            if let Some(output) = self.ends.output(stream)
                && self.holder.room() > 0
            {
                sources.push((Source::Output(stream), PollFd::new(output, PollFlags::IN)));
            }
        }
        for (place, client) in self.clients.iter().enumerate() {
            let writes = if client.out.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            let fd = PollFd::new(&client.stream, PollFlags::IN | writes);
            sources.push((Source::Client(place), fd));
        }
        sources
    }

    /// Does what is possible now; returns what follows for the command.
    pub fn turn(&mut self, ready: &[Source]) -> Vec<HolderEffect> {
        let mut effects = Vec::new();
        for source in ready {
            match source {
                Source::Input => {}
                Source::Output(stream) => self.read_output(*stream),
                Source::Client(place) => self.read_client(*place, &mut effects),
            }
        }
        self.holder.tick(self.now(), &mut effects);
        self.obey(&mut effects);
        self.give_input();
        self.settle(&mut effects);
        self.speak();
        self.drop_gone(&mut effects);
        effects
    }

    /// Performs what concerns the terminal and the pipes.
    fn obey(&mut self, effects: &mut Vec<HolderEffect>) {
        effects.retain(|effect| match effect {
            HolderEffect::Resize(size) => {
                self.ends.resize(*size);
                false
            }
            HolderEffect::Redraw(size) => {
                self.ends.redraw(*size);
                false
            }
            HolderEffect::HangUp => {
                self.ends.close();
                true
            }
            HolderEffect::Signal(_) | HolderEffect::Forget => true,
        });
    }

    fn read_output(&mut self, stream: OutputStream) {
        let mut chunk = [0; DATA_BYTES_MAX];
        for _ in 0..READS_MAX {
            let room = self.holder.room().min(chunk.len());
            let Some(end) = self.ends.output(stream).filter(|_| room > 0) else { return };
            match rustix::io::read(end, &mut chunk[..room]) {
                Ok(count @ 1..) => {
                    self.holder.print(stream, &chunk[..count]);
                    self.stirred_at = Instant::now();
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return,
                // A terminal that nobody holds any more says so by an error.
                Ok(0) | Err(_) => return self.ends.close_output(stream),
            }
        }
    }

    fn give_input(&mut self) {
        while !self.holder.input().is_empty() {
            let Some(end) = &self.ends.input else { return self.holder.close_input() };
            match rustix::io::write(end, self.holder.input()) {
                Ok(count) => self.holder.took(count),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return,
                Err(_) => {
                    // The command does not read any more; what else comes is dropped.
                    self.ends.input = None;
                    self.holder.close_input();
                }
            }
        }
        if self.holder.input_is_over() {
            if let (true, Some(end)) = (self.ends.is_terminal(), &self.ends.input) {
                // One that is full of input which nobody reads has no room for it.
                rustix::io::write(end, &[END_OF_INPUT]).ok();
            } else {
                self.ends.input = None;
            }
            self.holder.close_input();
        }
    }

    fn read_client(&mut self, place: usize, effects: &mut Vec<HolderEffect>) {
        let now = self.now();
        let Some(client) = self.clients.get_mut(place) else { return };
        let mut chunk = [0; DATA_BYTES_MAX];
        for _ in 0..READS_MAX {
            match rustix::io::read(&client.stream, &mut chunk) {
                Ok(count @ 1..) => client.decoder.buffer().extend_from_slice(&chunk[..count]),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => break,
                Ok(0) | Err(_) => {
                    client.gone = true;
                    break;
                }
            }
        }
        self.heed(now, place, effects);
    }

    /// Heeds what a client said, also if it is gone by now.
    fn heed(&mut self, now: Timestamp, place: usize, effects: &mut Vec<HolderEffect>) {
        let mut frames = VecDeque::new();
        let client = &mut self.clients[place];
        let mut refused = loop {
            match client.decoder.frame() {
                Ok(Some(frame)) => frames.push_back(frame),
                Ok(None) => break None,
                Err(error) => break Some(SessionFrame::Failed(error.to_string())),
            }
        };
        while let Some(frame) = frames.pop_front() {
            let heard = match (frame, self.clients[place].attached) {
                (SessionFrame::Attach(attach), false) => {
                    let by = self.clients[place].by.clone();
                    let attached = self.holder.attach(now, &attach, &by, effects);
                    if attached.is_ok() {
                        self.replace(place, attach.resume.is_none());
                    }
                    attached
                }
                (_, false) => Err(SessionFrame::Failed("it has not attached".into())),
                (frame, true) => {
                    self.holder.hear(now, frame, effects).map_err(SessionFrame::Failed)
                }
            };
            if let Err(frame) = heard {
                refused = Some(frame);
                break;
            }
        }
        if let Some(frame) = refused {
            let client = &mut self.clients[place];
            // Last words of what was said before come first, as far as they fit.
            frame.write(&mut client.out);
            client.write();
            client.gone = true;
        }
    }

    /// Puts the client at `place` into the place of whoever was attached.
    fn replace(&mut self, place: usize, is_another: bool) {
        let by = self.clients[place].by.clone();
        for (number, client) in self.clients.iter_mut().enumerate() {
            if number != place && client.attached {
                if is_another {
                    SessionFrame::TakenOver(by.clone()).write(&mut client.out);
                    client.write();
                }
                (client.attached, client.gone) = (false, true);
            }
        }
        self.clients[place].attached = true;
    }

    fn speak(&mut self) {
        for client in &mut self.clients {
            if client.attached {
                self.holder.speak(&mut client.out, OUT_BYTES_MAX);
            }
            client.write();
        }
    }

    fn drop_gone(&mut self, effects: &mut Vec<HolderEffect>) {
        let now = self.now();
        let mut cut = false;
        self.clients.retain(|client| {
            cut |= client.gone && client.attached;
            !client.gone
        });
        if cut {
            self.holder.cut(now);
        }
        // A client may have said its last words and gone in one turn.
        self.obey(effects);
    }

    /// Waits no longer for a client that was attached, and is not any more.
    pub fn leave(&mut self) -> Vec<HolderEffect> {
        let mut effects = Vec::new();
        if !self.holder.is_attached() {
            self.holder.leave(&mut effects);
        }
        self.obey(&mut effects);
        effects
    }

    /// Notes how the command ended. Its output may not all be here yet.
    pub fn command_ended(&mut self, code: Option<u8>, how: &str) {
        self.ended = Some((code.unwrap_or(CODE_UNKNOWN), how.to_owned()));
        self.stirred_at = Instant::now();
        self.ends.input = None;
        self.holder.close_input();
    }

    fn settle(&mut self, effects: &mut Vec<HolderEffect>) {
        if self.ended.is_none() {
            return;
        }
        for stream in [OutputStream::Output, OutputStream::Error] {
            self.read_output(stream);
        }
        if self.drain_end().is_some_and(|end| end <= Instant::now()) {
            self.ends.close();
        }
        if !self.ends.is_open()
            && let Some((code, how)) = self.ended.take()
        {
            self.holder.finish(self.now(), code, how, effects);
        }
    }

    /// Returns when the wait for more output of a command that has ended is over.
    fn drain_end(&self) -> Option<Instant> {
        self.ended.as_ref()?;
        match self.ends.is_open() {
            true if self.holder.room() == 0 => None,
            true => Some(self.stirred_at + DRAIN_PAUSE_MAX),
            false => Some(self.stirred_at),
        }
    }

    /// Returns when `turn` has something to do although nothing is ready.
    pub fn deadline(&self) -> Option<Instant> {
        let due = self.holder.deadline();
        let due = due.and_then(|due| self.began.checked_add(Duration::from_millis(due.0)));
        due.into_iter().chain(self.drain_end()).min()
    }
}

impl Client {
    fn write(&mut self) {
        while !self.out.is_empty() && !self.gone {
            match rustix::io::write(&self.stream, &self.out) {
                Ok(count) => self.out.advance(count),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) if io::Error::from(error).kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.gone = true,
            }
        }
        if self.out.is_empty() {
            // A session that is quiet costs no buffer.
            self.out = BytesMut::new();
        }
    }
}
