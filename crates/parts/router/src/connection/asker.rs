//! The one who asks on a connection, and what follows from that: a client on a connection of its
//! own, a client on one of many streams, or the router of another member for a client that came to
//! it.

use std::time::Duration;

use router_core::http::{HEAD_BYTES_ADDED_MAX, HEAD_BYTES_MAX};

use crate::choice::Reaches;
use crate::far::caller::CallingRouter;

/// The asker on a connection; each connection has one kind for as long as it stands.
pub enum Asker {
    Client,
    /// A client, with one request on a stream of HTTP/2.
    Stream,
    Router(CallingRouter),
}

impl Asker {
    pub fn router(&self) -> Option<&CallingRouter> {
        match self {
            Asker::Client | Asker::Stream => None,
            Asker::Router(caller) => Some(caller),
        }
    }

    /// Returns whether it is a router, which has checked what it sends, says whose it is, and hears
    /// what becomes of it.
    pub fn is_router(&self) -> bool {
        self.router().is_some()
    }

    /// Returns whether a request is expected at once: most clients bring one along; a router
    /// connects before it has one.
    pub fn asks_at_once(&self) -> bool {
        !self.is_router()
    }

    /// Returns whether it may speak HTTP/2; the others are known to speak HTTP/1.1.
    pub fn may_speak_h2(&self) -> bool {
        matches!(self, Asker::Client)
    }

    /// Returns whether the lane may serve it: a stream ends with its only request, and routers have
    /// their own way to ask.
    pub fn may_be_in_lane(&self) -> bool {
        matches!(self, Asker::Client)
    }

    /// Returns whether it may end one half alone; the others end both.
    pub fn may_half_close(&self) -> bool {
        matches!(self, Asker::Client)
    }

    /// Returns whether it may ask before it hears that it is to connect again. A client may have
    /// done so already; a router sends elsewhere what is sent back.
    pub fn may_ask_before_it_hears(&self) -> bool {
        !self.is_router()
    }

    /// Returns whether the end of the connection must be signed: a router takes an unsigned end for
    /// a cut, and what it sent last is read before the connection closes.
    pub fn wants_signed_end(&self) -> bool {
        self.is_router()
    }

    /// Returns whether it waits with the rest of a body until it hears that the request is taken,
    /// as a router does.
    pub fn waits_with_body(&self) -> bool {
        self.is_router()
    }

    /// Returns whether it may be given a session cookie: the router that a client came to gives it
    /// the cookie that keeps its requests together.
    pub fn may_be_given_session(&self) -> bool {
        !self.is_router()
    }

    /// Returns the largest head of a request, in bytes; a router adds to what its client sent.
    pub fn head_bytes_max(&self) -> usize {
        match self {
            Asker::Client | Asker::Stream => HEAD_BYTES_MAX,
            Asker::Router(_) => HEAD_BYTES_MAX + HEAD_BYTES_ADDED_MAX,
        }
    }

    /// Returns how far a request may go and how long it may wait, where a client's request waits
    /// for `of_client`.
    pub fn patience(&self, of_client: Duration) -> (Reaches, Duration) {
        match self {
            Asker::Client | Asker::Stream => (Reaches::Anywhere, of_client),
            Asker::Router(caller) => (Reaches::Near, caller.wait()),
        }
    }
}
