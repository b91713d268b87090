//! Datagrams by flow: a client keeps its back end, answers come back, and a back end that is gone
//! is replaced.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use rustix::process::Signal;

use super::world::Proxy;
use crate::wait::{STATE_DEADLINE, wait_for};

/// Starts a server that answers every datagram with its name and what it was sent. It ends with the
/// test.
pub fn echo(name: &'static str, port: u16) -> u16 {
    let socket = UdpSocket::bind(("127.0.0.1", port)).unwrap();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while let Ok((count, from)) = socket.recv_from(&mut buffer) {
            if &buffer[..count] == b"end" {
                return;
            }
            let answer = [name.as_bytes(), b" ", &buffer[..count]].concat();
            socket.send_to(&answer, from).ok();
        }
    });
    port
}

pub fn client(proxy: &Proxy) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(proxy.address()).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    socket
}

/// Asks until there is an answer, as datagrams may be lost.
pub fn ask(socket: &UdpSocket, question: &str) -> String {
    let mut buffer = [0; 65_536];
    wait_for("an answer", STATE_DEADLINE, || {
        socket.send(question.as_bytes()).map_err(|error| error.to_string())?;
        loop {
            let count = socket.recv(&mut buffer).map_err(|error| error.to_string())?;
            let answer = String::from_utf8_lossy(&buffer[..count]).into_owned();
            // Late answers belong to earlier questions.
            if answer.ends_with(question) {
                return Ok(answer);
            }
        }
    })
}

#[test]
fn the_first_datagram_of_a_client_is_answered() {
    let port = echo("a", 0).to_string();
    let proxy = Proxy::start(&["--mode", "udp", "--to", &port]);
    for number in 0..20 {
        let (socket, mut buffer) = (client(&proxy), [0; 64]);
        socket.set_read_timeout(Some(STATE_DEADLINE)).unwrap();
        let question = format!("question {number}");
        socket.send(question.as_bytes()).unwrap();
        let count = socket.recv(&mut buffer).expect("it is not sent twice");
        assert!(String::from_utf8_lossy(&buffer[..count]).ends_with(&question));
    }
}

#[test]
fn a_client_keeps_its_back_end_until_that_is_gone() {
    let (a, b) = (echo("a", 0), echo("b", 0));
    let to = format!("{a},{b}");
    let proxy = Proxy::start(&["--mode", "udp", "--to", &to, "--strategy", "round-robin"]);
    let clients: Vec<UdpSocket> = (0..4).map(|_| client(&proxy)).collect();
    let of = |socket: &UdpSocket, question: &str| ask(socket, question)[..1].to_string();
    let first: Vec<String> = clients.iter().map(|one| of(one, "first")).collect();
    assert!(first.contains(&"a".into()) && first.contains(&"b".into()), "{first:?}");
    for round in 0..5 {
        let again: Vec<String> =
            clients.iter().map(|one| of(one, &format!("round {round}"))).collect();
        assert_eq!(again, first);
    }
    // The kernel says that nothing listens there; the next datagrams go to the other one.
    UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"end", ("127.0.0.1", a)).unwrap();
    for one in &clients {
        wait_for("the one that is left", STATE_DEADLINE, || {
            let answer = of(one, "again");
            if answer == "b" { Ok(()) } else { Err(answer) }
        });
    }
    let flows: u64 =
        proxy.change(&["list"]).iter().filter_map(|row| row["in_flight"].as_u64()).sum();
    assert!(flows >= 4, "one for each client: {flows}");
}

#[test]
fn flows_that_are_quiet_are_forgotten_and_large_datagrams_pass() {
    let port = echo("a", 0);
    let to = port.to_string();
    let proxy = Proxy::start(&["--mode", "udp", "--to", &to, "--idle", "0.5"]);
    let socket = client(&proxy);
    let large = "x".repeat(60_000);
    assert_eq!(ask(&socket, &large).len(), large.len() + 2);
    wait_for("the flow to be forgotten", STATE_DEADLINE, || {
        let rows = proxy.change(&["list"]);
        if rows[0]["in_flight"] == 0 { Ok(()) } else { Err(format!("{rows:?}")) }
    });
    assert_eq!(ask(&socket, "once more"), "a once more");
    // Another process goes on with the socket.
    let next = proxy.successor(&["--mode", "udp", "--to", &to]);
    assert_eq!(ask(&socket, "to the next"), "a to the next");
    assert_eq!(ask(&client(&next), "of the next"), "a of the next");
    proxy_ends(proxy);
}

/// Asserts that flows keep nobody waiting at the end, as they say nowhere that they have ended.
#[test]
fn a_proxy_that_is_told_to_end_waits_for_answers_under_way_alone() {
    let port = echo("a", 0).to_string();
    let mut proxy = Proxy::start(&["--mode", "udp", "--to", &port]);
    let socket = client(&proxy);
    assert_eq!(ask(&socket, "hello"), "a hello");
    // The proxy whose connection lives is told first, and goes on when the other has ended.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().port().to_string();
    let mut other = Proxy::start(&["--mode", "tcp", "--to", &to]);
    let _connection = (TcpStream::connect(other.address()).unwrap(), listener.accept().unwrap());
    other.signal(Signal::INT);
    proxy.signal(Signal::INT);
    assert!(proxy.ended().success());
    assert!(other.runs());
    other.signal(Signal::INT);
    assert!(other.ended().success(), "said twice, it is at once");
}

#[test]
fn an_answer_under_way_comes_before_the_end_and_silence_is_not_waited_for() {
    let back_end = UdpSocket::bind("127.0.0.1:0").unwrap();
    back_end.set_read_timeout(Some(STATE_DEADLINE)).unwrap();
    let to = back_end.local_addr().unwrap().port().to_string();
    let mut proxy = Proxy::start(&["--mode", "udp", "--to", &to]);
    let (socket, mut buffer) = (client(&proxy), [0; 64]);
    socket.set_read_timeout(Some(STATE_DEADLINE)).unwrap();
    socket.send(b"question").unwrap();
    let (count, from) = back_end.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..count], b"question");
    proxy.signal(Signal::TERM);
    back_end.send_to(b"answer", from).unwrap();
    let count = socket.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..count], b"answer");
    assert!(proxy.ended().success());

    let mut proxy = Proxy::start(&["--mode", "udp", "--to", &to]);
    client(&proxy).send(b"for the log").unwrap();
    back_end.recv_from(&mut buffer).unwrap();
    proxy.signal(Signal::TERM);
    assert!(proxy.ended().success());
}

fn proxy_ends(mut proxy: Proxy) {
    assert!(proxy.ended().success());
}
