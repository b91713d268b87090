//! An answer on its way from an instance to a client: how it is read, what goes out together, what
//! is counted, and where it ends. This machine never waits. A task drives it and waits for what it
//! asks for, or the lane does, which leaves it to a task in the middle.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Instant;

use router_core::http::body::Body;
use router_core::http::response::ResponseHead;

use super::failed::Failed;
use super::long::{TURN_BYTES, long_rest};
use crate::buffer::Buffer;
use crate::pace::Pace;
use crate::plain::Plain;
use crate::pool::{LentPipe, Pool};
use crate::wire::Wire;

const SHORT: &str = "it ended before as many bytes had come as its Content-Length says";
const UNFINISHED: &str = "it ended before its last chunk";
const BAD_CHUNKS: &str = "its chunks are malformed";
pub(super) const RESET: &str = "its connection was reset before its end";

/// An answer of which the head has come, at least.
pub(super) struct Relay {
    pub status: u16,
    /// Whether a length ends it.
    pub has_length: bool,
    /// The pace at which the client takes it.
    pub pace: Pace,
    /// The time since which the lane awaits more of it.
    pub awaited_since: Option<Instant>,
    head_length: usize,
    /// Whether the client is on this machine.
    is_near: bool,
    /// The part of the body that is still to come.
    body: Body,
    way: Way,
    taken: Option<Taken>,
    is_clean: bool,
    /// The head as the client gets it, and what of the body came with it.
    out: Vec<u8>,
    /// The bytes of `out` that are sent.
    sent: usize,
    /// The bytes that go behind `out`.
    piece: Buffer,
    /// The bytes that go behind the piece. A pipe is held while bytes are in it, and never during a
    /// wait for the instance.
    pipe: Option<LentPipe>,
    bytes_out: u64,
    /// The bytes passed on since others had their turn.
    turn: usize,
}

/// The form in which the client gets chunks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Chunks {
    AsTheyCome,
    /// Their content alone.
    Content,
}

/// The way in which more of it is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Past this process, until there are no more pipes.
    Spliced,
    Read,
    /// In large pieces.
    ReadLarge,
    /// Piece by piece, of which the client gets the content of the chunks alone.
    Decoded,
}

/// The outcome of the last read. What came then has to be sent before the next one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    Some,
    /// Nothing is there.
    Nothing,
    /// All of it has come.
    All,
    /// It has ended too early, or its chunks are malformed.
    Broken(&'static str),
}

/// The thing that has to happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// More of it has to come; the client has all that has come.
    More,
    /// The client has to take more.
    Room,
    /// There may be more at once: others have their turn first.
    Turn,
    /// All of it has come, so the instance is free. The client may not have all of it yet.
    End,
}

impl Relay {
    /// Begins with a head, which `out` has for the client, and what came behind it.
    pub fn begin(
        head: &ResponseHead,
        content: &[u8],
        mut out: Vec<u8>,
        chunks: Chunks,
        client: IpAddr,
    ) -> Result<Relay, Failed> {
        let mut body = head.body;
        let decodes = chunks == Chunks::Content && matches!(body, Body::Chunked(_));
        let own = match decodes {
            true => body.decode(content, &mut out),
            false => body.accept(content),
        };
        let own = own.map_err(|_| Failed::Truncated(BAD_CHUNKS))?;
        if !decodes {
            out.extend_from_slice(&content[..own]);
        }
        let way = match long_rest(body) {
            _ if decodes => Way::Decoded,
            Some(_) => Way::Spliced,
            None => Way::Read,
        };
        Ok(Relay {
            status: head.status,
            has_length: matches!(head.body, Body::Length(_)),
            pace: Pace::default(),
            awaited_since: None,
            head_length: head.length,
            is_near: client.is_loopback(),
            way,
            taken: body.is_done().then_some(Taken::All),
            is_clean: own == content.len(),
            body,
            bytes_out: out.len() as u64,
            out,
            sent: 0,
            piece: Buffer::default(),
            pipe: None,
            turn: 0,
        })
    }

    /// Returns the bytes of all that was read for the client, and of what pipes have given it.
    pub fn bytes_out(&self) -> u64 {
        self.bytes_out
    }

    /// Returns whether it passes this process by.
    pub fn is_spliced(&self) -> bool {
        self.way == Way::Spliced
    }

    /// Returns whether nothing follows it that nobody asked for.
    pub fn is_clean(&self) -> bool {
        self.is_clean
    }

    /// Returns whether the instance has sent all of it.
    pub fn has_come(&self) -> bool {
        self.taken == Some(Taken::All)
    }

    /// Looks whether something follows it that was not read.
    pub fn look_behind(&mut self, from: &Wire) {
        if self.has_come() {
            self.is_clean &= from.peek() == Some(0);
        }
    }

    /// Passes on what there is, as far as the client takes it.
    pub fn step(&mut self, from: &Wire, to: &Wire, pool: &Pool) -> Result<Next, Failed> {
        loop {
            let taken = match self.taken {
                Some(taken) => taken,
                None => self.take(from, to, pool),
            };
            self.taken = Some(taken);
            if taken == Taken::All {
                return Ok(Next::End);
            }
            if !self.send(to, pool)? {
                return Ok(Next::Room);
            }
            if let Taken::Broken(why) = taken {
                return Err(Failed::Truncated(why));
            }
            self.taken = None;
            let next = match taken {
                Taken::Nothing => Next::More,
                _ if self.turn >= TURN_BYTES => Next::Turn,
                _ => continue,
            };
            self.turn = 0;
            return Ok(next);
        }
    }

    /// Sends what the client takes now; returns whether that is all that has come. Only a plain
    /// connection takes a part.
    pub fn send(&mut self, to: &Wire, pool: &Pool) -> Result<bool, Failed> {
        let Wire::Plain(to) = to else { return Ok(self.is_sent()) };
        let mut more = None;
        while !self.is_sent() {
            // This takes fewer segments where more of the answer is here already.
            let more = *more.get_or_insert_with(|| {
                self.pipe.is_some() && !(self.is_near && to.sends_head_ahead())
            });
            match to.try_write_pieces(self.unsent(), more) {
                Ok(count @ 1..) => {
                    self.pace.took(count);
                    self.sent(count, pool);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Ok(0) | Err(_) => return Err(Failed::ClientGone),
            }
        }
        let Some(pipe) = &self.pipe else { return Ok(true) };
        let given = pipe.give_now(to, |count| {
            self.pace.took(count);
            self.bytes_out += count as u64;
        });
        match given {
            Ok(()) => self.pipe = None,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(_) => return Err(Failed::ClientGone),
        }
        Ok(true)
    }

    /// Returns what goes out before anything in a pipe.
    pub fn unsent(&self) -> [&[u8]; 2] {
        [&self.out[self.sent..], self.piece.filled()]
    }

    /// Records that so many bytes of that are sent.
    pub fn sent(&mut self, count: usize, pool: &Pool) {
        let of_out = count.min(self.out.len() - self.sent);
        self.sent += of_out;
        self.piece.consume(count - of_out);
        if self.piece.filled().is_empty() {
            pool.give_back(std::mem::take(&mut self.piece));
        }
    }

    /// Returns whether nothing is left but what is in a pipe.
    fn is_sent(&self) -> bool {
        self.unsent().iter().all(|bytes| bytes.is_empty())
    }

    /// Gives back the memory of the head once that is sent.
    pub fn give_back(&mut self, out: &mut Vec<u8>) {
        if self.sent == self.out.len() && self.sent > 0 {
            *out = std::mem::take(&mut self.out);
            self.sent = 0;
        }
    }

    fn take(&mut self, from: &Wire, to: &Wire, pool: &Pool) -> Taken {
        if self.way != Way::Spliced {
            return self.read(from, pool);
        }
        if let (Wire::Plain(from), Wire::Plain(_), Body::Length(left)) = (from, to, self.body)
            && let Some(pipe) = pool.pipe()
        {
            return self.splice(from, left, pipe);
        }
        self.way = Way::ReadLarge;
        self.read(from, pool)
    }

    fn splice(&mut self, from: &Plain, left: u64, pipe: LentPipe) -> Taken {
        let count = match pipe.take_rest(from, left) {
            Ok(0) => return Taken::Broken(SHORT),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Taken::Nothing,
            Err(_) => return Taken::Broken(RESET),
        };
        let own = left.min(count as u64);
        self.body = Body::Length(left - own);
        self.is_clean = own == count as u64;
        if self.is_clean {
            self.turn += count;
            self.pipe = Some(pipe);
        } else {
            if pipe.read_back(&mut self.piece).is_err() {
                return Taken::Broken(RESET);
            }
            self.piece.truncate(usize::try_from(own).unwrap_or(usize::MAX));
            self.bytes_out += own;
        }
        if own < left {
            return Taken::Some;
        }
        if self.is_clean {
            from.expect_long(self.head_length);
        }
        Taken::All
    }

    /// Reads a piece. It has no buffer while nothing comes.
    fn read(&mut self, from: &Wire, pool: &Pool) -> Taken {
        let mut piece = match self.way {
            Way::ReadLarge => pool.large(),
            _ => pool.buffer(),
        };
        let read = from.read_now(&mut piece);
        let (count, was_full, before) = (piece.filled().len(), piece.is_full(), self.out.len());
        let own = match self.way {
            Way::Decoded => self.body.decode(piece.filled(), &mut self.out),
            _ => self.body.accept(piece.filled()),
        };
        let Ok(own) = own else {
            self.out.truncate(before);
            pool.give_back(piece);
            return Taken::Broken(BAD_CHUNKS);
        };
        piece.truncate(if self.way == Way::Decoded { 0 } else { own });
        self.bytes_out += (self.out.len() - before + piece.filled().len()) as u64;
        match piece.filled().is_empty() {
            true => pool.give_back(piece),
            false => self.piece = piece,
        }
        if self.body.is_done() {
            self.is_clean = own == count && !(was_full && from.peek() != Some(0));
            return Taken::All;
        }
        match read {
            Ok(0) if self.body == Body::UntilClose => return Taken::All,
            Ok(0) if self.has_length => return Taken::Broken(SHORT),
            Ok(0) => return Taken::Broken(UNFINISHED),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Taken::Nothing,
            Err(_) => return Taken::Broken(RESET),
            Ok(_) => {}
        }
        match self.way {
            Way::Read if was_full => self.way = Way::ReadLarge,
            // A large piece is a turn.
            Way::ReadLarge if was_full => self.turn = TURN_BYTES,
            _ => {}
        }
        Taken::Some
    }
}

#[cfg(test)]
mod tests;
