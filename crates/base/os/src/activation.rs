//! Sockets that something else has bound for this process and passed on when it started it, as
//! systemd does (`sd_listen_fds(3)`): the way to ports below 1024 for a program without rights.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, getpid};
use socket2::{Socket, Type};

use crate::shared_port::BoundListeners;

/// The first descriptor that is passed on.
const FIRST: i32 = 3;
/// Descriptors that are looked at; nobody passes as many ports on.
const COUNT_MAX: i32 = 64;

/// The variables by which a process is told.
#[derive(Clone, Debug, Default)]
pub struct Activation {
    pub pid: Option<String>,
    pub count: Option<String>,
}

impl Activation {
    /// Returns how many descriptors were passed on to this process, not to one that started it.
    fn count(&self, own: Pid) -> i32 {
        let number = |text: &Option<String>| text.as_ref()?.trim().parse::<i32>().ok();
        match (number(&self.pid), number(&self.count)) {
            (Some(pid), Some(count)) if pid == own.as_raw_nonzero().get() => {
                count.clamp(0, COUNT_MAX)
            }
            _ => 0,
        }
    }

    /// Takes the sockets, by the address that they listen at, once in a process. What is no
    /// listening TCP socket is closed, so that no program that is started inherits it.
    pub fn take(&self) -> BoundListeners {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        let mut found = BoundListeners::new();
        if TAKEN.swap(true, Ordering::SeqCst) {
            return found;
        }
        for number in FIRST..FIRST + self.count(getpid()) {
            let Some(descriptor) = passed_on(number) else { continue };
            if let Some((address, listener)) = listener(Socket::from(descriptor)) {
                found.entry(address).or_default().push(listener);
            }
        }
        found
    }
}

/// Returns the descriptor of this number, which came with the process.
#[expect(unsafe_code, reason = "the protocol passes numbers, which nothing else here owns")]
fn passed_on(number: i32) -> Option<OwnedFd> {
    let is_open = Path::new("/proc/self/fd").join(number.to_string()).symlink_metadata().is_ok();
    // SAFETY: it is open, was there when the process began, and is taken once.
    is_open.then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

fn listener(socket: Socket) -> Option<(SocketAddr, TcpListener)> {
    let is_stream = socket.r#type().is_ok_and(|kind| kind == Type::STREAM);
    let listens = socket.is_listener().unwrap_or(false);
    let address = socket.local_addr().ok()?.as_socket()?;
    if !is_stream || !listens {
        return None;
    }
    socket.set_nonblocking(true).ok()?;
    socket.set_cloexec(true).ok()?;
    Some((address, socket.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant_for_another_process_is_left_alone() {
        let own = getpid();
        let of = |pid: &str, count: &str| {
            Activation { pid: Some(pid.into()), count: Some(count.into()) }.count(own)
        };
        let me = own.as_raw_nonzero().to_string();
        assert_eq!(of(&me, "2"), 2);
        assert_eq!(of(&me, "1000"), COUNT_MAX);
        for (pid, count) in [("1", "2"), (me.as_str(), "-1"), (&me, "x"), ("", "")] {
            assert_eq!(of(pid, count), 0, "{pid} {count}");
        }
        assert_eq!(Activation::default().count(own), 0);
    }

    #[test]
    fn listening_sockets_are_told_from_others() {
        let listening = TcpListener::bind("127.0.0.1:0").unwrap();
        let expected = listening.local_addr().unwrap();
        assert_eq!(listener(Socket::from(listening)).unwrap().0, expected);
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(listener(Socket::from(datagrams)).is_none());
        let unbound = Socket::new(socket2::Domain::IPV4, Type::STREAM, None).unwrap();
        assert!(listener(unbound).is_none());
    }
}
