//! The application behind the ports, and clients of it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::fixtures::cluster::{Location, cluster_at, id_of};
use crate::machine::free_port;
use crate::node::Node;
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

pub const NAME: &str = "lines";
/// The time limit for an answer, longer than any takes; reached only when something is wrong.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

/// A server that says each line again, and a word when the client has said its last.
pub const SERVER: &str = r#"
import os, socket, socketserver, sys, threading

if os.getcwd().startswith("NOT_BELOW"):
    sys.exit("not on this machine")

VERSION = "one"
SLOT = os.environ["CORTEX_SLOT"]

class Lines(socketserver.StreamRequestHandler):
    def handle(self):
        try:
            for line in self.rfile:
                self.wfile.write(f"{VERSION} {SLOT} ".encode() + line)
            self.wfile.write(b"bye\n")
        except OSError:
            pass

class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

def datagrams():
    endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    endpoint.bind((os.environ["HOST"], int(os.environ["ECHO_PORT"])))
    while True:
        data, peer = endpoint.recvfrom(65536)
        endpoint.sendto(f"{VERSION} {SLOT} ".encode() + data, peer)

def told():
    Server((os.environ["HOST"], int(os.environ["TOLD_PORT"])), Lines).serve_forever()

threading.Thread(target=datagrams, daemon=True).start()
threading.Thread(target=told, daemon=True).start()
Server((os.environ["HOST"], int(os.environ["LINES_PORT"])), Lines).serve_forever()
"#;

/// A server that does what a line says, and says each other line again.
const PLAIN_SERVER: &str = r#"
import os, socket, socketserver, struct, sys, threading, time

if os.getcwd().startswith("NOT_BELOW"):
    sys.exit("not on this machine")

ANNOUNCED = "TOLD_PORT" in os.environ
endings = {}

def address(ip, port):
    return f"{socket.inet_ntoa(ip)}:{port}"

def header(reader):
    """Of the PROXY protocol, version 2, for TCP over IPv4, without extensions."""
    fixed = reader.read(16)
    if fixed[:12] != b"\r\n\r\n\0\r\nQUIT\n" or fixed[12:] != b"\x21\x11\0\x0c":
        return f"no header: {fixed!r}"
    client, to, client_port, to_port = struct.unpack("!4s4sHH", reader.read(12))
    return f"{address(client, client_port)} to {address(to, to_port)}"

class Lines(socketserver.StreamRequestHandler):
    def say(self, line):
        self.wfile.write(line.encode() + b"\n")

    def tell(self, enough):
        while not enough.is_set():
            self.say("told")
            time.sleep(0.02)
        self.say("enough")

    def handle(self):
        name, ending, enough = None, "an end", threading.Event()
        try:
            if ANNOUNCED:
                self.say(header(self.rfile))
            for line in self.rfile:
                word, _, rest = line.decode().strip().partition(" ")
                if word == "name":
                    name = rest
                if word == "ending":
                    self.say(endings.get(rest, "none"))
                elif word == "tell":
                    threading.Thread(target=self.tell, args=[enough], daemon=True).start()
                elif word == "enough":
                    enough.set()
                elif word == "reset":
                    linger = struct.pack("ii", 1, 0)
                    self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self.rfile.close()
                    self.request.close()
                    return
                elif word != "quiet":
                    self.say(line.decode().strip())
            self.say("bye")
        except ConnectionResetError:
            ending = "a reset"
        except OSError as error:
            ending = str(error)
        enough.set()
        endings[name] = ending

class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

port = os.environ.get("TOLD_PORT") or os.environ["PORT"]
Server((os.environ["HOST"], int(port)), Lines).serve_forever()
"#;

pub struct Ports {
    pub tcp: u16,
    pub udp: u16,
    /// The port whose instances hear who asks.
    pub told: u16,
}

impl Ports {
    pub fn free() -> Ports {
        Ports { tcp: free_port(), udp: free_port(), told: free_port() }
    }

    pub fn manifest(&self, more: &str) -> String {
        let Ports { tcp, udp, told } = self;
        format!(
            "stop_grace = '20s'\n{more}\n[processes]\n\
             broker = {{ command = 'python3 bin/broker.py', count = 2 }}\n\
             [[ports]]\nport = {tcp}\nprocess = 'broker'\nenv = 'LINES_PORT'\n\
             [[ports]]\nport = {udp}\nprotocol = 'udp'\nprocess = 'broker'\nenv = 'ECHO_PORT'\n\
             idle = '2s'\n\
             [[ports]]\nport = {told}\nprocess = 'broker'\nenv = 'TOLD_PORT'\n\
             proxy_protocol = 'v1'\n"
        )
    }
}

pub fn project(node: &Node, server: &str, manifest: &str) -> PathBuf {
    let project = node.path(NAME);
    of_files(&project, &[("bin/broker.py", server), ("cortex.toml", manifest)]);
    project
}

/// Two nodes, and an application that runs on the first of them alone.
pub struct Two {
    pub one: Node,
    pub two: Node,
    pub project: PathBuf,
}

impl Two {
    /// Starts both; the manifest must ask for some `persist`, as its files keep an application on
    /// the node to which it was pushed.
    pub fn start([near, away]: [&str; 2], server: &str, manifest: &str) -> Two {
        let [one, two] = cluster_at([near, away].map(|ip| (Location::Address(ip), &[][..])));
        let server = server.replace("NOT_BELOW", two.data().to_str().expect("text"));
        let project = project(&one, &server, manifest);
        one.try_push(&project, NAME).succeeded();
        let id = id_of(&two);
        let rows = one.ready(NAME, "broker");
        let apart = rows.iter().all(|row| row.node != id);
        assert!(apart && !rows.is_empty(), "it runs on one alone: {rows:?}");
        Two { one, two, project }
    }

    /// Starts both, with one instance of a server that does as it is told.
    pub fn start_plain(ips: [&str; 2], port: u16, more: &str) -> Two {
        let manifest = format!(
            "persist = ['kept/']\n[processes]\nbroker = 'python3 bin/broker.py'\n\
             [[ports]]\nport = {port}\nprocess = 'broker'\n{more}"
        );
        let nodes = Two::start(ips, PLAIN_SERVER, &manifest);
        // A push waits only for the node that was asked.
        wait_until("the port to be open on both nodes", || {
            ips.iter().all(|ip| TcpStream::connect((*ip, port)).is_ok())
        });
        nodes
    }
}

/// One connection, and what it hears for `line`.
pub struct Talk(pub BufReader<TcpStream>);

impl Talk {
    pub fn open(ip: &str, port: u16) -> Result<Talk, String> {
        let stream = TcpStream::connect((ip, port)).map_err(|e| format!("connecting: {e}"))?;
        stream.set_read_timeout(Some(ANSWER_TIME_MAX)).expect("a time limit");
        Ok(Talk(BufReader::new(stream)))
    }

    pub fn say(&mut self, line: &str) -> Result<String, String> {
        self.write(line)?;
        self.hear()
    }

    /// Sends a line for which nothing need come back.
    pub fn write(&mut self, line: &str) -> Result<(), String> {
        writeln!(self.0.get_mut(), "{line}").map_err(|e| format!("saying {line}: {e}"))
    }

    pub fn hear(&mut self) -> Result<String, String> {
        let mut answer = String::new();
        let count = self.0.read_line(&mut answer).map_err(|e| format!("hearing: {e}"))?;
        if count == 0 { Err("an end".into()) } else { Ok(answer.trim_end().to_owned()) }
    }

    /// Ends the connection; the server's last word comes after the client's.
    pub fn finish(mut self) -> Result<(), String> {
        self.0.get_ref().shutdown(Shutdown::Write).map_err(|e| format!("ending: {e}"))?;
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).map_err(|e| format!("the rest: {e}"))?;
        if rest == "bye\n" { Ok(()) } else { Err(format!("it ended with '{rest}'")) }
    }
}

pub fn ask(ip: &str, port: u16, line: &str) -> Result<String, String> {
    let mut talk = Talk::open(ip, port)?;
    let answer = talk.say(line)?;
    if !answer.ends_with(&format!(" {line}")) {
        return Err(format!("{line} became {answer}"));
    }
    talk.finish().map(|()| answer)
}

pub fn await_answer(ip: &str, port: u16, needle: &str) {
    wait_for("an answer", STATE_DEADLINE, || match ask(ip, port, "hello") {
        Ok(answer) if answer.contains(needle) => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

/// Sends a datagram and returns its answer, passing over answers to earlier ones. As datagrams may
/// be lost, callers repeat it.
pub fn send(ip: &str, port: u16, text: &str) -> Result<String, String> {
    let socket = UdpSocket::bind((ip, 0)).expect("a port of its own");
    socket.connect((ip, port)).expect("an address");
    socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a time limit");
    socket.send(text.as_bytes()).map_err(|e| format!("sending: {e}"))?;
    let mut answer = [0; 65_536];
    let count = socket.recv(&mut answer).map_err(|e| format!("receiving: {e}"))?;
    let answer = String::from_utf8_lossy(&answer[..count]).into_owned();
    if answer.ends_with(text) { Ok(answer) } else { Err(answer) }
}

pub fn await_datagram(ip: &str, port: u16, needle: &str) {
    wait_for("a datagram", STATE_DEADLINE, || match send(ip, port, "ping") {
        Ok(answer) if answer.contains(needle) => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

/// Connections one after the other, each with a number of its own.
pub struct Stream {
    ended: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: JoinHandle<Vec<String>>,
}

impl Stream {
    pub fn start(ip: &'static str, port: u16) -> Stream {
        let (ended, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stop, count) = (ended.clone(), done.clone());
        let thread = std::thread::spawn(move || {
            let mut failures = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let number = count.fetch_add(1, Ordering::Relaxed);
                if let Err(error) = ask(ip, port, &format!("number {number}")) {
                    failures.push(format!("{number}: {error}"));
                }
            }
            failures
        });
        Stream { ended, done, thread }
    }

    pub fn go_on(&self, more: u64) {
        let until = self.done.load(Ordering::Relaxed) + more;
        wait_until("more connections", || self.done.load(Ordering::Relaxed) >= until);
    }

    pub fn finish(self) -> (u64, Vec<String>) {
        self.ended.store(true, Ordering::Relaxed);
        let failures = self.thread.join().expect("it does not panic");
        (self.done.load(Ordering::Relaxed), failures)
    }

    pub fn finish_without_failure(self) {
        let (count, failures) = self.finish();
        assert!(failures.is_empty(), "{} of {count} failed: {failures:#?}", failures.len());
    }
}

/// Asserts that an instance that asked for it reads who connects, and to what, before anything
/// else.
pub fn assert_told(ip: &str, port: u16) {
    let mut talk = Talk::open(ip, port).expect("a connection");
    let at = talk.0.get_ref().local_addr().expect("it is connected");
    let said = talk.hear().expect("the header, said again");
    let (client, from) = (at.ip(), at.port());
    assert!(said.ends_with(&format!("PROXY TCP4 {client} {ip} {from} {port}")), "{said}");
    assert!(talk.say("hello").expect("an answer").ends_with("hello"));
    talk.finish().expect("an end in order");
}
