//! What a thread of the router is told while it runs.

use std::net::{TcpListener, UdpSocket};
use std::time::Duration;

use super::scope::Scope;
use runtime::members::RouterCall;

/// Ports that come and go at once, per thread.
pub const COMMANDS_MAX: usize = 1024;

pub enum Command {
    Listen(Scope, TcpListener),
    /// Datagrams to an application's port.
    Receive(u16, UdpSocket),
    Unlisten(Scope),
    /// The router of another member has requests for this one.
    Far(Box<RouterCall>),
    /// Accept no more, finish what is under way.
    Stop(Stop),
}

#[derive(Clone, Copy, Debug)]
pub struct Stop {
    /// Then whatever is left is cut.
    pub limit: Duration,
    pub awaits: Awaited,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// Requests that are under way.
    Answers,
    /// Also that clients with nothing under way ask once more, and hear that they are to connect
    /// again: closing on one that is just about to ask would lose its request.
    Connections,
}
