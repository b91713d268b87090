//! The client that a request belongs to: for a strategy that keeps requests together, and for the
//! queue, which serves clients in turn. It is read from the head that instances get, and only where
//! somebody asks.

use std::net::IpAddr;

use model::application::RequestKey;
use router_core::service_times::RequestKind;
use router_core::{fair, request_key};

use super::exchange::Exchange;
use crate::connection::platform::HSTS;
use crate::field::field;
use crate::queue::Place;
use router_core::http::body::Body;

impl Exchange<'_> {
    /// Returns the key of the request; `None` if the strategy wants none, or the request has none.
    pub(super) fn key(&self) -> Option<u64> {
        let application = &self.application;
        if !application.balance.wants_key() {
            return None;
        }
        let known = request_key::of(&application.sticky, self.out, self.client());
        known.or_else(|| self.new_session())
    }

    /// Returns the key of a client without the cookie: it is given one, and comes back to where
    /// that leads.
    fn new_session(&self) -> Option<u64> {
        let is_ours = self.connection.asker.may_be_given_session() && !self.is_transparent();
        if !is_ours || !matches!(self.application.sticky, RequestKey::Cookie(_)) {
            return None;
        }
        let made = || self.connection.thread.next_request_id();
        let session = self.session.get().unwrap_or_else(made);
        self.session.set(Some(session));
        Some(request_key::of_value(cookie_value(session).as_bytes()))
    }

    /// Adds the cookie to an answer, unless the application sets that one itself.
    pub(super) fn give_session(&self, answer: &mut Vec<u8>) {
        let Some(session) = self.session.get() else { return };
        let RequestKey::Cookie(name) = &self.application.sticky else { return };
        if request_key::sets_cookie(answer, name) || !answer.ends_with(b"\r\n\r\n") {
            return;
        }
        answer.truncate(answer.len() - 2);
        let secure = if self.connection.stream.is_secure() { "; Secure" } else { "" };
        let value = cookie_value(session);
        let line =
            format!("Set-Cookie: {name}={value}; Path=/; HttpOnly; SameSite=Lax{secure}\r\n\r\n");
        answer.extend_from_slice(line.as_bytes());
    }

    /// Adds to an answer what browsers are to remember: that the site is found by HTTPS alone
    /// (RFC 6797). Where the application says something of that itself, this says nothing.
    pub(super) fn give_hsts(&self, answer: &mut Vec<u8>) {
        let Some(seconds) = self.connection.hsts(&self.application) else { return };
        if field(answer, HSTS).is_some() || !answer.ends_with(b"\r\n\r\n") {
            return;
        }
        answer.truncate(answer.len() - 2);
        answer.extend_from_slice(format!("{HSTS}: max-age={seconds}\r\n\r\n").as_bytes());
    }

    /// Returns the place that the request will take, where places are counted.
    pub(super) fn whose(&self) -> Option<Place> {
        self.application.is_scarce.then(|| self.place())
    }

    /// Returns its place in the queue. A client that does not send the header that tells clients
    /// apart counts by its address.
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
            kind: Some(RequestKind::of(self.out)),
        }
    }

    /// Returns the client's address. Another router has written down who asked it, so a client is
    /// the same on every node.
    fn client(&self) -> IpAddr {
        let through_router = self.connection.asker.is_router();
        request_key::client(self.out, self.connection.peer.ip(), through_router)
    }
}

fn cookie_value(session: u64) -> String {
    format!("{session:016x}")
}
