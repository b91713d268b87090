//! Builds that run on every node although they are made once; a builder that dies and one that
//! lacks a tool are replaced.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::fixtures::cluster::{await_loads, cluster, id_of};
use crate::machine::{free_port, lives};
use crate::node::Node;
use crate::outside::Site;
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

const NAME: &str = "crab";
const COUNT: usize = 4;
/// The loads of the nodes: apart by more than the margin, and not by so much that the first one
/// would take no instances.
const BUSY: &str = "--load=30";
const IDLE: &str = "--load=18";

const MANIFEST: &str = "[package]\nname = \"crab\"\nversion = \"1.0.0\"\nedition = \"2021\"\n";

/// A build script that adds a line to a file outside of the release; the first one on the node
/// `HANGS` does not end.
const BUILD: &str = r#"use std::io::Write;

fn main() {
    let node = std::env::var("CORTEX_NODE").unwrap();
    let hangs = node == HANGS && !std::path::Path::new(BUILT).exists();
    let mut built = std::fs::OpenOptions::new().append(true).create(true).open(BUILT).unwrap();
    writeln!(built, "{node} {}", std::process::id()).unwrap();
    if hangs {
        loop {
            std::thread::park();
        }
    }
}
"#;

const SERVER: &str = r#"use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

fn answer(stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 {
        if line == "\r\n" {
            let text = format!("Hello from {}", std::env::var("CORTEX_NODE").unwrap());
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", text.len());
            reader.get_mut().write_all((head + &text).as_bytes())?;
        }
        line.clear();
    }
    Ok(())
}

fn main() {
    let variable = |name| std::env::var(name).unwrap();
    let listener = TcpListener::bind(format!("{}:{}", variable("HOST"), variable("PORT"))).unwrap();
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || answer(stream));
    }
}
"#;

/// Starts a node, which is busier, and one that joins it and is known to be less so.
fn two_nodes() -> [Node; 2] {
    let [one, two] = cluster([&[BUSY], &[IDLE]]);
    await_loads(&[&one, &two]);
    [one, two]
}

/// Writes a Rust program whose first build does not end if it is on the node `hangs`.
fn program(node: &Node, hangs: &str) -> std::path::PathBuf {
    let project = node.path(NAME);
    let built = node.path("built");
    let build =
        BUILD.replace("BUILT", &format!("{built:?}")).replace("HANGS", &format!("{hangs:?}"));
    let settings = format!("[processes.web]\ncount = {COUNT}\n");
    of_files(
        &project,
        &[
            ("Cargo.toml", MANIFEST),
            ("build.rs", &build),
            ("src/main.rs", SERVER),
            ("cortex.toml", &settings),
        ],
    );
    node.cortex(&["apps", "create", NAME, "--port", &free_port().to_string()]);
    project
}

/// Returns the node and the process of each build so far.
fn builds(node: &Node) -> Vec<(String, u32)> {
    let text = std::fs::read_to_string(node.path("built")).unwrap_or_default();
    let build = |line: &str| {
        let (node, pid) = line.split_once(' ')?;
        Some((node.to_string(), pid.parse().ok()?))
    };
    text.lines().filter_map(build).collect()
}

fn await_served_by(node: &Node, nodes: &[&Node]) {
    let ids: Vec<String> = nodes.iter().map(|node| id_of(node)).collect();
    wait_for("each of them to run a part", STATE_DEADLINE, || {
        let rows = node.ready(NAME, "web");
        let all = rows.len() == COUNT && ids.iter().all(|id| rows.iter().any(|r| r.node == *id));
        if all { Ok(()) } else { Err(format!("{rows:#?}")) }
    });
}

fn through(node: &Node) -> Site {
    Site { host: format!("{NAME}.localhost:{}", node.http_port), port: node.http_port }
}

/// Returns each file of a directory with its content and whether it is executable.
fn tree(directory: &Path) -> BTreeMap<String, (blake3::Hash, bool)> {
    let mut files = BTreeMap::new();
    let mut left = vec![directory.to_path_buf()];
    while let Some(next) = left.pop() {
        for entry in std::fs::read_dir(&next).expect("a directory").flatten() {
            let path = entry.path();
            let metadata = path.symlink_metadata().expect("it is there");
            if metadata.is_dir() {
                left.push(path);
                continue;
            }
            let content = match metadata.is_symlink() {
                true => path.read_link().expect("a link").into_os_string().into_encoded_bytes(),
                false => std::fs::read(&path).expect("it can be read"),
            };
            let name = path.strip_prefix(directory).expect("below it").display().to_string();
            let runs = metadata.permissions().mode() & 0o111 != 0;
            files.insert(name, (blake3::hash(&content), runs));
        }
    }
    files
}

#[test]
fn one_build_at_the_emptiest_node_runs_on_both() {
    let [one, two] = two_nodes();
    let project = program(&one, "nobody");
    let push = one.push_as_it_is(&project, NAME).succeeded();
    push.saying(&[&format!("on node {}", id_of(&two))]);
    await_served_by(&one, &[&one, &two]);
    let built = builds(&one);
    let [(builder, _)] = &built[..] else { panic!("one build: {built:?}") };
    assert_eq!(*builder, id_of(&two));
    let trees = [&one, &two].map(|node| tree(&node.build_directory(NAME)));
    assert!(trees[0].contains_key("target/release/crab"), "{:?}", trees[0].keys());
    assert_eq!(trees[0], trees[1]);
    for node in [&one, &two] {
        through(node).get("/").assert_ok("Hello from");
    }
    // The next push removes what was built for an older release.
    let artefacts = || one.cortex(&["store", "ls", &format!("app::{NAME}::artefact")]);
    assert_eq!(artefacts().lines().count(), 1, "{}", artefacts());
    for note in ["two", "three"] {
        of_files(&project, &[("note", note)]);
        one.push_as_it_is(&project, NAME).succeeded();
    }
    let kept = artefacts();
    assert!(kept.lines().count() <= 2 && !kept.contains("::artefact::1::"), "{kept}");
}

#[test]
fn another_node_builds_when_the_builder_dies() {
    let [one, mut two] = two_nodes();
    let project = program(&one, &id_of(&two));
    let (data, built) = (one.data(), one.path("built"));
    let push = std::thread::spawn(move || {
        let mut command = std::process::Command::new(crate::node::binary());
        command.arg("--data-dir").arg(data).args(["push", "-a", NAME]).arg(project);
        crate::node::run(command, "push")
    });
    wait_until("the build to begin", || built.exists());
    let hanging = wait_for("who builds", STATE_DEADLINE, || match builds(&one)[..] {
        [(ref node, pid)] if *node == id_of(&two) => Ok(pid),
        ref builds => Err(format!("{builds:?}")),
    });
    let hanging = crate::machine::identity(hanging).expect("it builds");
    two.kill_nine();
    push.join().expect("it ends").succeeded();
    await_served_by(&one, &[&one]);
    through(&one).get("/").assert_ok(&format!("Hello from {}", id_of(&one)));
    let nodes: Vec<String> = builds(&one).into_iter().map(|(node, _)| node).collect();
    assert_eq!(nodes, [id_of(&two), id_of(&one)]);
    // Once it is back, it ends the build that it had begun.
    two.up();
    wait_until("the build that nobody waits for to end", || !lives(hanging));
}

#[test]
fn a_tool_that_one_node_lacks_is_found_on_another() {
    let [one, two] = cluster([&[], &[]]);
    let project = one.path(NAME);
    let server = "web: exec python3 server.py $(cat made)\n";
    let code = r#"
import os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"made on {sys.argv[1]}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

ThreadingHTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Answer).serve_forever()
"#;
    let write = |lack: &str| {
        let build = format!(
            "case $CORTEX_NODE in {lack}) no-such-compiler;; esac; echo $CORTEX_NODE > made"
        );
        let settings =
            format!("build = [{build:?}]\nportable = true\n[processes.web]\ncount = {COUNT}\n");
        let files = [("Procfile", server), ("server.py", code), ("cortex.toml", &settings)];
        of_files(&project, &files);
    };
    one.cortex(&["apps", "create", NAME, "--port", &free_port().to_string()]);
    let (first_id, second_id) = (id_of(&one), id_of(&two));
    write(&first_id);
    let push = one.push_as_it_is(&project, NAME).succeeded();
    push.saying(&[&format!("Node {first_id} cannot build it"), "exit status 127"]);
    // The node without the tool runs what the other one has built.
    await_served_by(&one, &[&one, &two]);
    let made_there = format!("made on {second_id}");
    through(&one).get("/").assert_ok(&made_there);
    // No node has the tool: the push is refused with what each said, and what served goes on
    // serving.
    write("*");
    let push = one.push_as_it_is(&project, NAME).refused();
    let tried = [format!("on node {first_id}"), format!("on node {second_id}")];
    push.saying(&["no node could build it", &tried[0], &tried[1], "no-such-compiler"]);
    through(&one).get("/").assert_ok(&made_there);
    await_served_by(&one, &[&one, &two]);
}
