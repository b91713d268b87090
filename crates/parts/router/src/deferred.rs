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
#[expect(unsafe_code, reason = "no library that is used here knows this option")]
pub fn is_deferred(listener: &TcpListener) -> io::Result<bool> {
    let (mut seconds, mut length): (c_int, _) = (0, size_of::<c_int>() as libc::socklen_t);
    let value = (&raw mut seconds).cast();
    let descriptor = listener.as_raw_fd();
    // SAFETY: the kernel writes at most `length` bytes at `value`, an integer that outlives the
    // call, as `length` does; the descriptor is open while the listener is borrowed.
    let result = unsafe {
        libc::getsockopt(descriptor, IPPROTO_TCP, TCP_DEFER_ACCEPT, value, &raw mut length)
    };
    if result == 0 { Ok(seconds != 0) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests;
