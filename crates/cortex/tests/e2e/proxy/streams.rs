//! Whole connections: halves end for themselves, long ones stay whole, a back end that is gone is
//! passed over, and the PROXY protocol says who connects.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::JoinHandle;

use rustix::process::Signal;

use super::world::{LIMIT, Proxy, read_to_end};
use crate::machine::free_port;
use crate::wait::{STATE_DEADLINE, wait_for};

/// Starts a server of one connection that reads to the end of the other's half, and only then
/// answers.
fn answers_once(answer: impl Fn(&[u8]) -> Vec<u8> + Send + 'static) -> (u16, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let asked = read_to_end(&stream).unwrap();
        stream.write_all(&answer(&asked)).unwrap();
        asked
    });
    (port, serving)
}

fn ask(proxy: &Proxy, question: &[u8]) -> (TcpStream, Vec<u8>) {
    let stream = TcpStream::connect(proxy.address()).unwrap();
    let mut writing = stream.try_clone().unwrap();
    let question = question.to_vec();
    let sending = std::thread::spawn(move || {
        writing.write_all(&question).unwrap();
        writing.shutdown(Shutdown::Write).unwrap();
    });
    let answer = read_to_end(&stream).unwrap();
    sending.join().unwrap();
    (stream, answer)
}

#[test]
fn a_long_exchange_is_whole_and_each_half_ends_for_itself() {
    let reversed = |asked: &[u8]| asked.iter().rev().copied().collect::<Vec<u8>>();
    let (port, serving) = answers_once(reversed);
    let proxy = Proxy::start(&["--mode", "tcp", "--to", &port.to_string()]);
    let question: Vec<u8> = (0..20_000_000u32).map(|at| (at % 251) as u8).collect();
    let (_, answer) = ask(&proxy, &question);
    assert!(serving.join().unwrap() == question, "what the server got");
    assert!(answer == reversed(&question), "what the client got");
}

#[test]
fn a_back_end_that_is_not_there_is_passed_over() {
    let (port, serving) = answers_once(|_| b"here".to_vec());
    let dead = free_port();
    let to = format!("{dead},{port}");
    let options = ["--mode", "tcp", "--to", &to, "--strategy", "round-robin"];
    let proxy = Proxy::start(&options);
    assert_eq!(ask(&proxy, b"anybody?").1, b"here");
    serving.join().unwrap();
    // No back end is left now: the client is told by a reset, and the proxy goes on.
    let stream = TcpStream::connect(proxy.address()).unwrap();
    assert!(read_to_end(&stream).is_err(), "nothing that looks like an answer");
    let listener = TcpListener::bind(("127.0.0.1", dead)).unwrap();
    wait_for("the one that came back to be asked", STATE_DEADLINE, || {
        listener.set_nonblocking(true).unwrap();
        let stream = TcpStream::connect(proxy.address()).map_err(|error| error.to_string())?;
        stream.shutdown(Shutdown::Write).ok();
        listener.accept().map(drop).map_err(|error| error.to_string())
    });
}

#[test]
fn a_reset_reaches_the_other_side_as_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let proxy = Proxy::start(&["--mode", "tcp", "--to", &port.to_string()]);
    let mut client = TcpStream::connect(proxy.address()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.write_all(b"half of it").unwrap();
    let mut start = [0; 10];
    client.read_exact(&mut start).unwrap();
    socket2::SockRef::from(&server).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(server);
    assert!(read_to_end(&client).is_err(), "the client must not take it for the whole");
}

#[test]
fn silence_ends_a_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let proxy = Proxy::start(&["--mode", "tcp", "--to", &port, "--idle", "0.2", "--stats"]);
    let client = TcpStream::connect(proxy.address()).unwrap();
    let (server, _) = listener.accept().unwrap();
    assert!(read_to_end(&client).is_err() && read_to_end(&server).is_err());
}

#[test]
fn the_proxy_protocol_passes_from_proxy_to_proxy() {
    // The second one reads version 2 of the first, and passes it on in version 1.
    let (port, serving) = answers_once(|_| b"known".to_vec());
    let to = port.to_string();
    let second = ["--mode", "tcp", "--to", &to, "--accept-proxy", "--send-proxy", "v1"];
    let second = Proxy::start(&second);
    let to = second.port.to_string();
    let first = Proxy::start(&["--mode", "tcp", "--to", &to, "--send-proxy", "v2"]);
    let (stream, answer) = ask(&first, b"who am I?");
    assert_eq!(answer, b"known");
    let asked = String::from_utf8(serving.join().unwrap()).unwrap();
    let own = stream.local_addr().unwrap().port();
    let line = format!("PROXY TCP4 127.0.0.1 127.0.0.1 {own} {}\r\nwho am I?", first.port);
    assert_eq!(asked, line);

    // A client that sends no header is not let in.
    let mut stranger = TcpStream::connect(second.address()).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(read_to_end(&stranger).is_err());
}

#[test]
fn every_connection_is_recorded_and_summed_up() {
    let (port, serving) = answers_once(|_| b"answer".to_vec());
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("records");
    let path = file.to_str().unwrap();
    let to = port.to_string();
    let options = ["--mode", "tcp", "--to", &to, "--records", path, "--stats"];
    let proxy = Proxy::start(&options);
    let (stream, _) = ask(&proxy, b"question");
    serving.join().unwrap();
    let line: serde_json::Value = wait_for("the record", STATE_DEADLINE, || {
        let text = std::fs::read_to_string(&file).unwrap();
        serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))
    });
    let client = stream.local_addr().unwrap().to_string();
    let expected = serde_json::json!([client, format!("127.0.0.1:{port}"), "closed", 8, 6]);
    let fields = ["client", "back_end", "status", "bytes_in", "bytes_out"];
    assert_eq!(serde_json::json!(fields.map(|name| line[name].clone())), expected);
    assert!(line["start"].as_str().unwrap() < line["end"].as_str().unwrap(), "{line}");

    proxy.signal(Signal::USR1);
    wait_for("the figures so far", STATE_DEADLINE, || {
        let said = proxy.said("out");
        if said.contains("PER SECOND") { Ok(()) } else { Err(said) }
    });
    let said = proxy.end();
    let last = said.lines().last().unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(&last[..3], ["all", "1", "0"], "{said}");
}
