//! Two connected sockets of which each gets what the other says, with the ends of both directions
//! kept apart. A side that reads slowly holds the other up: what waits for it is bounded.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, sockopt};

/// The number of bytes that are read at once, and the maximum number that waits for one side.
pub const CHUNK_BYTES: usize = 64 << 10;
/// The number of reads in a row from one side, so that one fast stream does not starve the others.
const READS_IN_A_ROW: usize = 4;

/// The result of passing on what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// More may come.
    Open,
    /// Both have said all and heard all.
    Ended,
    /// One is gone before that, which the other is to see.
    Broken,
}

pub struct Side {
    pub socket: OwnedFd,
    /// The events that are asked for at the moment; `None` if it is not watched.
    pub watched: Option<EventFlags>,
    /// The bytes of the other side that it has not taken yet.
    waiting: Vec<u8>,
    sent: usize,
    /// Whether it has said all.
    ended: bool,
    /// Whether it was told that the other has said all.
    told: bool,
}

impl Side {
    fn new(socket: OwnedFd) -> Side {
        Side { socket, watched: None, waiting: Vec::new(), sent: 0, ended: false, told: false }
    }
}

pub struct Pair {
    pub sides: [Side; 2],
    /// Whether the second side is still being connected.
    pub connecting: bool,
    /// The side that is the program's.
    program: usize,
}

impl Pair {
    /// Joins a connection that was accepted with one that is being made.
    pub fn new(accepted: OwnedFd, connecting: OwnedFd, program: usize) -> Pair {
        let sides = [Side::new(accepted), Side::new(connecting)];
        Pair { sides, connecting: true, program }
    }

    /// Returns the events to wait for at a side.
    pub fn wants(&self, side: usize) -> EventFlags {
        let (own, other) = (&self.sides[side], &self.sides[1 - side]);
        let mut wanted = EventFlags::empty();
        if self.connecting {
            return if side == 1 { EventFlags::OUT } else { wanted };
        }
        wanted.set(EventFlags::IN, !own.ended && other.waiting.is_empty());
        wanted.set(EventFlags::OUT, !own.waiting.is_empty());
        wanted
    }

    /// Passes on what is there in both directions. `chunk` is room for what is read.
    pub fn pass(&mut self, chunk: &mut [u8]) -> Passed {
        let done = [0, 1].map(|side| self.pass_from(side, chunk));
        match done {
            [Err(_), _] | [_, Err(_)] => Passed::Broken,
            _ if self.sides.iter().all(|side| side.ended && side.told) => Passed::Ended,
            _ => Passed::Open,
        }
    }

    /// Passes on what one side says.
    fn pass_from(&mut self, side: usize, chunk: &mut [u8]) -> rustix::io::Result<()> {
        let [first, second] = &mut self.sides;
        let (from, to) = if side == 0 { (first, second) } else { (second, first) };
        flush(to)?;
        for _ in 0..READS_IN_A_ROW {
            if from.ended || !to.waiting.is_empty() {
                break;
            }
            match rustix::net::recv(&from.socket, &mut *chunk, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => from.ended = true,
                Ok((_, count)) => {
                    let sent = send(to, &chunk[..count])?;
                    to.waiting.extend_from_slice(&chunk[sent..count]);
                    if count < chunk.len() {
                        break;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        if from.ended && !to.told && to.waiting.is_empty() {
            to.told = true;
            match rustix::net::shutdown(&to.socket, Shutdown::Write) {
                // It went at the same moment, having said all.
                Err(Errno::NOTCONN) => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Returns whether the program has said all, and the other side was told so.
    pub fn program_has_ended(&self) -> bool {
        self.sides[self.program].ended && self.sides[1 - self.program].told
    }

    /// Ends both so that neither takes what came so far for the whole.
    pub fn reset(self) {
        for side in &self.sides {
            let _ = sockopt::set_socket_linger(&side.socket, Some(Duration::ZERO));
        }
    }
}

fn send(to: &Side, bytes: &[u8]) -> rustix::io::Result<usize> {
    loop {
        match rustix::net::send(&to.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Err(Errno::AGAIN) => return Ok(0),
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Sends what waits; the room for it is given back once all is sent.
fn flush(to: &mut Side) -> rustix::io::Result<()> {
    if to.waiting.is_empty() {
        return Ok(());
    }
    to.sent += send(to, &to.waiting[to.sent..])?;
    if to.sent == to.waiting.len() {
        (to.waiting, to.sent) = (Vec::new(), 0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use rustix::event::{PollFd, PollFlags, Timespec};

    use super::*;

    fn joined() -> (TcpStream, Pair, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let two = || {
            let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (one, listener.accept().unwrap().0)
        };
        let ((near, first), (far, second)) = (two(), two());
        let mut pair = Pair::new(first.into(), second.into(), 1);
        pair.connecting = false;
        (near, pair, far)
    }

    /// Passes on until neither side has anything to say or room to hear it.
    fn settle(pair: &mut Pair, chunk: &mut [u8]) -> Passed {
        loop {
            let passed = pair.pass(chunk);
            if passed != Passed::Open || !has_more(pair) {
                return passed;
            }
        }
    }

    fn has_more(pair: &Pair) -> bool {
        let wanted = [0, 1].map(|side| pair.wants(side).bits() as u16);
        let mut fds = [0, 1].map(|side| {
            PollFd::new(&pair.sides[side].socket, PollFlags::from_bits_retain(wanted[side]))
        });
        let soon = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        rustix::event::poll(&mut fds, Some(&soon)).unwrap() > 0
    }

    #[test]
    fn each_direction_ends_by_itself() {
        let (mut near, mut pair, mut far) = joined();
        let mut chunk = vec![0; CHUNK_BYTES];
        near.write_all(b"asked").unwrap();
        near.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(settle(&mut pair, &mut chunk), Passed::Open);
        let mut heard = String::new();
        far.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "asked");
        far.write_all(b"answered").unwrap();
        drop(far);
        assert_eq!(settle(&mut pair, &mut chunk), Passed::Ended);
        heard.clear();
        near.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "answered");
    }

    #[test]
    fn who_does_not_read_holds_the_other_up() {
        let (near, mut pair, mut far) = joined();
        let mut chunk = vec![0; CHUNK_BYTES];
        near.set_nonblocking(true).unwrap();
        let mut said = 0_usize;
        // As much as fits into the kernel's buffers of four sockets, and one chunk.
        loop {
            match (&near).write(&[7; CHUNK_BYTES]) {
                Ok(count) => said += count,
                Err(_) => {
                    settle(&mut pair, &mut chunk);
                    if pair.wants(0).is_empty() && (&near).write(&[7]).map(|n| said += n).is_err() {
                        break;
                    }
                }
            }
        }
        assert!(pair.sides[1].waiting.len() <= CHUNK_BYTES);
        assert!(pair.wants(1).contains(EventFlags::OUT));
        near.set_nonblocking(false).unwrap();
        drop(near);
        let reader = std::thread::Builder::new().spawn(move || {
            let mut all = Vec::new();
            far.read_to_end(&mut all).unwrap();
            all.len()
        });
        while !pair.sides[1].told {
            settle(&mut pair, &mut chunk);
        }
        assert_eq!(reader.unwrap().join().unwrap(), said);
        assert!(pair.sides[1].waiting.capacity() == 0);
    }

    #[test]
    fn an_answer_that_broke_off_does_not_look_whole() {
        let (mut near, mut pair, mut far) = joined();
        let mut chunk = vec![0; CHUNK_BYTES];
        far.write_all(b"half of").unwrap();
        assert_eq!(settle(&mut pair, &mut chunk), Passed::Open);
        sockopt::set_socket_linger(&far, Some(Duration::ZERO)).unwrap();
        drop(far);
        assert_eq!(settle(&mut pair, &mut chunk), Passed::Broken);
        pair.reset();
        let mut heard = Vec::new();
        let error = near.read_to_end(&mut heard).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}
