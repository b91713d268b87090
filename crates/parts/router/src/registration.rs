//! A connection to an instance as the lane of its thread watches it: from its first use in the lane
//! on, until a task waits for what comes from it. It knows neither the lane nor its clients.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::event::epoll::{self, EventFlags};

/// The events that the lane is told of: something came, or one side has ended.
pub const FLAGS: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

/// The registration of one connection, which holds it, with the lane of its thread.
pub struct UpstreamRegistration {
    epoll: Rc<OwnedFd>,
    state: Rc<Cell<RegistrationState>>,
}

/// The way in which the lane handles what comes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RegistrationState {
    /// Nothing has come that nobody asked for.
    Quiet,
    /// Something that nobody asked for has come, perhaps.
    Stirred,
    /// It is an answer for this client, by its key in the lane.
    For(usize),
}

impl UpstreamRegistration {
    /// Creates the registration of a connection whose next answer is for this client.
    pub fn new(epoll: Rc<OwnedFd>, client: usize) -> UpstreamRegistration {
        UpstreamRegistration { epoll, state: Rc::new(Cell::new(RegistrationState::For(client))) }
    }

    /// Returns the state that the lane keeps of it.
    pub fn state(&self) -> Rc<Cell<RegistrationState>> {
        self.state.clone()
    }

    pub fn wait_for(&self, client: usize) {
        self.state.set(RegistrationState::For(client));
    }

    pub fn calm(&self) {
        self.state.set(RegistrationState::Quiet);
    }

    pub fn is_quiet(&self) -> bool {
        self.state.get() == RegistrationState::Quiet
    }

    pub fn leave(self, upstream: impl AsFd) {
        self.calm();
        epoll::delete(&*self.epoll, upstream).ok();
    }
}
