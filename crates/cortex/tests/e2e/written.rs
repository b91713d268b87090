//! What an application writes into its own tree is named when another build takes over, and kept
//! when that is asked for, while it runs.

use crate::node::Node;
use crate::project::of_files;
use crate::wait::wait_until;

/// A server that counts in an SQLite database, which it creates if there is none, and holds open.
const APP: &str = r#"
import http.server, os, sqlite3
db = sqlite3.connect("count.db", isolation_level=None)
db.execute("create table if not exists calls (n integer)")
found = os.listdir(os.environ["HOME"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        db.execute("insert into calls values (1)")
        rows = db.execute("select count(*) from calls").fetchone()[0]
        text = f"{rows} {found}"
        open(os.environ["HOME"] + "/session", "w").write("x")
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *args):
        pass
http.server.HTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Handler).serve_forever()
"#;

#[test]
fn files_that_an_instance_wrote_are_named_and_can_be_kept() {
    let node = Node::start();
    let project = node.path("app");
    let files = |words: &str| {
        let procfile = "web: python3 main.py\n";
        of_files(&project, &[("main.py", APP), ("Procfile", procfile), ("words", words)]);
    };
    let count = |site: &crate::outside::Site| -> u32 {
        site.get("/").body.split(' ').next().and_then(|n| n.parse().ok()).expect("a number")
    };
    files("first");
    let site = node.push(&project, "app");
    // The probe that found it ready may have counted.
    let first = count(&site);
    assert_eq!(count(&site), first + 1);
    files("second");
    let pushed = node.push_as_it_is(&project, "app").succeeded();
    pushed.saying(&[
        "v1 wrote count.db, ~/session here; it stays behind",
        "persist = [\"count.db\", \"~/session\"]",
        "persist add count.db '~/session' -a app",
    ]);
    wait_until("the log says it, too", || {
        node.cortex(&["logs", "-a", "app"]).contains("it stays behind")
    });
    let body = site.get("/").body;
    assert!(body.ends_with("[]"), "HOME is empty with each build: {body}");
    // These commands are those that the message names.
    node.cortex(&["rollback", "v1", "-a", "app"]);
    let before = count(&site);
    assert!(before > first, "{before}");
    node.cortex(&["persist", "add", "count.db", "~/session", "-a", "app"]);
    assert!(count(&site) > before);
    files("third");
    let pushed = node.push_as_it_is(&project, "app").succeeded();
    assert!(!pushed.stderr.contains("count.db"), "{}", pushed.stderr);
    assert!(count(&site) > before + 1);
    let listed = node.cortex(&["persist", "list", "-a", "app"]);
    assert!(listed.contains("count.db") && listed.contains("~/session"), "{listed}");
    let body = site.get("/").body;
    assert!(!body.ends_with("[]"), "what was below HOME is there again: {body}");
}
