//! The lane: the connections of one thread that ask only ordinary things. They have no task, no
//! waker and hardly any memory of their own: all that can be read are read one after the other,
//! their writes are one batch, and they are answered one after the other. With a thousand clients,
//! each would meet cold caches at every step of a task of its own. A connection that asks for
//! anything else gets a task again.

mod desk;
mod place;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventFlags};
use slab::Slab;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use self::desk::{Desk, Next};
use self::place::LaneConnection;
use super::batch::Batch;
use super::connection::Connection;
use super::context::ServerContext;
use super::gathering::Bell;

/// The number of connections that are read for one batch.
const EVENTS_MAX: usize = 1024;
/// The number of idle batches kept for reuse; one or two are under way.
const BATCHES_KEPT_MAX: usize = 4;

/// Collects the events of connections that can be read or have ended by now.
fn look(epoll: &OwnedFd, into: &mut Vec<(usize, EventFlags)>) {
    let mut buffer = [MaybeUninit::uninit(); EVENTS_MAX];
    match epoll::wait(epoll, &mut buffer, Some(&Timespec::default())) {
        Ok((events, _)) => {
            into.extend(events.iter().map(|event| (event.data.u64() as usize, event.flags)));
        }
        Err(error) => tracing::warn!(%error, "redis.lane_cannot_look"),
    }
}

pub struct Lane {
    context: Arc<ServerContext>,
    epoll: AsyncFd<OwnedFd>,
    /// The queue of connections that come; bounded by the number of connections.
    entrance: UnboundedReceiver<Connection>,
    entering: Vec<Connection>,
    places: Slab<LaneConnection>,
    events: Vec<(usize, EventFlags)>,
    desk: Desk,
    /// The writes of turns that are not answered yet, oldest first.
    batches: VecDeque<Batch>,
    idle_batches: Vec<Batch>,
    /// The places to be served again although nothing new has come.
    again: Vec<usize>,
    bell: Arc<Bell>,
}

impl Lane {
    pub fn new(
        context: Arc<ServerContext>,
        bell: Arc<Bell>,
    ) -> io::Result<(Lane, UnboundedSender<Connection>)> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        #[expect(deprecated, reason = "what replaces it is unsafe, and this descriptor is owned")]
        let epoll = AsyncFd::with_interest(epoll, Interest::READABLE)?;
        let of = context.clone();
        let (enter, entrance) = unbounded_channel();
        let lane = Lane {
            context,
            epoll,
            entrance,
            entering: Vec::new(),
            places: Slab::new(),
            events: Vec::with_capacity(EVENTS_MAX),
            desk: Desk::new(of, Batch::new(bell.clone())),
            batches: VecDeque::new(),
            idle_batches: Vec::new(),
            again: Vec::new(),
            bell,
        };
        Ok((lane, enter))
    }

    /// Runs for ever.
    pub async fn run(mut self) {
        loop {
            poll_fn(|context| self.poll_news(context)).await;
            while let Some(connection) = self.entering.pop() {
                self.enter(connection);
            }
            let full = self.events.len() == EVENTS_MAX;
            let again = std::mem::take(&mut self.again);
            self.serve_news();
            again.into_iter().for_each(|index| self.serve(index));
            while self.desk.is_worth_waiting() {
                self.look();
                self.serve_news();
            }
            self.write();
            self.answer();
            if full || !self.again.is_empty() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Returns ready as soon as there is anything to do.
    fn poll_news(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while let Poll::Ready(Some(connection)) = self.entrance.poll_recv(context) {
            self.entering.push(connection);
        }
        let mut news = !self.entering.is_empty() || !self.again.is_empty();
        while self.events.is_empty()
            && let Poll::Ready(Ok(mut ready)) = self.epoll.poll_read_ready(context)
        {
            look(ready.get_inner(), &mut self.events);
            if self.events.len() < EVENTS_MAX {
                ready.clear_ready();
            }
        }
        news |= !self.events.is_empty();
        if let Some(batch) = self.batches.front() {
            news |= batch.gathering.poll_complete(context).is_ready();
        }
        if news { Poll::Ready(()) } else { Poll::Pending }
    }

    fn look(&mut self) {
        look(self.epoll.get_ref(), &mut self.events);
    }

    fn serve_news(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        for (index, flags) in events.drain(..) {
            if let Some(place) = self.places.get_mut(index) {
                place.note(flags);
                self.serve(index);
            }
        }
        self.events = events;
    }

    fn enter(&mut self, connection: Connection) {
        let entry = self.places.vacant_entry();
        match LaneConnection::new(connection, &self.epoll, entry.key()) {
            Ok(place) => {
                self.context.clients.in_lanes.fetch_add(1, Ordering::Relaxed);
                entry.insert(place);
            }
            Err(error) => tracing::warn!(%error, "redis.connection_lost"),
        }
    }

    fn serve(&mut self, index: usize) {
        let Some(place) = self.places.get_mut(index) else { return };
        let next = self.desk.serve(place, index);
        self.follow(index, next);
    }

    fn follow(&mut self, index: usize, next: Next) {
        match next {
            Next::Rest => {}
            Next::Again => self.again.push(index),
            Next::Leave => self.leave(index),
            Next::Close => drop(self.remove(index)),
        }
    }

    /// Ends the turn: all that was written is one batch.
    fn write(&mut self) {
        if self.desk.batch.asked.is_empty() {
            return;
        }
        let idle = self.idle_batches.pop();
        let next = idle.unwrap_or_else(|| Batch::new(self.bell.clone()));
        self.batches.push_back(std::mem::replace(&mut self.desk.batch, next));
        self.desk.hurry();
    }

    fn answer(&mut self) {
        while let Some(mut batch) = self.batches.pop_front_if(|its| its.gathering.is_complete()) {
            batch.gathering.empty(usize::MAX, |answers| {
                for its in batch.asked.chunk_by(|one, next| one.who == next.who) {
                    let index = its[0].who as usize;
                    match self.places.get_mut(index) {
                        Some(place) => {
                            let next = self.desk.answer(place, its, answers);
                            self.follow(index, next);
                        }
                        // The store had no room for these.
                        None => answers.take(its.len()).for_each(drop),
                    }
                }
            });
            batch.asked.clear();
            if self.idle_batches.len() < BATCHES_KEPT_MAX {
                self.idle_batches.push(batch);
            }
        }
    }

    fn remove(&mut self, index: usize) -> LaneConnection {
        self.context.clients.in_lanes.fetch_sub(1, Ordering::Relaxed);
        self.places.remove(index)
    }

    /// Gives a connection a task of its own.
    fn leave(&mut self, index: usize) {
        match self.remove(index).into_connection(&self.epoll) {
            Ok(connection) => drop(tokio::spawn(connection.serve())),
            Err(error) => tracing::warn!(%error, "redis.connection_lost"),
        }
    }
}
