//! Connections that are handed over with their first bytes. Most of those that bring a request and
//! close after the answer need no look before it is there, and no place in the runtime.

use std::io;
use std::mem::size_of_val;
use std::net::TcpListener;
use std::os::fd::AsRawFd;

use libc::{IPPROTO_TCP, TCP_DEFER_ACCEPT, c_int, setsockopt};

/// The silence after which a client comes, too. This is the least that there is: nothing is waited
/// for longer than a client would wait to repeat what was lost.
const SILENCE_SECONDS_MAX: c_int = 1;

/// Defers connections whose clients speak first. A listener that served others before is told
/// either way.
#[expect(unsafe_code, reason = "no library that is used here knows this option")]
pub fn defer(listener: &TcpListener, clients_speak_first: bool) -> io::Result<()> {
    let seconds = if clients_speak_first { SILENCE_SECONDS_MAX } else { 0 };
    let length = size_of_val(&seconds) as libc::socklen_t;
    let value = (&raw const seconds).cast();
    // SAFETY: the kernel reads `length` bytes at `value`, an integer that outlives the call; the
    // descriptor is open while the listener is borrowed.
    let result =
        unsafe { setsockopt(listener.as_raw_fd(), IPPROTO_TCP, TCP_DEFER_ACCEPT, value, length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::TcpStream;
    use std::time::{Duration, Instant};

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(20);

    fn accepted(listener: &TcpListener) -> TcpStream {
        let begun = Instant::now();
        loop {
            match listener.accept() {
                Ok((stream, _)) => return stream,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            assert!(begun.elapsed() < DEADLINE, "nothing to accept");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_connection_comes_with_its_first_bytes_or_without_any() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        defer(&listener, true).unwrap();
        let address = listener.local_addr().unwrap();
        let _silent = TcpStream::connect(address).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        let mut speaks = TcpStream::connect(address).unwrap();
        speaks.write_all(b"GET").unwrap();
        let mut stream = accepted(&listener);
        assert_eq!(stream.peer_addr().unwrap(), speaks.local_addr().unwrap());
        stream.set_nonblocking(true).unwrap();
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 3);
        accepted(&listener);
        defer(&listener, false).unwrap();
        let _silent_too = TcpStream::connect(address).unwrap();
        // On loopback it is there as soon as it is connected.
        listener.accept().unwrap();
    }
}
