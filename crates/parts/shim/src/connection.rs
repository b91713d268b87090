//! A connection of one node (or command) that speaks to this shim: lines in, lines out, both
//! bounded. A peer that does not read is disconnected; it may come again.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use super::descriptors::{self, DESCRIPTORS_MAX};
use super::message::{LINE_BYTES_MAX, ShimReply, ShimRequest, Tell, VERSION, line};

/// The number of bytes read at once: one busy connection does not hold up the others.
const READ_BYTES: usize = 16 << 10;

pub struct NodeConnection {
    pub stream: UnixStream,
    received: Vec<u8>,
    /// The descriptors that came along, for the next request that takes them.
    descriptors: Vec<OwnedFd>,
}

impl NodeConnection {
    /// Accepts a connection; `None` unless it is the same user at the other end.
    pub fn accept(stream: UnixStream) -> Option<NodeConnection> {
        let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
        if peer.uid != rustix::process::geteuid() {
            return None;
        }
        stream.set_nonblocking(true).ok()?;
        Some(NodeConnection { stream, received: Vec::new(), descriptors: Vec::new() })
    }

    /// Takes what has come. An error means that the connection is of no more use.
    pub fn receive(&mut self) -> io::Result<()> {
        let mut chunk = [0; READ_BYTES];
        match descriptors::receive(&self.stream, &mut chunk, &mut self.descriptors) {
            Ok(_) if self.descriptors.len() > DESCRIPTORS_MAX => {
                Err(io::ErrorKind::InvalidData.into())
            }
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) if self.received.len() + count > LINE_BYTES_MAX => {
                Err(io::ErrorKind::FileTooLarge.into())
            }
            Ok(count) => {
                self.received.extend_from_slice(&chunk[..count]);
                Ok(())
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Returns the next whole line, understood or not.
    pub fn next(&mut self) -> Option<Result<ShimRequest, String>> {
        let end = self.received.iter().position(|byte| *byte == b'\n')?;
        let request = serde_json::from_slice(&self.received[..end])
            .map_err(|error| format!("not understood: {error}"));
        self.received.drain(..=end);
        if self.received.is_empty() {
            // A specification may have been large.
            self.received = Vec::new();
        }
        Some(request)
    }

    pub fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.descriptors)
    }

    pub fn tell(&mut self, tell: Tell) -> io::Result<()> {
        let line = line(&ShimReply { v: VERSION, tell })?;
        self.stream.write_all(&line)
    }
}
