//! Requests that are refused before all of their body was read. A client that still sends when a
//! server hangs up may never see the answer, so the rest is read and dropped before the answer
//! goes.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header::EXPECT;
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use tokio::time::timeout;

/// The longest pause within the rest: a client that sends nothing for this long waits for something
/// itself, as a rule for a person at a terminal.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The time limit of the rest: within it even the largest push from the same machine is over.
const DRAIN_MAX: Duration = Duration::from_secs(60);

type Left = Arc<Mutex<Option<Body>>>;

/// A body that leaves behind what was not read of it.
struct Unread {
    body: Option<Body>,
    /// Whether the client sends only once it is asked to, which it was not yet.
    awaited: bool,
    left: Left,
}

impl HttpBody for Unread {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.awaited = false;
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = std::task::ready!(Pin::new(body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(|body| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), |body| body.size_hint())
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let rest = self.body.take().filter(|body| !self.awaited && !body.is_end_stream());
        if let (Some(rest), Ok(mut left)) = (rest, self.left.lock()) {
            *left = Some(rest);
        }
    }
}

pub(super) async fn take_all(request: Request, next: Next) -> Response {
    let left = Left::default();
    let kept = left.clone();
    let awaited = request.headers().contains_key(EXPECT);
    let request = request.map(|body| Body::new(Unread { body: Some(body), awaited, left: kept }));
    let response = next.run(request).await;
    let rest = left.lock().ok().and_then(|mut left| left.take());
    if let Some(rest) = rest.filter(|_| !response.status().is_success()) {
        timeout(DRAIN_MAX, drain(rest)).await.ok();
    }
    response
}

async fn drain(mut body: Body) {
    while let Ok(Some(Ok(_))) = timeout(PAUSE_MAX, body.frame()).await {}
}
