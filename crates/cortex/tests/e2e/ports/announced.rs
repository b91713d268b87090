//! Instances that are told who asks, in the binary form of the PROXY protocol.

use std::io::BufReader;
use std::net::{IpAddr, SocketAddr, TcpStream};

use socket2::{Domain, Socket, Type};

use super::world::{ANSWER_TIME_MAX, Talk, Two};
use crate::machine::free_port;

/// The address from which the client connects, and no node does.
const CLIENT: [u8; 4] = [127, 0, 0, 9];

fn open(to: SocketAddr) -> Talk {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((CLIENT, 0)).into()).expect("an address of its own");
    socket.connect(&to.into()).expect("a connection");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(ANSWER_TIME_MAX)).expect("a time limit");
    Talk(BufReader::new(stream))
}

#[test]
fn an_instance_is_told_who_asks_and_what_for_on_every_node() {
    let ips = ["127.0.0.83", "127.0.0.84"];
    let port = free_port();
    let more = "env = 'TOLD_PORT'\nproxy_protocol = 'v2'\n";
    let _nodes = Two::start_plain(ips, port, more);
    for ip in ips {
        let to = SocketAddr::new(ip.parse().expect("an address"), port);
        let mut talk = open(to);
        let at = talk.0.get_ref().local_addr().expect("it is connected");
        assert_eq!(at.ip(), IpAddr::from(CLIENT));
        // The header comes before the client's first byte, and nothing else is in front of it.
        assert_eq!(talk.hear().expect("the header, said again"), format!("{at} to {to}"));
        assert_eq!(talk.say("hello").expect("an answer"), "hello");
        talk.finish().expect("an end in order");
    }
}
