//! Clients that ask for one file from memory after the other. They have no task, no waker and no
//! timer of their own: those that can be read are read and answered one behind the other, which
//! meets warm caches at every step. Who asks for anything else has a task again. Driven by
//! `serve.rs`, one lane for each thread.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use router::http::body::Body;
use router::http::request::{self, RequestHead};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use slab::Slab;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::alarm::Alarm;
use super::connection::{Connection, Owed, Start};
use super::limits::Limits;
use super::plain::Plain;
use super::pool::Buffer;
use super::serve::{self, Presence};
use super::wire::Wire;

/// Clients that are answered before others have their turn: less than a millisecond.
const EVENTS_MAX: usize = 128;
/// A socket takes so much at once, unless its client does not read. Longer answers have a task that
/// waits until there is room.
const ANSWER_BYTES_MAX: usize = 32 * 1024;
/// How late a client may be told that it has asked for nothing for too long.
const SWEEP_PAUSE: Duration = Duration::from_millis(100);
/// Its client ended its half, or all of it.
const ENDED: EventFlags = EventFlags::RDHUP.union(EventFlags::HUP).union(EventFlags::ERR);

/// A client that may come in.
pub struct Guest {
    pub connection: Connection,
    pub presence: Presence,
    pub limits: Limits,
}

/// Bounded by the number of connections.
pub type Entrance = UnboundedSender<Guest>;

/// Whether this answer could come from the lane, to whoever asks on this connection.
pub fn takes(connection: &Connection, answer: &[u8]) -> bool {
    let is_clients = connection.caller.is_none() && matches!(connection.stream, Wire::Plain(_));
    is_clients && answer.len() <= ANSWER_BYTES_MAX
}

pub struct Lane {
    epoll: AsyncFd<OwnedFd>,
    entrance: UnboundedReceiver<Guest>,
    places: Slab<Place>,
    events: Vec<(usize, EventFlags)>,
    buffer: Buffer,
    alarm: Alarm,
    /// Nobody has waited for too long before that.
    sweep_at: Instant,
}

struct Place {
    guest: Guest,
    /// When it last asked, or came in.
    since: Instant,
}

/// What becomes of a client that can be read.
enum Turn {
    Answered,
    /// There is nothing to be read.
    Vain,
    Gone,
    /// It wants something else.
    Leaves,
    /// The answer found no room.
    Owes(Box<Owed>),
}

impl Lane {
    pub fn new() -> io::Result<(Lane, Entrance)> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        #[expect(deprecated, reason = "what replaces it is unsafe, and this descriptor is owned")]
        let epoll = AsyncFd::with_interest(epoll, Interest::READABLE)?;
        let (enter, entrance) = unbounded_channel();
        let lane = Lane {
            epoll,
            entrance,
            places: Slab::new(),
            events: Vec::with_capacity(EVENTS_MAX),
            buffer: Buffer::default(),
            alarm: Alarm::default(),
            sweep_at: Instant::now(),
        };
        Ok((lane, enter))
    }

    /// As long as its thread.
    pub async fn run(mut self) {
        loop {
            poll_fn(|context| self.poll_news(context)).await;
            let mut served = 0;
            // While some are answered, others ask.
            while !self.events.is_empty() && served < EVENTS_MAX {
                served += self.events.len();
                self.serve();
                look(self.epoll.get_ref(), &mut self.events);
            }
            let now = Instant::now();
            if now >= self.sweep_at {
                self.sweep(now);
            }
            if !self.events.is_empty() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Ready as soon as there is anything to do.
    fn poll_news(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while let Poll::Ready(Some(guest)) = self.entrance.poll_recv(context) {
            self.enter(guest);
        }
        while self.events.is_empty()
            && let Poll::Ready(Ok(mut ready)) = self.epoll.poll_read_ready(context)
        {
            look(ready.get_inner(), &mut self.events);
            if self.events.len() < EVENTS_MAX {
                ready.clear_ready();
            }
        }
        if !self.events.is_empty() {
            return Poll::Ready(());
        }
        match self.places.is_empty() {
            true => Poll::Pending,
            false => self.alarm.poll(context, self.sweep_at.into()),
        }
    }

    fn enter(&mut self, mut guest: Guest) {
        let is_first = self.places.is_empty();
        let place = self.places.vacant_entry();
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        if let Wire::Plain(plain) = &mut guest.connection.stream {
            plain.unwatch();
            // What has come since then is an event at once.
            let data = EventData::new_u64(place.key() as u64);
            if epoll::add(self.epoll.get_ref(), &*plain, data, flags).is_ok() {
                let place = place.insert(Place { guest, since: Instant::now() });
                self.sweep_at = match is_first {
                    true => place.until(),
                    false => self.sweep_at.min(place.until()),
                };
                return;
            }
        }
        // Without a place here it waits by itself.
        let start = Start::Waiting(guest.limits);
        serve::go_on(guest.connection, guest.presence, start);
    }

    fn serve(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        let mut now = Instant::now();
        for (key, flags) in events.drain(..) {
            // Behind its last request comes its end.
            while self.serve_one(key, &mut now) && flags.intersects(ENDED) {}
        }
        self.events = events;
    }

    /// Whether it was answered, and stays.
    fn serve_one(&mut self, key: usize, now: &mut Instant) -> bool {
        let Some(place) = self.places.get_mut(key) else { return false };
        let turn = place.turn(&mut self.buffer, now);
        let start = match turn {
            Turn::Answered => {
                self.sweep_at = self.sweep_at.min(place.until());
                return true;
            }
            Turn::Vain => return false,
            Turn::Gone => {
                self.places.remove(key);
                return false;
            }
            Turn::Leaves => Start::Asked(std::mem::take(&mut self.buffer), place.guest.limits),
            Turn::Owes(owed) => Start::Owing(owed, place.guest.limits),
        };
        let Guest { connection, presence, .. } = self.places.remove(key).guest;
        if let Wire::Plain(plain) = &connection.stream {
            epoll::delete(self.epoll.get_ref(), plain).ok();
        }
        serve::go_on(connection, presence, start);
        false
    }

    /// Ends those that have asked for nothing for too long.
    fn sweep(&mut self, now: Instant) {
        let mut next = None;
        self.places.retain(|_, place| {
            let until = place.until();
            if until > now {
                next = Some(next.map_or(until, |next: Instant| next.min(until)));
            }
            until > now
        });
        self.sweep_at = next.unwrap_or(now).max(now + SWEEP_PAUSE);
    }
}

/// What can be read or has ended by now.
fn look(epoll: &OwnedFd, into: &mut Vec<(usize, EventFlags)>) {
    let mut room = [MaybeUninit::uninit(); EVENTS_MAX];
    match epoll::wait(epoll, &mut room, Some(&Timespec::default())) {
        Ok((events, _)) => {
            into.extend(events.iter().map(|event| (event.data.u64() as usize, event.flags)));
        }
        Err(error) => tracing::warn!(%error, "router.lane_cannot_look"),
    }
}

impl Place {
    fn until(&self) -> Instant {
        self.since + self.guest.limits.idle
    }

    /// `now` is when the one before it was served.
    fn turn(&mut self, buffer: &mut Buffer, now: &mut Instant) -> Turn {
        let connection = &self.guest.connection;
        connection.thread.pool.fill_out(buffer);
        match connection.stream.read_now(buffer) {
            Ok(1..) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Turn::Vain,
            Ok(0) | Err(_) => return Turn::Gone,
        }
        self.since = *now;
        let turn = self.answer(buffer.filled(), now).unwrap_or(Turn::Leaves);
        if !matches!(turn, Turn::Leaves) {
            buffer.consume(usize::MAX / 2);
        }
        turn
    }

    /// None where it has to be looked at more closely.
    fn answer(&mut self, bytes: &[u8], now: &mut Instant) -> Option<Turn> {
        let (connection, started) = (&self.guest.connection, *now);
        let (thread, Wire::Plain(client)) = (&connection.thread, &connection.stream) else {
            return None;
        };
        let head = request::look(bytes).filter(|head| is_ordinary(head, bytes))?;
        let application = thread.application(&connection.scope, &bytes[head.host.clone()])?;
        if thread.is_stopping() || !application.may_have(&head) {
            return None;
        }
        let target = &bytes[head.target.clone()];
        let sent =
            thread.recent.prepared(&application, target, started, |answer, content_bytes| {
                takes(connection, answer).then(|| Sent::now(client, answer, content_bytes))
            })??;
        *now = Instant::now();
        self.guest.limits = application.limits;
        let (bytes_out, turn) = match sent {
            Sent::Whole { content_bytes } => (content_bytes, Turn::Answered),
            Sent::Nothing => (0, Turn::Gone),
            Sent::Part { rest, content_bytes } => {
                let owed = Owed { application, head, rest, content_bytes, started };
                return Some(Turn::Owes(Box::new(owed)));
            }
        };
        connection.record_own(&application, &head, 200, bytes_out, started, *now);
        Some(turn)
    }
}

/// It came whole, nothing follows it, and everybody who asks so gets the same.
fn is_ordinary(head: &RequestHead, bytes: &[u8]) -> bool {
    let wants_more = head.has_conditions || head.upgrade || head.expects_continue;
    let is_whole = head.length == bytes.len() && head.body == Body::Empty;
    head.method == "GET" && head.keep_alive && is_whole && !wants_more
}

/// Of an answer.
enum Sent {
    Whole { content_bytes: u64 },
    Part { rest: Bytes, content_bytes: u64 },
    Nothing,
}

impl Sent {
    fn now(client: &Plain, answer: &Bytes, content_bytes: u64) -> Sent {
        let count = match client.try_write(answer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(_) => return Sent::Nothing,
            Ok(count) => count,
        };
        match count == answer.len() {
            true => Sent::Whole { content_bytes },
            false => Sent::Part { rest: answer.slice(count..), content_bytes },
        }
    }
}
