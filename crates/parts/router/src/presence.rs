//! The counts of what a thread has under way: connections, and requests, each for as long as it
//! lives.

use std::rc::Rc;

use super::clients::HeldConnection;
use super::thread::Thread;

/// A connection that is counted until it ends, however it ends.
pub struct CountedConnection(Rc<Thread>);

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.connections.set(self.0.connections.get() - 1);
    }
}

impl CountedConnection {
    pub fn begin(thread: &Rc<Thread>) -> CountedConnection {
        thread.connections.set(thread.connections.get() + 1);
        CountedConnection(thread.clone())
    }
}

/// Counts a connection, and its client, for as long as it lives.
pub struct Presence {
    _counted: CountedConnection,
    _held: HeldConnection,
}

impl Presence {
    pub fn new(thread: &Rc<Thread>, held: HeldConnection) -> Presence {
        Presence { _counted: CountedConnection::begin(thread), _held: held }
    }
}

/// Counts a request as under way for as long as it lives.
pub struct Busy(Rc<Thread>);

impl Busy {
    pub fn begin(thread: &Rc<Thread>) -> Busy {
        thread.busy.set(thread.busy.get() + 1);
        Busy(thread.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.set(self.0.busy.get() - 1);
    }
}
