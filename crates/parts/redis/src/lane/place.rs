//! The place of one connection in the lane: what each ordinary command touches lies together, apart
//! from the rest of the connection.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use store_core::resp::Protocol;

use crate::access::Rights;
use crate::connection::Connection;
use crate::wire::{Wire, WireKind};

pub struct LaneConnection {
    fd: OwnedFd,
    /// The number of writes that have no answer yet. Nothing is read meanwhile.
    pub asked: usize,
    /// Whether there may be bytes that were not read.
    pub readable: bool,
    /// Whether the client has ended its side: it is read until its end.
    ending: bool,
    /// Whether there are commands in `input` that had to wait for an answer.
    pub stopped: bool,
    /// Whether there was no room for its last write; the second time in a row it leaves the lane.
    pub turned_away: bool,
    /// Whether there are replies in `connection` that the client does not take.
    pub blocked: bool,
    /// Whether a reply could not be sent: the place is closed once no answer is missing.
    pub broken: bool,
    pub all_rights: bool,
    pub protocol: Protocol,
    kind: WireKind,
    /// The beginning of a command, or what waits behind `asked`.
    pub input: Vec<u8>,
    pub connection: Box<Connection>,
}

impl LaneConnection {
    pub fn new(
        mut connection: Connection,
        epoll: &impl AsFd,
        index: usize,
    ) -> io::Result<LaneConnection> {
        let (fd, kind) = connection.wire.take()?;
        let wanted = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(epoll, &fd, EventData::new_u64(index as u64), wanted)?;
        Ok(LaneConnection {
            fd,
            asked: 0,
            readable: false,
            ending: false,
            stopped: false,
            turned_away: false,
            blocked: false,
            broken: false,
            all_rights: matches!(connection.rights, Rights::All),
            protocol: connection.replies.protocol,
            kind,
            input: std::mem::take(&mut connection.input),
            connection: Box::new(connection),
        })
    }

    pub fn into_connection(self, epoll: &impl AsFd) -> io::Result<Connection> {
        epoll::delete(epoll, &self.fd)?;
        let mut connection = *self.connection;
        connection.wire = Wire::new(self.fd, self.kind)?;
        connection.input = self.input;
        Ok(connection)
    }

    pub fn note(&mut self, flags: EventFlags) {
        self.readable = true;
        self.ending |= flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
    }

    /// Reads what has come; `None` if there is nothing at the moment, 0 at the end. One notice
    /// comes for all that had come by then, so what fills less than the buffer was all.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let (count, _) = match retry_on_intr(|| recv(&self.fd, &mut *into, RecvFlags::DONTWAIT)) {
            Err(Errno::AGAIN) => {
                self.readable = false;
                return Ok(None);
            }
            received => received?,
        };
        self.readable = count == into.len() || self.ending;
        Ok(Some(count))
    }

    /// Writes; returns how much the client takes at the moment.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match retry_on_intr(|| send(&self.fd, bytes, flags)) {
            Err(Errno::AGAIN) => Ok(0),
            sent => Ok(sent?),
        }
    }
}
