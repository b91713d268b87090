//! An application that was destroyed by mistake comes back with its files, on any node; one that is
//! destroyed for good leaves nothing on any of them.

use std::path::Path;

use crate::fixtures::cluster::{await_loads, cluster, id_of};
use crate::node::Node;
use crate::outside::Site;
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

const NAME: &str = "blog";
const DOMAIN: &str = "blog.test";
/// The option that sets the node's clock eight days ahead.
const A_WEEK_LATER: &str = "--clock-off=691200";
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

/// Waits until the router of a node knows no such host any more.
fn await_unknown(site: &Site) {
    wait_for("nothing to be there", STATE_DEADLINE, || match site.try_get("/") {
        Ok(answer) if answer.status == 404 => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

fn await_kept(node: &Node, is_kept: bool) {
    wait_for(&format!("it to be kept: {is_kept}"), STATE_DEADLINE, || {
        let outcome = node.run(&["apps", "--destroyed"]).succeeded();
        if outcome.stdout.contains(NAME) == is_kept { Ok(()) } else { Err(outcome.stdout) }
    });
}

fn await_nothing_left(node: &Node) {
    let directory = node.data().join("apps").join(NAME);
    wait_until("nothing of it to be left", || !directory.exists());
}

fn by_domain(node: &Node) -> Site {
    Site { host: DOMAIN.into(), port: node.http_port }
}

fn write_project(project: &Path) {
    let files = [
        ("Procfile", "web: python3 app.py\n"),
        ("app.py", SERVER),
        ("cortex.toml", "persist = [\"kept/\"]\n"),
    ];
    of_files(project, &files);
}

#[test]
fn what_was_destroyed_comes_back_with_its_files_or_leaves_nothing() {
    let [one, mut two] = cluster([&[], &[]]);
    await_loads(&[&one, &two]);
    let project = one.path("project");
    write_project(&project);
    one.push(&project, NAME);
    one.cortex(&["config", "set", "GREETING=hello", "-a", NAME]);
    one.cortex(&["domains", "add", DOMAIN, "-a", NAME]);
    // Its files are on the node that is to be away later.
    one.cortex(&["pin", NAME, &id_of(&two)]);
    let kept = two.data().join("apps").join(NAME).join("persist/kept");
    wait_until("its files to be there", || kept.is_dir());
    await_text(&by_domain(&two), "nothing hello");
    by_domain(&one).get("/keep/precious").assert_ok("precious hello");

    let destroyed = one.run(&["apps", "destroy", NAME]).succeeded();
    destroyed.saying(&["kept until", "cortex apps restore blog"]);
    for node in [&one, &two] {
        await_unknown(&by_domain(node));
        await_kept(node, true);
        let apps = node.cortex(&["apps"]);
        assert!(!apps.contains(NAME), "{apps}");
    }
    let path = project.to_str().expect("UTF-8");
    one.run(&["push", path, "-a", NAME]).refused().saying(&["is kept until", "apps restore"]);
    one.run(&["undo", "-a", NAME]).refused().saying(&["destroyed", "apps restore blog"]);

    // A node that starts meanwhile leaves it as it is.
    two.kill_nine();
    two.up();
    await_kept(&two, true);
    await_unknown(&by_domain(&two));
    assert_eq!(std::fs::read_to_string(kept.join("word")).expect("its file"), "precious");

    two.run(&["apps", "restore", NAME]).succeeded().saying(&["It is started as it was"]);
    for node in [&one, &two] {
        await_text(&by_domain(node), "precious hello");
        await_kept(node, false);
    }
    let releases = two.cortex(&["releases", "-a", NAME]);
    assert!(releases.contains("set GREETING"), "{releases}");

    // Now for good, while the node is away that has its files.
    one.run(&["apps", "destroy", NAME, "--now"]).refused().saying(&["--confirm blog"]);
    one.run(&["apps", "destroy", NAME, "--now", "--confirm", "shop"]).refused();
    await_text(&by_domain(&one), "precious hello");
    one.run(&["apps", "destroy", NAME]).succeeded();
    await_kept(&two, true);
    two.kill_nine();
    one.run(&["apps", "destroy", NAME, "--now", "--confirm", NAME]).succeeded();
    await_nothing_left(&one);
    assert!(kept.join("word").exists());
    two.up();
    await_nothing_left(&two);
    for node in [&one, &two] {
        await_kept(node, false);
    }
    one.run(&["apps", "restore", NAME]).refused().saying(&["no application"]);
    let anew = one.push_as_it_is(&project, NAME).succeeded().site();
    anew.get("/").assert_ok("nothing None");
}

#[test]
fn after_seven_days_nothing_of_it_is_left() {
    let mut node = Node::start();
    let project = node.path("project");
    write_project(&project);
    let site = node.push(&project, NAME);
    site.get("/keep/precious").assert_ok("precious None");
    node.cortex(&["apps", "destroy", NAME]);
    let kept = node.data().join("apps").join(NAME).join("persist/kept/word");
    node.down();
    node.up();
    await_kept(&node, true);
    assert!(kept.exists());
    node.down();
    let mut up = node.up_command();
    up.args(["--fail-points", A_WEEK_LATER]);
    node.up_by(up);
    await_kept(&node, false);
    await_nothing_left(&node);
    let keys = node.cortex(&["store", "ls", "app"]);
    assert!(!keys.contains(NAME), "{keys}");
}
