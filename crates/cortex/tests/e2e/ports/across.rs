//! Ports on a node that does not run the application.

use std::net::TcpStream;

use rustix::process::Signal;

use super::world::{
    NAME, Ports, SERVER, Stream, Talk, Two, assert_told, await_answer, await_datagram, send,
};
use crate::machine::kill;
use crate::project::edit;
use crate::wait::wait_until;

/// The length of a line in bytes, more than sockets on the way hold.
const LONG_LINE: usize = 8 << 20;

#[test]
fn a_node_without_an_instance_serves_the_port_too() {
    let (near, away) = ("127.0.0.81", "127.0.0.82");
    let ports = Ports::free();
    let manifest = ports.manifest("persist = ['kept/']");
    let Two { one, two, project } = Two::start([near, away], SERVER, &manifest);
    one.await_ready(NAME, "broker", 2);
    for ip in [near, away] {
        await_answer(ip, ports.tcp, "one");
        await_datagram(ip, ports.udp, "one");
        assert_told(ip, ports.told);
    }
    for slot in ["one 1", "one 2"] {
        await_answer(away, ports.tcp, slot);
    }
    // Long lines go both ways at once.
    let long = "x".repeat(LONG_LINE);
    let mut talk = Talk::open(away, ports.tcp).expect("a connection");
    assert_eq!(talk.say(&long).expect("it comes back").len(), LONG_LINE + "one 1 ".len());
    talk.finish().expect("an end in order");
    // This is the longest datagram that fits beside what the server puts before it.
    let text = "y".repeat(60_000);
    wait_until("a long datagram", || send(away, ports.udp, &text).is_ok());

    let mut old = Talk::open(away, ports.tcp).expect("a connection");
    assert!(old.say("before").expect("an answer").starts_with("one"));
    let streams = [Stream::start(near, ports.tcp), Stream::start(away, ports.tcp)];
    streams.iter().for_each(|stream| stream.go_on(50));
    edit(&project.join("bin/broker.py"), "\"one\"", "\"two\"");
    one.try_push(&project, NAME).succeeded();
    for ip in [near, away] {
        await_answer(ip, ports.tcp, "two");
        await_datagram(ip, ports.udp, "two");
    }
    streams.iter().for_each(|stream| stream.go_on(50));
    streams.into_iter().for_each(Stream::finish_without_failure);
    assert!(old.say("after").expect("an answer").starts_with("one"), "it is kept");
    old.finish().expect("an end in order");
    one.await_ready(NAME, "broker", 2);

    // A server that is gone in the middle of a connection is gone for the client, too.
    let mut cut = Talk::open(away, ports.tcp).expect("a connection");
    cut.say("hello").expect("an answer");
    let rows = one.ready(NAME, "broker");
    rows.iter().for_each(|row| kill(row.pid.expect("it runs"), Signal::KILL));
    assert!(cut.hear().is_err());
    for ip in [near, away] {
        await_answer(ip, ports.tcp, "two");
        await_datagram(ip, ports.udp, "two");
    }
    let info = two.cortex(&["info", "--json", "-a", NAME]);
    assert!(info.contains(&format!("\"{away}:{}\"", ports.udp)), "{info}");
    one.cortex(&["apps", "destroy", NAME, "--yes"]);
    wait_until("the ports to be closed", || {
        [near, away].iter().all(|ip| TcpStream::connect((*ip, ports.tcp)).is_err())
    });
}
