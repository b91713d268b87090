//! This process's outputs, written on a thread of its own. It says what it has written, as that is
//! what the other end need not keep.

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::AsFd;

use bytes::Bytes;
use session_core::client::OutputStream;
use tokio::sync::mpsc;

/// Pieces that wait between the stream and the thread.
const PIECES_WAITING_MAX: usize = 8;

pub struct Printer {
    /// Pieces for which the thread has had no room.
    waiting: VecDeque<Piece>,
    pieces: mpsc::Sender<Piece>,
    /// The number of bytes of the command's output in each piece that was written.
    written: mpsc::Receiver<usize>,
    /// The pieces that the thread has and has not written.
    under_way: usize,
}

struct Piece {
    stream: OutputStream,
    bytes: Bytes,
    /// Whether it is output of the command, and no remark.
    counts: bool,
}

impl Printer {
    pub fn start() -> Printer {
        let (pieces, mut taken) = mpsc::channel::<Piece>(PIECES_WAITING_MAX);
        let (say, written) = mpsc::channel(PIECES_WAITING_MAX);
        std::thread::spawn(move || {
            while let Some(Piece { stream, bytes, counts }) = taken.blocking_recv() {
                let is_good = match stream {
                    OutputStream::Output => write_all(std::io::stdout(), &bytes),
                    OutputStream::Error => write_all(std::io::stderr(), &bytes),
                };
                let count = if counts { bytes.len() } else { 0 };
                if !is_good || say.blocking_send(count).is_err() {
                    return;
                }
            }
        });
        Printer { waiting: VecDeque::new(), pieces, written, under_way: 0 }
    }

    pub fn print(&mut self, stream: OutputStream, bytes: Bytes) {
        self.waiting.push_back(Piece { stream, bytes, counts: true });
    }

    pub fn remark(&mut self, line: String) {
        let (stream, bytes) = (OutputStream::Error, line.into());
        self.waiting.push_back(Piece { stream, bytes, counts: false });
    }

    /// Whether everything was handed to the thread, so that more may come.
    pub fn has_room(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn is_busy(&self) -> bool {
        self.under_way > 0 || !self.waiting.is_empty()
    }

    /// Hands pieces on, and returns the bytes of output that were written next; `None` if nobody
    /// takes them any more. May be dropped at any time without losing anything.
    pub async fn step(&mut self) -> Option<usize> {
        loop {
            tokio::select! {
                biased;
                count = self.written.recv(), if self.under_way > 0 => {
                    self.under_way -= 1;
                    return count;
                }
                permit = self.pieces.reserve(), if !self.waiting.is_empty() => {
                    let permit = permit.ok()?;
                    if let Some(piece) = self.waiting.pop_front() {
                        permit.send(piece);
                        self.under_way += 1;
                    }
                    if self.waiting.is_empty() {
                        return Some(0);
                    }
                }
                else => return Some(0),
            }
        }
    }
}

/// Writes all bytes, without a buffer of lines in between; returns whether it could.
fn write_all(mut to: impl Write + AsFd, mut bytes: &[u8]) -> bool {
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
