//! Who asks on a connection, and what follows from that: a client on a connection of its own, a
//! client on one of many streams, or the router of another member for a client that came to it.

use std::time::Duration;

use router_core::http::{HEAD_BYTES_ADDED_MAX, HEAD_BYTES_MAX};

use crate::choice::Reaches;
use crate::far::caller::Caller;

/// Of the connections of one thread, each has one kind for as long as it stands.
pub enum Asker {
    Client,
    /// A client, with one request on a stream of HTTP/2.
    Stream,
    Router(Caller),
}

impl Asker {
    pub fn router(&self) -> Option<&Caller> {
        match self {
            Asker::Client | Asker::Stream => None,
            Asker::Router(caller) => Some(caller),
        }
    }

    /// A router has checked what it sends, says whose it is, and hears what becomes of it.
    pub fn is_router(&self) -> bool {
        self.router().is_some()
    }

    /// Most clients bring a request along; a router connects before it has one.
    pub fn asks_at_once(&self) -> bool {
        !self.is_router()
    }

    /// Whoever knows already that its connection is HTTP/1.1 does not.
    pub fn may_speak_h2(&self) -> bool {
        matches!(self, Asker::Client)
    }

    /// A stream ends with its only request, and routers have their own way to ask.
    pub fn may_be_in_lane(&self) -> bool {
        matches!(self, Asker::Client)
    }

    /// Others end both halves.
    pub fn may_half_close(&self) -> bool {
        matches!(self, Asker::Client)
    }

    /// A client that was told to connect again may have asked before it heard so; a router sends
    /// elsewhere what is sent back.
    pub fn may_ask_before_it_hears(&self) -> bool {
        !self.is_router()
    }

    /// A router takes an unsigned end for a cut, and its last message is read before.
    pub fn wants_signed_end(&self) -> bool {
        self.is_router()
    }

    /// A router waits with the rest of a body until it hears that the request is taken.
    pub fn waits_with_body(&self) -> bool {
        self.is_router()
    }

    /// The router that a client came to gives it the cookie that keeps its requests together.
    pub fn may_be_given_session(&self) -> bool {
        !self.is_router()
    }

    /// Of a request: a router adds to what its client sent.
    pub fn head_bytes_max(&self) -> usize {
        match self {
            Asker::Client | Asker::Stream => HEAD_BYTES_MAX,
            Asker::Router(_) => HEAD_BYTES_MAX + HEAD_BYTES_ADDED_MAX,
        }
    }

    /// How far a request may go, and how long it may wait, where a client's waits for so long.
    pub fn patience(&self, of_client: Duration) -> (Reaches, Duration) {
        match self {
            Asker::Client | Asker::Stream => (Reaches::Anywhere, of_client),
            Asker::Router(caller) => (Reaches::Near, caller.wait()),
        }
    }
}
