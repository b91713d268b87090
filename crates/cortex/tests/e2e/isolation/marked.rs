//! An application that an owner does not trust: what its developers push stays behind the mark.

use serde_json::{Value, json};

use super::default::without_namespaces;
use super::{Outcomes, PROCFILE, SERVER, STANDARD, TRIES, attempted, full::FULL};
use crate::fixtures::cluster::{Location, cluster_at, id_of, row};
use crate::node::{Node, command_within, run};
use crate::outside::Site;
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for};

/// What it sees from inside.
const LOOKS: &str = r#"
import json, os, socket, sys

facts = json.loads(sys.argv[1])

def lists_the_nodes_data():
    return "store" in os.listdir(facts["data"])

def connects_to_the_router():
    with socket.create_connection(("127.0.0.1", facts["http_port"]), timeout=5):
        return True

def has_a_network_card():
    with open("/proc/net/dev") as file:
        return any(not line.strip().startswith("lo:") for line in file if ":" in line)

real = (lists_the_nodes_data, connects_to_the_router, has_a_network_card)
never = ()
"#;

/// Asserts what the application that runs sees of its node: the data, its loopback and its network.
#[track_caller]
fn assert_seen(node: &Node, site: &Site, data: bool, network: bool) {
    let facts = json!({ "data": node.data(), "http_port": node.http_port });
    let outcomes: Outcomes = attempted(site, "/looks", &facts, 3);
    let seen = |name: &str| outcomes[name].1 == "succeeded";
    assert_eq!(seen("lists_the_nodes_data"), data, "{outcomes:#?}");
    assert_eq!(seen("connects_to_the_router"), network, "{outcomes:#?}");
    assert!(network || !seen("has_a_network_card"), "{outcomes:#?}");
}

fn isolation_of(node: &Node) -> Value {
    let shown = node.cortex(&["isolation", "-a", "own", "--json"]);
    serde_json::from_str(&shown).expect("JSON")
}

#[test]
fn what_a_developer_pushes_stays_behind_the_mark_of_an_owner() {
    let node = Node::start();
    let project = node.path("own");
    let none = ("cortex.toml", "isolation = \"none\"\n");
    of_files(&project, &[PROCFILE, ("server.py", SERVER), TRIES, ("looks.py", LOOKS), none]);
    let site = node.push(&project, "own");
    assert_seen(&node, &site, true, true);
    node.run(&["users", "add", "ana", "--role", "developer", "-a", "own"]).succeeded();
    let token = node.cortex(&["tokens", "create", "test", "--user", "ana"]);
    let by_ana = |arguments: &[&str]| {
        let mut command = command_within(&[]);
        command.env("CORTEX_TOKEN", token.trim()).arg("--data-dir").arg(node.data());
        command.args(arguments);
        run(command, &arguments.join(" "))
    };
    let before = node.await_ready("own", "web", 1).remove(0);
    node.cortex(&["run", "-a", "own", "--detach", "--", "sleep", "3600"]);
    node.run(&["isolation", "full", "-a", "own"]).succeeded();
    let shown = isolation_of(&node);
    assert_eq!((&shown["isolation"], &shown["egress"]), (&json!("full"), &json!("none")));
    assert_eq!(shown["asked"], "none", "{shown}");
    assert!(node.cortex(&["info", "-a", "own"]).contains(" wants full, egress none, since "));
    assert_seen(&node, &site, false, false);
    assert_ne!(node.await_ready("own", "web", 1)[0].pid, before.pid, "it was started again");
    // A command that was begun outside has the minutes that an instance has.
    let sessions = || node.cortex(&["ps", "-a", "own"]);
    assert!(sessions().contains("sleep 3600"), "{}", sessions());
    let mut spec: Value =
        serde_json::from_str(&node.cortex(&["store", "get", "app::own::spec"])).expect("JSON");
    let since = spec["isolation"]["since"].as_u64().expect("a time");
    spec["isolation"]["since"] = json!(since - 300_000);
    node.cortex(&["store", "set", "app::own::spec", &spec.to_string()]);
    wait_for("the command to be stopped", STATE_DEADLINE, || {
        let log = node.cortex(&["logs", "-a", "own"]);
        let told = log.contains("run.1 is stopped: it began outside the wall");
        if told && log.contains("run.1 ended") { Ok(()) } else { Err(log) }
    });
    // Whatever a developer pushes, it is there that it runs, with the commands beside it.
    let directory = project.display().to_string();
    for settings in [none, STANDARD, FULL] {
        of_files(&project, &[settings, ("more", settings.1)]);
        by_ana(&["push", &directory, "-a", "own"]).succeeded();
        assert_seen(&node, &site, false, false);
    }
    of_files(&project, &[none]);
    let pushed = by_ana(&["push", &directory, "-a", "own"]).succeeded();
    pushed.saying(&["it runs behind full, whatever its files ask for"]);
    let looks = format!("ls {}/store", node.data().display());
    by_ana(&["run", "-a", "own", "--", "sh", "-c", &looks]).refused();
    for mark in [&["default"][..], &["standard"], &["full", "--egress", "all"]] {
        by_ana(&[&["isolation", "-a", "own"], mark].concat()).refused();
    }
    assert_seen(&node, &site, false, false);
    // Without the mark, it gets what she may ask for.
    node.run(&["isolation", "default", "-a", "own"]).succeeded();
    assert_seen(&node, &site, false, true);
    let shown = isolation_of(&node);
    assert_eq!((&shown["isolation"], &shown["mark"]), (&json!("standard"), &Value::Null));
    let audit = node.cortex(&["audit", "--json"]);
    assert!(audit.contains("/v1/apps/own/isolation"), "{audit}");
}

#[test]
fn it_leaves_nodes_that_cannot_build_its_wall_and_is_not_marked_where_none_can() {
    let machine = Location::Machine(without_namespaces());
    let [unable, mut able] =
        cluster_at([(machine, &["--load=1"]), (Location::Loopback, &["--load=1"])]);
    let project = unable.path("own");
    of_files(&project, &[PROCFILE, ("server.py", SERVER)]);
    unable.push(&project, "own");
    unable.cortex(&["scale", "web=2", "-a", "own"]);
    let rows = unable.await_ready("own", "web", 2);
    assert!(rows.iter().any(|row| row.node == id_of(&unable)), "{rows:?}");
    // It may be asked at the node that is unable.
    unable.run(&["isolation", "standard", "-a", "own"]).succeeded();
    let elsewhere = || {
        let rows = unable.ready("own", "web");
        let all = rows.len() == 2 && rows.iter().all(|row| row.node == id_of(&able));
        if all { Ok(()) } else { Err(format!("{rows:?}")) }
    };
    wait_for("all to be on the other node", STATE_DEADLINE, elsewhere);
    unable.cortex(&["isolation", "default", "-a", "own"]);
    able.kill_nine();
    wait_for("the other node to be down", STATE_DEADLINE, || {
        let row = row(&unable, &id_of(&able)).expect("it is a member");
        if row["state"] == "down" { Ok(()) } else { Err(row.to_string()) }
    });
    let refused = unable.run(&["isolation", "standard", "-a", "own"]).refused();
    refused.saying(&["no node that is alive can build the wall"]);
    assert_eq!(isolation_of(&unable)["mark"], Value::Null);
    able.up();
}
