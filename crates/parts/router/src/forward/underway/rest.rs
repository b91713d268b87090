//! What is left of a long answer. The lane passes it on through a pipe for as long as the instance
//! gives it and the client takes it at once; a task does the rest of that, too.

use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use router_core::http::response::ResponseHead;

use super::{Call, Step, Underway};
use crate::buffer::{BUFFER_BYTES, Buffer};
use crate::connection::{After, Connection};
use crate::endpoint::Endpoint;
use crate::forward::relay::{End, LATE, Relayed};
use crate::forward::{Counts, Exchange, Failed, TURN_BYTES};
use crate::limits::Limits;
use crate::permit::Permit;
use crate::plain::Plain;
use crate::pool::LentPipe;
use crate::wire::Wire;

/// Of answers that are surely long once one read's worth of them has come, and done in one turn.
pub(super) const LONG_BYTES: RangeInclusive<u64> = 2 * BUFFER_BYTES as u64..=TURN_BYTES as u64;

pub struct Rest {
    status: u16,
    head_length: usize,
    /// Of its body, still to come.
    left: u64,
    /// Of all that has come.
    bytes_out: u64,
    /// What the client has not taken yet: this, and then what is in the pipe.
    unsent: Vec<u8>,
    pipe: Option<LentPipe>,
    /// More has come than should.
    is_odd: bool,
    /// When the last piece came.
    since: Instant,
}

enum Passed {
    Waits,
    Whole,
    /// The client is gone.
    Gone,
    /// A task goes on.
    Further,
}

impl Rest {
    pub fn new(head: &ResponseHead, left: u64, bytes_out: u64) -> Rest {
        let (status, head_length) = (head.status, head.length);
        let (unsent, pipe, is_odd, since) = (Vec::new(), None, false, Instant::now());
        Rest { status, head_length, left, bytes_out, unsent, pipe, is_odd, since }
    }

    /// By then there must be more of it.
    pub fn until(&self, limits: &Limits) -> Instant {
        self.since + limits.answer_idle
    }

    /// What has come by now, behind what was `begun`.
    fn pass(&mut self, from: &Plain, client: &Connection, mut begun: &[u8]) -> Passed {
        let Wire::Plain(to) = &client.stream else { return Passed::Further };
        let mut turn = 0;
        while turn < TURN_BYTES {
            let Some(pipe) = client.thread.pool.pipe() else { break };
            let taken = pipe.take_rest(from, self.left);
            if !begun.is_empty() {
                // In fewer segments, where more of it is here already.
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
                // Its end, or why there is no more, is seen again by whoever reads again.
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

impl Underway {
    pub(super) fn pass_on(&mut self, client: &Connection, begun: &[u8], bytes: &mut usize) -> Step {
        let Some(Call { upstream: Wire::Plain(from), rest: Some(rest), .. }) = &mut self.call
        else {
            return Step::Further;
        };
        let before = rest.left;
        let passed = rest.pass(from, client, begun);
        *bytes += (before - rest.left) as usize;
        let (status, bytes_out) = (rest.status, rest.bytes_out);
        match passed {
            Passed::Waits => Step::Waits,
            Passed::Further => Step::Further,
            Passed::Whole => self.conclude(client, status, bytes_out, Some(Bytes::new())),
            Passed::Gone => {
                let mut record = self.record(client, status, bytes_out);
                record.ended(Instant::now());
                record.abandoned();
                client.thread.recorder.record(record);
                // What comes of it is nobody's.
                self.call = None;
                Step::Gone
            }
        }
    }
}

impl Exchange<'_> {
    /// Goes on with an answer that the lane has begun to pass on.
    pub(in crate::forward) async fn finish(
        &mut self,
        upstream: Wire,
        rest: Rest,
        permit: Permit,
        endpoint: &Arc<Endpoint>,
        counts: &mut Counts,
    ) -> Result<After, Failed> {
        let is_late = Instant::now() >= rest.until(&self.application.limits);
        let Rest { status, head_length, left, bytes_out, mut unsent, pipe, is_odd, .. } = rest;
        let in_pipe = pipe.as_ref().map_or(0, |pipe| pipe.len());
        (counts.status, counts.bytes_out) = (status, bytes_out - (unsent.len() + in_pipe) as u64);
        let (mut clean, mut end) = (!is_odd, End { piece: Buffer::default(), pipe });
        if left > 0 {
            self.send_end(&mut unsent, end, counts).await?;
            if is_late {
                return Err(Failed::Truncated(LATE));
            }
            let (out, answer) = (&mut unsent, Buffer::default());
            let relayed = self.relay_long(&upstream, out, answer, left, head_length, counts);
            Relayed { clean, end } = relayed.await?;
        }
        self.free(clean.then_some(upstream), permit);
        self.send_end(&mut unsent, end, counts).await?;
        self.record(Some(endpoint), counts);
        Ok(After::KeepAlive)
    }
}
