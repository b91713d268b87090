//! `cortex store serve` under the clients that people have, unmodified: redis-cli, redis-benchmark,
//! and those of Python, Ruby, Node and Go.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::node::{Outcome, Running, binary, run};
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for};

/// The number of clients that open and close connections, more than the server has descriptors for.
const CLIENTS: &str = "1000";
const DESCRIPTORS: u64 = 1024;
/// The most kilobytes by which a large value may make the server grow.
const GROWTH_MAX_KB: u64 = 64 << 10;
const LARGE_MB: usize = 256;

struct Server {
    process: Running,
    directory: TempDir,
    port: u16,
    tls_port: u16,
}

impl Server {
    fn start() -> Server {
        Server::run(Command::new(binary()))
    }

    fn with_descriptors(limit: u64) -> Server {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={limit}")).arg(binary());
        Server::run(command)
    }

    fn run(mut command: Command) -> Server {
        let directory = TempDir::new().expect("a directory of the test's own");
        let log = directory.path().join("out");
        let out = File::create(&log).expect("a file for its output");
        command.args(["store", "serve", "--redis", "127.0.0.1:0", "--tls", "127.0.0.1:0"]);
        command.arg("--unix").arg(directory.path().join("socket"));
        command.arg("--data-dir").arg(directory.path().join("data"));
        command.stdin(Stdio::null()).stdout(out.try_clone().expect("the same file")).stderr(out);
        let mut process = Running(command.spawn().expect("the binary starts"));
        let ports = wait_for("the store to be open", STATE_DEADLINE, || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            if let Ok(Some(status)) = process.0.try_wait() {
                panic!("it ended with {status}: {text}");
            }
            let port = |scheme: &str| {
                let rest = text.split(&format!("  {scheme}://127.0.0.1:")).nth(1)?;
                rest.split_whitespace().next()?.parse().ok()
            };
            let whole = text.contains("Ctrl-C");
            port("redis").zip(port("rediss")).filter(|_| whole).ok_or(text)
        });
        Server { process, directory, port: ports.0, tls_port: ports.1 }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn tool(&self, program: &str, arguments: &[&str]) -> Outcome {
        let mut command = Command::new(program);
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]).args(arguments);
        run(command, &format!("{program} {}", arguments.join(" "))).succeeded()
    }

    fn cli(&self, arguments: &[&str]) -> String {
        self.tool("redis-cli", arguments).stdout.trim_end().to_string()
    }

    fn memory_kb(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("it is there");
        line.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
    }
}

/// Runs a client's script in a directory of its own; it must say that all that it checked was
/// right.
#[track_caller]
fn all_well(directory: &Path, program: &str, arguments: &[&str]) {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory);
    let outcome = run(command, &format!("{program} {}", arguments.join(" "))).succeeded();
    assert_eq!(outcome.stdout.trim_end(), "all well", "{}", outcome.stderr);
}

#[test]
fn redis_cli_and_redis_benchmark_are_served() {
    let server = Server::start();
    assert_eq!(server.cli(&["SET", "a::b", "hello"]), "OK");
    assert_eq!(server.cli(&["-3", "GET", "a::b"]), "hello");
    assert_eq!(server.cli(&["--scan", "--pattern", "a::*"]), "a::b");
    assert!(server.cli(&["INCR", "a"]).contains("refused"));
    assert!(server.cli(&["COMMAND", "DOCS", "GET"]).contains("summary"));
    assert!(server.cli(&["CORTEX.HISTORY", "a"]).contains("a::b"));
    let socket = server.path("socket");
    let mut command = Command::new("redis-cli");
    command.arg("-s").arg(&socket).args(["GET", "a::b"]);
    assert_eq!(run(command, "redis-cli -s").succeeded().stdout.trim_end(), "hello");
    let small = ["-t", "ping,set,get,mset", "-n", "2000", "-c", "20", "-q", "--csv"];
    for pipeline in ["1", "16"] {
        let arguments = [&small[..], &["-P", pipeline, "-r", "1000"]].concat();
        let said = server.tool("redis-benchmark", &arguments);
        assert!(!said.stdout.contains("rror") && said.stdout.contains("SET"), "{said:?}");
    }
    assert!(server.cli(&["DBSIZE"]).parse::<u64>().unwrap() > 100);
}

impl Server {
    /// Returns what redis-cli prints when it comes over TLS and trusts the store's own certificate.
    fn over_tls(&self, who: &[&str], command: &[&str]) -> String {
        let certificate = self.path("data/redis-tls/certificate.pem");
        let mut cli = Command::new("redis-cli");
        cli.args(["-h", "127.0.0.1", "-p", &self.tls_port.to_string(), "--tls", "--cacert"]);
        cli.arg(certificate).arg("--no-auth-warning").args(who).args(command);
        let outcome = run(cli, &format!("redis-cli --tls {}", command.join(" "))).succeeded();
        // A failed authentication is told on stderr.
        format!("{}{}", outcome.stdout, outcome.stderr).trim_end().to_string()
    }
}

#[test]
fn redis_cli_over_tls_authenticates_and_keeps_to_its_rights() {
    let server = Server::start();
    assert_eq!(server.cli(&["MSET", "node::a", "3", "app::website", "2"]), "OK");
    let token = server.cli(&["CORTEX.USER", "SET", "web", "WRITE", "app::web", "READ", "node"]);
    assert_eq!(token.len(), 64, "{token}");
    let nobody = server.over_tls(&[], &["GET", "node::a"]);
    assert!(nobody.contains("NOAUTH"), "{nobody}");
    let wrong = server.over_tls(&["--user", "web", "--pass", "guess"], &["GET", "node::a"]);
    assert!(wrong.contains("WRONGPASS") && wrong.contains("NOAUTH"), "{wrong}");
    let web = ["--user", "web", "--pass", &token];
    for (command, said) in [
        (&["SET", "app::web::a", "1"][..], "OK"),
        (&["GET", "app::web::a"], "1"),
        (&["GET", "node::a"], "3"),
        (&["SET", "node::a", "4"], "NOPERM"),
        (&["GET", "app::website"], "NOPERM"),
        (&["DEL", "app::web::a", "node::a"], "NOPERM"),
        (&["CORTEX.USER", "LIST"], "NOPERM"),
        (&["--scan"], "app::web::a\nnode::a"),
    ] {
        let reply = server.over_tls(&web, command);
        let good = if said == "NOPERM" { reply.contains(said) } else { reply == said };
        assert!(good, "{command:?}: {reply}");
    }
    // One client does not trust its certificate, and one uses no TLS at all.
    let mut cli = Command::new("redis-cli");
    cli.args(["-h", "127.0.0.1", "-p", &server.tls_port.to_string(), "--tls", "PING"]);
    let outcome = run(cli, "redis-cli --tls");
    assert!(!outcome.stdout.contains("PONG"), "{outcome:?}");
    let mut cli = Command::new("redis-cli");
    cli.args(["-h", "127.0.0.1", "-p", &server.tls_port.to_string(), "PING"]);
    let outcome = run(cli, "redis-cli on the port of TLS");
    assert!(!outcome.stdout.contains("PONG"), "{outcome:?}");
    assert_eq!(server.cli(&["CORTEX.USER", "DEL", "web"]), "1");
    assert!(server.over_tls(&web, &["GET", "node::a"]).contains("WRONGPASS"));
}

#[test]
fn redis_cli_is_told_why_something_is_refused() {
    let server = Server::start();
    assert_eq!(server.cli(&["SET", "a", "1"]), "OK");
    for (command, reason) in [
        (&["SETNX", "a", "2"][..], "locks"),
        (&["SET", "a", "2", "NX"], "locks"),
        (&["SET", "a", "2", "XX"], "locks"),
        (&["INCR", "a"], "one sum would be lost"),
        (&["MULTI"], "change at once"),
        (&["EVAL", "return 1", "0"], "change at once"),
        (&["SELECT", "1"], "database 0"),
        (&["SET", "a::", "1"], "must not be empty"),
    ] {
        let said = server.cli(command);
        assert!(said.contains(reason), "{command:?}: {said}");
    }
    assert_eq!(server.cli(&["GET", "a"]), "1");
}

#[test]
fn the_redis_client_of_python_is_served() {
    let server = Server::start();
    let project = server.path("project");
    of_files(&project, &[("client.py", include_str!("fixtures/redis_clients/client.py"))]);
    let python = project.join("venv/bin/python");
    let venv = |arguments: &[&str], program: &Path| {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&project);
        run(command, &arguments.join(" ")).succeeded();
    };
    venv(&["-m", "venv", "venv"], Path::new("/usr/bin/python3"));
    venv(&["-m", "pip", "install", "--quiet", "redis"], &python);
    let token = server.cli(&["CORTEX.USER", "SET", "web", "WRITE", "app::web"]);
    let certificate = server.path("data/redis-tls/certificate.pem");
    let (port, tls_port) = (server.port.to_string(), server.tls_port.to_string());
    let certificate = certificate.to_str().unwrap();
    let arguments = ["client.py", "127.0.0.1", &port, &tls_port, certificate, &token];
    all_well(&project, python.to_str().unwrap(), &arguments);
}

#[test]
fn the_redis_client_of_ruby_is_served() {
    let server = Server::start();
    let project = server.path("project");
    of_files(&project, &[("client.rb", include_str!("fixtures/redis_clients/client.rb"))]);
    let port = server.port.to_string();
    all_well(&project, "/usr/bin/ruby", &["client.rb", "127.0.0.1", &port]);
}

#[test]
fn the_redis_client_of_node_is_served() {
    let server = Server::start();
    let project = server.path("project");
    let package = r#"{ "private": true, "dependencies": { "redis": "^5" } }"#;
    let client = include_str!("fixtures/redis_clients/client.mjs");
    of_files(&project, &[("package.json", package), ("client.mjs", client)]);
    let mut command = Command::new("npm");
    command.args(["install", "--no-audit", "--no-fund"]).current_dir(&project);
    run(command, "npm install redis").succeeded();
    let port = server.port.to_string();
    all_well(&project, "node", &["client.mjs", "127.0.0.1", &port]);
}

#[test]
fn the_redis_client_of_go_is_served() {
    let server = Server::start();
    let project = server.path("project");
    of_files(
        &project,
        &[
            ("go.mod", include_str!("fixtures/redis_clients/go.mod")),
            ("go.sum", include_str!("fixtures/redis_clients/go.sum")),
            ("client.go", include_str!("fixtures/redis_clients/client.go")),
        ],
    );
    let address = format!("127.0.0.1:{}", server.port);
    all_well(&project, "go", &["run", ".", &address]);
}

#[test]
fn more_clients_than_descriptors_are_all_served() {
    let server = Server::with_descriptors(DESCRIPTORS);
    let arguments = ["-t", "set,get", "-c", CLIENTS, "-k", "0", "-n", "20000", "-q", "--csv"];
    let said = server.tool("redis-benchmark", &arguments);
    assert!(!said.stdout.contains("rror") && !said.stderr.contains("rror"), "{said:?}");
    assert_eq!(server.cli(&["PING"]), "PONG");
}

#[test]
fn a_large_value_passes_in_bounded_memory() {
    let server = Server::start();
    assert_eq!(server.cli(&["SET", "a", "1"]), "OK");
    let before = server.memory_kb("VmRSS");
    let (value, back) = (server.path("value"), server.path("back"));
    let piece: Vec<u8> =
        (0..1u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(&value, piece.repeat(LARGE_MB)).unwrap();
    let mut command = Command::new("sh");
    let script =
        "redis-cli -p $1 -x SET large < $2 && redis-cli -p $1 --raw GET large | head -c $4 > $3";
    command.args(["-c", script, "sh", &server.port.to_string()]).arg(&value).arg(&back);
    command.arg((LARGE_MB << 20).to_string());
    run(command, "set and get a large value").succeeded();
    let mut command = Command::new("cmp");
    command.arg(&value).arg(&back);
    run(command, "cmp").succeeded();
    let grown = server.memory_kb("VmHWM").saturating_sub(before);
    assert!(grown < GROWTH_MAX_KB, "it grew by {grown} kB");
}

#[test]
fn bad_options_are_refused_with_what_to_do() {
    let directory = TempDir::new().unwrap();
    for (arguments, advice) in [
        (&["--redis", "nonsense"][..], "127.0.0.1:8206"),
        (&["--redis", "0.0.0.0:0"], "--tls"),
        (&["--redis", "none"], "--unix"),
        (&["--tls-key", "x"], "--tls"),
    ] {
        let mut command = Command::new(binary());
        command.args(["store", "serve", "--data-dir"]).arg(directory.path().join("data"));
        command.args(arguments);
        let outcome = run(command, &arguments.join(" ")).refused();
        assert!(outcome.stderr.contains(advice), "{outcome:?}");
    }
}
