//! The size from which a body is long, and how much of one is passed on before others have their
//! turn.

use std::ops::RangeInclusive;

use router_core::http::body::Body;

use crate::buffer::BUFFER_BYTES;

/// Bytes of a body after which others have their turn: a quick server and a quick client would keep
/// the thread to themselves.
pub const TURN_BYTES: usize = 1 << 20;
/// The lengths, in bytes, of answers that are surely long once one read's worth of them has come,
/// and that are done in one turn.
pub(super) const LONG_BYTES: RangeInclusive<u64> = 2 * BUFFER_BYTES as u64..=TURN_BYTES as u64;

/// Returns what is left of a body, if that is more than one read takes.
pub(super) fn long_rest(body: Body) -> Option<u64> {
    match body {
        Body::Length(left) if left > BUFFER_BYTES as u64 => Some(left),
        _ => None,
    }
}
