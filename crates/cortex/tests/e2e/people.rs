//! People on a cluster: what each node knows of who changed what, and of what they may.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::faults::arm;
use crate::fixtures::cluster::{await_state, cluster, id_of};
use crate::machine::free_port;
use crate::node::{Node, Running, binary, run};
use crate::wait::{STATE_DEADLINE, wait_for};

fn audit(node: &Node) -> Vec<Value> {
    let text = node.cortex(&["audit", "--json"]);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("'{text}': {error}"))
}

#[test]
fn a_change_whose_node_dies_is_an_attempt_on_every_node() {
    let [mut one, two] = cluster([&["--fail-points"], &[]]);
    let dying = id_of(&one);
    one.cortex(&["apps", "create", "done", "--port", &free_port().to_string()]);
    arm(&one, "api.audit", "stall");
    let mut command = Command::new(binary());
    command.arg("--data-dir").arg(one.data());
    command.args(["apps", "create", "begun", "--port", &free_port().to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _asking = Running(command.spawn().expect("it starts"));
    let seen_by_the_other = |outcome: &str| {
        wait_for(&format!("two changes, the last one {outcome}"), STATE_DEADLINE, || {
            let rows = audit(&two);
            let made: Vec<&Value> = rows.iter().filter(|row| row["path"] == "/v1/apps").collect();
            match &made[..] {
                [last, first] if last["outcome"] == outcome && first["outcome"] == "done" => {
                    assert!(made.iter().all(|row| row["node"] == dying.as_str()), "{made:?}");
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            }
        })
    };
    seen_by_the_other("attempted");
    one.kill_nine();
    await_state(&two, &dying, "down");
    seen_by_the_other("attempted");
    let apps = two.cortex(&["apps"]);
    assert!(apps.contains("done") && !apps.contains("begun"), "{apps}");
    one.up();
    seen_by_the_other("attempted");
}

#[test]
fn what_one_node_decides_about_people_holds_on_all() {
    let [one, two] = cluster([&[], &[]]);
    one.cortex(&["apps", "create", "blog", "--port", &free_port().to_string()]);
    one.cortex(&["teams", "add", "red"]);
    one.cortex(&["teams", "give", "red", "blog"]);
    one.cortex(&["users", "add", "ana", "--role", "viewer", "--team", "red"]);
    let token = one.cortex(&["tokens", "create", "laptop", "--user", "ana"]);
    let with_token = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.arg("--data-dir").arg(two.data()).args(arguments).env("CORTEX_TOKEN", token.trim());
        run(command, &format!("cortex {}", arguments.join(" ")))
    };
    wait_for("the other node to know of her", STATE_DEADLINE, || {
        let shown = with_token(&["apps"]);
        if shown.stdout.contains("blog") { Ok(()) } else { Err(format!("{shown:?}")) }
    });
    with_token(&["config", "set", "A=b", "-a", "blog"]).refused().saying(&["right to change"]);
    one.cortex(&["users", "grant", "ana", "developer", "--team", "red"]);
    wait_for("her new role to hold there", STATE_DEADLINE, || {
        let changed = with_token(&["config", "set", "A=b", "-a", "blog"]);
        if changed.status.success() { Ok(()) } else { Err(changed.stderr) }
    });
    // The change names her, on the node that she did not ask.
    wait_for("the audit to name her", STATE_DEADLINE, || {
        let rows = audit(&one);
        let is_hers = |row: &&Value| row["who"] == "ana" && row["outcome"] == "done";
        rows.iter().find(is_hers).map(|_| ()).ok_or_else(|| format!("{rows:?}"))
    });
    one.cortex(&["users", "remove", "ana"]);
    wait_for("her token to be good for nothing there", STATE_DEADLINE, || {
        let shown = with_token(&["apps"]);
        if shown.stderr.contains("was revoked") { Ok(()) } else { Err(format!("{shown:?}")) }
    });
}

/// The users of a node's Redis listener are the people of the platform.
#[test]
fn a_nodes_redis_listener_lets_owners_in_and_nobody_else_once_there_are_others() {
    let port = free_port();
    let node = Node::start_with(&["--redis", &format!("127.0.0.1:{port}")]);
    let redis = |user: &[&str], line: &[&str]| {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &port.to_string(), "--no-auth-warning"]).args(user).args(line);
        let outcome = run(command, &format!("redis-cli {}", line.join(" ")));
        format!("{}{}", outcome.stdout, outcome.stderr).trim().to_owned()
    };
    let person = |name: &str, role: &str| {
        node.cortex(&["users", "add", name, "--role", role]);
        node.cortex(&["tokens", "create", "desk", "--user", name]).trim().to_owned()
    };
    let ana = person("ana", "owner");
    assert_eq!(redis(&[], &["SET", "notes::a", "1"]), "OK", "whoever has a role is an owner");
    let ben = person("ben", "operator");
    wait_for("the listener to ask who comes", STATE_DEADLINE, || {
        let said = redis(&[], &["GET", "notes::a"]);
        if said.starts_with("NOAUTH") { Ok(()) } else { Err(said) }
    });
    let said = redis(&["--user", "ben", "--pass", &ben], &["GET", "notes::a"]);
    assert!(said.contains("ben is no owner of the platform"), "{said}");
    let owner = ["--user", "ana", "--pass", &ana];
    assert_eq!(redis(&owner, &["GET", "notes::a"]), "1");
    let rows = audit(&node);
    let logins = rows.iter().filter(|row| row["path"] == "redis");
    let logins: Vec<_> = logins.map(|row| (&row["who"], &row["token"], &row["outcome"])).collect();
    assert_eq!(logins, [(&"ana".into(), &"desk".into(), &"done".into())]);
    node.cortex(&["tokens", "revoke", "ana", "desk"]);
    wait_for("her token to be good for nothing", STATE_DEADLINE, || {
        let said = redis(&owner, &["GET", "notes::a"]);
        if said.contains("WRONGPASS") { Ok(()) } else { Err(said) }
    });
}
