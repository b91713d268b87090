//! Connections that are deferred, and those that are not.

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
