//! An instance that was asked, and how far its answer has come.

use std::time::Instant;

use super::rest::Rest;
use crate::buffer::Buffer;
use crate::permit::Permit;
use crate::wire::Wire;

/// Where an attempt begins.
pub(super) struct Begun {
    pub permit: Permit,
    /// None where nobody was asked yet.
    pub call: Option<Box<Call>>,
}

/// An instance that was asked.
pub(super) struct Call {
    pub upstream: Wire,
    pub at: Instant,
    /// What has come so far.
    pub answer: Buffer,
    /// Of a long answer that has begun.
    pub rest: Option<Box<Rest>>,
}

impl Call {
    /// Nothing that comes is for the lane any more.
    pub fn end(self) -> Call {
        if let Wire::Plain(upstream) = &self.upstream {
            upstream.calm();
        }
        self
    }
}
