//! Applications that start and yet are not ready, and one that is and then dies.

use serde::Deserialize;

use crate::machine::free_port;
use crate::node::Node;
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for};

const SERVE: &str = "
import os, threading, time
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header('Content-Length', '3')
        self.end_headers()
        self.wfile.write(b'hi\\n')
    def log_message(self, *_):
        pass
def serve(host=os.environ['HOST'], port=os.environ['PORT']):
    HTTPServer((host, int(port)), Handler).serve_forever()
";
const WORKERS: &str = "
import os, socket, time
listener = socket.socket()
listener.bind((os.environ['HOST'], int(os.environ['PORT'])))
listener.listen()
while True:
    if os.fork() == 0:
        time.sleep(0.3)
        print('no module named shop', flush=True)
        os._exit(3)
    os.wait()
";

fn project(node: &Node, name: &str, program: &str) -> std::path::PathBuf {
    let path = node.path(name);
    let manifest = "[health]\nsettle = \"8s\"\n\n[processes]\nweb = \"python3 app.py\"\n";
    of_files(&path, &[("app.py", program), ("cortex.toml", manifest)]);
    path
}

#[test]
fn what_will_not_become_ready_is_refused_early_with_the_way_out() {
    let node = Node::start();
    let port = free_port();
    let elsewhere = format!("{SERVE}serve('127.0.0.1', {port})\n");
    let listens = format!("listens on 127.0.0.1:{port}, but PORT is");
    let path = project(&node, "elsewhere", &elsewhere);
    node.push_as_it_is(&path, "elsewhere").refused().saying(&[&listens, "os.environ[\"PORT\"]"]);
    // The child answers before the first process has ended, and after.
    let sooner = "if os.fork():\n    time.sleep(0.3)\nelse:\n    serve()\n";
    let later = "if os.fork():\n    os._exit(0)\ntime.sleep(1)\nserve()\n";
    for (name, rest) in [("sooner", sooner), ("later", later)] {
        let path = project(&node, name, &format!("{SERVE}{rest}"));
        let said = ["went to the background", "gunicorn without --daemon"];
        node.push_as_it_is(&path, name).refused().saying(&said);
    }
    let path = project(&node, "workers", WORKERS);
    let said = ["its worker processes end one after the other", "no module named shop"];
    node.push_as_it_is(&path, "workers").refused().saying(&said);
}

#[derive(Debug, Deserialize)]
struct ReleaseRow {
    release: String,
    state: String,
    why: Option<String>,
}

#[test]
fn a_release_that_dies_after_the_switch_is_taken_back() {
    let node = Node::start();
    let path = project(&node, "shop", &format!("{SERVE}serve()\n"));
    node.push(&path, "shop");
    let dying = "
def die():
    time.sleep(1)
    print('no database', flush=True)
    os._exit(4)
threading.Thread(target=die).start()
serve()
";
    project(&node, "shop", &format!("{SERVE}{dying}"));
    node.push(&path, "shop");
    let taken_back = || {
        let text = node.cortex(&["releases", "--json", "-a", "shop"]);
        let rows: Vec<ReleaseRow> = serde_json::from_str(&text).unwrap();
        let states: Vec<(&str, &str)> =
            rows.iter().map(|row| (row.release.as_str(), row.state.as_str())).collect();
        let why = rows.iter().find(|row| row.release == "v2").and_then(|row| row.why.clone());
        let done = states == [("v3", "serving"), ("v2", "taken back"), ("v1", "")];
        if done { Ok(why) } else { Err(text) }
    };
    let why = wait_for("v1's code to serve again", STATE_DEADLINE, taken_back).unwrap();
    assert!(why.contains("web.1 ended: exit status 4") && why.contains("no database"), "{why}");
    // It stays on record, whatever comes after.
    project(&node, "shop", &format!("{SERVE}serve()\n#\n"));
    node.push(&path, "shop");
    let listing = node.cortex(&["releases", "-a", "shop"]);
    assert!(listing.contains("taken back: its instances ended within a minute"), "{listing}");
}
