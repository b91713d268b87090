//! Certificates in the cluster, with the tools that people use: `openssl` makes them, `curl` and
//! `openssl s_client` look at what two nodes show.

mod hooks;
mod local;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::fixtures::cluster::{Location, cluster_at, id_of};
use crate::machine::free_port;
use crate::node::{Node, Outcome, Running, run};
use crate::project::{copy_of_example, edit, of_files};
use crate::secrets::files_with;
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

/// The time within which a change holds on all nodes, and what a busy machine needs to look.
const EVERYWHERE_WITHIN: Duration = Duration::from_secs(2 + 8);
/// The beginning of what the application answers.
const GREETING: &str = "Hello from";
const RSA: &[&str] = &["-newkey", "rsa:2048"];
const EC: &[&str] = &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];

/// The addresses of two nodes: the ports of applications are on each.
const ADDRESSES: [&str; 2] = ["127.0.0.91", "127.0.0.92"];

/// A node with a port inside TLS.
struct Secured {
    node: Node,
    address: &'static str,
    port: u16,
}

/// Starts two nodes that serve an application, with domains.
fn two(settings: &str) -> [Secured; 2] {
    let ports = [free_port(), free_port()];
    let options = [0, 1].map(|at| format!("--https={}:{}", ADDRESSES[at], ports[at]));
    let [first, second] = options.each_ref().map(|option| [option.as_str()]);
    let [here, there] = ADDRESSES.map(Location::Address);
    let [one, two] = cluster_at([(here, &first[..]), (there, &second[..])]);
    push(&one, settings);
    let made = |at: usize, node| Secured { node, address: ADDRESSES[at], port: ports[at] };
    let both = [made(0, one), made(1, two)];
    wait_for("the application on the other node", STATE_DEADLINE, || {
        let answer = both[1].plain("shop.example", "/", &[]);
        if answer.stdout.contains(GREETING) { Ok(()) } else { Err(format!("{answer:?}")) }
    });
    both
}

fn push(node: &Node, settings: &str) {
    let project = node.path("project");
    copy_of_example("hello", &project);
    let domains = "domains = ['shop.example', 'www.example', '*.wild.example']\n";
    of_files(&project, &[("cortex.toml", &format!("{domains}{settings}"))]);
    edit(&project.join("app.py"), "self.path == \"/\"", "self.path in (\"/\", \"/up\")");
    node.try_push(&project, "site").succeeded();
}

/// A certificate and its key, made by `openssl`.
#[derive(Clone, Debug)]
struct Files {
    chain: PathBuf,
    key: PathBuf,
}

/// Makes a certificate that vouches for itself.
fn make(directory: &Path, name: &str, kind: &[&str], names: &[&str]) -> Files {
    let files = Files {
        chain: directory.join(format!("{name}.pem")),
        key: directory.join(format!("{name}.key")),
    };
    let names: Vec<String> = names.iter().map(|name| format!("DNS:{name}")).collect();
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-noenc", "-days", "30", "-subj", &format!("/CN={name}")]);
    command.args(kind).args(["-addext", &format!("subjectAltName={}", names.join(","))]);
    command.arg("-keyout").arg(&files.key).arg("-out").arg(&files.chain);
    run(command, "openssl req").succeeded();
    files
}

impl Secured {
    /// Asks by `curl`; the answer's head and body are what it prints.
    fn curl(&self, arguments: &[&str]) -> Outcome {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--include", "--max-time", "60"]);
        for port in [self.port, self.node.http_port] {
            command.args(["--resolve", &format!("*:{port}:{}", self.address)]);
        }
        command.args(arguments);
        run(command, &format!("curl {}", arguments.join(" ")))
    }

    fn secure(&self, trusted: &Files, host: &str, more: &[&str]) -> Outcome {
        let (url, chain) = (format!("https://{host}:{}/", self.port), trusted.chain.display());
        self.curl(&[&["--cacert", &chain.to_string(), &url], more].concat())
    }

    fn plain(&self, host: &str, path: &str, more: &[&str]) -> Outcome {
        let url = format!("http://{host}:{}{path}", self.node.http_port);
        self.curl(&[&[url.as_str()], more].concat())
    }

    /// Waits until new clients that trust this certificate alone are served.
    fn shows(&self, trusted: &Files, host: &str) {
        wait_for(&format!("the certificate for {host}"), EVERYWHERE_WITHIN, || {
            let answer = self.secure(trusted, host, &[]);
            let is_good = answer.stdout.starts_with("HTTP/2 200");
            if is_good { Ok(()) } else { Err(format!("{answer:?}")) }
        });
    }

    fn certs(&self, arguments: &[&str]) -> Outcome {
        self.node.run(&[&["certs"], arguments, &["-a", "site"]].concat())
    }

    fn add(&self, files: &Files) -> Outcome {
        let text = |path: &PathBuf| path.display().to_string();
        self.certs(&["add", &text(&files.chain), &text(&files.key)])
    }
}

/// A connection of `openssl s_client` that stays.
struct OpenConnection {
    _child: Running,
    writer: ChildStdin,
    reader: BufReader<ChildStdout>,
}

impl OpenConnection {
    fn new(node: &Secured, name: &str) -> OpenConnection {
        let mut command = Command::new("openssl");
        let address = format!("{}:{}", node.address, node.port);
        command.args(["s_client", "-quiet", "-connect", &address]);
        command.args(["-servername", name, "-alpn", "http/1.1"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("openssl is there");
        let writer = child.stdin.take().expect("it is piped");
        let reader = BufReader::new(child.stdout.take().expect("it is piped"));
        OpenConnection { _child: Running(child), writer, reader }
    }

    /// Asks once more on it; returns the first line of the answer.
    fn ask(&mut self, host: &str) -> String {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        self.writer.write_all(request.as_bytes()).expect("it is open");
        let mut lines: Vec<String> = Vec::new();
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line).expect("an answer");
            assert!(!line.is_empty(), "it ended: {lines:?}");
            // The body is one line.
            let is_last = line.contains(GREETING);
            lines.push(line.trim().to_owned());
            if is_last {
                return lines.remove(0);
            }
        }
    }
}

#[test]
fn a_certificate_that_is_brought_to_one_node_is_shown_by_all() {
    let [one, mut two] = two("");
    let place = one.node.path("");
    let rsa = make(&place, "rsa", RSA, &["shop.example"]);
    let added_at = Instant::now();
    let added = one.add(&rsa).succeeded();
    for node in [&one, &two] {
        assert!(added.stdout.contains(&id_of(&node.node)), "{added:?}");
        node.shows(&rsa, "shop.example");
    }
    let key = fs::read_to_string(&rsa.key).expect("its key");
    let line = key.lines().nth(1).expect("a line of it");
    for node in [&one, &two] {
        assert_eq!(files_with(&node.node.data(), line), Vec::<PathBuf>::new());
    }
    eprintln!("both nodes showed it {:?} after the command began", added_at.elapsed());
    let mut open = OpenConnection::new(&two, "shop.example");
    assert_eq!(open.ask("shop.example"), "HTTP/1.1 200 OK");
    // One of another kind replaces it, on the other node; the connection goes on.
    let ec = make(&place, "ec", EC, &["shop.example", "www.example"]);
    two.add(&ec).succeeded();
    for node in [&one, &two] {
        node.shows(&ec, "shop.example");
        node.shows(&ec, "www.example");
    }
    assert_eq!(open.ask("shop.example"), "HTTP/1.1 200 OK");
    // A key that belongs to another one is refused, and what was there serves on.
    let mixed = Files { chain: ec.chain.clone(), key: rsa.key.clone() };
    one.add(&mixed).refused().saying(&["not that of the certificate", "nothing was changed"]);
    two.shows(&ec, "shop.example");
    let wild = make(&place, "wild", EC, &["*.wild.example"]);
    one.add(&wild).succeeded();
    two.shows(&wild, "a.wild.example");
    // It is still there after an accident, and with the other node lost.
    two.node.kill_nine();
    two.node.up();
    two.shows(&ec, "shop.example");
    one.certs(&["remove", "shop.example"]).succeeded();
    for node in [&one, &two] {
        wait_for("it to be gone", EVERYWHERE_WITHIN, || {
            let answer = node.secure(&ec, "shop.example", &[]);
            if answer.status.success() { Err(format!("{answer:?}")) } else { Ok(()) }
        });
    }
    assert_eq!(one.certs(&["remove", "shop.example"]).refused().status.code(), Some(1));
    nothing_shows_a_key(&[&one, &two], &[&rsa, &ec, &wild]);
}

/// Looks for the private keys wherever people and programs read.
fn nothing_shows_a_key(nodes: &[&Secured], files: &[&Files]) {
    let lines = files.iter().flat_map(|files| {
        let text = fs::read_to_string(&files.key).expect("a key");
        text.lines().filter(|line| line.len() > 40).map(str::to_owned).collect::<Vec<_>>()
    });
    let canaries: Vec<String> = lines.collect();
    assert!(canaries.len() > 20, "{canaries:?}");
    for node in nodes.iter().map(|secured| &secured.node) {
        let mut said = node.log();
        for arguments in [
            &["certs", "--json", "-a", "site"][..],
            &["certs", "list", "--all"],
            &["audit", "--json"],
            &["store", "history"],
            &["store", "ls"],
            &["logs", "-a", "site"],
            &["info", "-a", "site"],
        ] {
            let shown = node.run(arguments);
            said += &format!("{}{}", shown.stdout, shown.stderr);
        }
        assert!(said.contains("wild.example"));
        let seen: Vec<&String> = canaries.iter().filter(|line| said.contains(*line)).collect();
        assert!(seen.is_empty(), "{seen:?} in {said}");
    }
}

#[test]
fn clients_are_sent_to_https_and_told_when_they_are_at_the_wrong_name() {
    let [one, two] = two("[https]\nhsts = '5m'\n[health]\npath = '/up'\n");
    let place = one.node.path("");
    let files = make(&place, "own", EC, &["shop.example"]);
    assert!(two.plain("shop.example", "/", &[]).stdout.starts_with("HTTP/1.1 200"));
    one.add(&files).succeeded();
    two.shows(&files, "shop.example");
    let to = format!("Location: https://shop.example:{}/a?b=c", two.port);
    let answer = wait_for("the redirect", STATE_DEADLINE, || {
        let answer = two.plain("shop.example", "/a?b=c", &[]).succeeded().stdout;
        if answer.starts_with("HTTP/1.1 301") { Ok(answer) } else { Err(answer) }
    });
    assert!(answer.contains(&to), "{answer}");
    assert!(!answer.to_lowercase().contains("strict-transport-security"), "{answer}");
    let posted = two.plain("shop.example", "/a?b=c", &["--data", "x=y"]).stdout;
    assert!(posted.starts_with("HTTP/1.1 308") && posted.contains(&to), "{posted}");
    for (host, path) in [("shop.example", "/up"), ("www.example", "/"), ("site.localhost", "/")] {
        let answer = two.plain(host, path, &[]).stdout;
        assert!(!answer.starts_with("HTTP/1.1 30"), "{host}{path}: {answer}");
    }
    let answer = two.secure(&files, "shop.example", &[]).succeeded().stdout;
    assert!(answer.contains("strict-transport-security: max-age=300"), "{answer}");
    // The names of a connection are those of its certificate.
    let asked = |version: &str, name: &str| {
        let host = format!("Host: {name}:{}", two.port);
        let answer = two.secure(&files, "shop.example", &[version, "--header", &host]);
        answer.succeeded().stdout.lines().next().unwrap_or_default().trim().to_owned()
    };
    assert_eq!(asked("--http2", "www.example"), "HTTP/2 421");
    assert_eq!(asked("--http1.1", "www.example"), "HTTP/1.1 421 Misdirected Request");
    assert_eq!(asked("--http2", "shop.example"), "HTTP/2 200");
    // What the application says in its file holds from its next release on.
    push(&one.node, "[https]\nredirect = false\n");
    wait_until("no redirect", || {
        two.plain("shop.example", "/", &[]).stdout.starts_with("HTTP/1.1 200")
    });
    let answer = two.secure(&files, "shop.example", &[]).succeeded().stdout;
    assert!(!answer.contains("strict-transport-security"), "{answer}");
}

#[test]
fn who_may_not_change_the_domains_brings_no_certificate() {
    let port = free_port();
    let node = Node::start_with(&[&format!("--https=127.0.0.1:{port}")]);
    push(&node, "");
    let files = make(&node.path(""), "own", EC, &["shop.example"]);
    node.cortex(&["users", "add", "vera", "--role", "viewer", "-a", "site"]);
    let token = node.cortex(&["tokens", "create", "laptop", "--user", "vera"]);
    let with_token = |arguments: &[&str]| {
        let mut command = Command::new(crate::node::binary());
        command.arg("--data-dir").arg(node.data()).args(arguments);
        command.env("CORTEX_TOKEN", token.trim());
        run(command, &format!("cortex {}", arguments.join(" ")))
    };
    let paths = [&files.chain, &files.key].map(|path| path.display().to_string());
    let add = ["certs", "add", &paths[0], &paths[1], "-a", "site"];
    with_token(&add).refused().saying(&["right to choose its domains"]);
    node.cortex(&add);
    with_token(&["certs", "remove", "shop.example", "-a", "site"]).refused();
    let text = with_token(&["certs", "--json", "-a", "site"]).succeeded().stdout;
    let rows: Value = serde_json::from_str(&text).expect("rows");
    assert_eq!(rows[0]["name"], "shop.example");
    assert_eq!(rows[0]["source"], "uploaded");
}
