//! Traffic on ports, as nodes count it.

use std::net::UdpSocket;

use super::world::{ANSWER_TIME_MAX, NAME, Ports, SERVER, Talk, Two, ask, project};
use crate::node::Node;
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

/// The length of a line in bytes, which goes through a pipe in the kernel except for its beginning.
const LONG_LINE: usize = 3 << 20;
/// The idle limit of flows, so that one is still there when the metrics are read.
const FLOW_IDLE: &str = "5s";

/// The values of one port's series, in the order of their names.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    bytes_in: usize,
    bytes_out: usize,
    open: usize,
    connections: usize,
    refused: usize,
}

/// Returns the counts of a port; `None` if there is no such port.
fn counts(node: &Node, port: u16, protocol: &str) -> Option<Counts> {
    let told = node.cortex(&["metrics"]);
    let value = |series: &str| {
        let labels = format!("application=\"{NAME}\",port=\"{port}\",protocol=\"{protocol}\"");
        let start = format!("cortex_port_{series}{{{labels}}} ");
        let mut found = told.lines().filter_map(|line| line.strip_prefix(&start));
        found.next().map(|value| value.parse().expect("a number"))
    };
    Some(Counts {
        bytes_in: value("bytes_in_total")?,
        bytes_out: value("bytes_out_total")?,
        open: value("connections_open")?,
        connections: value("connections_total")?,
        refused: value("refused_total")?,
    })
}

fn await_counts(node: &Node, port: u16, protocol: &str, expected: Counts) {
    wait_for("what has moved to be counted", STATE_DEADLINE, || {
        match counts(node, port, protocol) {
            Some(counted) if counted == expected => Ok(()),
            other => Err(format!("{other:?} in place of {expected:?}")),
        }
    });
}

/// Says a line, and counts it and its answer, which ends with a line feed as well.
fn say(talk: &mut Talk, line: &str, expected: &mut Counts) {
    let answer = talk.say(line).expect("an answer");
    assert!(answer.ends_with(line));
    expected.bytes_in += line.len() + 1;
    expected.bytes_out += answer.len() + 1;
}

/// Ends a connection, and counts the server's last word.
fn finish(talk: Talk, expected: &mut Counts) {
    talk.finish().expect("an end in order");
    expected.bytes_out += "bye\n".len();
    expected.open -= 1;
}

/// Asserts that one flow is counted while it is there and after.
fn assert_flow_counts(node: &Node, ip: &str, port: u16) {
    let socket = UdpSocket::bind((ip, 0)).expect("a port of its own");
    socket.connect((ip, port)).expect("an address");
    socket.set_read_timeout(Some(ANSWER_TIME_MAX)).expect("a time limit");
    let (mut came, mut went) = (0, 0);
    let counted = wait_for("a flow to be counted", STATE_DEADLINE, || {
        socket.send(b"ping").expect("it goes out");
        came += socket.recv(&mut [0; 64]).expect("an answer");
        went += b"ping".len();
        let counted = counts(node, port, "udp").ok_or("no such port")?;
        let is_all = (counted.bytes_in, counted.bytes_out, counted.open) == (went, came, 1);
        if is_all { Ok(counted) } else { Err(format!("{counted:?}, not {went} and {came}")) }
    });
    // There is more than one only if the machine stood still for as long as a flow may be silent.
    assert!(counted.connections >= 1 && counted.refused == 0, "{counted:?}");
    await_counts(node, port, "udp", Counts { open: 0, ..counted });
}

#[test]
fn what_moves_through_a_port_is_counted_while_it_moves() {
    let (node, ports, ip) = (Node::start(), Ports::free(), "127.0.0.1");
    let manifest = ports.manifest("").replace("idle = '2s'", &format!("idle = '{FLOW_IDLE}'"));
    node.try_push(&project(&node, SERVER, &manifest), NAME).succeeded();
    let mut expected = Counts::default();
    await_counts(&node, ports.tcp, "tcp", expected);

    // Bytes are counted while both connections are there, copied and through the kernel, and after
    // them.
    let mut long = Talk::open(ip, ports.tcp).expect("a connection");
    say(&mut long, "hello", &mut expected);
    (expected.connections, expected.open) = (1, 1);
    await_counts(&node, ports.tcp, "tcp", expected);
    let info = node.cortex(&["info", "-a", NAME]);
    let shown = format!("(1 open, 6 B in, {} B out)", expected.bytes_out);
    assert!(info.contains(&shown), "{shown}: {info}");
    say(&mut long, &"x".repeat(LONG_LINE), &mut expected);
    await_counts(&node, ports.tcp, "tcp", expected);
    let mut short = Talk::open(ip, ports.tcp).expect("a connection");
    say(&mut short, "hello", &mut expected);
    (expected.connections, expected.open) = (2, 2);
    await_counts(&node, ports.tcp, "tcp", expected);
    let info: serde_json::Value =
        serde_json::from_str(&node.cortex(&["info", "--json", "-a", NAME])).expect("JSON");
    let shown = &info["ports"][0]["traffic"];
    assert_eq!((&shown["connections"], &shown["open"]), (&2.into(), &2.into()), "{info}");
    assert_eq!(shown["bytes_in"], expected.bytes_in, "{info}");
    assert_eq!(shown["bytes_out"], expected.bytes_out, "{info}");
    for talk in [short, long] {
        finish(talk, &mut expected);
        await_counts(&node, ports.tcp, "tcp", expected);
    }
    assert_flow_counts(&node, ip, ports.udp);

    // No instance is there: datagrams are refused at once, connections after a while.
    node.cortex(&["scale", "broker=0", "-a", NAME]);
    let socket = UdpSocket::bind((ip, 0)).expect("a port of its own");
    wait_until("a datagram to be refused", || {
        socket.send_to(b"ping", (ip, ports.udp)).expect("it goes out");
        counts(&node, ports.udp, "udp").is_some_and(|counted| counted.refused > 0)
    });
    ask(ip, ports.tcp, "hello").expect_err("there is no instance");
    expected.refused = 1;
    await_counts(&node, ports.tcp, "tcp", expected);

    node.cortex(&["apps", "destroy", NAME, "--yes"]);
    wait_until("the series to be gone", || !node.cortex(&["metrics"]).contains(NAME));
}

#[test]
fn what_another_node_passes_on_counts_where_the_client_came() {
    let ips @ [_, away] = ["127.0.0.93", "127.0.0.94"];
    let ports = Ports::free();
    let manifest = ports.manifest("persist = ['kept/']");
    let manifest = manifest.replace("idle = '2s'", &format!("idle = '{FLOW_IDLE}'"));
    let Two { one, two, .. } = Two::start(ips, SERVER, &manifest);
    // A push waits only for the node that was asked.
    let mut talk = wait_for("the port to be open", STATE_DEADLINE, || Talk::open(away, ports.tcp));
    let mut expected = Counts { connections: 1, open: 1, ..Counts::default() };
    say(&mut talk, "hello", &mut expected);
    await_counts(&two, ports.tcp, "tcp", expected);
    say(&mut talk, &"x".repeat(LONG_LINE), &mut expected);
    await_counts(&two, ports.tcp, "tcp", expected);
    finish(talk, &mut expected);
    await_counts(&two, ports.tcp, "tcp", expected);
    assert_flow_counts(&two, away, ports.udp);
    for (port, protocol) in [(ports.tcp, "tcp"), (ports.udp, "udp")] {
        assert_eq!(counts(&one, port, protocol), Some(Counts::default()), "{protocol}");
    }
}
