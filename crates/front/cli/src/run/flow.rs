//! The flow between this process's own input and output and a command elsewhere. Reading and
//! writing have threads of their own, so that a terminal or a pipe that stands still holds up no
//! signal.

use std::collections::VecDeque;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::{Buf, Bytes, BytesMut};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use super::super::output;
use super::terminal;
use api_types::session::{
    DATA_BYTES_MAX, INPUT_WINDOW_BYTES, SessionDecoder, SessionFrame, SessionStart,
};
use runtime::members::BoxedStream;

/// Pieces that wait between the threads and the stream.
const PIECES_WAITING_MAX: usize = 8;
/// The exit code that a shell shows for a command whose output nobody reads.
const CODE_BROKEN_PIPE: u8 = 141;
/// The time limit for sending what was said last before this process ends.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// Signals that are passed on as they are.
const PASSED_ON: [Signal; 5] =
    [Signal::INT, Signal::TERM, Signal::QUIT, Signal::USR1, Signal::USR2];

#[derive(Clone, Copy)]
enum OutputStream {
    Output,
    Error,
}

/// The reason why the flow ended.
enum FlowEnd {
    Code(u8),
    /// Nobody reads what it prints.
    Unheard,
    /// The terminal is gone, or somebody insists.
    HangUp(Signal),
}

/// Runs the flow; returns the exit code of the command, or of this process in its stead.
pub async fn run(stream: BoxedStream, start: SessionStart) -> anyhow::Result<u8> {
    let is_terminal = start.terminal.is_some();
    let (printer, pieces) = mpsc::channel(PIECES_WAITING_MAX);
    let printed = print(pieces);
    let mut flow = Flow {
        input: read_input(),
        credit: INPUT_WINDOW_BYTES - DATA_BYTES_MAX,
        reads: true,
        is_terminal,
        printer: Some(printer),
        waiting: VecDeque::new(),
        out: BytesMut::new(),
        terminations: 0,
        code: None,
    };
    SessionFrame::Start(start).write(&mut flow.out);
    let end = flow.go(stream).await?;
    flow.printer = None;
    match end {
        FlowEnd::Code(code) => {
            // The code counts if everything was printed; otherwise nobody takes the output.
            Ok(if printed.await.unwrap_or(false) { code } else { CODE_BROKEN_PIPE })
        }
        FlowEnd::Unheard => Ok(CODE_BROKEN_PIPE),
        FlowEnd::HangUp(signal) => Ok(128 + u8::try_from(signal.as_raw()).unwrap_or_default()),
    }
}

/// Reads the input on a thread of its own; the end is an empty piece.
fn read_input() -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(PIECES_WAITING_MAX);
    std::thread::spawn(move || {
        let mut chunk = vec![0; DATA_BYTES_MAX];
        loop {
            let count = match rustix::io::read(std::io::stdin(), &mut chunk) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => 0,
            };
            let piece = Bytes::copy_from_slice(&chunk[..count]);
            if sender.blocking_send(piece).is_err() || count == 0 {
                return;
            }
        }
    });
    receiver
}

/// Prints on a thread of its own; the result says at the end whether all was written.
fn print(mut pieces: mpsc::Receiver<(OutputStream, Bytes)>) -> oneshot::Receiver<bool> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let mut good = true;
        while let Some((target, bytes)) = pieces.blocking_recv() {
            good = match target {
                OutputStream::Output => write_all(std::io::stdout(), &bytes),
                OutputStream::Error => write_all(std::io::stderr(), &bytes),
            };
            if !good {
                break;
            }
        }
        drop(pieces);
        sender.send(good).ok();
    });
    receiver
}

/// Writes all bytes, without a buffer of lines in between; returns whether it could.
fn write_all(mut to: impl Write + std::os::fd::AsFd, mut bytes: &[u8]) -> bool {
    to.flush().ok();
    while !bytes.is_empty() {
        match rustix::io::write(&to, bytes) {
            Ok(0) => return false,
            Ok(count) => bytes = &bytes[count..],
            Err(rustix::io::Errno::INTR) => {}
            // Another process made this file non-blocking, and others share that.
            Err(rustix::io::Errno::AGAIN) => {
                let mut ready = [rustix::event::PollFd::new(&to, rustix::event::PollFlags::OUT)];
                rustix::event::poll(&mut ready, None).ok();
            }
            Err(_) => return false,
        }
    }
    true
}

struct Flow {
    input: mpsc::Receiver<Bytes>,
    /// The bytes of input that may still be sent; the last piece may be longer than that.
    credit: usize,
    /// Whether input may still come.
    reads: bool,
    is_terminal: bool,
    printer: Option<mpsc::Sender<(OutputStream, Bytes)>>,
    /// Pieces that are printed before anything else is read.
    waiting: VecDeque<(OutputStream, Bytes)>,
    out: BytesMut,
    terminations: u32,
    code: Option<u8>,
}

impl Flow {
    async fn go(&mut self, stream: BoxedStream) -> anyhow::Result<FlowEnd> {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let (mut decoder, mut signals) = (SessionDecoder::default(), Signals::new()?);
        loop {
            if self.waiting.is_empty()
                && let Some(code) = self.code
            {
                return Ok(FlowEnd::Code(code));
            }
            let reads = self.reads && self.credit > 0 && self.out.len() < DATA_BYTES_MAX;
            let (listens, writes) = (self.waiting.is_empty(), !self.out.is_empty());
            tokio::select! {
                read = reader.read_buf(decoder.buffer()), if listens => {
                    if !matches!(read, Ok(1..)) {
                        bail!("the node went away; the command is told to end there");
                    }
                    while let Some(frame) = decoder.frame()? {
                        self.heard(frame)?;
                    }
                }
                printed = pass(&self.printer, &mut self.waiting), if !listens => {
                    if !printed {
                        return Ok(FlowEnd::Unheard);
                    }
                }
                sent = writer.write(&self.out), if writes => {
                    let count = sent.context("the node went away")?;
                    self.out.advance(count);
                    if self.out.is_empty() {
                        writer.flush().await.context("the node went away")?;
                    }
                }
                piece = self.input.recv(), if reads => {
                    if let Some(end) = self.take(piece.unwrap_or_default()) {
                        return Ok(end);
                    }
                }
                heard = signals.next() => {
                    if let Some(end) = self.signalled(heard) {
                        let farewell = writer.write_all(&self.out);
                        tokio::time::timeout(FAREWELL_MAX, farewell).await.ok();
                        return Ok(end);
                    }
                }
            }
        }
    }

    fn heard(&mut self, frame: SessionFrame) -> anyhow::Result<()> {
        match frame {
            SessionFrame::Output(bytes) => self.waiting.push_back((OutputStream::Output, bytes)),
            SessionFrame::Error(bytes) => self.waiting.push_back((OutputStream::Error, bytes)),
            SessionFrame::Taken(count) => self.credit += count as usize,
            SessionFrame::Exit(ended) => self.code = Some(ended.code),
            SessionFrame::Failed(why) => bail!(why),
            SessionFrame::Note(said) => {
                let end = if self.is_terminal { "\r\n" } else { "\n" };
                let line = format!("{}{end}", output::plain(&said).replace('\n', end));
                self.waiting.push_back((OutputStream::Error, line.into()));
            }
            _ => {}
        }
        Ok(())
    }

    fn take(&mut self, piece: Bytes) -> Option<FlowEnd> {
        if piece.is_empty() {
            self.reads = false;
            if self.is_terminal {
                return Some(FlowEnd::HangUp(Signal::HUP));
            }
            SessionFrame::InputEnd.write(&mut self.out);
            return None;
        }
        self.credit = self.credit.saturating_sub(piece.len());
        SessionFrame::Input(piece).write(&mut self.out);
        None
    }

    /// Passes a signal on. A user who asks twice that this process end does not wait for the
    /// command.
    fn signalled(&mut self, signal: Signal) -> Option<FlowEnd> {
        if signal == Signal::WINCH {
            if self.is_terminal {
                SessionFrame::Resize(terminal::size()).write(&mut self.out);
            }
            return None;
        }
        let number = u8::try_from(signal.as_raw()).unwrap_or_default();
        SessionFrame::Signal(number).write(&mut self.out);
        self.terminations += u32::from(signal == Signal::TERM);
        let leaves = signal == Signal::HUP || self.terminations > 1;
        leaves.then_some(FlowEnd::HangUp(signal))
    }
}

async fn pass(
    printer: &Option<mpsc::Sender<(OutputStream, Bytes)>>,
    waiting: &mut VecDeque<(OutputStream, Bytes)>,
) -> bool {
    let Some(printer) = printer else { return false };
    let Ok(permit) = printer.reserve().await else { return false };
    if let Some(piece) = waiting.pop_front() {
        permit.send(piece);
    }
    true
}

struct Signals(Vec<(Signal, Stream)>);

impl Signals {
    fn new() -> anyhow::Result<Signals> {
        let all = PASSED_ON.into_iter().chain([Signal::HUP, Signal::WINCH]);
        let listen = |one: Signal| Ok((one, signal(SignalKind::from_raw(one.as_raw()))?));
        Ok(Signals(all.map(listen).collect::<std::io::Result<_>>()?))
    }

    async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if stream.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(*signal);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}
