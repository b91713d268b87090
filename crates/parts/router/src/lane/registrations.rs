//! The connections to instances that the lane is told of: each is registered there from its first
//! use in the lane on, until a task waits for what comes from it.

use std::cell::Cell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use rustix::event::epoll::{self, EventData};

use crate::plain::Plain;
use crate::registration::{FLAGS, RegistrationState, UpstreamRegistration};

/// The bit that tells an instance's connection from a client's.
const INSTANCE: u64 = 1 << 63;

/// The connection that an event is about.
pub enum EventSource {
    /// A client, by its key in the lane.
    Client(usize),
    /// An instance, by its connection's descriptor.
    Instance(usize),
}

impl EventSource {
    pub fn of(data: EventData) -> EventSource {
        match data.u64() {
            data if data & INSTANCE == 0 => EventSource::Client(data as usize),
            data => EventSource::Instance((data & !INSTANCE) as usize),
        }
    }
}

pub struct UpstreamRegistrations {
    epoll: Rc<OwnedFd>,
    /// The states by descriptor; one that is left keeps its place until another takes it.
    states: Vec<Option<Rc<Cell<RegistrationState>>>>,
}

impl UpstreamRegistrations {
    pub fn new(epoll: Rc<OwnedFd>) -> UpstreamRegistrations {
        UpstreamRegistrations { epoll, states: Vec::new() }
    }

    /// Gives what comes to this client; returns false if the connection could not be watched.
    pub fn register(&mut self, upstream: &mut Plain, client: usize) -> bool {
        if upstream.is_registered_for(client) {
            return true;
        }
        upstream.unwatch();
        let Ok(descriptor) = usize::try_from(upstream.as_raw_fd()) else { return false };
        let data = EventData::new_u64(INSTANCE | descriptor as u64);
        if epoll::add(&*self.epoll, &*upstream, data, FLAGS).is_err() {
            return false;
        }
        if self.states.len() <= descriptor {
            self.states.resize(descriptor + 1, None);
        }
        let registration = UpstreamRegistration::new(self.epoll.clone(), client);
        self.states[descriptor] = Some(registration.state());
        upstream.register(registration);
        true
    }

    /// Returns the client that this is an answer for, if it is one.
    pub fn client(&self, descriptor: usize) -> Option<usize> {
        let state = self.states.get(descriptor)?.as_ref()?;
        match state.get() {
            RegistrationState::For(client) => Some(client),
            RegistrationState::Quiet | RegistrationState::Stirred => {
                state.set(RegistrationState::Stirred);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
