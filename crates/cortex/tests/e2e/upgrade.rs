//! Upgrades of running nodes to another binary, under requests all the while: each goes over to it
//! without a failed one, its instances are the same processes as before, and one that does not
//! become healthy is given back.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::fixtures::cluster::{cluster, id_of};
use crate::machine::{Identity, lives};
use crate::node::{Node, binary, kill_nine, run};
use crate::outside::{Callers, Site};
use crate::project::copy_of_example;
use crate::wait::{STATE_DEADLINE, wait_for};

const NAME: &str = "hello";
/// The number of answers, so that some come before, while and after a node hands over.
const ANSWERS: u64 = 40;
/// The time limit in seconds for a binary that never answers: as short as the command allows.
const WITHIN: &str = "5";

/// Copies the program so that it has another hash.
pub fn other_binary(directory: &Path, marker: &str) -> PathBuf {
    let path = directory.join(format!("cortex-{marker}"));
    fs::copy(binary(), &path).expect("a copy");
    let mut file = OpenOptions::new().append(true).open(&path).expect("the copy");
    file.write_all(marker.as_bytes()).expect("a marker");
    path
}

/// Writes a program that passes every check, and does `then` in place of running the node.
fn bad_binary(directory: &Path, then: &str) -> PathBuf {
    let path = directory.join("cortex-bad");
    // A file without this padding is too small to be taken for a program.
    let padding = "# padding\n".repeat(1000);
    let real = binary();
    let script =
        format!("#!/bin/sh\n[ \"$1\" = up ] || exec {} \"$@\"\n{then}\n{padding}", real.display());
    fs::write(&path, script).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    path
}

fn hash(path: &Path) -> String {
    os::binaries::hash(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub fn pid(node: &Node) -> u64 {
    let status: Value = serde_json::from_str(&node.cortex(&["status", "--json"])).expect("JSON");
    status["pid"].as_u64().expect("a pid")
}

/// Returns the hash of what its process runs from, whatever it says itself.
fn runs(node: &Node) -> String {
    hash(&PathBuf::from(format!("/proc/{}/exe", pid(node))))
}

fn shown(node: &Node) -> Value {
    serde_json::from_str(&node.cortex(&["upgrade", "--json"])).expect("JSON")
}

fn instances(node: &Node) -> Vec<Identity> {
    let mut all: Vec<Identity> =
        node.ready(NAME, "web").iter().filter_map(|row| row.identity()).collect();
    all.sort_by_key(|one| one.pid);
    all
}

/// Returns where the application answers through this node's public address.
fn site(node: &Node) -> Site {
    Site { host: format!("{NAME}.localhost:{}", node.http_port), port: node.http_port }
}

struct Two {
    one: Node,
    two: Node,
    /// The application's instances, on both.
    instances: Vec<Identity>,
}

impl Two {
    fn start() -> Two {
        let [one, two] = cluster([&[], &[]]);
        let project = one.path(NAME);
        copy_of_example(NAME, &project);
        one.push(&project, NAME);
        // What came before the other node could take anything moves there first.
        let this = id_of(&one);
        wait_for("both nodes to have two instances", STATE_DEADLINE, || {
            let rows = one.await_ready(NAME, "web", 4);
            let here = rows.iter().filter(|row| row.node == this).count();
            if here == 2 { Ok(()) } else { Err(format!("{here} of 4 here")) }
        });
        let mut nodes = Two { one, two, instances: Vec::new() };
        for node in [&nodes.one, &nodes.two] {
            wait_for("an answer of each node", STATE_DEADLINE, || match site(node).try_get("/") {
                Ok(answer) if answer.status == 200 => Ok(()),
                other => Err(format!("{other:?}")),
            });
        }
        nodes.instances = instances(&nodes.one);
        nodes
    }

    fn callers(&self) -> [Callers; 2] {
        [&self.one, &self.two].map(|node| Callers::start_gently(&site(node), "/", &["Hello from"]))
    }

    /// Asserts that they are the same processes, and ready.
    fn check_instances(&self) {
        let now = wait_for("all instances to be ready", STATE_DEADLINE, || {
            let now = instances(&self.one);
            if now.len() == self.instances.len() { Ok(now) } else { Err(format!("{now:?}")) }
        });
        assert_eq!(now, self.instances);
        assert!(now.into_iter().all(lives));
    }
}

fn answered(callers: &[Callers]) {
    callers.iter().for_each(|some| some.answered_more(ANSWERS));
}

#[test]
fn nodes_go_over_to_another_binary_without_a_failed_request() {
    let mut nodes = Two::start();
    let old = hash(&binary());
    let (one, two) = (pid(&nodes.one), pid(&nodes.two));
    let next = other_binary(nodes.one.directory.path(), "next");
    let callers = nodes.callers();
    answered(&callers);
    let outcome = nodes.one.run(&["upgrade", "--binary", next.to_str().expect("text"), "--json"]);
    let said: Value = serde_json::from_str(&outcome.succeeded().stdout).expect("JSON");
    assert_eq!(said["state"], "finished", "{said}");
    answered(&callers);
    callers.into_iter().for_each(Callers::finish_without_failure);
    nodes.check_instances();
    let new = hash(&next);
    assert!(old != new);
    for (node, before) in [(&nodes.one, one), (&nodes.two, two)] {
        assert_eq!(runs(node), new);
        assert!(pid(node) != before);
        assert_eq!(hash(&node.data().join("bin/cortex")), new, "what the next start runs");
        assert_eq!(hash(&node.data().join("bin/previous")), old, "what it ran before");
    }
    // The upgrade is repeated by the processes that took over: nothing is left of those from
    // before.
    let third = other_binary(nodes.one.directory.path(), "third");
    nodes.two.cortex(&["upgrade", "--binary", third.to_str().expect("text")]);
    assert_eq!((runs(&nodes.one), runs(&nodes.two)), (hash(&third), hash(&third)));
    nodes.check_instances();
    assert_eq!(hash(&nodes.one.data().join("bin/previous")), new);
    // The caller that started the first processes sees the nodes end.
    nodes.two.down();
    nodes.one.down();
}

#[test]
fn a_binary_that_is_never_healthy_is_given_back() {
    let nodes = Two::start();
    let old = hash(&binary());
    let callers = nodes.callers();
    answered(&callers);
    let ways = [("exit 7", "ended with"), ("exec sleep 1000", "not healthy within")];
    for (node, (then, why)) in [&nodes.one, &nodes.two].into_iter().zip(ways) {
        let bad = bad_binary(node.directory.path(), then);
        let before = pid(node);
        let asked = ["upgrade", "--binary", bad.to_str().expect("text"), "--within", WITHIN];
        let named = id_of(node);
        let only = [&asked[..], &["--node", &named]].concat();
        node.run(&only).refused().saying(&["has returned", why, "serves on"]);
        answered(&callers);
        assert_eq!((pid(node), runs(node)), (before, old.clone()), "the process from before");
        let shown = shown(node);
        assert_eq!(shown["state"], "stopped", "{shown}");
        assert_eq!(shown["nodes"][0]["state"], "returned", "{shown}");
        nodes.check_instances();
    }
    // The upgrade is for all nodes: the one that comes first returns, and no other tries it.
    let bad = bad_binary(nodes.one.directory.path(), "exit 8");
    let outcome = nodes.one.run(&["upgrade", "--binary", bad.to_str().expect("text"), "--json"]);
    let said: Value = serde_json::from_str(&outcome.refused().stdout).expect("JSON");
    let states: Vec<&Value> =
        said["nodes"].as_array().expect("rows").iter().map(|row| &row["state"]).collect();
    assert_eq!(states, ["returned", "pending"], "{said}");
    answered(&callers);
    callers.into_iter().for_each(Callers::finish_without_failure);
    nodes.check_instances();
}

/// Does what the unit of `cortex install` does once the attendant is gone: it starts a node until
/// that may run.
#[test]
fn a_node_goes_on_without_its_attendant_and_is_followed_by_the_next_that_is_started() {
    let mut node = Node::start_with(&[]);
    let project = node.path(NAME);
    copy_of_example(NAME, &project);
    node.push(&project, NAME);
    node.await_ready(NAME, "web", 4);
    let before = instances(&node);
    let next = other_binary(node.directory.path(), "next");
    node.cortex(&["upgrade", "--binary", next.to_str().expect("text")]);
    let ran = pid(&node);
    assert!(ran != u64::from(node.pid()), "it has an attendant");
    let callers = Callers::start(&site(&node), "/", &["Hello from"]);
    node.kill_nine();
    for _ in 0..2 {
        let refused = run(node.up_command(), "cortex up").refused();
        refused.saying(&["already runs"]);
    }
    callers.answered_more(ANSWERS);
    callers.finish_without_failure();
    assert_eq!(pid(&node), ran);
    kill_nine(u32::try_from(ran).expect("a pid"));
    node.up();
    wait_for("what ran to be taken over", STATE_DEADLINE, || {
        let now = instances(&node);
        if now == before { Ok(()) } else { Err(format!("{before:?}, {now:?}")) }
    });
    node.down();
}

#[test]
fn what_is_no_binary_of_cortex_is_refused() {
    let node = Node::start();
    let before = wait_for("the node to know what it runs", STATE_DEADLINE, || {
        let before = shown(&node);
        if before["nodes"][0]["binary"].is_string() { Ok(before) } else { Err(before.to_string()) }
    });
    let file = |name: &str, content: &[u8]| {
        let path = node.path(name);
        fs::write(&path, content).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
        path.to_str().expect("text").to_owned()
    };
    let upgrade = |path: &str| node.run(&["upgrade", "--binary", path]).refused();
    upgrade(&file("empty", b"")).saying(&["too small"]);
    upgrade(&file("noise", &[7; 10_000])).saying(&["no program that this machine runs"]);
    let other = format!("#!/bin/sh\necho bash 5.2\n{}", "# padding\n".repeat(1000));
    upgrade(&file("other", other.as_bytes())).saying(&["no binary of cortex", "bash 5.2"]);
    upgrade("/nowhere/at/all").saying(&["cannot be read"]);
    upgrade(node.directory.path().to_str().expect("text")).saying(&["is not a file"]);
    let good = other_binary(node.directory.path(), "good");
    let good = good.to_str().expect("text");
    node.run(&["upgrade", "--binary", good, "--node", "nobody"]).refused().saying(&["no node"]);
    node.run(&["upgrade", "--binary", good, "--within", "1"]).refused().saying(&["5 to 600 s"]);
    assert_eq!(shown(&node), before);
    let copies = fs::read_dir(node.data().join("bin")).expect("copies").count();
    assert!(copies <= 4, "refused files leave nothing behind: {copies}");
}
