//! The bus of applications: an application of two nodes hears on both what one of its instances
//! says, by the address in its environment and by plain Redis commands.

use crate::fixtures::cluster::cluster;
use crate::node::Node;
use crate::outside::Site;
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for};

/// Speaks the protocol itself, as no client library is there everywhere. What an instance hears it
/// keeps under a key with its node's name.
const SERVER: &str = r#"
import os, socket, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

URL = urlparse(os.environ["REDIS_URL"])
assert os.environ["REDIS_URL"] == os.environ["CORTEX_BUS_URL"]
NODE = os.environ["CORTEX_NODE"]

class Client:
    def __init__(self):
        self.file = socket.create_connection((URL.hostname, URL.port)).makefile("rwb")
        assert self.ask("AUTH", URL.username, URL.password) == "OK"

    def ask(self, *words):
        out = b"*%d\r\n" % len(words)
        for word in words:
            word = word.encode()
            out += b"$%d\r\n%s\r\n" % (len(word), word)
        self.file.write(out)
        self.file.flush()
        return self.reply()

    def reply(self):
        line = self.file.readline().decode().strip()
        if not line:
            raise ConnectionError("the bus is gone")
        kind, rest = line[0], line[1:]
        if kind == "-":
            raise RuntimeError(rest)
        if kind == "$":
            return None if rest == "-1" else self.file.read(int(rest) + 2)[:-2].decode()
        if kind == "*":
            return [self.reply() for _ in range(int(rest))]
        return rest

def listen():
    while True:
        try:
            ears, mouth = Client(), Client()
            ears.ask("SUBSCRIBE", "room:1")
            ears.ask("SUBSCRIBE", f"node:{NODE}")
            ears.ask("PSUBSCRIBE", f"{NODE}:*")
            while True:
                _, _, text = ears.reply()
                mouth.ask("SET", f"heard:{NODE}", text)
        except (OSError, ConnectionError):
            time.sleep(0.05)

class Chat(BaseHTTPRequestHandler):
    def do_GET(self):
        url = urlparse(self.path)
        client = Client()
        if url.path == "/say":
            body = client.ask("PUBLISH", "room:1", parse_qs(url.query)["text"][0])
        elif url.path == "/listeners":
            body = client.ask("PUBSUB", "NUMSUB", "room:1")[1]
        elif url.path == "/channels":
            channels = client.ask("PUBSUB", "CHANNELS", "node:*")
            body = " ".join([*sorted(channels), client.ask("PUBSUB", "NUMPAT")])
        elif url.path == "/heard":
            keys = sorted(client.ask("KEYS", "heard:*"))
            body = " ".join(client.ask("GET", key) for key in keys)
        else:
            body = "chat"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())

threading.Thread(target=listen, daemon=True).start()
address = os.environ["HOST"], int(os.environ["PORT"])
ThreadingHTTPServer(address, Chat).serve_forever()
"#;

fn push(node: &Node, name: &str) -> Site {
    let project = node.path(name);
    let cortex_toml = "bus = \"REDIS_URL\"\n[processes]\nweb = \"python3 server.py\"\n";
    of_files(&project, &[("server.py", SERVER), ("cortex.toml", cortex_toml)]);
    node.push(&project, name)
}

fn await_answer(site: &Site, path: &str, wanted: &str) {
    wait_for(&format!("{path} to answer '{wanted}'"), STATE_DEADLINE, || {
        let answer = site.try_get(path)?;
        if answer.body == wanted { Ok(()) } else { Err(format!("{answer:?}")) }
    });
}

#[test]
fn what_one_instance_says_is_heard_on_all_nodes_by_its_application_alone() {
    let [one, two] = cluster([&[], &[]]);
    let (chat, other) = (push(&one, "chat"), push(&one, "other"));
    one.cortex(&["scale", "web=2", "-a", "chat"]);
    let rows = one.await_ready("chat", "web", 2);
    assert_ne!(rows[0].node, rows[1].node, "{rows:#?}");
    await_answer(&chat, "/listeners", "2");
    await_answer(&other, "/listeners", "1");
    let mut nodes: Vec<_> = rows.iter().map(|row| format!("node:{}", row.node)).collect();
    nodes.sort();
    await_answer(&chat, "/channels", &format!("{} 2", nodes.join(" ")));
    chat.get("/say?text=hello").assert_ok("");
    await_answer(&chat, "/heard", "hello hello");
    // The other node answers the same.
    let there = Site { host: "chat.localhost".into(), port: two.http_port };
    await_answer(&there, "/heard", "hello hello");
    other.get("/heard").assert_ok("");
    assert_eq!(other.get("/heard").body, "");
    one.cortex(&["apps", "destroy", "chat", "--now", "--confirm", "chat"]);
    // An application that is made anew finds nothing of the one before.
    let chat = push(&one, "chat");
    assert_eq!(chat.get("/heard").body, "");
}

#[test]
fn a_node_that_starts_again_is_found_at_the_same_address() {
    let mut node = Node::start();
    let chat = push(&node, "chat");
    await_answer(&chat, "/listeners", "1");
    chat.get("/say?text=before").assert_ok("1");
    await_answer(&chat, "/heard", "before");
    let pid = node.ready("chat", "web")[0].pid;
    node.kill_nine();
    node.up();
    assert_eq!(node.await_ready("chat", "web", 1)[0].pid, pid, "it was adopted");
    await_answer(&chat, "/listeners", "1");
    assert_eq!(chat.get("/heard").body, "before");
    chat.get("/say?text=after").assert_ok("1");
    await_answer(&chat, "/heard", "after");
}
