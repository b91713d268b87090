//! The side that is asked: requests that the router of another member sends here. Each goes to an
//! instance of this node or back, never to a third node, and goes back before a byte of it was
//! passed on.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use model::NodeId;
use router_core::far::{FarOutcome, FarRequest, Room};
use tokio_rustls::rustls;

use super::caller::CallingRouter;
use super::outcome::send_back;
use super::sealed::Sealed;
use crate::buffer::Buffer;
use crate::closing::close_gently;
use crate::connection::asker::Asker;
use crate::connection::{After, Connection};
use crate::forward;
use crate::forward::exchange::Exchange;
use crate::plain::Plain;
use crate::presence::Busy;
use crate::scope::Scope;
use crate::services;
use crate::stream::fill;
use crate::thread::Thread;
use crate::wire::Wire;
use router_core::http::request::RequestHead;
use runtime::members::RouterCall;

/// The time for the lines that stand before a request; they are sent together with it.
const ASK_TIME_MAX: Duration = Duration::from_secs(20);

/// Opens the connection of a call; to be called on the thread that is to serve it.
pub fn connection(thread: Rc<Thread>, call: RouterCall) -> io::Result<Connection> {
    let stream = Plain::from(call.stream);
    let peer = stream.peer_addr()?;
    let sealed = Sealed::new(stream, rustls::Connection::Server(call.tls), None)?;
    let stream = Wire::Sealed(Box::new(sealed));
    let asker = Asker::Router(CallingRouter::new(call.peer));
    Ok(Connection::new(thread, stream, peer, Scope::Host, asker))
}

/// Waits until something comes; `None` if nothing came within `limit`, or this router is about to
/// stop.
pub async fn readable(connection: &Connection, limit: Duration) -> Option<()> {
    let thread = &connection.thread;
    let leaving = thread.leaving.notified();
    if thread.is_stopping() {
        return None;
    }
    tokio::select! {
        biased;
        () = leaving => None,
        readable = connection.stream.readable_within(limit) => readable.ok(),
    }
}

/// Tells the other router that what it still sends here was passed on to nobody, before the
/// connection ends; it goes elsewhere with that.
pub async fn leave(connection: Connection) {
    if !connection.asker.is_router() {
        return;
    }
    let thread = connection.thread.clone();
    let _busy = Busy::begin(&thread);
    if send_back(&connection, FarOutcome::Absent, Room::default(), false).await.is_ok() {
        let buffer = close_gently(connection.stream, thread.pool.buffer()).await;
        thread.pool.give_back(buffer);
    }
}

/// Resolves when a caller that was a member no longer is one.
pub async fn revoked(thread: &Thread, caller: &NodeId) {
    let mut members = thread.shared.members.subscribe();
    // The store may have told the node port before this router; and the sender outlives the thread.
    members.wait_for(|members| members.contains(caller)).await.ok();
    members.wait_for(|members| !members.contains(caller)).await.ok();
}

/// Serves one request of a router's; `None` if that router is gone.
pub async fn one(
    connection: &Connection,
    buffer: &mut Buffer,
    out: &mut Vec<u8>,
    limit: Duration,
) -> Option<After> {
    let ask = read_ask(connection, buffer).await?;
    if let Some(through) = &ask.through {
        return Box::pin(services::host::serve(connection, &ask, through, buffer)).await;
    }
    // Another router writes no malformed head.
    let head = connection.head(buffer, out, limit).await?.ok()?;
    serve(connection, &ask, head, buffer, out).await
}

/// Reads what stands before each request; `None` if the caller is gone, or speaks otherwise.
async fn read_ask(connection: &Connection, buffer: &mut Buffer) -> Option<FarRequest> {
    loop {
        match FarRequest::parse(buffer.filled()) {
            Ok(Some((ask, length))) => {
                buffer.consume(length);
                return Some(ask);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(peer = %connection.peer, %error, "router.peer_misspoke");
                return None;
            }
        }
        match fill(&connection.stream, buffer, ASK_TIME_MAX).await {
            Ok(0) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

/// Serves a request of HTTP; `None` if the caller is gone, or no member any more.
async fn serve(
    connection: &Connection,
    ask: &FarRequest,
    head: RequestHead,
    buffer: &mut Buffer,
    out: &mut Vec<u8>,
) -> Option<After> {
    let (caller, thread) = (connection.asker.router()?, &connection.thread);
    if !thread.shared.members.borrow().contains(caller.node()) {
        tracing::warn!(node = %caller.node(), "router.caller_is_no_member");
        return None;
    }
    caller.asks(Duration::from_millis(ask.wait_ms.into()));
    let started = Instant::now();
    let application = thread.named(&ask.application).filter(|_| ask.process.is_web());
    let Some(application) = application else {
        return absent(connection, &head, buffer).await;
    };
    if application.may_have(&head)
        && let Some(after) = connection.file(&application, &head, buffer, out, started).await
    {
        return after;
    }
    if application.endpoints.is_empty() || thread.is_stopping() {
        return absent(connection, &head, buffer).await;
    }
    let exchange = Exchange::new(connection, application, head, buffer, out, started);
    Box::pin(forward::forward(exchange)).await
}

async fn absent(connection: &Connection, head: &RequestHead, buffer: &mut Buffer) -> Option<After> {
    let (keep, after) = connection.own_answer(head, buffer);
    send_back(connection, FarOutcome::Absent, Room::default(), keep).await.ok()?;
    Some(after)
}
