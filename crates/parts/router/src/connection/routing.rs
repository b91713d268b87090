//! One request of a connection, routed by the snapshot of its time: to a file, to an instance, or
//! to a page that says why not.

use std::sync::Arc;
use std::time::Instant;

use router_core::http::body::Body;
use router_core::http::request::RequestHead;

use super::patience::close_patiently;
use super::platform::OwnAnswer;
use super::{After, Connection};
use crate::buffer::Buffer;
use crate::closing::close_gently;
use crate::far::host;
use crate::forward;
use crate::forward::exchange::Exchange;
use crate::limits::Limits;
use crate::presence::Busy;
use crate::table::RoutedApplication;
use crate::thread::Redirect;
use crate::wire::Wire;
use router_core::pages::{self, Page};

/// The outcome of a request's beginning.
enum Begun {
    Ended(Option<After>),
    /// An instance is to be asked.
    Forward(Arc<RoutedApplication>, RequestHead, Instant),
}

impl Connection {
    /// Serves a stream of HTTP/2: the head of its only request is in `buffer`.
    pub async fn run_once(self, mut buffer: Buffer) {
        let thread = self.thread.clone();
        let _busy = Busy::begin(&thread);
        let mut out = thread.pool.scratch();
        let after = self.one(&mut buffer, &mut out, &mut Limits::default()).await;
        thread.pool.give_back_scratch(out);
        self.tunnel().await;
        match after {
            // The end of the request came, too.
            Some(After::KeepAlive) if self.stream.peek().is_none() => {
                thread.pool.give_back(buffer);
            }
            after => self.end(after, buffer).await,
        }
    }

    /// Serves one request; `None` if the client is gone. The limits of the application hold for
    /// what follows, too.
    pub(super) async fn one(
        &self,
        buffer: &mut Buffer,
        out: &mut Vec<u8>,
        limits: &mut Limits,
    ) -> Option<After> {
        if self.asker.is_router() {
            return Box::pin(host::one(self, buffer, out, limits.head)).await;
        }
        match self.begin(buffer, out, limits).await {
            Begun::Ended(after) => after,
            Begun::Forward(application, head, started) => {
                let exchange = Exchange::new(self, application, head, buffer, out, started);
                Box::pin(forward::forward(exchange)).await
            }
        }
    }

    async fn begin(&self, buffer: &mut Buffer, out: &mut Vec<u8>, limits: &mut Limits) -> Begun {
        let head = match self.head(buffer, out, limits.head).await {
            Some(Ok(head)) => head,
            Some(Err(page)) => {
                return Begun::Ended(Box::pin(self.page(page, out, false, false)).await);
            }
            None => return Begun::Ended(None),
        };
        if head.is_for_router {
            return self.refused(pages::FOR_ROUTER, &head, buffer, out).await;
        }
        let started = Instant::now();
        let route = self.thread.route(&self.scope, &buffer.filled()[head.host.clone()]);
        if self.may_be_challenge(&head, buffer.filled())
            && let Some(answer) = self.challenge_answer(&head, buffer.filled())
        {
            let (keep_alive, _) = self.own_answer(&head, buffer);
            let sent = self.text(&answer, out, head.is_head(), keep_alive);
            return Begun::Ended(Box::pin(sent).await);
        }
        let Some((application, redirect)) = route else {
            return match self.at_platform(&head, buffer.filled()) {
                None => self.refused(pages::NO_APPLICATION, &head, buffer, out).await,
                Some(OwnAnswer::Page(page)) => self.refused(page, &head, buffer, out).await,
                Some(OwnAnswer::Redirect(to)) => {
                    let page = pages::redirect(head.method);
                    let (keep_alive, _) = self.own_answer(&head, buffer);
                    let sent = self.redirected(page, &to, out, head.is_head(), keep_alive);
                    Begun::Ended(Box::pin(sent).await)
                }
            };
        };
        *limits = application.limits;
        if redirect != Redirect::No
            && let Some(to) = self.redirect(&application, &head, buffer.filled(), redirect)
        {
            let page = pages::redirect(head.method);
            let now = Instant::now();
            self.record_own(&application, &head, page.status, 0, started, now);
            let (keep_alive, _) = self.own_answer(&head, buffer);
            let sent = self.redirected(page, &to, out, head.is_head(), keep_alive);
            return Begun::Ended(Box::pin(sent).await);
        }
        if self.is_misdirected(&application, &buffer.filled()[head.host.clone()]) {
            let now = Instant::now();
            self.record_own(&application, &head, pages::MISDIRECTED.status, 0, started, now);
            return self.refused(pages::MISDIRECTED, &head, buffer, out).await;
        }
        if !application.gate.is_open()
            && let Some(ended) =
                Box::pin(self.at_gate(&application, &head, buffer, out, started)).await
        {
            return Begun::Ended(ended);
        }
        if let Wire::Stream(stream) = &self.stream {
            stream.may_idle(limits.idle);
        }
        if matches!(head.body, Body::Length(length) if length > limits.body_bytes_max) {
            self.record_own(
                &application,
                &head,
                pages::BODY_TOO_LARGE.status,
                0,
                started,
                Instant::now(),
            );
            return self.refused(pages::BODY_TOO_LARGE, &head, buffer, out).await;
        }
        if application.may_have(&head)
            && let Some(after) = self.file(&application, &head, buffer, out, started).await
        {
            return Begun::Ended(after);
        }
        let missing = application.in_vain();
        if let Some(page) = missing.map(|page| application.without_file(&head).unwrap_or(page)) {
            self.record_own(&application, &head, page.status, 0, started, Instant::now());
            return self.refused(page, &head, buffer, out).await;
        }
        Begun::Forward(application, head, started)
    }

    pub(super) async fn end(self, after: Option<After>, buffer: Buffer) {
        let thread = self.thread.clone();
        let _busy = Busy::begin(&thread);
        let buffer = match after {
            Some(After::End) if !self.asker.wants_signed_end() => {
                self.stream.sign_end();
                buffer
            }
            Some(After::Close) => Box::pin(close_patiently(self.stream, buffer, &thread)).await,
            // Another router wants the end signed, too.
            Some(After::KeepAlive | After::Quick | After::End) => {
                Box::pin(close_gently(self.stream, buffer)).await
            }
            Some(After::Cut) => {
                self.stream.cut();
                buffer
            }
            None => buffer,
        };
        thread.pool.give_back(buffer);
    }

    /// Answers with a page of our own instead of the application's answer.
    async fn refused(
        &self,
        page: Page,
        head: &RequestHead,
        buffer: &mut Buffer,
        out: &mut Vec<u8>,
    ) -> Begun {
        let (keep_alive, _) = self.own_answer(head, buffer);
        Begun::Ended(Box::pin(self.page(page, out, head.is_head(), keep_alive)).await)
    }
}
