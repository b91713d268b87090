//! An instance that was asked, and how far its answer has come.

use std::time::Instant;

use super::relay::Relay;
use crate::buffer::Buffer;
use crate::permit::Permit;
use crate::wire::Wire;

/// The state in which an attempt begins.
pub(super) struct Begun {
    pub permit: Permit,
    /// The call that was made already; `None` if nobody was asked yet.
    pub call: Option<Box<Call>>,
}

/// An instance that was asked.
pub(super) struct Call {
    pub upstream: Wire,
    pub at: Instant,
    /// The part of the answer that has come so far.
    pub answer: Buffer,
    /// The answer on its way, if its head has come and there is nothing odd about it.
    pub relay: Option<Relay>,
}

impl Call {
    /// Ends the call for the lane: nothing that comes is for the lane any more.
    pub fn end(self) -> Call {
        if let Wire::Plain(upstream) = &self.upstream {
            upstream.calm();
        }
        self
    }
}
