//! The limits that every way of serving a connection keeps.

/// The number of bytes read at once; there is one buffer for all connections of a thread.
pub const READ_BYTES: usize = 64 << 10;
/// The number of bytes of replies at which they are sent.
pub const SEND_BYTES: usize = 64 << 10;
/// The number of writes of one connection that wait together.
pub const PENDING_MAX: usize = 1024;
