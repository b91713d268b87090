//! A client's connection that speaks HTTP/2: what comes is given to `router_core::h2`, and all that
//! this has ready is sent in one write.

pub mod stream;

use std::cell::{Cell, RefCell};
use std::io::{ErrorKind, IoSlice, Result};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use router_core::h2::connection::{H2Connection as H2, Server, StreamKey};
use router_core::h2::request::RequestForm;
use tokio::io::ReadBuf;

use self::stream::ClientStream;
use super::stream::H2Stream;
use super::workers::{Work, Workers};
use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::connection::asker::Asker;
use crate::handshake::ShownCertificate;
use crate::limits::Limits;
use crate::scope::Scope;
use crate::thread::Thread;
use crate::wire::Wire;

/// Streams of all connections of one thread; each holds three buffers while its request is under
/// way.
const THREAD_STREAMS_MAX: usize = 20_000;
/// Reads of one connection after which others have their turn.
const READS_PER_TURN: usize = 8;

pub struct H2Client {
    pub thread: Rc<Thread>,
    /// The workers that serve its requests.
    workers: Rc<Workers<Job>>,
    pub peer: SocketAddr,
    pub is_secure: bool,
    pub h2: RefCell<H2>,
    pub idle_since: Cell<Instant>,
    /// The idle limit of the application that was asked last.
    pub idle_max: Cell<Duration>,
    began: Instant,
    scope: Scope,
    shown: Option<Rc<ShownCertificate>>,
    wire: RefCell<Wire>,
    /// The time since when the client takes nothing of what waits for it.
    stalled: Cell<Option<Instant>>,
}

impl H2Client {
    pub fn new(connection: Connection, workers: Rc<Workers<Job>>) -> Rc<H2Client> {
        let Connection { thread, stream, peer, scope, shown, .. } = connection;
        let now = Instant::now();
        Rc::new(H2Client {
            thread,
            workers,
            peer,
            is_secure: stream.is_secure(),
            h2: RefCell::new(H2::default()),
            idle_since: Cell::new(now),
            idle_max: Cell::new(Limits::default().idle),
            began: now,
            scope,
            shown,
            wire: RefCell::new(stream),
            stalled: Cell::new(None),
        })
    }

    pub fn stalled_for(&self) -> Duration {
        self.stalled.get().map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Returns how long it has been without a request.
    pub fn idle_for(&self) -> Duration {
        if self.h2.borrow().open() > 0 {
            self.idle_since.set(Instant::now());
        }
        self.idle_since.get().elapsed()
    }

    /// Lends the output its memory; it holds none while it is empty.
    pub fn lend(&self, h2: &mut H2) {
        if h2.out().capacity() == 0 {
            *h2.out() = self.thread.pool.scratch();
        }
    }

    /// Takes in what came, and starts what the client asks for.
    pub fn receive(self: &Rc<H2Client>, bytes: &[u8]) {
        let mut h2 = self.h2.borrow_mut();
        self.lend(&mut h2);
        let scratch = &mut self.thread.scratch_h2.borrow_mut();
        h2.receive(bytes, self.began.elapsed(), scratch, &mut Begins(self));
    }

    /// Reads and sends what there is. It is ready when the connection is over: true if all was
    /// sent.
    pub fn poll_turn(self: &Rc<H2Client>, cx: &mut Context<'_>) -> Poll<bool> {
        self.h2.borrow_mut().watch(cx);
        let mut reads = 0;
        loop {
            let is_backed_up = {
                let h2 = self.h2.borrow();
                h2.is_finished() || h2.is_backed_up()
            };
            let read = match is_backed_up {
                true => Poll::Pending,
                false => self.poll_receive(cx),
            };
            if let Poll::Ready(Err(_) | Ok(0)) = read {
                return Poll::Ready(false);
            }
            reads += 1;
            if read.is_ready() && reads < READS_PER_TURN {
                continue;
            }
            let sent = self.poll_send(cx);
            return match sent {
                Poll::Ready(Err(_)) => Poll::Ready(false),
                Poll::Ready(Ok(())) if self.h2.borrow().is_finished() => Poll::Ready(true),
                Poll::Ready(Ok(())) if is_backed_up => {
                    reads = 0;
                    continue;
                }
                _ => {
                    if read.is_ready() {
                        cx.waker().wake_by_ref();
                    }
                    Poll::Pending
                }
            };
        }
    }

    fn poll_receive(self: &Rc<H2Client>, cx: &mut Context<'_>) -> Poll<Result<usize>> {
        let mut buffer = self.thread.pool.buffer();
        let mut room = ReadBuf::new(buffer.room());
        let read = self.wire.borrow_mut().poll_read(cx, &mut room);
        let count = room.filled().len();
        if read.is_ready() {
            self.receive(room.filled());
        }
        self.thread.pool.give_back(buffer);
        read.map_ok(|()| count)
    }

    /// Sends all that there is, and what the layers below still hold.
    fn poll_send(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let (mut wire, mut h2) = (self.wire.borrow_mut(), self.h2.borrow_mut());
        while !h2.out().is_empty() {
            match self.note(wire.poll_write(cx, &[IoSlice::new(h2.out())])) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => drop(h2.out().drain(..count)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        if h2.out().capacity() > 0 {
            self.thread.pool.give_back_scratch(std::mem::take(h2.out()));
        }
        h2.sent();
        self.note(wire.poll_flush(cx))
    }

    fn note<T>(&self, result: Poll<T>) -> Poll<T> {
        let since = self.stalled.get().unwrap_or_else(Instant::now);
        self.stalled.set(result.is_pending().then_some(since));
        result
    }

    /// Reads until the client has read to the end, or has sent `bytes_max` more: closing with
    /// unread bytes would destroy what was said last.
    pub async fn close(&self, bytes_max: usize) {
        self.wire.borrow().shut_down_writing();
        let mut buffer = self.thread.pool.buffer();
        let mut seen = 0;
        while seen < bytes_max {
            let read = std::future::poll_fn(|cx| {
                let mut room = ReadBuf::new(buffer.room());
                ready!(self.wire.borrow_mut().poll_read(cx, &mut room))?;
                Poll::Ready(Result::Ok(room.filled().len()))
            });
            match read.await {
                Ok(0) | Err(_) => break,
                Ok(count) => seen += count,
            }
        }
        self.thread.pool.give_back(buffer);
    }
}

/// A request on a stream of its own.
pub struct Job {
    connection: Connection,
    /// The head of the request.
    begun: Buffer,
    client: Rc<H2Client>,
}

impl Work for Job {
    async fn done(self) {
        self.connection.run_once(self.begun).await;
        self.client.h2.borrow_mut().answered();
    }
}

/// The server that takes a client's requests.
struct Begins<'a>(&'a Rc<H2Client>);

impl Server for Begins<'_> {
    fn has_room(&self) -> bool {
        self.0.thread.streams.get() < THREAD_STREAMS_MAX
    }

    fn key(&mut self) -> [u8; 16] {
        let thread = &self.0.thread;
        let [high, low] = [thread.next_request_id(), thread.next_request_id()];
        (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
    }

    fn begin(&mut self, key: StreamKey, asked: RequestForm, head: &[u8]) {
        let client = self.0;
        let thread = client.thread.clone();
        client.idle_since.set(Instant::now());
        let mut begun = thread.pool.buffer();
        begun.put(head);
        let stream = ClientStream::new(client.clone(), key, asked);
        let stream = Wire::Stream(Box::new(H2Stream::of_client(stream)));
        let (peer, scope) = (client.peer, client.scope);
        let connection = Connection::new(thread.clone(), stream, peer, scope, Asker::Stream);
        let connection = connection.with_shown(client.shown.clone());
        client.workers.give(&thread, Job { connection, begun, client: client.clone() });
    }
}
