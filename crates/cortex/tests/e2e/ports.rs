//! Ports that speak something else than HTTP: unmodified servers of lines and of datagrams behind
//! the router, through rollouts, deaths and rollbacks, on nodes that run them and on one that does
//! not.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;

use crate::machine::{free_port, kill};
use crate::node::Node;
use crate::project::{edit, of_files};
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

const NAME: &str = "lines";
/// More than sockets on the way hold.
const LONG_LINE: usize = 8 << 20;
/// Longer than any answer takes; reached only when something is wrong.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

/// Says each line again, and a word when the client has said its last.
const SERVER: &str = r#"
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

struct Ports {
    tcp: u16,
    udp: u16,
    /// Its instances hear who asks.
    told: u16,
}

impl Ports {
    fn free() -> Ports {
        Ports { tcp: free_port(), udp: free_port(), told: free_port() }
    }

    fn manifest(&self, more: &str) -> String {
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

fn project(node: &Node, ports: &Ports, server: &str, more: &str) -> PathBuf {
    let project = node.path(NAME);
    of_files(&project, &[("bin/broker.py", server), ("cortex.toml", &ports.manifest(more))]);
    project
}

/// One connection, and what it hears for `line`.
struct Talk(BufReader<TcpStream>);

impl Talk {
    fn open(ip: &str, port: u16) -> Result<Talk, String> {
        let stream = TcpStream::connect((ip, port)).map_err(|e| format!("connecting: {e}"))?;
        stream.set_read_timeout(Some(ANSWER_TIME_MAX)).expect("a time limit");
        Ok(Talk(BufReader::new(stream)))
    }

    fn say(&mut self, line: &str) -> Result<String, String> {
        writeln!(self.0.get_mut(), "{line}").map_err(|e| format!("saying {line}: {e}"))?;
        self.hear()
    }

    fn hear(&mut self) -> Result<String, String> {
        let mut answer = String::new();
        let count = self.0.read_line(&mut answer).map_err(|e| format!("hearing: {e}"))?;
        if count == 0 { Err("an end".into()) } else { Ok(answer.trim_end().to_owned()) }
    }

    /// The server's last word comes after the client's.
    fn finish(mut self) -> Result<(), String> {
        self.0.get_ref().shutdown(Shutdown::Write).map_err(|e| format!("ending: {e}"))?;
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).map_err(|e| format!("the rest: {e}"))?;
        if rest == "bye\n" { Ok(()) } else { Err(format!("it ended with '{rest}'")) }
    }
}

fn ask(ip: &str, port: u16, line: &str) -> Result<String, String> {
    let mut talk = Talk::open(ip, port)?;
    let answer = talk.say(line)?;
    if !answer.ends_with(&format!(" {line}")) {
        return Err(format!("{line} became {answer}"));
    }
    talk.finish().map(|()| answer)
}

fn await_answer(ip: &str, port: u16, needle: &str) {
    wait_for("an answer", STATE_DEADLINE, || match ask(ip, port, "hello") {
        Ok(answer) if answer.contains(needle) => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

/// Datagrams may be lost, so it asks again; answers to what it asked before are passed over.
fn send(ip: &str, port: u16, text: &str) -> Result<String, String> {
    let socket = UdpSocket::bind((ip, 0)).expect("a port of its own");
    socket.connect((ip, port)).expect("an address");
    socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a time limit");
    socket.send(text.as_bytes()).map_err(|e| format!("sending: {e}"))?;
    let mut answer = [0; 65_536];
    let count = socket.recv(&mut answer).map_err(|e| format!("receiving: {e}"))?;
    let answer = String::from_utf8_lossy(&answer[..count]).into_owned();
    if answer.ends_with(text) { Ok(answer) } else { Err(answer) }
}

fn await_datagram(ip: &str, port: u16, needle: &str) {
    wait_for("a datagram", STATE_DEADLINE, || match send(ip, port, "ping") {
        Ok(answer) if answer.contains(needle) => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

/// Connections one after the other, each with a number of its own.
struct Stream {
    ended: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: JoinHandle<Vec<String>>,
}

impl Stream {
    fn start(ip: &'static str, port: u16) -> Stream {
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

    fn go_on(&self, more: u64) {
        let until = self.done.load(Ordering::Relaxed) + more;
        wait_until("more connections", || self.done.load(Ordering::Relaxed) >= until);
    }

    fn finish(self) -> (u64, Vec<String>) {
        self.ended.store(true, Ordering::Relaxed);
        let failures = self.thread.join().expect("it does not panic");
        (self.done.load(Ordering::Relaxed), failures)
    }

    fn finish_without_failure(self) {
        let (count, failures) = self.finish();
        assert!(failures.is_empty(), "{} of {count} failed: {failures:#?}", failures.len());
    }
}

#[test]
fn ports_lead_to_ready_instances_of_the_serving_release() {
    let ip = "127.0.0.1";
    let node = Node::start();
    let ports = Ports::free();
    let project = project(&node, &ports, SERVER, "");
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

    // One dies: the other takes what comes, and it comes back.
    let killed = node.ready(NAME, "broker").remove(0);
    kill(killed.pid.expect("it runs"), Signal::KILL);
    await_answer(ip, tcp, "two");
    let rows = node.await_ready(NAME, "broker", 2);
    assert!(rows.iter().all(|row| row.pid != killed.pid));
    for slot in ["two 1", "two 2"] {
        await_answer(ip, tcp, slot);
    }

    // Other numbers; a rollback brings the old ones back.
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

/// An instance that asked for it reads who connects, and to what, before anything else.
fn assert_told(ip: &str, port: u16) {
    let mut talk = Talk::open(ip, port).expect("a connection");
    let at = talk.0.get_ref().local_addr().expect("it is connected");
    let said = talk.hear().expect("the header, said again");
    let (client, from) = (at.ip(), at.port());
    assert!(said.ends_with(&format!("PROXY TCP4 {client} {ip} {from} {port}")), "{said}");
    assert!(talk.say("hello").expect("an answer").ends_with("hello"));
    talk.finish().expect("an end in order");
}

#[test]
fn a_node_without_an_instance_serves_the_port_too() {
    let (near, away) = ("127.0.0.81", "127.0.0.82");
    let one = Node::start_on(near, &["--listen", &format!("127.0.0.1:{}", free_port())]);
    let invitation = one.cortex(&["store", "invite"]);
    let listen = format!("127.0.0.1:{}", free_port());
    let two = Node::start_on(away, &["--listen", &listen, "--join", invitation.trim()]);
    let ports = Ports::free();
    let server = SERVER.replace("NOT_BELOW", two.data().to_str().expect("text"));
    // Its files keep it on the node to which it was pushed.
    let project = project(&one, &ports, &server, "persist = ['kept']");
    one.try_push(&project, NAME).succeeded();
    let id = std::fs::read_to_string(two.data().join("node.id")).expect("its id");
    let rows = one.await_ready(NAME, "broker", 2);
    assert!(rows.iter().all(|row| row.node != id.trim()), "it runs on one alone: {rows:?}");
    for ip in [near, away] {
        await_answer(ip, ports.tcp, "one");
        await_datagram(ip, ports.udp, "one");
        assert_told(ip, ports.told);
    }
    for slot in ["one 1", "one 2"] {
        await_answer(away, ports.tcp, slot);
    }
    // Long lines both ways at once.
    let long = "x".repeat(LONG_LINE);
    let mut talk = Talk::open(away, ports.tcp).expect("a connection");
    assert_eq!(talk.say(&long).expect("it comes back").len(), LONG_LINE + "one 1 ".len());
    talk.finish().expect("an end in order");
    // The longest datagram that fits beside what the server puts before it.
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

#[test]
fn ports_that_cannot_be_had_are_refused() {
    let node = Node::start();
    let ports = Ports::free();
    let project = project(&node, &ports, SERVER, "");
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
