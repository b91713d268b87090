//! An application that answers to its own name alone, and one that wants the same name.

use std::fs;

use crate::node::Node;
use crate::outside::Site;
use crate::project::of_files;
use crate::wait::wait_until;

/// A server that refuses other hosts, as `ALLOWED_HOSTS` and `config.hosts` do.
const PICKY: &str = "\
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        host = self.headers.get('Host', '').split(':')[0].lower()
        print('asked as', host, self.path, flush=True)
        self.send_response(200 if host.endswith('shop.example.org') else 400)
        self.send_header('Content-Length', '0')
        self.end_headers()
    def log_message(self, *arguments): pass
ThreadingHTTPServer((os.environ['HOST'], int(os.environ['PORT'])), Handler).serve_forever()
";

fn status(node: &Node, host: &str) -> u16 {
    let address = node.http_address();
    let port = address.rsplit(':').next().expect("an address has a port");
    Site::parse(&format!("http://{host}:{port}")).get("/").status
}

#[test]
fn an_application_is_asked_by_its_own_name_and_has_that_alone() {
    let node = Node::start();
    let shop = node.path("shop");
    let settings = "domains = ['*.shop.example.org', 'shop.example.org']\n\
                    [health]\npath = '/up'\nstart_timeout = '20s'\ninterval = '500ms'\n";
    of_files(&shop, &[("app.py", PICKY), ("cortex.toml", settings)]);
    // Projects that are used elsewhere, too, have such a file.
    of_files(&shop, &[(".env", "export PORT=3000\nKEY=\"two\nlines\" # secret\n")]);
    node.try_push(&shop, "shop").succeeded();
    let asked = || node.cortex(&["logs", "-n", "100", "-a", "shop"]);
    let probes = || asked().matches("asked as shop.example.org /up").count();
    wait_until("the checker asks as well", || probes() > 2);
    assert!(!asked().contains("asked as shop.localhost"), "{}", asked());
    assert_eq!(
        (status(&node, "Shop.example.org"), status(&node, "a.shop.example.org")),
        (200, 200)
    );

    let other = node.path("other");
    of_files(&other, &[("index.html", "hi"), ("cortex.toml", "domains = ['SHOP.example.org.']\n")]);
    node.try_push(&other, "other").refused().saying(&["'shop'", "shop.example.org"]);
    fs::remove_file(other.join("cortex.toml")).unwrap();
    node.push(&other, "other");
    let add = ["domains", "add", "b.shop.example.org", "bücher.example", "-a", "other"];
    assert_eq!(node.cortex(&add), "b.shop.example.org\nxn--bcher-kva.example\n");
    wait_until("a name comes before its family", || status(&node, "b.shop.example.org") == 200);
    wait_until("names of other letters", || status(&node, "xn--bcher-kva.example") == 200);

    let file = shop.join(".env");
    let set = ["config", "set", "--file", file.to_str().unwrap(), "-a", "shop"];
    node.run(&set).succeeded().saying(&["PORT was left out"]);
    assert_eq!(node.cortex(&["config", "get", "KEY", "-a", "shop"]).trim_end(), "two\nlines");
}
