//! Applications with a network of their own: what they reach, how they are reached, and that a new
//! node process finds them as they were.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use super::{PROCFILE, SERVER, TRIES, assert_none_escaped, assert_real, attempted, below};
use crate::across::{self, websocket};
use crate::fixtures::cluster::{id_of, local_address, row};
use crate::machine::free_port;
use crate::node::Node;
use crate::outside::Callers;
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for};

pub const FULL: (&str, &str) = ("cortex.toml", "isolation = \"full\"\n");
pub(super) const ATTEMPTS: (&str, &str) = ("network.py", include_str!("network.py"));

/// Services of the machine, each of which answers whoever reaches it.
struct Services {
    facts: serde_json::Value,
    _held: (TcpListener, TcpListener, UnixListener),
}

impl Services {
    fn start(node: &Node, victim_port: u16) -> Services {
        let tcp = TcpListener::bind("0.0.0.0:0").expect("a port");
        let tcp6 = TcpListener::bind("[::1]:0").expect("IPv6 on loopback");
        let udp = UdpSocket::bind("0.0.0.0:0").expect("a port");
        let unique = format!("cortex-e2e-network-{}", node.pid());
        let address = SocketAddr::from_abstract_name(&unique).expect("a short name");
        let held = UnixListener::bind_addr(&address).expect("nobody has it");
        let row = row(node, &id_of(node)).expect("its row");
        let listens = row["addresses"][0].as_str().expect("it listens").to_owned();
        let (host, port) = listens.rsplit_once(':').expect("an address");
        let own = own_address();
        let facts = serde_json::json!({
            "node": node.pid(),
            "node_port": [host, port.parse::<u16>().expect("a port")],
            "http_port": node.http_port,
            "victim_port": victim_port,
            "tcp_port": tcp.local_addr().expect("bound").port(),
            "tcp6_port": tcp6.local_addr().expect("bound").port(),
            "udp_port": udp.local_addr().expect("bound").port(),
            "free_port": free_port(),
            "machine": own.unwrap_or(Ipv4Addr::LOCALHOST),
            "routed": own.is_some(),
            "own_network": false,
            "abstract": unique,
        });
        // It ends with the tests.
        std::thread::spawn(move || {
            let mut asked = [0; 16];
            while let Ok((_, from)) = udp.recv_from(&mut asked) {
                udp.send_to(b"answered", from).ok();
            }
        });
        Services { facts, _held: (tcp, tcp6, held) }
    }
}

/// Returns the address of this machine to others; `None` if it has no network.
fn own_address() -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    match socket.local_addr().ok()?.ip() {
        std::net::IpAddr::V4(address) => Some(address),
        std::net::IpAddr::V6(_) => None,
    }
}

#[test]
fn an_application_with_its_own_network_reaches_nothing() {
    let node = Node::start_with(&["--listen", &local_address()]);
    let files = [PROCFILE, ("server.py", SERVER), TRIES, ATTEMPTS];
    let [victim, plain, own] = ["victim", "plain", "own"].map(|name| node.path(name));
    for project in [&victim, &plain, &own] {
        of_files(project, &files);
    }
    of_files(&own, &[FULL]);
    node.push(&victim, "victim");
    let port = node.await_ready("victim", "web", 1)[0].port.expect("it listens");
    let services = Services::start(&node, port);
    let mut facts = services.facts.clone();
    assert_real(&attempted(&node.push(&plain, "plain"), "/network", &facts, 30));
    facts["own_network"] = true.into();
    let site = node.push(&own, "own");
    assert_none_escaped(&attempted(&site, "/network", &facts, 30));
    // Without a way out, names are refused and not waited for.
    let resolve = "import socket\ntry:\n socket.getaddrinfo('example.com', 80)\n\
                   except socket.gaierror as error: print('refused', error)";
    let said = node.cortex(&["run", "-a", "own", "--", "timeout", "5", "python3", "-c", resolve]);
    assert!(said.contains("refused"), "{said}");
}

#[test]
fn it_is_reached_as_any_other_and_outlives_the_process_of_the_node() {
    let mut node = Node::start();
    let project = node.path("own");
    of_files(&project, &[PROCFILE, ("server.py", across::SERVER), FULL]);
    let site = node.push(&project, "own");
    site.get("/").assert_ok("across: request");
    websocket(&site);
    let large = "x".repeat(10 << 20);
    assert_eq!(site.post_form("/", &[], &large).body, large);
    let before = node.await_ready("own", "web", 1).remove(0);
    node.kill_nine();
    node.up();
    let after = node.await_ready("own", "web", 1).remove(0);
    assert_eq!(before.pid, after.pid, "it went on");
    websocket(&site);
    // A newer release takes over without a failed request.
    let callers = Callers::start(&site, "/", &["across: request"]);
    callers.answered_more(50);
    of_files(&project, &[("more", "x")]);
    node.push_as_it_is(&project, "own").succeeded();
    callers.answered_more(50);
    callers.finish_without_failure();
    // What it says when it ends is told as without a wall.
    node.cortex(&["scale", "web=0", "-a", "own"]);
    wait_for("its port to be closed", STATE_DEADLINE, || {
        let port = before.port.expect("it listened");
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => Err("somebody listens".to_owned()),
            Err(_) => Ok(()),
        }
    });
}

/// A program that listens late, lets go of its port for a while, and echoes datagrams too.
const MOODY: &str = r#"
import os, signal, socket, threading

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})

def answer(listener):
    while True:
        try:
            end, _ = listener.accept()
        except OSError:
            return
        with end:
            said = end.recv(100)
            end.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhere" if b"HTTP" in said
                        else said.upper())

def listen(name):
    listener = socket.create_server((os.environ["HOST"], int(os.environ[name])))
    threading.Thread(target=answer, args=(listener,), daemon=True).start()
    return listener

datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind((os.environ["HOST"], int(os.environ["ASKED"])))

def echo():
    while True:
        said, whence = datagrams.recvfrom(100)
        datagrams.sendto(said.upper(), whence)

threading.Thread(target=echo, daemon=True).start()
web, line = listen("PORT"), listen("LINE")
while True:
    signal.sigwait({signal.SIGUSR1})
    line.shutdown(socket.SHUT_RDWR)
    line.close()
    print("closed", flush=True)
    signal.sigwait({signal.SIGUSR1})
    line = listen("LINE")
"#;

#[test]
fn ports_are_open_while_the_program_listens_there() {
    let node = Node::start();
    let project = node.path("moody");
    let (line, asked) = (free_port(), free_port());
    let settings = format!(
        "isolation = \"full\"\n[[ports]]\nport = {line}\nenv = \"LINE\"\n\
         [[ports]]\nport = {asked}\nprotocol = \"udp\"\nenv = \"ASKED\"\n"
    );
    of_files(&project, &[("Procfile", "web: python3 -u moody.py\n"), ("moody.py", MOODY)]);
    of_files(&project, &[("cortex.toml", &settings)]);
    node.push(&project, "moody").get("/").assert_ok("here");
    let talk = |port: u16| -> std::io::Result<String> {
        let mut end = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        std::io::Write::write_all(&mut end, b"said")?;
        let mut heard = String::new();
        end.read_to_string(&mut heard)?;
        Ok(heard)
    };
    assert_eq!(talk(line).expect("it listens"), "SAID");
    let client = UdpSocket::bind("127.0.0.1:0").expect("a port");
    client.set_read_timeout(Some(STATE_DEADLINE)).expect("a limit");
    client.send_to(b"said", (Ipv4Addr::LOCALHOST, asked)).expect("sent");
    let mut heard = [0; 16];
    let count = client.recv(&mut heard).expect("an answer");
    assert_eq!(&heard[..count], b"SAID");
    let row = node.await_ready("moody", "web", 1).remove(0);
    // The program comes last; before it, the shell that started it.
    let python = below(row.pid.expect("it runs")).pop().expect("it has a process");
    let signal = || {
        let pid = rustix::process::Pid::from_raw(python.cast_signed()).expect("a process");
        rustix::process::kill_process(pid, rustix::process::Signal::USR1).expect("it lives");
    };
    signal();
    wait_for("the port to be let go of", STATE_DEADLINE, || match talk(line) {
        Ok(text) if text.is_empty() => Ok(()),
        Ok(text) => Err(text),
        Err(_) => Ok(()),
    });
    signal();
    wait_for("the port to be back", STATE_DEADLINE, || match talk(line) {
        Ok(text) if text == "SAID" => Ok(()),
        other => Err(format!("{other:?}")),
    });
}
