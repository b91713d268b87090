//! A connection to an instance as the lane of its thread watches it: from its first use in the lane
//! on, until a task waits for what comes from it. Knows neither the lane nor its clients.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::event::epoll::{self, EventFlags};

/// What the lane is told of: something came, or one side has ended.
pub const FLAGS: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

/// Of one connection, which holds it, with the lane of its thread.
pub struct UpstreamRegistration {
    epoll: Rc<OwnedFd>,
    state: Rc<Cell<State>>,
}

/// What the lane does with what comes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Nothing has come that nobody asked for.
    Quiet,
    /// Something has, perhaps.
    Stirred,
    /// It is an answer for the client in that place.
    For(usize),
}

impl UpstreamRegistration {
    /// Of a connection whose next answer is for the client in this place.
    pub fn new(epoll: Rc<OwnedFd>, place: usize) -> UpstreamRegistration {
        UpstreamRegistration { epoll, state: Rc::new(Cell::new(State::For(place))) }
    }

    /// What the lane keeps of it.
    pub fn state(&self) -> Rc<Cell<State>> {
        self.state.clone()
    }

    pub fn wait_for(&self, place: usize) {
        self.state.set(State::For(place));
    }

    pub fn calm(&self) {
        self.state.set(State::Quiet);
    }

    pub fn is_quiet(&self) -> bool {
        self.state.get() == State::Quiet
    }

    pub fn leave(self, upstream: impl AsFd) {
        self.calm();
        epoll::delete(&*self.epoll, upstream).ok();
    }
}
