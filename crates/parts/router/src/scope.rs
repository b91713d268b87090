//! The place where a connection came in, which decides which application a request is for.

/// The place where a connection came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    Host,
    /// The address where Host decides, inside TLS.
    Secure,
    Port(u16),
    /// An application's own port, for datagrams.
    Datagrams(u16),
}
