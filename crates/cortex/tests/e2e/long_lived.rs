//! What takes long while a node goes over to another binary: tunnels, connections to a port of the
//! application's own, an answer that is not yet whole. The process from before passes their bytes
//! on, and does nothing else.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;

use crate::machine::free_port;
use crate::node::{Node, kill_nine};
use crate::outside::Site;
use crate::project::of_files;
use crate::upgrade::{other_binary, pid};
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

const NAME: &str = "long";
/// The exit code that shells and attendants give a process that signal 9 ended.
const KILLED: i32 = 128 + 9;

/// A server that says each line again, on a port of its own and behind an upgrade, and whose
/// download waits for a file in its middle.
pub const SERVER: &str = r#"
import os, socket, threading, time

def again(reader, stream):
    for line in reader:
        stream.sendall(line)

def lines(stream):
    again(stream.makefile("rb"), stream)

def web(stream):
    reader = stream.makefile("rb")
    while True:
        asked = reader.readline()
        while asked and reader.readline() not in (b"\r\n", b""):
            pass
        if not asked:
            return
        if asked.startswith(b"GET /socket"):
            stream.sendall(b"HTTP/1.1 101 Switching Protocols\r\n"
                           b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            return again(reader, stream)
        if asked.startswith(b"GET /download"):
            stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf")
            while not os.path.exists("GO"):
                time.sleep(0.02)
            stream.sendall(b"rest")
        else:
            stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")

def one(stream, handle):
    with stream:
        try:
            handle(stream)
        except OSError:
            pass

def serve(port, handle):
    listener = socket.create_server((os.environ["HOST"], int(port)), backlog=128)
    while True:
        stream, _ = listener.accept()
        threading.Thread(target=one, args=(stream, handle), daemon=True).start()

if "LINES_PORT" in os.environ:
    threading.Thread(target=serve, args=(os.environ["LINES_PORT"], lines), daemon=True).start()
serve(os.environ["PORT"], web)
"#;

struct Talk(BufReader<TcpStream>);

impl Talk {
    fn open(port: u16) -> Talk {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        stream.set_read_timeout(Some(STATE_DEADLINE)).expect("a time limit");
        Talk(BufReader::new(stream))
    }

    fn ask(site: &Site, path: &str, fields: &str) -> Talk {
        let mut talk = Talk::open(site.port);
        talk.say(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\n{fields}\r", site.host));
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            assert!(talk.0.read_line(&mut line).expect("a head") > 0, "it ends in its head");
        }
        talk
    }

    fn say(&mut self, line: &str) {
        writeln!(self.0.get_mut(), "{line}").expect("it can be said");
    }

    fn hear(&mut self, length: usize) -> String {
        let mut heard = vec![0; length];
        self.0.read_exact(&mut heard).expect("so many bytes");
        String::from_utf8(heard).expect("text")
    }

    fn is_answered(&mut self, line: &str) {
        self.say(line);
        assert_eq!(self.hear(line.len() + 1), format!("{line}\n"));
    }

    /// Waits for its end, however it ends.
    fn ended(mut self) {
        let mut rest = Vec::new();
        if let Err(error) = self.0.read_to_end(&mut rest) {
            assert!(error.kind() != std::io::ErrorKind::WouldBlock, "it goes on");
        }
    }
}

fn start() -> (Node, Site, u16) {
    let node = Node::start();
    let (project, lines) = (node.path(NAME), free_port());
    let go = node.path("go");
    let server = SERVER.replace("GO", go.to_str().expect("text"));
    let manifest = format!(
        "[processes]\nweb = 'python3 bin/server.py'\n\
         [[ports]]\nport = {lines}\nenv = 'LINES_PORT'\n"
    );
    of_files(&project, &[("bin/server.py", &server), ("cortex.toml", &manifest)]);
    let site = node.push(&project, NAME);
    (node, site, lines)
}

fn upgrade(node: &Node, marker: &str) {
    let next = other_binary(node.directory.path(), marker);
    let before = pid(node);
    node.cortex(&["upgrade", "--binary", next.to_str().expect("text")]);
    assert!(pid(node) != before, "another process runs the node");
}

/// Returns what a process has open, as the kernel names it.
fn open_files(pid: u32) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives").flatten();
    let named = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    named.map(|path| path.to_string_lossy().into_owned()).collect()
}

/// Waits until a process has neither a socket that listens nor a file of the node's store open.
pub fn await_let_go(pid: u32, data: &Path) {
    let table = fs::read_to_string("/proc/net/tcp").expect("the sockets of this machine");
    let fields = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let listening: Vec<String> = fields
        .filter(|fields| fields.get(3) == Some(&"0A"))
        .map(|fields| format!("socket:[{}]", fields[9]))
        .collect();
    let store = data.join("store");
    wait_for("all else to be let go of", STATE_DEADLINE, || {
        let mut open = open_files(pid);
        open.retain(|name| Path::new(name).starts_with(&store) || listening.contains(name));
        if open.is_empty() { Ok(()) } else { Err(format!("{open:#?}")) }
    });
}

#[test]
fn connections_outlive_upgrades_and_end_with_the_node() {
    let (mut node, site, lines) = start();
    let upgrade_to = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
    let mut socket = Talk::ask(&site, "/socket", upgrade_to);
    let mut own = Talk::open(lines);
    let mut download = Talk::ask(&site, "/download", "");
    assert_eq!(download.hear(4), "half");
    let mut idle = Talk::ask(&site, "/", "");
    assert_eq!(idle.hear(5), "hello");
    socket.is_answered("before");
    own.is_answered("before");

    upgrade(&node, "second");
    let first = node.pid();
    // Whoever asks for nothing is ended in time: this process no longer knows who is to be asked.
    idle.ended();
    await_let_go(first, &node.data());
    socket.is_answered("after it");
    own.is_answered("after it");
    fs::write(node.path("go"), "").expect("the word");
    assert_eq!(download.hear(4), "rest");

    let mut second = Talk::ask(&site, "/socket", upgrade_to);
    second.is_answered("to the second process");
    upgrade(&node, "third");
    for talk in [&mut socket, &mut own, &mut second] {
        talk.is_answered("after two");
    }
    await_let_go(first, &node.data());
    Talk::ask(&site, "/socket", upgrade_to).is_answered("to the third process");
    node.down();
    [socket, own, second].into_iter().for_each(Talk::ended);
}

#[test]
fn process_that_was_started_tells_of_the_nodes_end_whatever_it_still_carries() {
    let (mut node, site, _) = start();
    let fields = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
    let mut socket = Talk::ask(&site, "/socket", fields);
    upgrade(&node, "second");
    let mut later = Talk::ask(&site, "/socket", fields);
    upgrade(&node, "third");
    socket.is_answered("by the first process");
    later.is_answered("by the second one");
    kill_nine(u32::try_from(pid(&node)).expect("a pid"));
    assert_eq!(node.ended().code(), Some(KILLED));
    socket.ended();
    later.ended();
    node.up();
    wait_until("it to answer", || site.try_get("/").is_ok_and(|answer| answer.status == 200));
    node.down();
}
