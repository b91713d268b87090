//! The platform's default: walls from the first person who is no owner.

use serde_json::Value;

use super::{PROCFILE, SERVER, STANDARD};
use crate::fixtures::cluster::{Location, cluster_at, id_of};
use crate::node::{Node, command_within, run};
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for};

const NONE: (&str, &str) = ("cortex.toml", "isolation = \"none\"\n");

fn isolation_of(node: &Node, name: &str) -> String {
    let shown = node.cortex(&["info", "-a", name, "--json"]);
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    shown["isolation"].as_str().expect("it has a release").to_owned()
}

fn default_of(node: &Node) -> Value {
    serde_json::from_str(&node.cortex(&["isolation", "--json"])).expect("JSON")
}

#[test]
fn walls_come_with_the_first_person_who_is_no_owner() {
    let node = Node::start();
    let [plain, open] = ["plain", "open"].map(|name| node.path(name));
    for project in [&plain, &open] {
        of_files(project, &[PROCFILE, ("server.py", SERVER)]);
    }
    of_files(&open, &[NONE]);
    node.push(&plain, "plain");
    assert_eq!(isolation_of(&node, "plain"), "none");
    assert_eq!(default_of(&node)["default"], "none");
    node.run(&["users", "add", "olga", "--role", "owner"]).succeeded();
    assert_eq!(default_of(&node)["default"], "none", "owners may read everything anyway");
    let added = node.run(&["users", "add", "ana", "--role", "developer"]).succeeded();
    added.saying(&["behind a wall", "until they are pushed again: plain"]);
    let shown = default_of(&node);
    assert_eq!((&shown["default"], &shown["set"]), (&"standard".into(), &"auto".into()));
    assert!(shown["why"].as_str().is_some_and(|why| why.contains("ana")), "{shown}");
    // What runs goes on as it was; what is pushed from now on stands behind a wall.
    assert_eq!(isolation_of(&node, "plain"), "none");
    node.push_as_it_is(&plain, "plain").succeeded();
    assert_eq!(isolation_of(&node, "plain"), "standard");
    let looks = format!("ls {}/store", node.data().display());
    node.run(&["run", "-a", "plain", "--", "sh", "-c", &looks]).refused();
    // An owner may say otherwise, for one application or for all; nobody else may.
    node.push(&open, "open");
    assert_eq!(isolation_of(&node, "open"), "none");
    let token = node.cortex(&["tokens", "create", "test", "--user", "ana"]);
    let by_ana = |arguments: &[&str]| {
        let mut command = command_within(&[]);
        command.env("CORTEX_TOKEN", token.trim()).arg("--data-dir").arg(node.data());
        command.args(arguments);
        run(command, &arguments.join(" "))
    };
    let project = open.display().to_string();
    by_ana(&["push", &project, "-a", "open"]).refused().saying(&["an owner alone"]);
    by_ana(&["run", "-a", "open", "--", "true"]).refused().saying(&["an owner alone"]);
    by_ana(&["isolation", "none"]).refused();
    of_files(&open, &[STANDARD]);
    by_ana(&["push", &project, "-a", "open"]).succeeded();
    node.cortex(&["isolation", "none"]);
    node.push_as_it_is(&plain, "plain").succeeded();
    assert_eq!(isolation_of(&node, "plain"), "none");
    node.cortex(&["isolation", "auto"]);
    assert_eq!(default_of(&node)["default"], "standard");
    let audit = node.cortex(&["audit", "--json"]);
    assert!(audit.contains("/v1/isolation"), "{audit}");
}

/// The words before a command line on a machine on which nobody makes namespaces.
fn without_namespaces() -> Vec<String> {
    let forbid = "echo 0 > /proc/sys/user/max_user_namespaces; exec \"$0\" \"$@\"";
    ["unshare", "-Ur", "sh", "-c", forbid].map(str::to_owned).into()
}

#[test]
fn a_node_that_can_build_no_wall_says_so_and_gets_nothing_that_wants_one() {
    let machine = Location::Machine(without_namespaces());
    let [unable, mut able] =
        cluster_at([(machine, &["--load=1"]), (Location::Loopback, &["--load=60"])]);
    let remedy = "sudo sysctl -w user.max_user_namespaces";
    let ana = ["users", "add", "ana", "--role", "developer"];
    unable.run(&ana).refused().saying(&["can build no wall", remedy]);
    let doctor = unable.run(&["doctor"]).stdout;
    assert!(doctor.contains(remedy), "{doctor}");
    able.run(&ana).succeeded();
    // It is asked at the one that is unable, which is less busy.
    let project = unable.path("walled");
    of_files(&project, &[PROCFILE, ("server.py", SERVER)]);
    unable.push(&project, "walled");
    assert_eq!(isolation_of(&unable, "walled"), "standard");
    unable.cortex(&["scale", "web=3", "-a", "walled"]);
    let rows = unable.await_ready("walled", "web", 3);
    assert!(rows.iter().all(|row| row.node == id_of(&able)), "{rows:?}");
    able.kill_nine();
    wait_for("the reason to be told", STATE_DEADLINE, || {
        let info = unable.cortex(&["info", "-a", "walled"]);
        if info.contains("waiting: no node") { Ok(()) } else { Err(info) }
    });
    able.up();
    unable.await_ready("walled", "web", 3);
}
