//! Builds that are made once: a change of variables and a rollback run the build that is there.

use crate::node::Node;
use crate::project::of_files;

/// A server that answers with what was built, and with a variable.
const APP: &str = r#"
import os, http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = open("made").read() + os.environ.get("GREETING", "none") + " " + open("words").read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *args):
        pass
http.server.HTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Handler).serve_forever()
"#;

/// A build that writes its number, and what a registry gave that day. There is no such file the
/// second time: nothing can be installed any more.
const TOML: &str = r#"
build = ['echo x >> "$CORTEX_CACHE/count"; wc -l < "$CORTEX_CACHE/count" > made', 'cat "$REGISTRY" >> made']
baked = ["TITLE"]
[processes]
web = "python3 app.py"
"#;

#[test]
fn a_change_of_variables_and_a_rollback_need_no_registry() {
    let node = Node::start();
    let registry = node.path("registry");
    std::fs::write(&registry, "1.0\n").unwrap();
    let set = |assignment: &str| node.cortex(&["config", "set", assignment, "-a", "app"]);
    let project = node.path("app");
    let files = |words: &str| {
        let toml = format!("{TOML}[env]\nREGISTRY = '{}'\n", registry.display());
        of_files(&project, &[("app.py", APP), ("cortex.toml", &toml), ("words", words)]);
    };
    files("first");
    let site = node.push(&project, "app");
    assert_eq!(site.get("/").body, "1\n1.0\nnone first");
    std::fs::write(&registry, "2.0\n").unwrap();
    files("second");
    node.push(&project, "app");
    assert_eq!(site.get("/").body, "2\n2.0\nnone second");
    std::fs::remove_file(&registry).unwrap();
    set("GREETING=hello");
    assert_eq!(site.get("/").body, "2\n2.0\nhello second", "the build is the same");
    node.cortex(&["rollback", "v1", "-a", "app"]);
    assert_eq!(site.get("/").body, "1\n1.0\nnone first", "bit for bit");
    node.cortex(&["rollback", "v3", "-a", "app"]);
    assert_eq!(site.get("/").body, "2\n2.0\nhello second");
    let failed = node.run(&["config", "set", "TITLE=new", "-a", "app"]).refused();
    assert!(failed.stderr.contains("TITLE is part of what is built"), "{}", failed.stderr);
    assert_eq!(site.get("/").body, "2\n2.0\nhello second", "what served serves on");
    assert_eq!(node.build_directories("app").len(), 3);
}
