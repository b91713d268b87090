//! An application that was destroyed by mistake comes back with its files, on any node; one that is
//! destroyed for good leaves nothing on any of them.

use crate::fixtures::cluster::{await_loads, cluster};
use crate::outside::Site;
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

const NAME: &str = "blog";
/// A server that keeps what it is told, and says it.
const SERVER: &str = r#"
import os
from http.server import BaseHTTPRequestHandler, HTTPServer

class Kept(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.startswith("/keep/"):
            with open("kept/word", "w") as file:
                file.write(self.path[len("/keep/"):])
        word = open("kept/word").read() if os.path.exists("kept/word") else "nothing"
        body = f"{word} {os.environ.get('GREETING')}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

HTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Kept).serve_forever()
"#;

fn await_text(site: &Site, text: &str) {
    wait_for(&format!("'{text}' to be answered"), STATE_DEADLINE, || match site.try_get("/") {
        Ok(answer) if answer.status == 200 && answer.body == text => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

#[test]
fn what_was_destroyed_comes_back_with_its_files_or_leaves_nothing() {
    let [one, two] = cluster([&[], &[]]);
    await_loads(&[&one, &two]);
    let project = one.path("project");
    let files = [
        ("Procfile", "web: python3 app.py\n"),
        ("app.py", SERVER),
        ("cortex.toml", "persist = [\"kept/\"]\n"),
    ];
    of_files(&project, &files);
    let site = one.push(&project, NAME);
    one.cortex(&["config", "set", "GREETING=hello", "-a", NAME]);
    site.get("/keep/precious").assert_ok("precious hello");

    let destroyed = one.run(&["apps", "destroy", NAME]).succeeded();
    destroyed.saying(&["kept until", "cortex apps restore blog"]);
    wait_until("it to be gone", || site.try_get("/").is_err());
    for node in [&one, &two] {
        wait_for("all nodes to know of it", STATE_DEADLINE, || {
            let kept = node.cortex(&["apps", "--destroyed"]);
            if kept.contains(NAME) { Ok(()) } else { Err(kept) }
        });
        let apps = node.cortex(&["apps"]);
        assert!(!apps.contains(NAME), "{apps}");
    }
    let path = project.to_str().expect("UTF-8");
    one.run(&["push", path, "-a", NAME]).refused().saying(&["is kept until", "apps restore"]);
    one.run(&["undo", "-a", NAME]).refused().saying(&["destroyed", "apps restore blog"]);

    two.run(&["apps", "restore", NAME]).succeeded().saying(&["It is started as it was"]);
    await_text(&site, "precious hello");
    let releases = two.cortex(&["releases", "-a", NAME]);
    assert!(releases.contains("set GREETING"), "{releases}");

    // Now for good.
    one.run(&["apps", "destroy", NAME, "--now"]).refused().saying(&["--confirm blog"]);
    one.run(&["apps", "destroy", NAME, "--now", "--confirm", "shop"]).refused();
    await_text(&site, "precious hello");
    two.run(&["apps", "destroy", NAME, "--now", "--confirm", NAME]).succeeded();
    for node in [&one, &two] {
        let directory = node.data().join("apps").join(NAME);
        wait_until("nothing of it to be left", || !directory.exists());
        wait_for("nobody to keep it", STATE_DEADLINE, || {
            let kept = node.run(&["apps", "--destroyed"]).succeeded();
            if kept.stdout.contains(NAME) { Err(kept.stdout) } else { Ok(()) }
        });
    }
    one.run(&["apps", "restore", NAME]).refused().saying(&["no application"]);
    one.push_as_it_is(&project, NAME).succeeded().site().get("/").assert_ok("nothing None");
}
