//! Limits that every way of serving a connection keeps.

/// Read at once; one buffer for all connections of a thread.
pub const READ_BYTES: usize = 64 << 10;
/// Replies are sent once there are so many bytes of them.
pub const SEND_BYTES: usize = 64 << 10;
/// Writes of one connection that wait together.
pub const PENDING_MAX: usize = 1024;
