//! Ports through rollouts, deaths and rollbacks, and ports that cannot be had.

use std::net::{TcpListener, TcpStream, UdpSocket};

use rustix::process::Signal;

use super::world::{
    NAME, Ports, SERVER, Stream, Talk, ask, assert_told, await_answer, await_datagram, project,
};
use crate::machine::kill;
use crate::node::Node;
use crate::project::{edit, of_files};
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

#[test]
fn ports_lead_to_ready_instances_of_the_serving_release() {
    let ip = "127.0.0.1";
    let node = Node::start();
    let ports = Ports::free();
    let project = project(&node, SERVER, &ports.manifest(""));
    let pushed = node.try_push(&project, NAME).succeeded();
    let (tcp, udp) = (ports.tcp, ports.udp);
    assert!(pushed.stderr.contains(&format!("tcp on 127.0.0.1:{tcp} leads to broker")));
    assert!(pushed.stderr.contains(&format!("udp on 127.0.0.1:{udp} leads to broker")));
    ask(ip, tcp, "hello").expect("a push that succeeded serves");
    await_datagram(ip, udp, "one");
    assert_told(ip, ports.told);
    let info = node.cortex(&["info", "-a", NAME]);
    assert!(info.contains(&format!("{tcp}/tcp: broker")), "{info}");
    let rows = node.cortex(&["ps", "--json", "-a", NAME]);
    assert!(rows.contains(&format!("\"{udp}/udp\"")), "{rows}");

    // Both instances take part.
    for slot in ["one 1", "one 2"] {
        await_answer(ip, tcp, slot);
    }
    // A new release takes over under a stream of connections; one that is there stays with the old.
    let mut old = Talk::open(ip, tcp).expect("a connection");
    assert!(old.say("before").expect("an answer").starts_with("one"));
    let stream = Stream::start(ip, tcp);
    stream.go_on(50);
    edit(&project.join("bin/broker.py"), "\"one\"", "\"two\"");
    node.try_push(&project, NAME).succeeded();
    await_answer(ip, tcp, "two");
    stream.go_on(50);
    stream.finish_without_failure();
    assert!(old.say("after").expect("an answer").starts_with("one"), "it is kept");
    assert_eq!(node.ready(NAME, "broker").len(), 2);
    old.finish().expect("an end in order");
    node.await_ready(NAME, "broker", 2);
    await_datagram(ip, udp, "two");

    // One instance dies: the other takes what comes, and it comes back.
    let killed = node.ready(NAME, "broker").remove(0);
    kill(killed.pid.expect("it runs"), Signal::KILL);
    await_answer(ip, tcp, "two");
    wait_for("another in its place", STATE_DEADLINE, || {
        let rows = node.ready(NAME, "broker");
        let is_back = rows.len() == 2 && rows.iter().all(|row| row.pid != killed.pid);
        if is_back { Ok(()) } else { Err(format!("{rows:?}")) }
    });
    for slot in ["two 1", "two 2"] {
        await_answer(ip, tcp, slot);
    }

    // The release has other port numbers; a rollback brings the old ones back.
    let others = Ports::free();
    std::fs::write(project.join("cortex.toml"), others.manifest("")).expect("it can be written");
    node.try_push(&project, NAME).succeeded();
    await_answer(ip, others.tcp, "two");
    await_datagram(ip, others.udp, "two");
    wait_until("the old port to be closed", || TcpStream::connect((ip, tcp)).is_err());
    node.cortex(&["rollback", "-a", NAME]);
    await_answer(ip, tcp, "two");
    await_datagram(ip, udp, "two");
    wait_until("the other port to be closed", || TcpStream::connect((ip, others.tcp)).is_err());

    node.cortex(&["apps", "destroy", NAME, "--yes"]);
    wait_until("the ports to be free", || {
        TcpListener::bind((ip, tcp)).is_ok() && UdpSocket::bind((ip, udp)).is_ok()
    });
}

#[test]
fn ports_that_cannot_be_had_are_refused() {
    let node = Node::start();
    let ports = Ports::free();
    let project = project(&node, SERVER, &ports.manifest(""));
    node.try_push(&project, NAME).succeeded();
    let second = |name: &str, manifest: &str| {
        let project = node.path(name);
        of_files(&project, &[("bin/broker.py", SERVER), ("cortex.toml", manifest)]);
        node.try_push(&project, name).refused()
    };
    let taken = second("second", &ports.manifest(""));
    taken.saying(&[&format!("port {} belongs to the application '{NAME}'", ports.tcp)]);
    let listener = UdpSocket::bind(("127.0.0.1", 0)).expect("a free port");
    let held = listener.local_addr().expect("it is bound").port();
    let held = Ports { udp: held, ..Ports::free() };
    second("third", &held.manifest("")).saying(&[&format!("port {}/udp", held.udp), "in use"]);
    let http = Ports { tcp: node.http_port, ..Ports::free() };
    second("fourth", &http.manifest("")).saying(&[&format!("port {}", http.tcp), "in use"]);
    let wrong = ports.manifest("").replace("proto", "porto");
    second("fifth", &wrong).saying(&["unknown field `portocol`"]);
    let lost = Ports::free().manifest("").replace("broker = {", "worker = {");
    second("sixth", &lost).saying(&["there is no process 'broker'"]);
    // What was refused has changed nothing.
    ask("127.0.0.1", ports.tcp, "hello").expect("it serves on");
    let port = ports.tcp.to_string();
    node.run(&["apps", "create", "seventh", "--port", &port]).refused().saying(&["belongs to"]);
}
