//! The passing of listening sockets from one process to the next over a UNIX socket: first their
//! addresses, in one line of JSON, then the sockets themselves in the same order, some at a time.
//! Blocking.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, ensure};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use crate::shared_port::BoundListeners;

/// The version of the format in which one process hands over to the next.
pub const FORMAT: u32 = 1;
/// The maximum number of sockets of one message; the kernel passes at most 253 at once.
const AT_ONCE: usize = 64;
/// The maximum number of sockets in all: as many as a process may have open.
const SOCKETS_MAX: usize = 65_536;
/// The maximum length of the first line in bytes, at some 100 for each address.
const HEAD_BYTES_MAX: usize = 1 << 20;

#[derive(Serialize, Deserialize)]
struct PassingHead {
    v: u32,
    listeners: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
struct Row {
    /// The address as the command line or an application asked for it.
    address: SocketAddr,
    count: usize,
}

pub fn send(stream: &UnixStream, bound: &BoundListeners) -> anyhow::Result<()> {
    let row = |(address, all): (&SocketAddr, &Vec<TcpListener>)| Row {
        address: *address,
        count: all.len(),
    };
    let head = PassingHead { v: FORMAT, listeners: bound.iter().map(row).collect() };
    let mut line = serde_json::to_vec(&head)?;
    line.push(b'\n');
    (&*stream).write_all(&line).context("the list of sockets")?;
    let all: Vec<BorrowedFd<'_>> = bound.values().flatten().map(AsFd::as_fd).collect();
    for some in all.chunks(AT_ONCE) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        ensure!(control.push(SendAncillaryMessage::ScmRights(some)), "too many sockets at once");
        // It takes a byte for the sockets to travel with.
        sendmsg(stream, &[IoSlice::new(b"+")], &mut control, SendFlags::NOSIGNAL)
            .context("the sockets")?;
    }
    Ok(())
}

pub fn receive(stream: &UnixStream) -> anyhow::Result<BoundListeners> {
    let head = read_line(stream).context("the list of sockets")?;
    let head: PassingHead = serde_json::from_slice(&head).context("the list of sockets")?;
    ensure!(
        head.v == FORMAT,
        "the process before hands over in version {}, and this one takes {} to {}: go by a \
         version of Cortex in between",
        head.v,
        FORMAT,
        FORMAT
    );
    let counts = head.listeners.iter().map(|row| row.count);
    let total = counts.fold(0usize, usize::saturating_add);
    ensure!(total <= SOCKETS_MAX, "{total} sockets are more than a process can have");
    let mut sockets = Vec::new();
    while sockets.len() < total {
        let some = receive_some(stream).context("the sockets")?;
        ensure!(!some.is_empty(), "fewer sockets came than were announced");
        sockets.extend(some);
    }
    let mut sockets = sockets.into_iter();
    let mut bound = BoundListeners::new();
    for row in head.listeners {
        let its: Vec<TcpListener> = sockets.by_ref().take(row.count).map(Into::into).collect();
        bound.insert(row.address, its);
    }
    Ok(bound)
}

fn receive_some(stream: &UnixStream) -> anyhow::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    recvmsg(stream, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut sockets = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            sockets.extend(some);
        }
    }
    Ok(sockets)
}

/// Reads a line, a byte at a time: what follows travels with the sockets.
fn read_line(stream: &UnixStream) -> anyhow::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < HEAD_BYTES_MAX && (&*stream).read(&mut byte)? > 0 {
        match byte {
            [b'\n'] => return Ok(line),
            [byte] => line.push(byte),
        }
    }
    anyhow::bail!("it ends early, or never")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_port::Listeners;

    #[test]
    fn sockets_arrive_under_their_addresses() {
        let any = |last| SocketAddr::from(([127, 0, 0, last], 0));
        let listeners = Listeners::default();
        let one = listeners.bind(any(1), 2).unwrap();
        // These are more than fit one message.
        let many = listeners.bind(any(2), AT_ONCE + 3).unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        let sent = listeners.hand_over();
        std::thread::spawn(move || send(&near, &sent).unwrap());
        let received = receive(&far).unwrap();
        let at = |listeners: &[TcpListener]| listeners[0].local_addr().unwrap();
        assert_eq!(received.len(), 2);
        assert_eq!((received[&any(1)].len(), at(&received[&any(1)])), (2, at(&one)));
        assert_eq!((received[&any(2)].len(), at(&received[&any(2)])), (AT_ONCE + 3, at(&many)));
    }

    #[test]
    fn nonsense_is_an_error() {
        let check = |bytes: &[u8], needle: &str| {
            let (mut near, far) = UnixStream::pair().unwrap();
            near.write_all(bytes).unwrap();
            drop(near);
            let error = format!("{:#}", receive(&far).unwrap_err());
            assert!(error.contains(needle), "{error}");
        };
        check(b"", "ends early");
        check(b"{}\n", "list of sockets");
        check(b"{\"v\":9,\"listeners\":[]}\n", "version 9");
        let row = |count: &str| {
            format!("{{\"v\":1,\"listeners\":[{{\"address\":\"[::1]:1\",\"count\":{count}}}]}}\n")
        };
        check(row("99999999").as_bytes(), "more than a process");
        check(format!("{}+", row("2")).as_bytes(), "fewer sockets");
    }
}
