//! Transparency: clients and servers that nobody changed see the same bytes with the proxy and
//! without it.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::process::Command;

use super::world::{Proxy, Recording, read_to_end, serve_with};
use crate::machine::free_port;
use crate::node::run;

/// Returns answers that servers are allowed to give, and no proxy needs to touch.
fn script(path: &str) -> (Vec<u8>, bool) {
    let answer: &[u8] = match path {
        "/length" => {
            b"HTTP/1.1 200  Quite  fine\r\nx-cAsE:  two  spaces \r\nKeep-Alive: timeout=9\r\n\
              Connection: X-Hop, keep-alive\r\nX-Hop: stays\r\nVia: 1.0 me\r\nX-Empty:\r\n\
              Content-Length: 5\r\n\r\nhello"
        }
        "/chunks" => {
            b"HTTP/1.1 201 Created\r\nTrailer: Sum\r\ntransfer-encoding: chunked\r\n\r\n\
              5;why=not\r\nhello\r\n0006\r\n world\r\n0\r\nSum: 11\r\n\r\n"
        }
        "/nothing" => b"HTTP/1.1 204 No Content\r\nServer: s\r\nX: 1\r\nX: 2\r\n\r\n",
        // A server of old times: the end of the connection is the end of the answer.
        "/old" => return (b"HTTP/1.0 200 OK\r\nServer: old\r\n\r\nuntil the end".to_vec(), true),
        "/close" => {
            let answer = b"HTTP/1.1 404 Gone\r\nConnection: Close\r\nContent-Length: 3\r\n\r\nbye";
            return (answer.to_vec(), true);
        }
        "/early" => {
            b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n\
              HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        }
        _ => b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    };
    (answer.to_vec(), false)
}

/// Returns what curl prints: every byte of the answer as it came.
fn curl(port: u16, arguments: &[&str]) -> String {
    let mut command = Command::new("curl");
    command.args(["-s", "-i", "--raw", "--noproxy", "*", "--max-time", "60"]);
    command.args(["-H", "Host: shop.example:80"]);
    for argument in arguments {
        command.arg(argument.replace("URL", &format!("http://127.0.0.1:{port}")));
    }
    let outcome = run(command, &format!("curl {arguments:?}")).succeeded();
    outcome.stdout
}

const CALLS: &[&[&str]] = &[
    &["URL/length"],
    &["URL/length?a=%20b&c", "-H", "x-lower:  v  ", "-H", "Connection: keep-alive, x-lower"],
    &["URL/chunks", "--request", "PROPFIND"],
    &["URL/chunks", "--data-binary", "a=b", "-H", "X-Forwarded-For: me", "-H", "TE: trailers"],
    &["URL/nothing", "--request", "DELETE"],
    &["URL/old"],
    &["URL/old", "--http1.0"],
    &["URL/length", "--http1.0", "-H", "Connection: keep-alive"],
    &["URL/close"],
    &["URL/early"],
    &["-I", "URL/plain", "--head"],
    &["URL/plain", "-H", "Transfer-Encoding: chunked", "--data-binary", "some bytes"],
    &["URL/plain", "-H", "Expect: 100-continue", "--data-binary", "waits for a word"],
    // One connection carries all of them.
    &["URL/length", "URL/chunks", "URL/plain", "URL/nothing"],
];

#[test]
fn curl_and_a_server_see_the_same_bytes_with_the_proxy_between() {
    let server = Recording::start(script);
    let proxy = Proxy::start(&["--to", &server.port.to_string()]);
    for call in CALLS {
        let direct = (curl(server.port, call), server.take());
        let through = (curl(proxy.port, call), server.take());
        assert!(!direct.1.is_empty(), "the server was asked: {call:?}");
        let text = |all: &[Vec<u8>]| -> Vec<String> {
            all.iter().map(|one| String::from_utf8_lossy(one).into_owned()).collect()
        };
        assert_eq!(text(&through.1), text(&direct.1), "what the server got: {call:?}");
        assert_eq!(through.0, direct.0, "what the client got: {call:?}");
    }
}

/// Asserts that clients of HTTP/2 get the same answers, although their requests cannot be passed on
/// as they came.
#[test]
fn clients_that_speak_http_2_are_understood_too() {
    let server = Recording::start(script);
    let proxy = Proxy::start(&["--to", &server.port.to_string()]);
    let ask = |port: u16, path: &str, version: &str| {
        let what = "%{stderr}%{http_version} %{http_code}";
        let mut command = Command::new("curl");
        command.args(["-s", version, "--noproxy", "*", "--max-time", "60", "-w", what]);
        command.arg(format!("http://127.0.0.1:{port}{path}"));
        let outcome = run(command, &format!("curl {version} {path}")).succeeded();
        (outcome.stdout, outcome.stderr)
    };
    for path in ["/length", "/chunks", "/nothing", "/early", "/old", "/close", "/plain"] {
        let (direct, status) = ask(server.port, path, "--http1.1");
        let (through, said) = ask(proxy.port, path, "--http2-prior-knowledge");
        assert_eq!(through, direct, "{path}");
        assert_eq!(said, format!("2 {}", status.split(' ').nth(1).unwrap()), "{path}");
    }
}

#[test]
fn the_bytes_are_the_same_inside_tls() {
    let server = Recording::start(script);
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str| place.path().join(name).to_str().unwrap().to_string();
    let (certificate, key) = (file("certificate.pem"), file("key.pem"));
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=shop.example"]);
    command.args(["-addext", "subjectAltName=DNS:shop.example", "-days", "2"]);
    command.args(["-out", &certificate, "-keyout", &key]);
    run(command, "openssl req").succeeded();
    let to = server.port.to_string();
    let proxy = Proxy::start(&["--to", &to, "--tls-cert", &certificate, "--tls-key", &key]);
    let plain = (curl(server.port, &["URL/chunks"]), server.take());
    let at = format!("shop.example:{}:127.0.0.1", proxy.port);
    let url = format!("https://shop.example:{}/chunks", proxy.port);
    let sealed = ["--http1.1", "--cacert", &certificate, "--resolve", &at, &url];
    let sealed = (curl(proxy.port, &sealed), server.take());
    assert!(sealed == plain, "{sealed:?} and not {plain:?}");
}

const PYTHON: &str = r#"
import http.client, sys
connection = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]), timeout=60)
def ask(method, path, body=None, headers={}, **more):
    connection.request(method, path, body, {'Host': 'shop.example', **headers}, **more)
    answer = connection.getresponse()
    print(answer.version, answer.status, answer.reason, answer.getheaders(), answer.read())
ask('GET', '/length')
ask('POST', '/chunks', b'x' * 70000)
ask('PUT', '/plain', iter([b'one', b'two', b'three' * 9000]), encode_chunked=True)
ask('HEAD', '/plain')
ask('GET', '/old')
ask('GET', '/close')
ask('OPTIONS', '*')
"#;

#[test]
fn http_client_and_a_server_see_the_same_bytes_with_the_proxy_between() {
    let server = Recording::start(|path| match path {
        // Answers to HEAD have no body.
        "/plain" => (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nx: y\r\n\r\n".to_vec(), false),
        path => script(path),
    });
    let proxy = Proxy::start(&["--to", &server.port.to_string()]);
    let ask = |port: u16| {
        let mut command = Command::new("python3");
        command.args(["-c", PYTHON, &port.to_string()]);
        let said = run(command, "a client in Python").succeeded().stdout;
        (said, server.take())
    };
    let (direct, through) = (ask(server.port), ask(proxy.port));
    assert_eq!((direct.1.len(), direct.0.lines().count()), (7, 7));
    assert!(through.1 == direct.1, "what the server got");
    assert_eq!(through.0, direct.0, "what the client got");
}

#[test]
fn pythons_own_server_answers_the_same_through_the_proxy() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("page.html"), "<h1>Hi</h1>").unwrap();
    fs::write(place.path().join("large"), "0123456789abcde\n".repeat(300_000)).unwrap();
    let port = free_port();
    let mut command = Command::new("python3");
    command.args(["-m", "http.server", &port.to_string(), "--bind", "127.0.0.1"]);
    command.arg("--directory").arg(place.path());
    let _server = serve_with(command, port);
    // A serial server's limit must not change anything either.
    let proxy = Proxy::start(&["--to", &port.to_string(), "--concurrency", "1"]);
    for path in ["page.html", "large", "missing", ""] {
        let fetch = |port: u16| {
            let said = curl(port, &[&format!("URL/{path}")]);
            // The date is the one thing that changes from second to second.
            let lines = said.lines().filter(|line| !line.starts_with("Date: "));
            lines.collect::<Vec<_>>().join("\n")
        };
        assert!(fetch(proxy.port) == fetch(port), "/{path}");
    }
}

#[test]
fn the_proxy_says_who_the_client_is_if_asked_to() {
    let server = Recording::start(script);
    let proxy = Proxy::start(&["--to", &server.port.to_string(), "--forwarded"]);
    curl(proxy.port, &["URL/plain"]);
    let asked = String::from_utf8(server.take().remove(0)).unwrap();
    for needle in ["X-Forwarded-For: 127.0.0.1", "X-Forwarded-Proto: http", "X-Request-Id: "] {
        assert!(asked.contains(needle), "{asked}");
    }
    assert!(!asked.contains("\r\nForwarded: "), "{asked}");
    let proxy = Proxy::start(&["--to", &server.port.to_string(), "--forwarded=standard"]);
    curl(proxy.port, &["URL/plain"]);
    let asked = String::from_utf8(server.take().remove(0)).unwrap();
    let forwarded = "\r\nForwarded: for=127.0.0.1;host=\"shop.example:80\";proto=http\r\n";
    for needle in ["X-Forwarded-For: 127.0.0.1", forwarded] {
        assert!(asked.contains(needle), "{asked}");
    }
}

#[test]
fn ambiguous_requests_reach_no_server() {
    let server = Recording::start(script);
    let proxy = Proxy::start(&["--to", &server.port.to_string()]);
    let bad = [
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET / HTTP/1.1\nHost: a\n\n",
    ];
    for text in bad {
        let mut stream = TcpStream::connect(proxy.address()).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let answer = String::from_utf8(read_to_end(&stream).unwrap()).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{text:?}: {answer}");
    }
    assert_eq!(server.take(), Vec::<Vec<u8>>::new());
}
