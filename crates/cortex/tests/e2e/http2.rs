//! HTTP/2 from outside: the conformance test h2spec, and gRPC by its own client and server.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::machine::free_port;
use crate::node::{Node, run};
use crate::project::of_files;

/// The package of h2spec, in the newest version that the module proxy has.
const H2SPEC: &str = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible";
const H2SPEC_CASES: usize = 146;

/// A server that answers once it has read all of a request, so that a request can be open.
const READER: &str = r#"
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Reader(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers.get("Transfer-Encoding"):
            size = 1
            while size:
                size = int(self.rfile.readline() or "0", 16)
                self.rfile.read(size + 2)
        else:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b"It has read all of it.\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_POST = do_PUT = do_GET


address = (os.environ["HOST"], int(os.environ["PORT"]))
ThreadingHTTPServer(address, Reader).serve_forever()
"#;

/// Starts a node with a port inside TLS, whose certificate is in `certificate.pem`.
fn secured(names: &[&str]) -> (Node, u16) {
    let directory = TempDir::with_prefix("cortex-e2e-").expect("a temporary directory");
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
    let (chain, key) = (directory.path().join("certificate.pem"), directory.path().join("key.pem"));
    fs::write(&chain, made.cert.pem()).expect("a file");
    fs::write(&key, made.signing_key.serialize_pem()).expect("a file");
    let port = free_port();
    let https = format!("127.0.0.1:{port}");
    let (chain, key) = (chain.to_str().expect("text"), key.to_str().expect("text"));
    let options = ["--https", &https, "--tls-cert", chain, "--tls-key", key];
    let options: Vec<String> = options.map(str::to_owned).into();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    (Node::start_in(directory, &options), port)
}

/// Returns the output about the strict cases of h2spec that failed, and their names.
fn failures(h2spec: &Path, options: &[&str]) -> (String, Vec<String>) {
    let mut command = Command::new(h2spec);
    command.args(["--strict", "-h", "127.0.0.1", "-o", "5"]).args(options);
    let outcome = run(command, &format!("h2spec {}", options.join(" ")));
    let all = outcome.stdout;
    let ran = format!("{H2SPEC_CASES} tests, ");
    assert!(all.contains(&ran) && all.contains(" 0 skipped"), "{all}{}", outcome.stderr);
    let failed = all.split_once("Failures:").map_or("", |(_, failed)| failed);
    let names = failed.lines().filter_map(|line| line.trim().strip_prefix("× "));
    (failed.to_owned(), names.map(str::to_owned).collect())
}

#[test]
fn the_conformance_test_passes() {
    let (node, https) = secured(&["127.0.0.1"]);
    let tools = node.path("tools");
    fs::create_dir(&tools).expect("a directory");
    let mut install = Command::new("go");
    install.args(["install", H2SPEC]).env("GOBIN", &tools).env("GOFLAGS", "-mod=mod");
    run(install, &format!("go install {H2SPEC}")).succeeded();
    let project = node.path("reader");
    let settings = "domains = [\"127.0.0.1\"]\n[processes.web]\ncommand = \"python3 app.py\"\n";
    of_files(&project, &[("app.py", READER), ("cortex.toml", settings)]);
    let site = node.push(&project, "reader");
    let h2spec = tools.join("h2spec");
    let (text, names) = failures(&h2spec, &["-t", "-k", "-p", &https.to_string()]);
    assert!(names.is_empty(), "{text}");
    let (text, names) = failures(&h2spec, &["-p", &site.port.to_string()]);
    // HTTP/1.1 is spoken there, too: what is neither gets its answer before the end.
    assert_eq!(names, ["2: Sends invalid connection preface"], "{text}");
}

#[test]
fn grpc_passes_through() {
    let (node, https) = secured(&["greeter.localhost"]);
    let project = node.path("greeter");
    let python = project.with_file_name("venv").join("bin/python");
    let venv = |program: &Path, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(node.directory.path());
        run(command, &arguments.join(" ")).succeeded();
    };
    venv(Path::new("/usr/bin/python3"), &["-m", "venv", "venv"]);
    venv(&python, &["-m", "pip", "install", "--quiet", "grpcio"]);
    let settings = format!(
        "protocol = \"h2c\"\n[processes.web]\ncommand = \"{} app.py\"\ncount = 2\n",
        python.display()
    );
    let server = include_str!("fixtures/grpc/server.py");
    of_files(&project, &[("app.py", server), ("cortex.toml", &settings)]);
    let site = node.push(&project, "greeter");
    node.await_ready("greeter", "web", 2);
    of_files(node.directory.path(), &[("client.py", include_str!("fixtures/grpc/client.py"))]);
    let certificate = node.path("certificate.pem");
    let mut client = Command::new(&python);
    client.arg("client.py").arg(site.port.to_string()).arg(https.to_string()).arg(certificate);
    client.current_dir(node.directory.path());
    let said = run(client, "the client of gRPC").succeeded().stdout;
    assert!(said.ends_with("all well\n"), "{said}");
}
