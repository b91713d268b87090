//! The flow between this process's own input and output and a command elsewhere, over as many
//! connections as it takes. What is sent again and what is not is decided by
//! `session_core::client`.

mod signals;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::{Buf, Bytes, BytesMut};
use model::Timestamp;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use self::signals::Signals;
use super::super::output;
use super::escape::Escape;
use super::input;
use super::printer::Printer;
use super::terminal::{self, Raw};
use client::{Client, ClientError, encode};
use runtime::members::BoxedStream;
use session_core::client::{Client as Machine, ClientAction};
use session_core::frame::{DATA_BYTES_MAX, SessionDecoder, SessionFrame, SessionStart};
use session_core::{CUT_KEPT, PROTOCOL};

/// The bytes that wait for the connection; what else there is stays with the machine.
const OUT_BYTES_MAX: usize = 64 << 10;
/// The exit code that a shell shows for a command whose output nobody reads.
const CODE_BROKEN_PIPE: u8 = 141;
/// The exit code where the command's own is not known, as with ssh.
const CODE_LOST: u8 = 255;
/// The time limit for sending what was said last before this process ends.
const FAREWELL_MAX: Duration = Duration::from_secs(1);
/// The pauses between attempts to go on: short while a node process is being replaced, longer while
/// there is no network.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(3);
/// The time limit of an attempt: distant nodes answer in less.
const ATTEMPT_MAX: Duration = Duration::from_secs(15);
/// The key that gives up while there is no connection.
const CONTROL_C: u8 = 3;

/// How the flow begins.
pub enum Begin {
    Start(SessionStart),
    /// With a session that is there, by its id.
    Attach(String),
}

/// The reason why the flow ended.
enum FlowEnd {
    Code(u8),
    /// Nobody reads what it prints.
    Unheard,
    /// The terminal is gone, or somebody insists.
    HangUp(Signal),
    /// Somebody leaves by the keys for that, or gives up waiting for a connection.
    Left,
    TakenOver(String),
}

type Connecting<'a> = Pin<Box<dyn Future<Output = anyhow::Result<BoxedStream>> + 'a>>;

enum Link<'a> {
    Open(Open),
    Connecting(Connecting<'a>),
    Waiting(Instant),
}

struct Open {
    reader: ReadHalf<BoxedStream>,
    writer: WriteHalf<BoxedStream>,
    decoder: SessionDecoder,
}

pub struct Flow<'a> {
    client: &'a Client,
    application: String,
    /// Whether a person sits at both ends of this process.
    has_terminal: bool,
    began: Instant,
    machine: Machine,
    /// The session's id, once it is known.
    id: Option<String>,
    input: mpsc::Receiver<Bytes>,
    /// Whether input may still come.
    reads: bool,
    printer: Printer,
    raw: Option<Raw>,
    escape: Escape,
    out: BytesMut,
    unflushed: bool,
    detached: bool,
    /// Whether it was attached once.
    has_begun: bool,
    /// Whether it was said why there is no connection.
    said_why: bool,
    terminations: u32,
    /// When the connection was lost; `None` while there is one.
    cut_at: Option<Instant>,
    pause: Duration,
}

impl<'a> Flow<'a> {
    pub fn new(
        client: &'a Client,
        application: &str,
        has_terminal: bool,
    ) -> anyhow::Result<Flow<'a>> {
        Ok(Flow {
            client,
            application: application.into(),
            has_terminal,
            began: Instant::now(),
            machine: Machine::new(has_terminal.then(terminal::size), Timestamp(0)),
            id: None,
            input: input::read(),
            reads: true,
            printer: Printer::start(),
            raw: None,
            escape: Escape::new(),
            out: BytesMut::new(),
            unflushed: false,
            detached: false,
            has_begun: false,
            said_why: false,
            terminations: 0,
            cut_at: None,
            pause: PAUSE_MIN,
        })
    }

    /// Runs the flow; returns the exit code of the command, or of this process in its stead.
    pub async fn run(mut self, begin: Begin) -> anyhow::Result<u8> {
        let end = self.go(begin).await;
        // What comes now is for people, in a terminal as it was.
        self.raw = None;
        let end = match end {
            // The code 1 could be the command's own.
            Err(error) if self.has_begun => {
                super::super::report(&error);
                return Ok(CODE_LOST);
            }
            end => end?,
        };
        let id = self.id.as_deref().unwrap_or_default();
        let later = format!("`cortex attach -a {} {id}` goes on with it", self.application);
        Ok(match end {
            FlowEnd::Code(code) => code,
            FlowEnd::Unheard => CODE_BROKEN_PIPE,
            FlowEnd::HangUp(signal) => 128 + u8::try_from(signal.as_raw()).unwrap_or_default(),
            FlowEnd::TakenOver(by) => {
                output::say(&format!("cortex: {by} has attached to it in your place; {later}"));
                CODE_LOST
            }
            FlowEnd::Left if self.detached => {
                output::say(&format!("cortex: left; {later}"));
                0
            }
            FlowEnd::Left if self.cut_at.is_some() => {
                output::say(&format!("cortex: given up; the command waits there, and {later}"));
                CODE_LOST
            }
            FlowEnd::Left => CODE_LOST,
        })
    }

    fn now(&self) -> Timestamp {
        let passed = self.began.elapsed().as_millis();
        Timestamp(u64::try_from(passed).unwrap_or(u64::MAX))
    }

    async fn begin(&mut self, begin: Begin) -> anyhow::Result<Link<'a>> {
        let (path, start) = match begin {
            Begin::Start(start) => (self.path("run"), Some(start)),
            Begin::Attach(id) => {
                let path = self.path(&format!("sessions/{}/attach", encode(&id)));
                self.id = Some(id);
                (path, None)
            }
        };
        let stream = self.client.upgrade(&path, PROTOCOL).await?;
        Ok(self.open(stream, start))
    }

    fn path(&self, rest: &str) -> String {
        format!("/v1/apps/{}/{rest}", encode(&self.application))
    }

    fn open(&mut self, stream: BoxedStream, start: Option<SessionStart>) -> Link<'a> {
        let (reader, writer) = tokio::io::split(stream);
        self.out.clear();
        let starts = start.is_some();
        if let Some(start) = start {
            SessionFrame::Start(start).write(&mut self.out);
        }
        self.machine.connect(self.now(), starts, &mut self.out);
        Link::Open(Open { reader, writer, decoder: SessionDecoder::default() })
    }

    async fn go(&mut self, begin: Begin) -> anyhow::Result<FlowEnd> {
        let mut signals = Signals::new()?;
        let mut link = tokio::select! {
            link = self.begin(begin) => link?,
            signal = signals.next_deadly() => return Ok(FlowEnd::HangUp(signal)),
        };
        loop {
            if let Some(end) = self.machine.end().filter(|_| !self.printer.is_busy()) {
                let code = end.code;
                self.farewell(&mut link).await;
                return Ok(FlowEnd::Code(code));
            }
            let now = self.now();
            if !self.printer.has_room() {
                self.machine.deaf(now);
            }
            if let Link::Open(_) = link {
                self.machine.speak(now, &mut self.out, OUT_BYTES_MAX);
            }
            let reads = self.reads && self.machine.room() > DATA_BYTES_MAX;
            let deadline =
                self.machine.deadline().map(|at| self.began + Duration::from_millis(at.0));
            let (listens, prints) = (self.printer.has_room(), self.printer.is_busy());
            let (out, unflushed, has_all) =
                (&mut self.out, &mut self.unflushed, self.machine.has_all());
            let event = tokio::select! {
                event = link.event(out, unflushed, listens), if !has_all => event,
                count = self.printer.step(), if prints => match count {
                    Some(count) => Event::Printed(count),
                    None => return Ok(FlowEnd::Unheard),
                },
                piece = self.input.recv(), if reads => Event::Input(piece.unwrap_or_default()),
                signal = signals.next() => Event::Signal(signal),
                () = at(deadline) => Event::Due,
            };
            if let Some(end) = self.happened(event, &mut link)? {
                if matches!(end, FlowEnd::HangUp(_) | FlowEnd::Left) {
                    self.machine.leave();
                    self.farewell(&mut link).await;
                }
                return Ok(end);
            }
        }
    }

    /// Does what follows from an event; returns why the flow ends, if it does.
    fn happened(&mut self, event: Event, link: &mut Link<'a>) -> anyhow::Result<Option<FlowEnd>> {
        match event {
            Event::Came => {
                let mut ended = None;
                while let (Link::Open(open), None) = (&mut *link, &ended) {
                    let Some(frame) = open.decoder.frame()? else { break };
                    ended = self.heard(frame)?;
                }
                return Ok(ended);
            }
            Event::Sent => {}
            Event::Cut => self.cut(link)?,
            Event::Retry => *link = Link::Connecting(self.reconnect()),
            Event::Connected(Ok(stream)) => *link = self.open(stream, None),
            Event::Connected(Err(error)) => self.not_connected(error, link)?,
            Event::Printed(count) => self.machine.printed(count),
            Event::Input(piece) => return Ok(self.take(&piece)),
            Event::Signal(signal) => return Ok(self.signalled(signal)),
            Event::Due => {
                let now = self.now();
                if !self.printer.has_room() {
                    self.machine.deaf(now);
                }
                if !self.machine.tick(now, &mut self.out) {
                    self.cut(link)?;
                }
            }
        }
        Ok(None)
    }

    fn cut(&mut self, link: &mut Link<'a>) -> anyhow::Result<()> {
        let unknown = "the node went away before it said that the command runs; see `cortex ps`";
        self.id.as_ref().context(unknown)?;
        self.machine.cut();
        self.out.clear();
        if self.cut_at.is_none() {
            self.cut_at = Some(Instant::now());
            let gives_up = if self.raw.is_some() { " (Ctrl-C gives up)" } else { "" };
            self.remark(&format!("the connection was lost; trying to go on{gives_up}"));
        }
        *link = Link::Waiting(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Ok(())
    }

    fn reconnect(&self) -> Connecting<'a> {
        let id = encode(self.id.as_deref().unwrap_or_default());
        let (client, path) = (self.client, self.path(&format!("sessions/{id}/attach")));
        Box::pin(async move {
            let attempt = timeout(ATTEMPT_MAX, client.upgrade(&path, PROTOCOL)).await;
            attempt.unwrap_or_else(|_| Err(anyhow::anyhow!("no node answers")))
        })
    }

    fn not_connected(&mut self, error: anyhow::Error, link: &mut Link<'a>) -> anyhow::Result<()> {
        let for_good = match error.downcast_ref() {
            Some(ClientError::Problem(problem)) => !is_for_later(problem.status),
            _ => false,
        };
        let waited = self.cut_at.map(|at| at.elapsed()).unwrap_or_default();
        if for_good || waited > CUT_KEPT {
            return Err(error);
        }
        if let Some(ClientError::Problem(problem)) = error.downcast_ref()
            && !std::mem::replace(&mut self.said_why, true)
        {
            self.remark(&output::plain(&problem.detail));
        }
        *link = Link::Waiting(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Ok(())
    }

    fn heard(&mut self, frame: SessionFrame) -> anyhow::Result<Option<FlowEnd>> {
        let now = self.now();
        let action = self.machine.hear(now, frame);
        let action = action.map_err(|why| anyhow::anyhow!("the node is not understood: {why}"))?;
        match action {
            None => {}
            Some(ClientAction::Started(id)) => self.id = Some(id),
            Some(ClientAction::Attached { terminal, detached }) => {
                (self.detached, self.has_begun, self.said_why) = (detached, true, false);
                if terminal && self.has_terminal && self.raw.is_none() {
                    self.raw = Some(Raw::enter().context("this terminal")?);
                }
                self.pause = PAUSE_MIN;
                if self.cut_at.take().is_some() {
                    self.remark("connected again");
                }
            }
            Some(ClientAction::Print(stream, bytes)) => self.printer.print(stream, bytes),
            Some(ClientAction::Skipped(count)) => {
                self.remark(&format!("{count} bytes of earlier output were not kept"));
            }
            Some(ClientAction::Note(said)) => {
                let end = self.line_end();
                let line = format!("{}{end}", output::plain(&said).replace('\n', end));
                self.printer.remark(line);
            }
            Some(ClientAction::TakenOver(by)) => {
                return Ok(Some(FlowEnd::TakenOver(output::plain(&by))));
            }
            Some(ClientAction::Failed(why)) => bail!(why),
        }
        Ok(None)
    }

    fn line_end(&self) -> &'static str {
        if self.raw.is_some() { "\r\n" } else { "\n" }
    }

    fn remark(&mut self, said: &str) {
        let line = format!("cortex: {said}{}", self.line_end());
        self.printer.remark(line);
    }

    fn take(&mut self, piece: &[u8]) -> Option<FlowEnd> {
        if piece.is_empty() {
            self.reads = false;
            if self.raw.is_some() {
                return Some(FlowEnd::HangUp(Signal::HUP));
            }
            self.machine.end_input();
            return None;
        }
        if self.raw.is_none() {
            self.machine.type_in(piece);
            return None;
        }
        if self.cut_at.is_some() && piece.contains(&CONTROL_C) {
            return Some(FlowEnd::Left);
        }
        match self.escape.filter(piece) {
            Some(typed) => {
                self.machine.type_in(&typed);
                None
            }
            None => Some(FlowEnd::Left),
        }
    }

    /// Passes a signal on. A user who asks twice that this process end does not wait for the
    /// command.
    fn signalled(&mut self, signal: Signal) -> Option<FlowEnd> {
        if signal == Signal::WINCH {
            if self.has_terminal {
                self.machine.resize(terminal::size());
            }
            return None;
        }
        let ends = signal == Signal::TERM || signal == Signal::INT && self.cut_at.is_some();
        self.terminations += u32::from(ends);
        let leaves = signal == Signal::HUP || self.id.is_none() || self.terminations > 1;
        if leaves {
            return Some(FlowEnd::HangUp(signal));
        }
        self.machine.signal(u8::try_from(signal.as_raw()).unwrap_or_default());
        None
    }

    /// Sends what is left to say, as far as that is quick.
    async fn farewell(&mut self, link: &mut Link<'a>) {
        let Link::Open(open) = link else { return };
        let now = self.now();
        self.machine.speak(now, &mut self.out, OUT_BYTES_MAX);
        let saying = async {
            open.writer.write_all(&self.out).await?;
            open.writer.flush().await?;
            open.writer.shutdown().await
        };
        timeout(FAREWELL_MAX, saying).await.ok();
    }
}

/// Returns whether a refusal may be another answer soon: a node is starting, or is not reached.
fn is_for_later(status: u16) -> bool {
    status >= 500 || status == 429
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

enum Event {
    /// Bytes came.
    Came,
    Sent,
    /// The connection is gone.
    Cut,
    /// It is time for another attempt.
    Retry,
    Connected(anyhow::Result<BoxedStream>),
    Printed(usize),
    Input(Bytes),
    Signal(Signal),
    Due,
}

impl Link<'_> {
    async fn event(&mut self, out: &mut BytesMut, unflushed: &mut bool, listens: bool) -> Event {
        match self {
            Link::Open(open) => {
                let writes = !out.is_empty() || *unflushed;
                tokio::select! {
                    read = open.reader.read_buf(open.decoder.buffer()), if listens => match read {
                        Ok(1..) => Event::Came,
                        _ => Event::Cut,
                    },
                    sent = send(&mut open.writer, out, unflushed), if writes => match sent {
                        Ok(()) => Event::Sent,
                        Err(_) => Event::Cut,
                    },
                    else => std::future::pending().await,
                }
            }
            Link::Connecting(connecting) => Event::Connected(connecting.await),
            Link::Waiting(until) => {
                sleep_until(*until).await;
                Event::Retry
            }
        }
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
