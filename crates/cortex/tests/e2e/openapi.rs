//! The description of the API: valid as such, and true of a real node. Schemathesis makes requests
//! of the document, right and wrong ones, and compares what comes with what it says.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use crate::node::{Node, run};
use crate::project::copy_of_example;

/// An address of loopback that no other test uses, since any port may be asked for.
const ADDRESS: &str = "127.0.35.9";
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_schema_conformance";
/// Cases for each operation of each phase: all operations together are to take half a minute.
const EXAMPLES: &str = "4";
/// What no case is made of, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    ("shutDown", "it ends the node"),
    ("startUpgrade", "it runs what is uploaded"),
    ("runCommand", "its answer is the connection itself"),
    ("attachSession", "its answer is the connection itself"),
    ("watchKeys", "its answer does not end"),
    ("readLogs", "its answer does not end with `follow`"),
    ("agreeToAuthority", "it asks an authority on the internet"),
    ("showTerms", "it asks an authority on the internet"),
];
/// What is left out where names are made up: made-up keys are records now and then.
const UNNAMED: &[&str] = &["setValue", "deleteValue"];
/// What is left out where the names of the paths are those of things that are there.
const NEEDED: &[&str] = &["destroyApplication", "removeUser", "removeTeam", "removeNode"];

/// Lets clients of TCP use the node's socket, since Schemathesis knows no other.
fn forward(socket: PathBuf) -> SocketAddr {
    let listener = TcpListener::bind((ADDRESS, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(node) = UnixStream::connect(&socket) else { continue };
            let ends = (client.try_clone().unwrap(), node.try_clone().unwrap());
            thread::spawn(move || {
                copy(client, node).ok();
            });
            thread::spawn(move || {
                let (client, node) = ends;
                copy(node, &client).ok();
                client.shutdown(Shutdown::Both).ok();
            });
        }
    });
    address
}

fn copy(mut from: impl Read, mut to: impl Write) -> io::Result<u64> {
    io::copy(&mut from, &mut to)
}

/// Installs the tools into an environment of the test's own; returns the directory of its programs.
fn tools(directory: &Path) -> PathBuf {
    let programs = directory.join("venv/bin");
    let run_here = |program: &Path, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(directory);
        run(command, &arguments.join(" ")).succeeded();
    };
    run_here(Path::new("/usr/bin/python3"), &["-m", "venv", "venv"]);
    let install = ["-m", "pip", "install", "--quiet", "schemathesis", "openapi-spec-validator"];
    run_here(&programs.join("python"), &install);
    programs
}

#[test]
fn the_description_is_valid_and_the_node_keeps_to_it() {
    let node = Node::start_on(ADDRESS, &[]);
    let directory = node.directory.path();
    let programs = tools(directory);
    let address = forward(node.data().join("sockets/api"));
    let url = format!("http://{address}/v1/openapi.json");

    let mut fetch = Command::new("curl");
    fetch.args(["--silent", "--fail", "--output", "openapi.json", &url]).current_dir(directory);
    run(fetch, "curl").succeeded();
    let mut validate = Command::new(programs.join("python"));
    validate.args(["-m", "openapi_spec_validator", "--schema", "3.1.0", "openapi.json"]);
    validate.current_dir(directory);
    run(validate, "openapi_spec_validator").succeeded();

    check(&node, &programs, &url, UNNAMED, "");
    let project = node.path("site");
    copy_of_example("static", &project);
    node.push(&project, "hello");
    node.cortex(&["users", "add", "ana"]);
    node.cortex(&["teams", "add", "red"]);
    node.cortex(&["store", "set", "a::b", "1"]);
    let bound = "[parameters]\n\"path.app\" = \"hello\"\n\"path.user\" = \"ana\"\n\
                 \"path.team\" = \"red\"\n\"path.id\" = \"v1\"\n\"query.key\" = \"a::b\"\n";
    check(&node, &programs, &url, NEEDED, bound);
}

/// Makes requests of all operations but those that are left out.
fn check(node: &Node, programs: &Path, url: &str, besides: &[&str], settings: &str) {
    std::fs::write(node.path("schemathesis.toml"), settings).unwrap();
    let mut command = Command::new(programs.join("schemathesis"));
    command.args(["run", "--checks", CHECKS, "--max-examples", EXAMPLES, "--seed", "1"]);
    command.args(["--phases", "coverage,fuzzing", "--generation-database", "none", "--no-color"]);
    command.args(["--continue-on-failure", "--request-timeout", "60", "--warnings", "off"]);
    for id in LEFT_OUT.iter().map(|(id, _)| id).chain(besides) {
        command.args(["--exclude-operation-id", id]);
    }
    command.arg(url).current_dir(node.directory.path());
    let said = run(command, "schemathesis run").succeeded();
    assert!(said.stdout.contains("No issues found"), "{}", said.stdout);
}
