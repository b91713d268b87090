//! The proxy behind a real HAProxy that says who its clients are: in front of HTTP, of TLS, and of
//! a node.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::world::{Proxy, Recording, serve_with};
use crate::machine::free_port;
use crate::node::{Node, Running, run};
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for};

/// The address from which the client connects, and nothing else does.
const CLIENT: &str = "127.0.0.9";
/// The address from which HAProxy connects.
const HAPROXY: &str = "127.0.0.8";

/// Starts an HAProxy in front of this port that passes connections on as they come.
fn haproxy(place: &Path, to: u16) -> (u16, Running) {
    let (port, file) = (free_port(), place.join("haproxy.cfg"));
    let text = format!(
        "global\n    maxconn 100\ndefaults\n    mode tcp\n    timeout connect 10s\n    \
         timeout client 60s\n    timeout server 60s\nlisten all\n    bind 127.0.0.1:{port}\n    \
         server one 127.0.0.1:{to} send-proxy-v2 source {HAPROXY}\n"
    );
    fs::write(&file, text).unwrap();
    let mut command = Command::new("haproxy");
    command.arg("-db").arg("-f").arg(&file);
    (port, serve_with(command, port))
}

fn curl(arguments: &[&str]) -> Command {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--noproxy", "*", "--max-time", "60"]);
    command.args(["--interface", CLIENT]).args(arguments);
    command
}

fn ok(_: &str) -> (Vec<u8>, bool) {
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec(), false)
}

/// Asserts what the back end is told, and what the record says.
fn told_and_recorded(options: &[&str], scheme: &str) {
    let server = Recording::start(ok);
    let (to, place) = (server.port.to_string(), tempfile::tempdir().unwrap());
    let records = place.path().join("records");
    let records = records.to_str().unwrap();
    let fixed = ["--to", &to, "--forwarded", "--accept-proxy", "--records", records];
    let proxy = Proxy::start(&[&fixed[..], options].concat());
    let (port, _haproxy) = haproxy(place.path(), proxy.port);
    let url = format!("{scheme}://127.0.0.1:{port}/");
    let said = run(curl(&["--insecure", &url]), "curl").succeeded().stdout;
    assert_eq!(said, "ok");
    let asked = String::from_utf8(server.take().concat()).unwrap();
    assert!(asked.contains(&format!("X-Forwarded-For: {CLIENT}\r\n")), "{asked}");
    assert!(asked.contains(&format!("X-Forwarded-Proto: {scheme}\r\n")), "{asked}");
    let line: serde_json::Value = wait_for("the record", STATE_DEADLINE, || {
        let text = fs::read_to_string(records).unwrap();
        serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))
    });
    assert!(line["client"].as_str().unwrap().starts_with(&format!("{CLIENT}:")), "{line}");

    // A client that comes without a header from HAProxy is not let in.
    let direct = format!("{scheme}://127.0.0.1:{}/", proxy.port);
    run(curl(&["--insecure", &direct]), "curl").refused();
    assert!(server.take().is_empty());
    wait_for("the log to say so", STATE_DEADLINE, || {
        let said = proxy.said("err");
        let is_said = said.contains("router.bad_proxy_header") && said.contains(CLIENT);
        if is_said { Ok(()) } else { Err(said) }
    });
}

#[test]
fn haproxy_says_who_asks_over_http() {
    told_and_recorded(&[], "http");
}

#[test]
fn haproxy_says_who_asks_inside_tls() {
    let place = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["shop.example".to_owned()]).unwrap();
    let path = |name: &str| place.path().join(name).display().to_string();
    let (chain, key) = (path("chain"), path("key"));
    fs::write(&chain, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    told_and_recorded(&["--tls-cert", &chain, "--tls-key", &key], "https");
}

#[test]
fn a_node_believes_its_balancer_and_nobody_else() {
    const APP: &str = "\
import http.server, os
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        said = self.headers['X-Forwarded-For'].encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(said)))
        self.end_headers()
        self.wfile.write(said)
http.server.ThreadingHTTPServer(('127.0.0.1', int(os.environ['PORT'])), Answer).serve_forever()
";
    let node = Node::start_with(&[&format!("--accept-proxy={HAPROXY}")]);
    let project = node.path("project");
    of_files(&project, &[("Procfile", "web: python3 app.py\n"), ("app.py", APP)]);
    node.push(&project, "shop");
    let own = node.http_port;
    let (port, _haproxy) = haproxy(&node.path(""), own);
    let ask = |port: u16| {
        let url = format!("http://127.0.0.1:{port}/");
        run(curl(&["-H", "Host: shop.localhost", &url]), "curl").succeeded().stdout
    };
    assert_eq!(ask(port), CLIENT);
    assert_eq!(ask(own), CLIENT, "and one that connects for itself is who it is");
}
