//! A connection of one node (or command) that speaks to this shim: lines in, lines out, both
//! bounded. A peer that does not read is disconnected; it may come again.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use super::message::{LINE_BYTES_MAX, ShimReply, ShimRequest, Tell, VERSION, line};

/// The number of bytes read at once: one busy connection does not hold up the others.
const READ_BYTES: usize = 16 << 10;

pub struct NodeConnection {
    pub stream: UnixStream,
    received: Vec<u8>,
    /// The person for whom it becomes the connection of a client.
    pub attaching: Option<String>,
}

impl NodeConnection {
    /// Accepts a connection; `None` unless it is the same user at the other end.
    pub fn accept(stream: UnixStream) -> Option<NodeConnection> {
        let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
        if peer.uid != rustix::process::geteuid() {
            return None;
        }
        stream.set_nonblocking(true).ok()?;
        Some(NodeConnection { stream, received: Vec::new(), attaching: None })
    }

    /// Takes what has come. An error means that the connection is of no more use.
    pub fn receive(&mut self) -> io::Result<()> {
        let mut chunk = [0; READ_BYTES];
        match self.stream.read(&mut chunk) {
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

    /// Returns the connection and what came behind the last line.
    pub fn into_stream(self) -> (UnixStream, Vec<u8>) {
        (self.stream, self.received)
    }

    pub fn tell(&mut self, tell: Tell) -> io::Result<()> {
        let line = line(&ShimReply { v: VERSION, tell })?;
        self.stream.write_all(&line)
    }
}
