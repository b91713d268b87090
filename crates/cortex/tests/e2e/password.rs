//! A password in front of an application: every node asks for it, whatever a client speaks, and the
//! application hears nothing of it.

use std::path::Path;
use std::process::Command;

use crate::fixtures::cluster::{await_loads, cluster};
use crate::machine::free_port;
use crate::node::{Node, Outcome, binary, run};
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for};

const NAME: &str = "blog";
const PASSWORD: &str = "correct-horse-battery";
/// Wrong passwords, more than one address may try at once.
const GUESSES: usize = 12;
/// A server that says with which credentials it was asked, and opens what looks like a WebSocket.
const SERVER: &str = r#"
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Seen(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers.get("Upgrade"):
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            self.end_headers()
            self.wfile.write(b"through")
            self.close_connection = True
            return
        told = [self.headers.get(name) for name in ("Authorization", "Proxy-Authorization")]
        body = f"told {told}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

ThreadingHTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Seen).serve_forever()
"#;
const NOTHING_TOLD: &str = "told [None, None]";

/// A way to the application: an address of a node, and what curl has to know of it.
struct Entrance {
    url: String,
    options: &'static [&'static str],
}

/// What curl was answered, head and body.
#[derive(Debug)]
struct Seen {
    status: String,
    text: String,
}

impl Entrance {
    fn ask(&self, host: &str, options: &[&str]) -> Seen {
        let mut command = Command::new("curl");
        command.args(["--silent", "--include", "--max-time", "30", "--noproxy", "*"]);
        command.args(self.options).args(options).arg(self.url.replace("HOST", host));
        let text = run(command, "curl").stdout;
        Seen { status: text.split(' ').nth(1).unwrap_or_default().into(), text }
    }

    fn await_seen(&self, options: &[&str], status: &str, needle: &str) -> Seen {
        wait_for(&format!("{status} '{needle}' at {}", self.url), STATE_DEADLINE, || {
            let seen = self.ask(NAME, options);
            let is_it = seen.status == status && seen.text.contains(needle);
            if is_it { Ok(seen) } else { Err(format!("{seen:?}")) }
        })
    }
}

/// Sets the password by a command that reads it from stdin.
fn set(node: &Node, name: &str, password: &str) -> Outcome {
    let input = node.path("input");
    std::fs::write(&input, format!("{password}\n")).expect("it can be written");
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" --data-dir \"$1\" password set -a \"$2\" < \"$3\""]);
    command.arg(binary()).arg(node.data()).arg(name).arg(&input);
    let outcome = run(command, "cortex password set");
    std::fs::remove_file(input).expect("it is there");
    outcome
}

/// Returns the files below a directory in which a text is.
fn files_with(directory: &Path, text: &str) -> String {
    let mut command = Command::new("grep");
    command.args(["-r", "-l", "-a", "-F", text]).arg(directory);
    run(command, "grep").stdout
}

#[test]
fn every_node_asks_for_the_password_and_the_application_hears_nothing_of_it() {
    let port = free_port();
    let https = format!("--https=127.0.0.1:{port}");
    let [one, two] = cluster([&[], &[&https]]);
    await_loads(&[&one, &two]);
    let project = one.path("project");
    of_files(&project, &[("Procfile", "web: python3 app.py\n"), ("app.py", SERVER)]);
    one.push(&project, NAME);
    let site = one.path("site");
    of_files(&site, &[("index.html", "a page of files")]);
    one.push(&site, "site");
    let plain = Entrance { url: format!("http://HOST.localhost:{}/", one.http_port), options: &[] };
    let url = format!("https://HOST.localhost:{port}/");
    let secure = Entrance { url: url.clone(), options: &["--insecure", "--http1.1"] };
    let http2 = Entrance { url, options: &["--insecure", "--http2"] };
    let all = [&plain, &secure, &http2];
    for entrance in all {
        entrance.await_seen(&[], "200", NOTHING_TOLD);
    }

    set(&one, NAME, PASSWORD).succeeded().saying(&["All nodes ask", "cortex password off"]);
    set(&one, "site", PASSWORD).succeeded();
    set(&one, NAME, "short").refused().saying(&["8 to 128 bytes"]);
    let credentials = format!("whoever:{PASSWORD}");
    let right = ["--user", credentials.as_str()];
    let upgrade = ["-H", "Connection: Upgrade", "-H", "Upgrade: websocket"];
    for entrance in all {
        let asked = entrance.await_seen(&[], "401", "asks for a password");
        let head = asked.text.to_ascii_lowercase();
        assert!(head.contains("www-authenticate: basic realm="), "{head}");
        assert!(head.contains("x-cortex-error: password"), "{head}");
        assert_eq!(entrance.ask(NAME, &["--user", "ana:another one"]).status, "401");
        let passed = entrance.ask(NAME, &right);
        assert!(passed.status == "200" && passed.text.contains(NOTHING_TOLD), "{passed:?}");
        let asked = entrance.ask("site", &[]);
        assert!(asked.status == "401" && !asked.text.contains("a page"), "{asked:?}");
        let passed = entrance.ask("site", &right);
        assert!(passed.text.contains("a page of files"), "{passed:?}");
    }
    for entrance in [&plain, &secure] {
        assert_eq!(entrance.ask(NAME, &upgrade).status, "401");
        let opened = entrance.ask(NAME, &[&right[..], &upgrade].concat());
        assert!(opened.status == "101" && opened.text.contains("through"), "{opened:?}");
    }
    // Credentials that are the application's reach it where the password comes in another field.
    let encoded = run_shell(&format!("printf '%s' ':{PASSWORD}' | base64"));
    let by_proxy = format!("Proxy-Authorization: Basic {}", encoded.trim());
    let own = ["-H", &by_proxy, "-H", "Authorization: Bearer its-own"];
    let told = plain.ask(NAME, &own);
    assert!(told.text.contains("told ['Bearer its-own', None]"), "{told:?}");
    // Whoever guesses has to wait; whoever knows it passes.
    let guess = |number: usize| plain.ask(NAME, &["--user", &format!("ana:wrong guess {number}")]);
    let statuses: Vec<String> = (0..GUESSES).map(|number| guess(number).status).collect();
    assert_eq!(statuses.last().map(String::as_str), Some("429"), "{statuses:?}");
    assert_eq!(plain.ask(NAME, &right).status, "200");

    for node in [&one, &two] {
        assert!(node.cortex(&["password", "-a", NAME]).starts_with("on, since"));
        for command in [["info", "-a", NAME], ["domains", "-a", NAME]] {
            let shown = node.run(&command).succeeded();
            let all = format!("{}{}", shown.stdout, shown.stderr);
            assert!(all.contains("asks for a password"), "{command:?}: {all}");
        }
        assert_eq!(files_with(&node.data(), PASSWORD), "");
        assert!(!node.log().contains(PASSWORD));
    }
    let audit = one.cortex(&["audit"]);
    assert!(audit.contains(&format!("/v1/apps/{NAME}/password")), "{audit}");

    // It is taken back, and that as well.
    one.run(&["undo", "-a", NAME]).succeeded().saying(&["asks for no password"]);
    await_all(&all, &[], "200", NOTHING_TOLD);
    one.run(&["undo", "-a", NAME]).succeeded().saying(&["asks for a password"]);
    await_all(&all, &[], "401", "asks for a password");
    await_all(&all, &right, "200", NOTHING_TOLD);
    let made = two.cortex(&["password", "set", "--generate", "-a", NAME]);
    let made = format!("ana:{}", made.trim());
    await_all(&all, &right, "401", "asks for a password");
    await_all(&[&secure, &http2], &["--user", &made], "200", NOTHING_TOLD);
    two.cortex(&["password", "off", "-a", NAME]);
    await_all(&all, &[], "200", NOTHING_TOLD);
    assert_eq!(one.cortex(&["password", "-a", NAME]).trim(), "off");
}

fn await_all(all: &[&Entrance], options: &[&str], status: &str, needle: &str) {
    for entrance in all {
        entrance.await_seen(options, status, needle);
    }
}

fn run_shell(script: &str) -> String {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    run(command, script).succeeded().stdout
}
