//! The connections to instances that the lane is told of: each stays where it is for as long as it
//! lives, whoever uses it.

use std::cell::Cell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use rustix::event::epoll::{self, EventData};

use super::FLAGS;
use crate::router::plain::{Plain, Seat};

/// What tells an instance's connection from a client's.
const INSTANCE: u64 = 1 << 63;

/// Of whom an event tells.
pub enum Source {
    /// In this place.
    Client(usize),
    /// On this descriptor.
    Instance(usize),
}

impl Source {
    pub fn of(data: EventData) -> Source {
        match data.u64() {
            data if data & INSTANCE == 0 => Source::Client(data as usize),
            data => Source::Instance((data & !INSTANCE) as usize),
        }
    }
}

pub struct Seats {
    epoll: Rc<OwnedFd>,
    /// By their descriptors; those that are closed have theirs until there is another one.
    seats: Vec<Option<Rc<Cell<Seat>>>>,
}

impl Seats {
    pub fn new(epoll: Rc<OwnedFd>) -> Seats {
        Seats { epoll, seats: Vec::new() }
    }

    /// What comes is for the client in this place. False where it could not be watched.
    pub fn give(&mut self, upstream: &mut Plain, place: usize) -> bool {
        upstream.unwatch();
        if let Some(seat) = upstream.seat() {
            seat.set(Seat::For(place));
            return true;
        }
        let Ok(descriptor) = usize::try_from(upstream.as_raw_fd()) else { return false };
        let data = EventData::new_u64(INSTANCE | descriptor as u64);
        if epoll::add(&*self.epoll, &*upstream, data, FLAGS).is_err() {
            return false;
        }
        if self.seats.len() <= descriptor {
            self.seats.resize(descriptor + 1, None);
        }
        let seat = Rc::new(Cell::new(Seat::For(place)));
        self.seats[descriptor] = Some(seat.clone());
        upstream.sit(seat);
        true
    }

    /// The place of the client that this is an answer for, if it is one.
    pub fn place(&self, descriptor: usize) -> Option<usize> {
        let seat = self.seats.get(descriptor)?.as_ref()?;
        match seat.get() {
            Seat::For(place) => Some(place),
            Seat::Quiet | Seat::Stirred => {
                seat.set(Seat::Stirred);
                None
            }
        }
    }
}
