//! `cortex router export` in front of a real nginx and a real HAProxy, which an ordinary user runs
//! in a directory of their own: requests are counted while instances come and go.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::machine::free_port;
use crate::node::{Node, Running, binary, run};
use crate::outside::{Callers, Site};
use crate::project;
use crate::wait::{STATE_DEADLINE, wait_for};

/// A running `router export --watch`, and the file that it writes.
struct Export {
    out: std::path::PathBuf,
    _running: Running,
}

impl Export {
    fn start(node: &Node, format: &str, listen: &str, reload: &str) -> Export {
        let out = node.path("exported.cfg");
        let mut command = Command::new(binary());
        command.arg("--data-dir").arg(node.data()).args(["router", "export", "--format", format]);
        command.args(["--listen", listen, "--watch", "--reload", reload, "--out"]).arg(&out);
        command.stdin(Stdio::null());
        let running = Running(command.spawn().expect("the binary starts"));
        wait_for("the configuration to be written", STATE_DEADLINE, || {
            fs::metadata(&out).map(drop).map_err(|error| error.to_string())
        });
        Export { out, _running: running }
    }

    /// Waits until the configuration names `count` instances.
    fn await_servers(&self, line: &str, count: usize) {
        wait_for(&format!("{count} servers"), STATE_DEADLINE, || {
            let text = fs::read_to_string(&self.out).unwrap_or_default();
            let named = text.lines().filter(|one| one.trim_start().starts_with(line));
            let servers = named.filter(|one| !one.contains(" backup")).count();
            if servers == count { Ok(()) } else { Err(text) }
        });
    }
}

fn available(program: &str) -> bool {
    let found =
        Command::new(program).arg("-v").stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(found.is_ok(), "{program} is not installed; ./test lists what the tests need");
    true
}

/// Scales up and down under load, through the server that listens on `port`.
fn count_while_scaling(node: &Node, export: &Export, port: u16, line: &str) {
    let site = Site { host: "hello.localhost".into(), port };
    wait_for("the first answer", STATE_DEADLINE, || {
        let answer = site.try_get("/")?;
        if answer.status == 200 { Ok(()) } else { Err(format!("{answer:?}")) }
    });
    let callers = Callers::start_anew(&site, "/", &["Hello from"]);
    callers.answered_more(20);
    for wanted in [3, 1, 2] {
        node.cortex(&["scale", &format!("web={wanted}"), "-a", "hello"]);
        export.await_servers(line, wanted);
        callers.answered_more(40);
    }
    callers.finish_without_failure();
}

fn push_hello(node: &Node) {
    let project = node.path("hello");
    project::copy_of_example("hello", &project);
    node.push(&project, "hello");
}

fn shown(path: &Path) -> String {
    path.to_str().expect("test paths are text").to_string()
}

#[test]
fn nginx_serves_the_live_instances() {
    assert!(available("nginx"));
    let node = Node::start();
    push_hello(&node);
    let (port, prefix) = (free_port(), node.path("nginx"));
    fs::create_dir(&prefix).unwrap();
    let exported = shown(&node.path("exported.cfg"));
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("    {kind}_temp_path {kind};\n"))
        .collect();
    let configuration = format!(
        "daemon off;\npid nginx.pid;\nerror_log error.log;\nevents {{}}\nhttp {{\n{temporary}    \
         access_log off;\n    include {exported};\n}}\n"
    );
    fs::write(prefix.join("nginx.conf"), configuration).unwrap();
    let options = format!("-p {0}/ -c {0}/nginx.conf -e {0}/error.log", shown(&prefix));
    // A server that does not run yet cannot be reloaded, and then nothing is lost.
    let reload = format!("test ! -s {0}/nginx.pid || nginx {options} -s reload", shown(&prefix));
    let export = Export::start(&node, "nginx", &format!("127.0.0.1:{port}"), &reload);
    let mut command = Command::new("nginx");
    command.args(options.split(' ')).stdin(Stdio::null());
    let mut nginx = Running(command.spawn().unwrap());
    count_while_scaling(&node, &export, port, "server 127.0.0.1:");
    // Its workers end with it.
    crate::machine::kill(nginx.0.id(), rustix::process::Signal::TERM);
    wait_for("nginx to end", STATE_DEADLINE, || {
        nginx.0.try_wait().unwrap().map(drop).ok_or_else(|| "it goes on".to_string())
    });
}

#[test]
fn haproxy_serves_the_live_instances() {
    assert!(available("haproxy"));
    let node = Node::start();
    push_hello(&node);
    let (port, own) = (free_port(), node.path("haproxy.cfg"));
    fs::write(&own, "global\n    maxconn 200\n").unwrap();
    let pid = shown(&node.path("haproxy.pid"));
    let reload = format!("test ! -s {pid} || kill -USR2 $(cat {pid})");
    let export = Export::start(&node, "haproxy", &format!("127.0.0.1:{port}"), &reload);
    let mut command = Command::new("haproxy");
    // The master starts another worker with the sockets of the one before.
    command.args(["-W", "-db", "-f", &shown(&own), "-f", &shown(&export.out)]);
    command.stdin(Stdio::null());
    let mut haproxy = Running(command.spawn().unwrap());
    // A signal that comes before its master is up would end it.
    wait_for("haproxy to listen", STATE_DEADLINE, || {
        let connected = std::net::TcpStream::connect(("127.0.0.1", port));
        connected.map(drop).map_err(|error| error.to_string())
    });
    fs::write(&pid, haproxy.0.id().to_string()).unwrap();
    // It was not told of what changed meanwhile.
    crate::machine::kill(haproxy.0.id(), rustix::process::Signal::USR2);
    count_while_scaling(&node, &export, port, "server web");
    crate::machine::kill(haproxy.0.id(), rustix::process::Signal::TERM);
    wait_for("haproxy to end", STATE_DEADLINE, || {
        haproxy.0.try_wait().unwrap().map(drop).ok_or_else(|| "it goes on".to_string())
    });
}

#[test]
fn an_export_is_printed_and_what_cannot_be_written_is_refused() {
    let node = Node::start();
    let printed = node.cortex(&["router", "export", "--format", "nginx"]);
    assert!(printed.contains("default_server"), "{printed}");
    let check = |arguments: &[&str], needles: &[&str]| {
        let all = [&["router", "export"], arguments].concat();
        node.run(&all).refused().saying(needles);
    };
    check(&[], &["--format"]);
    check(&["--format", "apache"], &["apache", "nginx", "haproxy"]);
    check(&["--format", "nginx", "--watch"], &["--out"]);
    check(&["--format", "nginx", "--listen", "eighty"], &["--listen", "eighty"]);
    check(&["--format", "nginx", "--out", "/nowhere/file"], &["choose another file"]);
    check(&["--format", "nginx", "--out", "/"], &["is a directory"]);
    let out = shown(&node.path("out"));
    let failing = ["--format", "nginx", "--out", &out, "--reload", "echo no; exit 3"];
    check(&failing, &["--reload", "3"]);
    let mut other = Command::new(binary());
    let nowhere = node.path("nowhere");
    other.arg("--data-dir").arg(&nowhere).args(["router", "export", "--format", "nginx"]);
    run(other, "without a node").refused().saying(&["no node is running"]);
}
