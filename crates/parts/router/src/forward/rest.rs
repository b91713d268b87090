//! The rest of a long answer. The lane passes it on through a pipe for as long as the instance
//! gives it and the client takes it at once.

use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::time::Instant;

use router_core::http::response::ResponseHead;

use super::long::TURN_BYTES;
use crate::buffer::{BUFFER_BYTES, Buffer};
use crate::connection::Connection;
use crate::limits::Limits;
use crate::plain::Plain;
use crate::pool::LentPipe;
use crate::wire::Wire;

/// The lengths, in bytes, of answers that are surely long once one read's worth of them has come,
/// and that are done in one turn.
pub(super) const LONG_BYTES: RangeInclusive<u64> = 2 * BUFFER_BYTES as u64..=TURN_BYTES as u64;

pub struct Rest {
    pub(super) status: u16,
    pub(super) head_length: usize,
    /// The bytes of the body that are still to come.
    pub(super) left: u64,
    /// The bytes of everything that has come so far.
    pub(super) bytes_out: u64,
    /// The bytes that the client has not taken yet; they go before what is in the pipe.
    pub(super) unsent: Vec<u8>,
    pub(super) pipe: Option<LentPipe>,
    /// Whether more has come than should.
    pub(super) is_odd: bool,
    /// The time when the last piece came.
    pub(super) since: Instant,
}

pub(super) enum Passed {
    Waits,
    Whole,
    /// The client is gone.
    Gone,
    /// A task goes on with it.
    Further,
}

impl Rest {
    pub fn new(head: &ResponseHead, left: u64, bytes_out: u64) -> Rest {
        let (status, head_length) = (head.status, head.length);
        let (unsent, pipe, is_odd, since) = (Vec::new(), None, false, Instant::now());
        Rest { status, head_length, left, bytes_out, unsent, pipe, is_odd, since }
    }

    /// Returns the time by which more of it must have come.
    pub(super) fn until(&self, limits: &Limits) -> Instant {
        self.since + limits.answer_idle
    }

    /// Passes on what has come by now, behind what was `begun`.
    pub(super) fn pass(&mut self, from: &Plain, client: &Connection, mut begun: &[u8]) -> Passed {
        let Wire::Plain(to) = &client.stream else { return Passed::Further };
        let mut turn = 0;
        while turn < TURN_BYTES {
            let Some(pipe) = client.thread.pool.pipe() else { break };
            let taken = pipe.take_rest(from, self.left);
            if !begun.is_empty() {
                // This takes fewer segments where more of the answer is here already.
                let is_here = matches!(taken, Ok(1..));
                let is_near = client.peer.ip().is_loopback();
                let more = is_here && !(is_near && to.sends_head_ahead());
                match to.try_write_before(begun, more) {
                    Ok(count) => begun = &begun[count..],
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => return Passed::Gone,
                }
            }
            let count = match taken {
                Ok(count @ 1..) => count as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock && begun.is_empty() => {
                    self.since = Instant::now();
                    return Passed::Waits;
                }
                // The next read sees its end, or why there is no more, once again.
                Ok(_) | Err(_) => break,
            };
            let own = count.min(self.left);
            (self.left, self.bytes_out) = (self.left - own, self.bytes_out + own);
            if own < count {
                self.is_odd = true;
                let mut piece = Buffer::default();
                if pipe.read_back(&mut piece).is_err() {
                    return Passed::Gone;
                }
                self.unsent.extend_from_slice(begun);
                self.unsent.extend_from_slice(&piece.filled()[..own as usize]);
                return Passed::Further;
            }
            let is_given = begun.is_empty()
                && match pipe.give_now(to, |_| {}) {
                    Ok(()) => true,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => false,
                    Err(_) => return Passed::Gone,
                };
            if !is_given {
                self.pipe = Some(pipe);
                break;
            }
            if self.left == 0 {
                from.expect_long(self.head_length);
                return Passed::Whole;
            }
            turn += count as usize;
        }
        self.unsent.extend_from_slice(begun);
        Passed::Further
    }
}
