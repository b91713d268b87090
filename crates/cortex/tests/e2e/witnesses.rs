//! Checkers that testify of instances on a node that has no checker: two of them are believed, and
//! one alone only if the cluster has no other.

use std::path::Path;

use crate::faults::{arm, disarm};
use crate::fixtures::cluster::{await_state, cluster, id_of};
use crate::node::{Node, Row};
use crate::outside::{Callers, Site};
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

pub const NAME: &str = "fragile";
pub const COUNT: usize = 2;
pub const KEEPER: [&str; 2] = ["--roles", "store,router,checker"];
pub const HOST: [&str; 2] = ["--roles", "agent"];

/// A server that answers everybody; on `/sicken` an instance falls ill, which its health path alone
/// shows.
const SERVER: &str = r#"
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ill = False

class Fragile(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        global ill
        if self.path == "/sicken":
            ill = True
        body = f"instance {os.getpid()} answers".encode()
        self.send_response(500 if ill and self.path == "/up" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

ThreadingHTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Fragile).serve_forever()
"#;

pub fn project(directory: &Path) {
    let settings = format!(
        "[health]\npath = \"/up\"\n[processes.web]\ncommand = \"python3 server.py\"\n\
         count = {COUNT}\n"
    );
    let procfile = ("Procfile", "web: python3 server.py\n");
    of_files(directory, &[procfile, ("server.py", SERVER), ("cortex.toml", &settings)]);
}

fn through(node: &Node) -> Site {
    Site { host: format!("{NAME}.localhost:{}", node.http_port), port: node.http_port }
}

fn pids(rows: &[Row]) -> Vec<u32> {
    let mut pids: Vec<u32> = rows.iter().filter_map(|row| row.pid).collect();
    pids.sort_unstable();
    pids
}

/// Waits until another process is in the place of the ill one, with the others as they were.
fn await_replaced(node: &Node, what: &str, before: &[u32], ill: u32) -> Vec<u32> {
    wait_for(what, STATE_DEADLINE, || {
        let rows = node.ready(NAME, "web");
        let now = pids(&rows);
        let kept = before.iter().filter(|pid| **pid != ill).all(|pid| now.contains(pid));
        let good = now.len() == COUNT && kept && !now.contains(&ill);
        if good { Ok(now) } else { Err(format!("{rows:#?}")) }
    })
}

/// Returns everything that was ever written below it, also what was taken back.
pub fn lines(node: &Node, prefix: &str) -> Vec<String> {
    let listed = node.cortex(&["store", "history", prefix, "--json"]);
    let listed: Vec<serde_json::Value> = serde_json::from_str(&listed).expect("JSON");
    listed.iter().map(ToString::to_string).collect()
}

/// Pushes an application once both know the node that is to run it, and returns its processes
/// there.
fn push_once_known(host: &Node, keepers: [&Node; 2]) -> Vec<u32> {
    let id = id_of(host);
    for node in keepers {
        await_state(node, &id, "alive");
    }
    let directory = keepers[0].path(NAME);
    project(&directory);
    keepers[0].push(&directory, NAME);
    pids(&keepers[0].await_ready(NAME, "web", COUNT))
}

#[test]
fn an_ill_instance_of_a_node_without_a_checker_is_replaced() {
    let [one, two, host] = cluster([&KEEPER, &KEEPER, &HOST]);
    let id = id_of(&host);
    let before = push_once_known(&host, [&one, &two]);
    let (site, other) = (through(&one), through(&two));
    wait_for("an answer through it", STATE_DEADLINE, || other.try_get("/").map(drop));
    let callers = Callers::start(&other, "/", &["answers"]);
    callers.answered_more(50);

    let answer = site.get("/sicken").body;
    let ill = answer.split(' ').nth(1).and_then(|pid| pid.parse().ok()).expect("its pid");
    assert!(before.contains(&ill), "{answer}");
    let after = await_replaced(&one, "the ill one to be replaced", &before, ill);
    let rulings = || lines(&one, &format!("probe::{id}"));
    let ruled = rulings();
    assert!(!ruled.is_empty(), "its own node has ruled");
    for witness in [&one, &two] {
        let said = lines(&one, &format!("probe::{}", id_of(witness)));
        assert!(said.iter().any(|line| line.contains(&id)), "both testified: {said:?}");
    }

    // The word of one of two is not believed, whatever made it say so.
    let row = one.ready(NAME, "web").remove(0);
    let victim = row.pid.expect("it runs");
    let claim =
        one.cortex(&["store", "get", &format!("instance::{NAME}::web::{}::{id}", row.slot)]);
    let claim: serde_json::Value = serde_json::from_str(&claim).expect("JSON");
    let incarnations = claim["incarnations"].as_array().expect("some");
    let ready = incarnations.iter().find(|one| one["state"] == "ready").expect("one is ready");
    let testimony = serde_json::json!({
        "v": 1, "generation": ready["generation"], "health": "gone", "detail": "made up",
        "changed_at": 1,
    });
    let testify = |node: &Node| {
        let key = format!("probe::{}::{NAME}::web::{}::{id}", id_of(node), row.slot);
        one.cortex(&["store", "set", &key, &testimony.to_string()]);
        wait_for("the host to know it", STATE_DEADLINE, || {
            let got = host.run(&["store", "get", &key]);
            if got.status.success() { Ok(()) } else { Err(got.stderr) }
        });
    };
    testify(&one);
    callers.answered_more(200);
    assert_eq!(pids(&one.ready(NAME, "web")), after, "one witness was believed");
    assert_eq!(rulings(), ruled);
    testify(&two);
    await_replaced(&one, "what two say is gone to be replaced", &after, victim);
    assert_ne!(rulings(), ruled);
    callers.finish_without_failure();
}

/// Asserts that a node's own word counts, but not that of a checker which hangs.
#[test]
fn a_checker_that_hangs_is_overruled_until_it_works_again() {
    let fallible = ["--roles", "agent,checker", "--fail-points"];
    let [one, two, host] = cluster([&KEEPER, &KEEPER, &fallible]);
    let id = id_of(&host);
    let before = push_once_known(&host, [&one, &two]);
    arm(&host, "checker", "stall");
    let answer = through(&one).get("/sicken").body;
    let ill = answer.split(' ').nth(1).and_then(|pid| pid.parse().ok()).expect("its pid");
    await_replaced(&one, "the ill one to be replaced", &before, ill);
    let checks = || await_state(&one, &id, "alive")["roles"].to_string().contains("checker");
    assert!(!checks() && host.log().contains("checker.hangs"), "{}", host.log());
    disarm(&host, "checker");
    wait_until("its own checker to be heard again", checks);
}

/// Asserts it as the thesis has it: one machine with the checker, and hosts that run applications.
#[test]
fn the_only_checker_of_a_cluster_is_believed() {
    let [one, _host] = cluster([&KEEPER, &HOST]);
    let directory = one.path(NAME);
    project(&directory);
    one.push(&directory, NAME);
    let before = pids(&one.await_ready(NAME, "web", COUNT));
    let answer = through(&one).get("/sicken").body;
    let ill = answer.split(' ').nth(1).and_then(|pid| pid.parse().ok()).expect("its pid");
    await_replaced(&one, "the ill one to be replaced", &before, ill);
}
