//! Ten thousand connections that ask for nothing.

use std::fs;
use std::net::TcpStream;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::node::Node;
use crate::outside::Connection;
use crate::project::{copy_of_example, of_files};
use crate::wait::wait_until;

const CONNECTIONS: usize = 10_000;
/// The most memory for each connection: a buffer alone would take 16 KiB, and what is kept of one
/// takes 5 without optimisation.
const BYTES_EACH_MAX: usize = 8 * 1024;

/// Returns the resident memory of a process in bytes.
fn resident(pid: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("the kernel says");
    let kib: usize = line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap();
    kib * 1024
}

#[test]
fn idle_connections_hold_no_buffers() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let node = Node::start();
    let project = node.path("site");
    copy_of_example("static", &project);
    // The idle limit is longer than a loaded machine takes to open all connections.
    of_files(&project, &[("cortex.toml", "[requests]\nidle = '1000s'\n")]);
    let site = node.push(&project, "site");
    let pid = node.pid();
    // What is set up once is no part of the comparison.
    let mut first: Vec<Connection> = (0..100).map(|_| Connection::open(&site).unwrap()).collect();
    for connection in &mut first {
        connection.request("GET", "/", &[], b"").unwrap().assert_ok("A static site");
    }
    let before = resident(pid);
    let mut asked = Vec::new();
    let mut silent = Vec::new();
    while asked.len() + silent.len() < CONNECTIONS {
        let mut connection = Connection::open(&site).unwrap();
        connection.request("GET", "/", &[], b"").unwrap().assert_ok("A static site");
        asked.push(connection);
        silent.push(TcpStream::connect(("127.0.0.1", site.port)).unwrap());
    }
    wait_until("nothing but a little memory for each", || {
        resident(pid).saturating_sub(before) < CONNECTIONS * BYTES_EACH_MAX
    });
    // All connections are still there.
    for connection in &mut asked {
        connection.request("GET", "/", &[], b"").unwrap().assert_ok("A static site");
    }
    for stream in &silent {
        stream.set_nonblocking(true).unwrap();
        let nothing = stream.peek(&mut [0]).unwrap_err();
        assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    }
    let held = resident(pid).saturating_sub(before);
    assert!(held < CONNECTIONS * BYTES_EACH_MAX, "{held} bytes");
}
