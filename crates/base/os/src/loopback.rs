//! Connections that never leave the machine.

use std::net::IpAddr;
use std::os::fd::AsFd;

use rustix::net::sockopt::set_tcp_congestion;

/// The oldest congestion control, which every kernel has and lets everybody choose.
const CONGESTION_CONTROL: &str = "reno";

/// Sets the congestion control of a loopback socket: there is no network to be careful with, and
/// where the machine's choice is BBR, that would set a timer to pace each long answer. Accepted
/// connections inherit it from their listener.
pub fn ease(socket: impl AsFd, address: IpAddr) {
    if address.is_loopback() {
        // A failure only makes it a little more expensive.
        set_tcp_congestion(socket, CONGESTION_CONTROL).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use rustix::net::sockopt::tcp_congestion;

    use super::*;

    #[test]
    fn connections_inherit_the_options_of_their_listener() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        ease(&listener, address.ip());
        let _near = TcpStream::connect(address).unwrap();
        let far = listener.accept().unwrap().0;
        assert_eq!(tcp_congestion(&far).unwrap(), CONGESTION_CONTROL);
        let open = TcpListener::bind("0.0.0.0:0").unwrap();
        let before = tcp_congestion(&open).unwrap();
        ease(&open, open.local_addr().unwrap().ip());
        assert_eq!(tcp_congestion(&open).unwrap(), before);
    }
}
