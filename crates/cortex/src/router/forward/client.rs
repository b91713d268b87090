//! Whose request it is: for a strategy that keeps requests together, and for the queue, which
//! serves clients in turn. Read from the head that instances get, and only where somebody asks.

use std::net::IpAddr;

use router::{fair, request_key};

use super::Exchange;
use crate::router::queue::Place;
use router::http::body::Body;

impl Exchange<'_> {
    /// None where the strategy wants none, or the request has none.
    pub(super) fn key(&self) -> Option<u64> {
        let application = &self.application;
        match application.balance.wants_key() {
            true => request_key::of(&application.sticky, self.out, self.client()),
            false => None,
        }
    }

    /// In the queue. Who does not send the header that tells clients apart counts by address.
    pub(super) fn place(&self) -> Place {
        let client = self.client();
        let class = request_key::of(&self.application.fair, self.out, client);
        let body_bytes = match self.head.body {
            Body::Length(bytes) => Some(bytes),
            _ => None,
        };
        Place {
            class: class.unwrap_or_else(|| request_key::of_address(client)),
            cost: fair::cost(body_bytes),
        }
    }

    /// Another router has written down who asked it, so a client is the same on every node.
    fn client(&self) -> IpAddr {
        let through_router = self.connection.caller.is_some();
        request_key::client(self.out, self.connection.peer.ip(), through_router)
    }
}
