//! Two nodes, and an application that runs on one of them alone: requests to the other one are
//! answered all the same, and with an error that says so when the machine that runs it is lost.

mod strangers;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::fixtures::cluster::{cluster, id_of, local_address};
use crate::machine::free_port;
use crate::node::Node;
use crate::outside::{Callers, Connection, Site};
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for};

const NAME: &str = "across";
const LARGE: usize = 10 << 20;
/// The time limit for an answer, longer than any request waits for a lost machine; reached only
/// when something is wrong.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

pub const SERVER: &str = r#"
import base64, hashlib, os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

if os.getcwd().startswith("NOT_BELOW"):
    sys.exit("not on this machine")

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

class Across(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers.get("Upgrade") == "websocket":
            return self.echo()
        if self.path == "/cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"not all of it")
            self.close_connection = True
            return
        if self.path == "/wait":
            open("waiting", "w").close()
            time.sleep(600)
        asked = self.headers.get("X-Request-Number", "none")
        self.answer(f"across: request {asked} for {self.headers['X-Forwarded-For']}".encode())

    def do_POST(self):
        if self.path == "/wait":
            open("waiting", "w").close()
            time.sleep(600)
        self.answer(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def echo(self):
        key = self.headers["Sec-WebSocket-Key"] + GUID
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept)
        self.end_headers()
        while True:
            head = self.rfile.read(2)
            if len(head) < 2 or head[0] != 0x81:
                self.close_connection = True
                return
            mask = self.rfile.read(4)
            text = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(head[1] & 127)))
            self.wfile.write(bytes([0x81, len(text)]) + text)
            self.wfile.flush()

    def log_message(self, *_):
        pass

ThreadingHTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Across).serve_forever()
"#;

/// Two nodes: `one` runs the application; on `two` it ends as soon as it is started.
struct Two {
    one: Node,
    two: Node,
    /// The address at which other nodes find `one`.
    address: String,
}

impl Two {
    fn start() -> Two {
        let address = local_address();
        let [one, two] = cluster([&["--listen", &address], &[]]);
        let nodes = Two { one, two, address };
        nodes.one.cortex(&["apps", "create", NAME, "--port", &free_port().to_string()]);
        let project = nodes.one.path(NAME);
        let server = SERVER.replace("NOT_BELOW", nodes.two.data().to_str().expect("text"));
        // Its files keep it on the node to which it was pushed.
        let tied = "persist = [\"kept/\"]\n";
        let procfile = ("Procfile", "web: python3 server.py\n");
        of_files(&project, &[procfile, ("server.py", &server), ("cortex.toml", tied)]);
        nodes.one.push_as_it_is(&project, NAME).succeeded();
        assert!(!nodes.one.ready(NAME, "web").is_empty());
        nodes.await_answer("across: request");
        let rows = nodes.one.ready(NAME, "web");
        let two = id_of(&nodes.two);
        assert!(rows.iter().all(|row| row.node != two), "it runs on one alone: {rows:?}");
        nodes
    }

    /// Returns where the node that does not run the application answers.
    fn site(&self) -> Site {
        let port = self.two.http_port;
        Site { host: format!("{NAME}.localhost:{port}"), port }
    }

    fn await_answer(&self, needle: &str) {
        wait_for("an answer through the other node", STATE_DEADLINE, || {
            match self.site().try_get("/") {
                Ok(answer) if answer.status == 200 && answer.body.contains(needle) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    }
}

fn raw(site: &Site, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", site.port)).expect("the router");
    stream.set_read_timeout(Some(ANSWER_TIME_MAX)).expect("a time limit");
    stream.write_all(request.as_bytes()).expect("a request");
    stream
}

fn head_of(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a head");
        head.push(byte[0]);
    }
    String::from_utf8(head).expect("text")
}

#[test]
fn an_application_of_one_node_answers_on_the_other() {
    let nodes = Two::start();
    let site = nodes.site();
    let answer = site.get("/");
    answer.assert_ok("for 127.0.0.1");
    assert!(!answer.body.contains(','), "the client is named once: {answer:?}");
    let callers = Callers::start(&site, "/", &["across: request"]);
    callers.answered_more(200);
    // Both directions are used at once, while other callers are answered.
    let mut connection = Connection::open(&site).expect("a connection");
    let large: Vec<u8> = (0..LARGE).map(|n| b'a' + (n / 3 % 26) as u8).collect();
    for _ in 0..2 {
        let answer = connection.request("POST", "/echo", &[], &large).expect("an answer");
        assert_eq!((answer.status, answer.body.len()), (200, LARGE));
        assert!(answer.body.as_bytes() == large, "it comes back as it went");
    }
    websocket(&site);
    let mut cut = raw(&site, &format!("GET /cut HTTP/1.1\r\nHost: {}\r\n\r\n", site.host));
    let mut rest = Vec::new();
    let read = cut.read_to_end(&mut rest);
    assert!(read.is_err(), "a truncated answer ends with a reset: {rest:?}");
    callers.answered_more(200);
    callers.finish_without_failure();
}

pub fn websocket(site: &Site) {
    let request = format!(
        "GET /socket HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        site.host
    );
    let mut stream = raw(site, &request);
    let head = head_of(&mut stream);
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    assert!(head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
    for text in ["hello", "over there"] {
        let mask = [7, 77, 177, 17];
        let mut frame = vec![0x81, 0x80 | text.len() as u8];
        frame.extend(mask);
        frame.extend(text.bytes().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        stream.write_all(&frame).expect("a frame");
        let mut echo = vec![0; 2 + text.len()];
        stream.read_exact(&mut echo).expect("its echo");
        assert_eq!(&echo[2..], text.as_bytes());
    }
}

/// Asserts that a machine that stands still, which refuses nothing and answers nothing, does not
/// hold up requests.
#[test]
fn a_frozen_machine_holds_no_request_up() {
    let nodes = Two::start();
    let site = nodes.site();
    let mut kept = Connection::open(&site).expect("a connection");
    kept.request("GET", "/", &[], b"").expect("an answer").assert_ok("across: request");
    nodes.one.freeze();
    let post = kept.request("POST", "/echo", &[], b"once").expect("an answer");
    let error = post.headers.get("x-cortex-error").map(String::as_str);
    // On a busy machine the loss is known before the request is sent.
    let told = matches!(error, Some("node-lost" | "nodes-unreachable"));
    assert!(post.status == 503 && told, "{post:?}");
    wait_for("the loss to be told", STATE_DEADLINE, || {
        let get = site.try_get("/")?;
        assert_eq!(get.status, 503, "{get:?}");
        let told = get.headers.get("x-cortex-error").is_some_and(|why| why == "nodes-unreachable");
        if told { Ok(()) } else { Err(format!("{get:?}")) }
    });
    nodes.one.thaw();
    nodes.await_answer("across: request");
}

#[test]
fn a_lost_machine_is_told_of_and_taken_back() {
    let mut nodes = Two::start();
    let site = nodes.site();
    let waiting = nodes.one.build_directory(NAME).join("waiting");
    let mut under_way = raw(
        &site,
        &format!("POST /wait HTTP/1.1\r\nHost: {}\r\nContent-Length: 2\r\n\r\nhi", site.host),
    );
    wait_for("the request to reach its instance", STATE_DEADLINE, || {
        if waiting.exists() { Ok(()) } else { Err("not yet".into()) }
    });
    nodes.one.kill_nine();
    let head = head_of(&mut under_way);
    assert!(head.starts_with("HTTP/1.1 503") && head.contains("node-lost"), "{head}");
    wait_for("the loss to be told", STATE_DEADLINE, || {
        let answer = site.try_get("/")?;
        let told = answer.headers.get("x-cortex-error").is_some_and(|why| {
            assert!(answer.status == 503 && answer.headers.contains_key("retry-after"));
            why == "nodes-unreachable"
        });
        if told { Ok(answer) } else { Err(format!("{answer:?}")) }
    });
    nodes.one.up();
    nodes.await_answer("across: request");
}
