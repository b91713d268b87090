//! The platform's default: walls from the first person who is no owner.

use serde_json::Value;

use super::{ATTEMPTS, Others, PROCFILE, SERVER, STANDARD, TRIES};
use crate::fixtures::cluster::{Location, cluster_at, first_at, id_of, row};
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
pub fn without_namespaces() -> Vec<String> {
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

/// What Landlock and the filter of calls keep an application from, without a namespace.
const KEPT_FROM: &[&str] = &[
    "reads_another_applications_source",
    "reads_another_applications_persistent_file",
    "writes_another_applications_persistent_file",
    "reads_another_applications_log",
    "reads_another_applications_secret",
    "lists_other_applications",
    "lists_the_store",
    "lists_the_keys_of_the_cluster",
    "reads_the_options_of_the_node",
    "links_a_file_of_the_node",
    "follows_a_link_of_its_own",
    "reads_the_users_home",
    "reads_the_machines_temporary_files",
    "reads_another_applications_environment",
    "reads_the_memory_of_the_node",
    "reads_the_memory_of_another_application",
    "traces_another_application",
    "looks_through_the_root_of_the_node",
    "takes_a_descriptor_of_another_application",
    "shares_the_routers_port",
    "makes_a_namespace_of_users",
    "gains_rights_from_a_program",
];

#[test]
fn landlock_alone_is_named_as_such_and_keeps_what_it_can() {
    let node = first_at(Location::Machine(without_namespaces()), &[]);
    let row = row(&node, &id_of(&node)).expect("its row");
    assert_eq!(row["walls"], serde_json::json!(["landlock"]), "{row}");
    assert!(node.cortex(&["nodes"]).contains(" landlock "), "in its column");
    let doctor = node.run(&["doctor"]).stdout;
    assert!(doctor.contains("isolation = \"landlock\""), "{doctor}");
    let [victim, alone, walled] = ["victim", "alone", "walled"].map(|name| node.path(name));
    let files = [PROCFILE, ("server.py", SERVER), TRIES, ATTEMPTS];
    let named = ("Procfile", "web: python3 server.py victim\n");
    let kept = [("cortex.toml", "persist = [\"kept.txt\"]\n"), ("kept.txt", "kept")];
    of_files(&victim, &[&[named, files[1]], &kept[..]].concat());
    of_files(&alone, &[&files[..], &[("cortex.toml", "isolation = \"landlock\"\n")]].concat());
    of_files(&walled, &[&files[..], &[STANDARD]].concat());
    node.push(&victim, "victim");
    // What asks for more is not given less.
    node.try_push(&walled, "walled").refused().saying(&["can build the wall", "standard"]);
    let alone = node.push(&alone, "alone");
    assert_eq!(isolation_of(&node, "alone"), "landlock");
    let outcomes = Others::of(&node).attempted_by(&alone);
    for name in KEPT_FROM {
        assert!(outcomes[*name].1 != "succeeded", "{name}: {outcomes:#?}");
    }
    node.run(&["users", "add", "ana", "--role", "developer"]).refused();
}
