//! One request and its client, for as long as it is under way, and what is recorded of it.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::failed::Failed;
use crate::buffer::Buffer;
use crate::connection::{After, Connection};
use crate::endpoint::Endpoint;
use crate::table::RoutedApplication;
use metrics::micros;
use router_core::http::request::RequestHead;
use router_core::http::trailers::Trailers;
use router_core::pages::{self, Page};

pub(super) const BAD_BODY: Page = pages::bad_request(400, "The body of the request is malformed.");

/// The request, its connection, and all else that it needs.
pub struct Exchange<'a> {
    pub connection: &'a Connection,
    pub application: Arc<RoutedApplication>,
    pub head: RequestHead,
    /// The bytes that the client sent: the head, then what followed it.
    pub buffer: &'a mut Buffer,
    /// The head as an instance gets it, without its last line.
    pub out: &'a mut Vec<u8>,
    /// The trailers of the client's body, as far as they have come.
    pub trailers: Trailers,
    pub started: Instant,
    pub client_end: Cell<ClientEnd>,
    /// The cookie that the client is given, which keeps its requests together.
    pub session: Cell<Option<u64>>,
}

/// The state of what a client sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientEnd {
    #[default]
    Open,
    /// The client will send no more, and reads on.
    Half,
    /// The client broke off. The socket says so once, and then looks half closed.
    Both,
}

/// The figures that are recorded of a request, as far as they are known.
#[derive(Default)]
pub struct Counts {
    pub queue: Duration,
    /// The time spent waiting for the client's body.
    pub waited: Duration,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub status: u16,
}

impl<'a> Exchange<'a> {
    pub fn new(
        connection: &'a Connection,
        application: Arc<RoutedApplication>,
        head: RequestHead,
        buffer: &'a mut Buffer,
        out: &'a mut Vec<u8>,
        started: Instant,
    ) -> Exchange<'a> {
        Exchange {
            connection,
            application,
            head,
            buffer,
            out,
            trailers: Trailers::default(),
            started,
            client_end: Cell::default(),
            session: Cell::default(),
        }
    }
}

impl Exchange<'_> {
    /// Tells the router that sent this request, if one did, that its answer follows.
    pub(super) fn admit(&self) -> Result<(), Failed> {
        self.connection.admit(&self.application).map_err(|_| Failed::ClientGone)
    }

    pub(super) fn is_transparent(&self) -> bool {
        self.connection.thread.shared.is_transparent()
    }

    pub(super) async fn fail(
        &mut self,
        page: Page,
        endpoint: Option<&Arc<Endpoint>>,
        counts: &mut Counts,
    ) -> Option<After> {
        self.fail_with(page, None, endpoint, counts).await
    }

    /// Sends a page in place of an answer; `detail` is for the reader of the page.
    pub(super) async fn fail_with(
        &mut self,
        page: Page,
        detail: Option<&str>,
        endpoint: Option<&Arc<Endpoint>>,
        counts: &mut Counts,
    ) -> Option<After> {
        counts.status = page.status;
        self.record(endpoint.filter(|endpoint| endpoint.site().is_none()), counts);
        self.admit().ok()?;
        let head_only = self.head.is_head();
        // Its body may be half read, so the connection ends.
        self.connection.page_with(page, detail, self.out, head_only, false).await
    }

    pub(super) async fn bad_body(&mut self, page: Page, counts: &mut Counts) -> Option<After> {
        counts.status = page.status;
        self.record(None, counts);
        self.admit().ok()?;
        self.connection.page(page, self.out, false, false).await
    }

    pub(super) fn record(&self, endpoint: Option<&Arc<Endpoint>>, counts: &Counts) {
        if endpoint.is_some_and(|endpoint| endpoint.site().is_some()) {
            // The node that runs the instance has counted it.
            return;
        }
        let by = match endpoint {
            Some(endpoint) => &endpoint.labels,
            None => &self.application.labels,
        };
        let (status, bytes_out) = (counts.status, counts.bytes_out);
        let mut record = self.connection.record_of(by, &self.head, status, bytes_out, self.started);
        record.bytes_in = counts.bytes_in;
        record.queue_us = micros(counts.queue);
        record.ended(Instant::now());
        if endpoint.is_none() {
            record.service_us = record.total_us.saturating_sub(record.queue_us);
        }
        self.connection.thread.recorder.record(record);
    }
}
