//! A client's connection that speaks HTTP/2: each of its streams is served as a connection of its
//! own would be. Ends idle and stalled ones, and tells clients to go elsewhere before a stop.

use std::cell::Cell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::{self, SendResponse};
use h2::{Reason, RecvStream};
use hyper::{Request, Response};
use tokio::time::timeout;

use super::head::{self, Refused};
use super::io::{Io, Watch};
use super::stream::{Counted, Stream};
use super::workers::{Job, Workers};
use crate::router::connection::{Busy, Connection, WRITE_TIME_MAX};
use crate::router::limits::Limits;
use crate::router::pool::Buffer;
use crate::router::serve::{Scope, Thread};
use crate::router::stream::fill;
use crate::router::wire::Wire;
use router::http::HEAD_BYTES_MAX;

/// What a client that knows sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Browsers ask for about 100 at once at the most.
const STREAMS_MAX: u32 = 128;
/// Of all connections of one thread; each holds three buffers while its request is under way.
const THREAD_STREAMS_MAX: usize = 20_000;
/// What a client may send before it is read, per stream. With the connection's window, which all
/// streams share, that bounds what a connection holds.
const WINDOW_BYTES: u32 = 64 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// What is to be sent, per stream, while the socket takes nothing.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Requests that were given up before they were looked at.
const RESET_PENDING_MAX: usize = 32;
/// Streams that are over and for which frames may still be on their way.
const RESET_KEPT_MAX: usize = 64;
/// Errors in streams before the connection is one.
const RESET_ERRORS_MAX: usize = 256;
/// From the first byte to the last of the preface, and the settings behind it.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(20);
/// How soon one that is idle or stalled is noticed, beyond its time.
const LOOK_INTERVAL: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 15 });
/// A client that was told to leave and asks nothing any more.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(1);

/// Whether the client begins as HTTP/2 does.
pub async fn is_spoken(stream: &Wire, buffer: &mut Buffer) -> bool {
    let deadline = Instant::now() + HANDSHAKE_TIME_MAX;
    loop {
        let begun = buffer.filled();
        let told = begun.len().min(PREFACE.len());
        if begun[..told] != PREFACE[..told] {
            return false;
        }
        if told == PREFACE.len() {
            return true;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if fill(stream, buffer, left).await.map_or(true, |count| count == 0) {
            return false;
        }
    }
}

/// Until it ends. `first` is what was read of it, if anything was.
pub fn serve(connection: Connection, first: Option<Buffer>) -> Pin<Box<dyn Future<Output = ()>>> {
    Box::pin(run(connection, first))
}

async fn run(connection: Connection, first: Option<Buffer>) {
    let Connection { thread, stream, peer, scope, .. } = connection;
    let is_secure = stream.is_secure();
    let watch = Watch::new(thread.clone(), stream);
    let handshake = builder().handshake::<_, Bytes>(Io::new(first, watch.clone()));
    let handshake = timeout(HANDSHAKE_TIME_MAX, watch.turn(handshake)).await;
    let Ok(Some(Ok(h2))) = handshake else { return };
    let client = Client {
        thread,
        peer,
        scope,
        is_secure,
        watch,
        active: Rc::default(),
        idle_since: Cell::new(Instant::now()),
        idle_max: Rc::new(Cell::new(Limits::default().idle)),
    };
    client.follow(h2).await;
}

fn builder() -> server::Builder {
    let mut builder = server::Builder::new();
    builder
        .max_concurrent_streams(STREAMS_MAX)
        .initial_window_size(WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .max_pending_accept_reset_streams(RESET_PENDING_MAX)
        .max_concurrent_reset_streams(RESET_KEPT_MAX)
        .max_local_error_reset_streams(Some(RESET_ERRORS_MAX))
        .enable_connect_protocol();
    builder
}

struct Client {
    thread: Rc<Thread>,
    peer: SocketAddr,
    scope: Scope,
    is_secure: bool,
    watch: Rc<Watch>,
    /// Requests under way.
    active: Rc<Cell<usize>>,
    idle_since: Cell<Instant>,
    /// Of the application that was asked last.
    idle_max: Rc<Cell<Duration>>,
}

impl Client {
    async fn follow(&self, mut h2: server::Connection<Io, Bytes>) {
        let leaving = self.thread.leaving.notified();
        tokio::pin!(leaving);
        leaving.as_mut().enable();
        let mut look = tokio::time::interval(LOOK_INTERVAL);
        // Under way while it leaves: what it is sent last must get there.
        let mut busy: Option<Busy<'_>> = None;
        let mut left_at: Option<Instant> = None;
        loop {
            if self.thread.is_stopping() && busy.is_none() {
                h2.graceful_shutdown();
                busy = Some(Busy::begin(&self.thread));
                look = tokio::time::interval(LEAVE_TIME_MAX);
                look.reset();
            }
            tokio::select! {
                biased;
                () = self.watch.excess.notified() => {
                    tracing::info!(peer = %self.peer, "router.h2_flood");
                    h2.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                    timeout(LEAVE_TIME_MAX, self.watch.turn(end(h2))).await.ok();
                    return;
                }
                () = self.drive(&mut h2) => return,
                () = &mut leaving, if busy.is_none() => {}
                _ = look.tick() => {
                    let told_for = left_at.map_or(Duration::ZERO, |at| at.elapsed());
                    if self.is_over(busy.is_some(), told_for) {
                        return;
                    }
                    if self.idle_for() > self.idle_max.get() && left_at.is_none() {
                        h2.graceful_shutdown();
                        left_at = Some(Instant::now());
                    }
                }
            }
        }
    }

    /// Starts what the client asks for and sends what there is, until the connection ends.
    async fn drive(&self, h2: &mut server::Connection<Io, Bytes>) {
        let accepting = poll_fn(|cx| {
            for _ in 0..STREAMS_MAX {
                match ready!(h2.poll_accept(cx)) {
                    Some(Ok((request, answer))) => self.start(request, answer),
                    Some(Err(_)) | None => return Poll::Ready(()),
                }
            }
            // Others have their turn.
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        self.watch.turn(accepting).await;
    }

    /// Without a request.
    fn idle_for(&self) -> Duration {
        if self.active.get() > 0 {
            self.idle_since.set(Instant::now());
        }
        self.idle_since.get().elapsed()
    }

    /// The client takes nothing, or has nothing more to ask and was told to leave so long ago.
    fn is_over(&self, is_stopping: bool, told_for: Duration) -> bool {
        let has_left = is_stopping || told_for > LEAVE_TIME_MAX;
        self.watch.stalled_for() > WRITE_TIME_MAX || (has_left && self.idle_for() > LEAVE_TIME_MAX)
    }

    fn start(&self, request: Request<RecvStream>, mut answer: SendResponse<Bytes>) {
        let thread = self.thread.clone();
        self.idle_since.set(Instant::now());
        if thread.streams.get() >= THREAD_STREAMS_MAX {
            return answer.send_reset(Reason::REFUSED_STREAM);
        }
        let (parts, body) = request.into_parts();
        let key = [thread.next_request_id(), thread.next_request_id()];
        let key = (u128::from(key[0]) << 64 | u128::from(key[1])).to_be_bytes();
        let mut head = thread.pool.scratch();
        let asked = match head::asked(&parts, body.is_end_stream(), key, &mut head) {
            Ok(asked) => asked,
            Err(Refused::Malformed) => return answer.send_reset(Reason::PROTOCOL_ERROR),
            Err(Refused::Status(status)) => {
                let mut refusal = Response::new(());
                *refusal.status_mut() = status;
                // A client that is gone needs none.
                answer.send_response(refusal, true).ok();
                return;
            }
        };
        let mut begun = thread.pool.buffer();
        begun.put(&head);
        thread.pool.give_back_scratch(head);
        let (of_thread, of_client) = (thread.streams.clone(), self.active.clone());
        let counted = Counted::begin(&of_thread);
        let stream = Stream::asked(asked, body, answer, self.is_secure, counted);
        let stream = stream.telling(self.idle_max.clone());
        let connection = Connection {
            thread: thread.clone(),
            stream: Wire::Stream(Box::new(stream)),
            peer: self.peer,
            scope: self.scope,
            caller: None,
        };
        let active = Counted::begin(&of_client);
        let watch = self.watch.clone();
        Workers::give(&thread, Job { connection, begun, watch, active });
    }
}

/// Until all is sent.
async fn end(mut h2: server::Connection<Io, Bytes>) {
    while let Some(Ok(_)) = h2.accept().await {}
}
