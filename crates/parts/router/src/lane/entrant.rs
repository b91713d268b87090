//! The clients that may come into the lane, and what is brought there.

use crate::connection::Connection;
use crate::limits::Limits;
use crate::presence::Presence;
use crate::wire::Wire;

/// The bytes that a socket takes at once, unless its client does not read. Longer answers have a
/// task that waits until there is room.
const ANSWER_BYTES_MAX: usize = 32 * 1024;

/// A client on its way in.
pub struct LaneEntrant {
    pub connection: Connection,
    pub presence: Presence,
    pub limits: Limits,
}

/// Returns whether the lane may take the client on this connection.
pub fn may_hold(connection: &Connection) -> bool {
    connection.asker.may_be_in_lane() && matches!(connection.stream, Wire::Plain(_))
}

/// Returns whether this answer could come from the lane, to the client on this connection.
pub fn takes(connection: &Connection, answer: &[u8]) -> bool {
    may_hold(connection) && answer.len() <= ANSWER_BYTES_MAX
}
