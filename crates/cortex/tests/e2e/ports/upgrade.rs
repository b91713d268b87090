//! Nodes that go over to another binary.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;

use super::world::{NAME, Ports, SERVER, Stream, Talk, Two, await_answer, await_datagram};
use crate::node::Node;
use crate::upgrade::other_binary;
use crate::wait::{space_out, wait_until};

/// The number of connections, so that some come before, while and after a node hands over.
const CONNECTIONS: u64 = 50;

/// A connection on which line after line is answered until it breaks.
struct Chat {
    answered: Arc<AtomicU64>,
    thread: JoinHandle<String>,
}

impl Chat {
    fn start(ip: &str, port: u16) -> Chat {
        let (mut talk, answered) = (Talk::open(ip, port).expect("a connection"), Arc::default());
        let counted: Arc<AtomicU64> = Arc::clone(&answered);
        let thread = std::thread::spawn(move || {
            loop {
                let line = format!("number {}", counted.load(Ordering::Relaxed));
                match talk.say(&line) {
                    Ok(answer) => assert!(answer.ends_with(&line), "{line} became {answer}"),
                    Err(error) => return error,
                }
                counted.fetch_add(1, Ordering::Relaxed);
                space_out(Duration::from_millis(10));
            }
        });
        Chat { answered, thread }
    }

    fn go_on(&self) {
        let until = self.answered.load(Ordering::Relaxed) + 2;
        wait_until("more answers", || {
            assert!(!self.thread.is_finished(), "it has been ended");
            self.answered.load(Ordering::Relaxed) >= until
        });
    }
}

fn pids(node: &Node) -> Vec<Option<u32>> {
    let mut pids: Vec<_> = node.ready(NAME, "broker").iter().map(|row| row.pid).collect();
    pids.sort_unstable();
    pids
}

#[test]
fn no_connection_is_refused_while_nodes_hand_over() {
    let ips = ["127.0.0.91", "127.0.0.92"];
    let ports = Ports::free();
    let nodes = Two::start(ips, SERVER, &ports.manifest("persist = ['kept/']"));
    nodes.one.await_ready(NAME, "broker", 2);
    let before = pids(&nodes.one);
    for ip in ips {
        await_answer(ip, ports.tcp, "one");
        await_datagram(ip, ports.udp, "one");
    }
    let chats = ips.map(|ip| Chat::start(ip, ports.tcp));
    chats.iter().for_each(Chat::go_on);
    let streams = ips.map(|ip| Stream::start(ip, ports.tcp));
    streams.iter().for_each(|stream| stream.go_on(CONNECTIONS));
    let next = other_binary(nodes.one.directory.path(), "next");
    nodes.one.cortex(&["upgrade", "--binary", next.to_str().expect("text")]);
    chats.iter().for_each(Chat::go_on);
    streams.iter().for_each(|stream| stream.go_on(CONNECTIONS));
    streams.into_iter().for_each(Stream::finish_without_failure);
    for ip in ips {
        await_datagram(ip, ports.udp, "one");
    }
    assert_eq!(pids(&nodes.one), before, "the same processes");
    chats.iter().for_each(Chat::go_on);
    // They end with the nodes, and not as if the instance had said its last.
    for node in [&nodes.two, &nodes.one] {
        node.signal(Signal::TERM);
    }
    for chat in chats {
        let error = chat.thread.join().expect("it does not panic");
        assert!(error.contains("Connection reset"), "{error}");
    }
}
