//! One connection: reads commands, carries them out in order and sends the replies. Writes that
//! follow each other are queued together, and so share their wait for the disk.

mod commands;
mod describe;
mod ends;
mod keys;
mod messages;
mod own;
mod session;
mod spaces;
mod streams;
mod values;

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use model::{Key, Prefix, Timestamp};
use store_core::resp::COMMAND_BYTES_MAX;
use store_core::resp::reply::Replies;
use store_core::resp::request::Requests;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::timeout;

use super::access::{DEFAULT_USER, Door, Rights};
use super::batch::{Answer, Batch};
use super::clients::ClientRow;
use super::command_loop::{CommandLoop, Wait};
use super::context::ServerContext;
use super::gathering::Bell;
use super::limits::READ_BYTES;
use super::problem::Problem;
use super::table::Verb;
use super::wire::Wire;
use super::words::Words;
use store::bus::{Delivery, Subscriber};
use store::{Watch, WatchEvent};

/// The size in bytes of the buffers that an idle connection keeps.
const IDLE_BYTES_MAX: usize = 1 << 10;
/// The size in bytes of a reply that is not streamed; a client that wants more asks for pages.
pub const REPLY_BYTES_MAX: usize = 16 << 20;
/// The size in bytes above which a command waits for room, and must then come without a pause.
const FREE_COMMAND_BYTES: usize = 64 << 10;
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The time after a refused MULTI within which commands are taken for parts of it.
const TOGETHER_MAX: Duration = Duration::from_secs(1);
/// The number of turns with only ordinary commands after which a connection goes to its thread's
/// lane, which one that asks a single thing never does. It doubles each time that the connection
/// has come back.
const ORDINARY_MIN: u32 = 2;
const ORDINARY_MAX: u32 = 4096;
/// The number of messages passed on before the connection is asked for commands again.
const DELIVERIES_AT_ONCE: usize = 64;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

pub struct Connection {
    context: Arc<ServerContext>,
    pub(super) wire: Wire,
    pub(super) input: Vec<u8>,
    requests: Requests,
    pub(super) replies: Replies,
    batch: Batch,
    pub(super) rights: Rights,
    door: Door,
    failed_logins: u32,
    id: u64,
    closing: bool,
    /// The time of a refused MULTI: what the client sent along with it must not be done by halves.
    refused_multi: Option<Timestamp>,
    subscriber: Option<Box<Subscriber>>,
    watch: Option<Box<Watch>>,
    /// A permit for a large command.
    room: Option<OwnedSemaphorePermit>,
    /// The way to the lane, once it has asked only ordinary things for `ordinary_wanted` turns.
    entrance: UnboundedSender<Connection>,
    ordinary: u32,
    ordinary_wanted: u32,
    /// The permit for its descriptor.
    _permit: OwnedSemaphorePermit,
}

/// The handles that the connections of one thread share.
#[derive(Clone)]
pub struct Thread {
    pub bell: Arc<Bell>,
    /// The way to the lane, for connections that have asked ordinary things for a while.
    pub entrance: UnboundedSender<Connection>,
}

/// The reason for the end of a connection's task.
enum End {
    Closed,
    /// The lane takes the connection over.
    Ordinary,
}

impl Connection {
    pub fn new(
        context: Arc<ServerContext>,
        thread: &Thread,
        wire: Wire,
        door: Door,
        peer: String,
        permit: OwnedSemaphorePermit,
    ) -> Connection {
        let rights = context.access.initial(door);
        let since = context.clock.now();
        let user = DEFAULT_USER.to_string();
        let row = ClientRow { address: peer, user, since, resp: 2, ..ClientRow::default() };
        Connection {
            id: context.clients.enter(row),
            wire,
            input: Vec::new(),
            requests: Requests::default(),
            replies: Replies::default(),
            batch: Batch::new(thread.bell.clone()),
            rights,
            door,
            failed_logins: 0,
            closing: false,
            refused_multi: None,
            subscriber: None,
            watch: None,
            room: None,
            entrance: thread.entrance.clone(),
            ordinary: 0,
            ordinary_wanted: ORDINARY_MIN,
            _permit: permit,
            context,
        }
    }

    /// Serves the connection until either side ends it, or it goes to the lane.
    pub async fn serve(mut self) {
        loop {
            match self.run().await {
                Ok(End::Closed) => return,
                Ok(End::Ordinary) => {
                    self.ordinary_wanted = (2 * self.ordinary_wanted).min(ORDINARY_MAX);
                    self.ordinary = 0;
                    // What is in the input is parsed anew, there and when it comes back.
                    self.requests = Requests::default();
                    let entrance = self.entrance.clone();
                    // Without a lane it goes on here.
                    let Err(refused) = entrance.send(self) else { return };
                    self = refused.0;
                }
                Err(error) => {
                    return tracing::debug!(id = self.id, %error, "redis.connection_ended");
                }
            }
        }
    }

    /// Runs the connection's turns. Rare cases are boxed: a future moves with all the room it may
    /// ever need.
    async fn run(&mut self) -> io::Result<End> {
        // A connection from the lane brings what that had no time for.
        let mut brings = !self.input.is_empty() || !self.replies.bytes.is_empty();
        while std::mem::take(&mut brings) || self.wait().await? {
            let ordinary = self.carry_out_input().await?;
            self.settle().await;
            if !self.send_at_once()? {
                Box::pin(self.send()).await?;
            }
            if self.closing {
                self.wire.shutdown().await?;
                break;
            }
            self.ordinary = if ordinary { self.ordinary + 1 } else { 0 };
            if self.ordinary >= self.ordinary_wanted {
                if self.is_for_lane() {
                    return Ok(End::Ordinary);
                }
                self.ordinary = 0;
            }
        }
        Ok(End::Closed)
    }

    /// Carries out the input; returns whether there was nothing out of the ordinary.
    async fn carry_out_input(&mut self) -> io::Result<bool> {
        let input = std::mem::take(&mut self.input);
        let (used, wait) = self.advance(&input);
        self.input = input;
        self.input.drain(..used);
        if matches!(wait, Wait::Bytes) {
            return Ok(true);
        }
        Box::pin(self.attend(wait)).await?;
        Ok(false)
    }

    /// Runs the loop over commands once.
    fn advance(&mut self, input: &[u8]) -> (usize, Wait) {
        let plain = self.is_plain();
        let Connection { context, rights, requests, replies, batch, .. } = self;
        let before = batch.asked.len();
        let rights = plain.then_some(&*rights);
        let mut commands =
            CommandLoop { context, rights, requests, replies, batch, who: 0, asked: before };
        let done = commands.run(input);
        if batch.asked.len() > before {
            batch.gathering.written(before == 0);
        }
        done
    }

    /// Returns whether only the connection's rights decide what it may ask.
    fn is_plain(&self) -> bool {
        self.refused_multi.is_none()
            && self.subscriber.is_none()
            && !matches!(self.rights, Rights::Application(_))
    }

    fn is_for_lane(&self) -> bool {
        matches!(self.wire, Wire::Tcp(_) | Wire::Unix(_))
            && self.is_plain()
            && self.watch.is_none()
            && self.room.is_none()
            && self.input.len() <= IDLE_BYTES_MAX
            && self.context.clients.connected() >= self.context.lane_from
    }

    /// Waits for bytes, or for something to tell the client. Returns `false` at the end.
    async fn wait(&mut self) -> io::Result<bool> {
        if self.input.is_empty() {
            self.room = None;
            if self.input.capacity() > IDLE_BYTES_MAX {
                self.input = Vec::new();
            }
        }
        let large = self.input.len() > FREE_COMMAND_BYTES || self.room.is_some();
        if large || self.subscriber.is_some() || self.watch.is_some() {
            return Box::pin(self.wait_for_more()).await;
        }
        let Connection { wire, input, .. } = self;
        Ok(poll_fn(|context| poll_fill(wire, input, context)).await? > 0)
    }

    async fn wait_for_more(&mut self) -> io::Result<bool> {
        if self.input.len() > FREE_COMMAND_BYTES && self.room.is_none() {
            self.room = self.context.room.clone().acquire_owned().await.ok();
        }
        let Connection { wire, input, subscriber, watch, room, .. } = self;
        let fill = poll_fn(|context| poll_fill(wire, input, context));
        if subscriber.is_none() && watch.is_none() {
            if room.is_none() {
                return Ok(fill.await? > 0);
            }
            let filled = timeout(PAUSE_MAX, fill).await;
            return Ok(filled.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? > 0);
        }
        tokio::select! {
            filled = fill => Ok(filled? > 0),
            delivery = next_delivery(subscriber) => Ok(self.may_listen() && self.pass_on(delivery)),
            event = next_change(watch) => Ok(self.may_listen() && self.tell(event)),
        }
    }

    fn may_listen(&self) -> bool {
        self.context.access.may_listen(&self.rights)
    }

    /// Passes messages on. Returns `false` if some were lost: the client has to know, and
    /// reconnecting tells it.
    fn pass_on(&mut self, delivery: Option<Delivery>) -> bool {
        let Some(delivery) = delivery else {
            tracing::warn!(id = self.id, "redis.slow_subscriber: it was cut off");
            return false;
        };
        self.write_delivery(&delivery);
        for _ in 0..DELIVERIES_AT_ONCE {
            let Some(subscriber) = &mut self.subscriber else { break };
            let Some(delivery) = subscriber.ready() else { break };
            self.write_delivery(&delivery);
        }
        true
    }

    fn tell(&mut self, event: Option<WatchEvent>) -> bool {
        let Some(event) = event else { return false };
        self.write_change(event);
        for _ in 0..DELIVERIES_AT_ONCE {
            let Some(watch) = &mut self.watch else { break };
            let Ok(event) = watch.events.try_recv() else { break };
            self.write_change(event);
        }
        true
    }

    async fn send(&mut self) -> io::Result<()> {
        let mut bytes = &self.replies.bytes[..];
        while !bytes.is_empty() {
            let written = timeout(PAUSE_MAX, self.wire.write(bytes)).await;
            match written.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => bytes = &bytes[count..],
            }
        }
        if matches!(self.wire, Wire::Tls(_)) {
            self.wire.flush().await?;
        }
        self.empty_replies();
        Ok(())
    }

    /// Sends what can be sent now. Returns `false` if something is left that has to wait for the
    /// client.
    fn send_at_once(&mut self) -> io::Result<bool> {
        while !self.replies.bytes.is_empty() {
            match self.wire.try_write(&self.replies.bytes) {
                Ok(count) if count == self.replies.bytes.len() => self.empty_replies(),
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => drop(self.replies.bytes.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn empty_replies(&mut self) {
        self.replies.bytes.clear();
        if self.replies.bytes.capacity() > IDLE_BYTES_MAX {
            self.replies.bytes = Vec::new();
        }
    }

    fn key(&self, bytes: &[u8], write: bool) -> Result<Key, Problem> {
        if let Rights::Application(space) = &self.rights {
            return space.key(bytes).ok_or_else(|| Problem::error("a key is too long"));
        }
        let text = std::str::from_utf8(bytes);
        let text = text.map_err(|_| Problem::error("a key is no UTF-8; keys are text"))?;
        let key: Key = text.parse().map_err(Problem::error)?;
        if !matches!(self.rights, Rights::All) || !self.context.access.are_owners() {
            self.may(&Prefix::from(key.clone()), write)?;
        }
        Ok(key)
    }

    fn prefix(&self, text: &str, write: bool) -> Result<Prefix, Problem> {
        let prefix: Prefix = text.parse().map_err(Problem::error)?;
        self.may(&prefix, write)?;
        Ok(prefix)
    }

    fn may(&self, prefix: &Prefix, write: bool) -> Result<(), Problem> {
        if self.context.access.covers(&self.rights, prefix, write) {
            return Ok(());
        }
        let what = if write { "write" } else { "read" };
        Err(Problem(format!(
            "NOPERM this user may not {what} everything at and below '{}'",
            prefix.as_str()
        )))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.context.clients.leave(self.id);
    }
}

/// Appends the bytes that have come to the input. No buffer is held while nothing comes.
fn poll_fill(
    wire: &mut Wire,
    input: &mut Vec<u8>,
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    debug_assert!(input.len() <= COMMAND_BYTES_MAX + READ_BYTES);
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.resize(READ_BYTES, 0);
        let mut buffer = ReadBuf::new(scratch);
        ready!(Pin::new(wire).poll_read(context, &mut buffer))?;
        input.extend_from_slice(buffer.filled());
        Poll::Ready(Ok(buffer.filled().len()))
    })
}

async fn next_delivery(subscriber: &mut Option<Box<Subscriber>>) -> Option<Delivery> {
    match subscriber {
        Some(subscriber) => subscriber.next().await,
        None => std::future::pending().await,
    }
}

async fn next_change(watch: &mut Option<Box<Watch>>) -> Option<WatchEvent> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}
