//! The reason why a request has no answer yet, which tells whether another instance may be asked.

use router_core::http::response::BadResponse;
use router_core::retry::AttemptProgress;

use router_core::pages::Page;

/// The reason why an attempt ended without an answer.
pub(super) enum Failed {
    /// The client is gone.
    ClientGone,
    /// The client's body is malformed, or too large.
    BadBody(Page),
    Instance(AttemptProgress, &'static str),
    /// Its answer breaks a rule, and none of it was passed on.
    Malformed(BadResponse),
    TimedOut,
    /// This machine can make no connection.
    Short,
    /// The instances of that node have no room.
    Busy,
    /// The answer had begun; this is what was wrong with the rest.
    Truncated(&'static str),
}
