//! What decides which application a request is for.

/// Where a connection came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    Host,
    /// The same, inside TLS.
    Secure,
    Port(u16),
    /// An application's own, of datagrams.
    Datagrams(u16),
}
