//! The commands that a thread of the router gets while it runs.

use std::net::{TcpListener, UdpSocket};
use std::time::Duration;

use super::scope::Scope;
use runtime::members::RouterCall;

/// Commands that wait, per thread: as many as ports that come and go at once.
pub const COMMANDS_MAX: usize = 1024;

pub enum Command {
    Listen(Scope, TcpListener),
    /// A socket for datagrams to an application's port.
    Receive(u16, UdpSocket),
    Unlisten(Scope),
    /// The router of another member has requests for this one.
    Far(Box<RouterCall>),
    /// The thread is to accept no more and to finish what is under way.
    Stop(Stop),
}

#[derive(Clone, Copy, Debug)]
pub struct Stop {
    /// The time after which whatever is left is cut.
    pub limit: Duration,
    /// The time in which clients may still ask; after it those that ask for nothing are ended.
    pub asks: Duration,
    pub awaits: DrainScope,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainScope {
    /// Requests that are under way.
    Answers,
    /// Clients with nothing under way as well: they ask once more, and hear that they are to
    /// connect again. Closing on one that is just about to ask would lose its request.
    Connections,
}
