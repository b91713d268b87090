//! Clients whose requests need no wait of their own: for files from memory, and for answers of
//! instances that are short, or that the client takes as they come. They have no task, no waker and
//! no timer: those that can be read, and the instances that were asked for them, are read and
//! answered one behind the other, which meets warm caches at every step. A client that asks for
//! anything else has a task again; the starter of the lane says how. Each thread has one lane.

mod client;
pub mod entrant;
pub mod registrations;

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use slab::Slab;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use self::client::{LaneClient, LaneScratch, LaneTurn};
use self::entrant::LaneEntrant;
use self::registrations::{EventSource, UpstreamRegistrations};
use super::buffer::Buffer;
use super::connection::Connection;
use super::connection::run::ConnectionStart;
use super::forward::long::TURN_BYTES;
use super::forward::underway::RequestStep;
use super::lazy_timer::LazyTimer;
use super::limits::Limits;
use super::presence::Presence;
use super::registration::FLAGS;
use super::thread::Thread;
use super::wire::Wire;

/// Clients that are answered before others have their turn: less than a millisecond. The bytes of
/// their long answers are limited to what one of them might have, which takes as long.
const EVENTS_MAX: usize = 128;
/// The delay after which a client may be told that it has asked for nothing for too long.
const SWEEP_PAUSE: Duration = Duration::from_millis(100);
/// The events of a client that ended its half, or all of it.
const ENDED: EventFlags = EventFlags::RDHUP.union(EventFlags::HUP).union(EventFlags::ERR);

/// The entrance for clients that come in: no more than there are connections.
pub type Entrance = UnboundedSender<LaneEntrant>;

/// The function that gives a task to a client that has to leave.
pub type HandBack = Box<dyn Fn(Connection, Presence, ConnectionStart)>;

type Events = Vec<(EventSource, EventFlags)>;

pub struct Lane {
    thread: Rc<Thread>,
    epoll: AsyncFd<Rc<OwnedFd>>,
    entrance: UnboundedReceiver<LaneEntrant>,
    hand_back: HandBack,
    clients: Slab<LaneClient>,
    events: Events,
    scratch: LaneScratch,
    timer: LazyTimer,
    /// The time before which nobody has waited for too long.
    sweep_at: Instant,
    /// Whether it is woken when nobody may ask any more.
    is_told: bool,
}

impl Lane {
    pub fn new(
        thread: Rc<Thread>,
        entrance: UnboundedReceiver<LaneEntrant>,
        hand_back: HandBack,
    ) -> io::Result<Lane> {
        let epoll = Rc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let registrations = UpstreamRegistrations::new(epoll.clone());
        #[expect(deprecated, reason = "what replaces it is unsafe, and this descriptor is owned")]
        let epoll = AsyncFd::with_interest(epoll, Interest::READABLE)?;
        let now = Instant::now();
        Ok(Lane {
            thread,
            epoll,
            entrance,
            hand_back,
            clients: Slab::new(),
            events: Vec::with_capacity(EVENTS_MAX),
            scratch: LaneScratch {
                registrations,
                buffer: Buffer::default(),
                out: Vec::new(),
                passed: 0,
                now,
            },
            timer: LazyTimer::default(),
            sweep_at: now,
            is_told: false,
        })
    }

    /// Runs as long as its thread.
    pub async fn run(mut self) {
        loop {
            poll_fn(|context| self.poll_news(context)).await;
            let mut served = 0;
            self.scratch.passed = 0;
            // While some are answered, others ask.
            while !self.events.is_empty() && served < EVENTS_MAX && self.scratch.passed < TURN_BYTES
            {
                served += self.serve();
                if self.events.is_empty() {
                    look(self.epoll.get_ref(), &mut self.events);
                }
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
        while let Poll::Ready(Some(entrant)) = self.entrance.poll_recv(context) {
            self.enter(entrant);
        }
        if self.thread.idlers.are_over() {
            self.empty();
        } else if !std::mem::replace(&mut self.is_told, true) {
            self.thread.idlers.tell(context.waker());
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
        match self.clients.is_empty() {
            true => Poll::Pending,
            false => self.timer.poll(context, self.sweep_at.into()),
        }
    }

    fn enter(&mut self, mut entrant: LaneEntrant) {
        let is_first = self.clients.is_empty();
        let entry = self.clients.vacant_entry();
        if let Wire::Plain(plain) = &mut entrant.connection.stream {
            plain.unwatch();
            // What has come since then is an event at once.
            let data = EventData::new_u64(entry.key() as u64);
            if epoll::add(self.epoll.get_ref(), &*plain, data, FLAGS).is_ok() {
                let client = entry.insert(LaneClient::new(entrant));
                self.sweep_at = match is_first {
                    true => client.until(),
                    false => self.sweep_at.min(client.until()),
                };
                return;
            }
        }
        // A client that cannot be watched here waits by itself.
        let start = ConnectionStart::Waiting(entrant.limits);
        (self.hand_back)(entrant.connection, entrant.presence, start);
    }

    /// Serves as many events as have their turn, and returns how many those are.
    fn serve(&mut self) -> usize {
        let mut events = std::mem::take(&mut self.events);
        self.scratch.now = Instant::now();
        let mut served = 0;
        for (source, flags) in &events {
            if self.scratch.passed >= TURN_BYTES {
                break;
            }
            served += 1;
            match source {
                EventSource::Client(key) => self.heard(*key, *flags),
                EventSource::Instance(descriptor) => self.answered(*descriptor),
            }
        }
        events.drain(..served);
        self.events = events;
        served
    }

    /// Handles an event of a client.
    fn heard(&mut self, key: usize, flags: EventFlags) {
        let Some(client) = self.clients.get_mut(key) else { return };
        let has_ended = flags.intersects(ENDED);
        if client.underway.is_some() {
            match has_ended {
                true => self.leave(key),
                false => client.has_more = true,
            }
            return;
        }
        // Behind its last request comes its end.
        while self.serve_one(key) && has_ended {}
        if has_ended && self.clients.get(key).is_some_and(|client| client.underway.is_some()) {
            self.leave(key);
        }
    }

    /// Handles an event of an instance.
    fn answered(&mut self, descriptor: usize) {
        let Some(key) = self.scratch.registrations.client(descriptor) else { return };
        let Some(client) = self.clients.get_mut(key) else { return };
        match client.step(&mut self.scratch) {
            None => {}
            // A piece of an answer may have another limit than its head.
            Some(RequestStep::Waits) => self.sweep_at = self.sweep_at.min(client.until()),
            Some(RequestStep::Passed) => {
                self.sweep_at = self.sweep_at.min(client.until());
                if std::mem::take(&mut client.has_more) {
                    self.serve_one(key);
                }
            }
            Some(RequestStep::Gone) => drop(self.clients.remove(key)),
            Some(RequestStep::Further) => self.leave(key),
        }
    }

    /// Serves a client that can be read; returns whether it was answered, and stays.
    fn serve_one(&mut self, key: usize) -> bool {
        let Some(client) = self.clients.get_mut(key) else { return false };
        match client.turn(&mut self.scratch, key) {
            turn @ (LaneTurn::Answered | LaneTurn::Asked) => {
                self.sweep_at = self.sweep_at.min(client.until());
                return matches!(turn, LaneTurn::Answered);
            }
            LaneTurn::Vain => {}
            LaneTurn::Gone => drop(self.clients.remove(key)),
            LaneTurn::Leaves => {
                let buffer = std::mem::take(&mut self.scratch.buffer);
                self.go(key, |limits| ConnectionStart::Asked(buffer, limits));
            }
            LaneTurn::LeavesWith(begun) => {
                self.go(key, |limits| ConnectionStart::Underway(begun, limits))
            }
            LaneTurn::Owes(owed) => self.go(key, |limits| ConnectionStart::Owing(owed, limits)),
        }
        false
    }

    /// Lets a client go with the request that an instance was asked for.
    fn leave(&mut self, key: usize) {
        let Some(underway) = self.clients.get_mut(key).and_then(|client| client.underway.take())
        else {
            return;
        };
        self.go(key, |limits| ConnectionStart::Underway(underway, limits));
    }

    /// Ends clients that ask for nothing; one that an instance was asked for gets a task.
    fn empty(&mut self) {
        let keys: Vec<usize> = self.clients.iter().map(|(key, _)| key).collect();
        for key in keys {
            match self.clients[key].underway.is_some() {
                true => self.leave(key),
                false => drop(self.clients.remove(key)),
            }
        }
    }

    /// Gives a client a task of its own from now on.
    fn go(&mut self, key: usize, start: impl FnOnce(Limits) -> ConnectionStart) {
        let LaneEntrant { connection, presence, limits } = self.clients.remove(key).entrant;
        if let Wire::Plain(plain) = &connection.stream {
            epoll::delete(self.epoll.get_ref(), plain).ok();
        }
        (self.hand_back)(connection, presence, start(limits));
    }

    /// Ends clients that have asked for nothing for too long. A client whose answer does not come
    /// gets a task that says so.
    fn sweep(&mut self, now: Instant) {
        let (mut next, mut late) = (None, Vec::new());
        for (key, client) in &self.clients {
            let until = client.until();
            match until > now {
                true => next = Some(next.map_or(until, |next: Instant| next.min(until))),
                false => late.push(key),
            }
        }
        for key in late {
            match self.clients[key].underway.is_some() {
                true => self.leave(key),
                false => drop(self.clients.remove(key)),
            }
        }
        self.sweep_at = next.unwrap_or(now).max(now + SWEEP_PAUSE);
    }
}

/// Adds what can be read or has ended by now.
fn look(epoll: &OwnedFd, into: &mut Events) {
    let mut room = [MaybeUninit::uninit(); EVENTS_MAX];
    match epoll::wait(epoll, &mut room, Some(&Timespec::default())) {
        Ok((events, _)) => {
            into.extend(events.iter().map(|event| (EventSource::of(event.data), event.flags)));
        }
        Err(error) => tracing::warn!(%error, "router.lane_cannot_look"),
    }
}
