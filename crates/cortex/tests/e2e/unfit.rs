//! A release that one node cannot start runs on the other; one that no node can start is refused.

use crate::fixtures::cluster::{cluster, id_of};
use crate::machine::free_port;
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for};

const NAME: &str = "picky";

/// A server that ends at once on a node whose data lies below one of `NOT_BELOW`.
const SERVER: &str = r#"
import os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

if os.getcwd().startswith(NOT_BELOW):
    sys.exit("no interpreter here")

class Picky(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_):
        pass

HTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Picky).serve_forever()
"#;

#[test]
fn a_release_that_one_node_cannot_start_runs_on_the_other() {
    let [one, two] = cluster([&[], &[]]);
    let project = one.path(NAME);
    let write = |nodes: &[&std::path::Path]| {
        let places: Vec<String> = nodes.iter().map(|data| format!("{data:?},")).collect();
        let server = SERVER.replace("NOT_BELOW", &format!("({})", places.concat()));
        let settings = "[processes.web]\ncommand = \"python3 server.py\"\ncount = 3\n";
        of_files(
            &project,
            &[
                ("server.py", &server),
                ("Procfile", "web: python3 server.py\n"),
                ("cortex.toml", settings),
            ],
        );
    };
    one.cortex(&["apps", "create", NAME, "--port", &free_port().to_string()]);
    // The node that coordinates cannot.
    write(&[&one.data()]);
    one.push_as_it_is(&project, NAME).succeeded();
    let await_all_on_two = || {
        wait_for("all to run on the other", STATE_DEADLINE, || {
            let ready = one.ready(NAME, "web");
            let good = ready.len() == 3 && ready.iter().all(|row| row.node == id_of(&two));
            if good { Ok(()) } else { Err(format!("{ready:?}")) }
        });
    };
    await_all_on_two();
    // No node can: it is refused with the reason, and what served serves on.
    write(&[&one.data(), &two.data()]);
    one.push_as_it_is(&project, NAME).refused().saying(&["exit status 1"]);
    await_all_on_two();
    // The node that follows cannot.
    write(&[&one.data()]);
    two.push_as_it_is(&project, NAME).succeeded();
    await_all_on_two();
}
