//! Nodes with only some of the roles: two keep the store and take requests, a third runs instances
//! and nothing else, a fourth takes requests alone. Those without a store go on with the other one
//! when the one they use is lost.

use std::path::Path;

use serde_json::Value;

use crate::fixtures::cluster::{await_state, cluster, first, id_of, join};
use crate::node::{Node, run};
use crate::outside::{Callers, Site};
use crate::project::copy_of_example;
use crate::wait::{STATE_DEADLINE, wait_for};

const NAME: &str = "hello";
const COUNT: usize = 4;
const KEEPER: [&str; 2] = ["--roles", "store,router,checker"];
/// The size in bytes of a large file; sources beyond this travel apart from their records.
const LARGE: usize = 300_000;

fn through(node: &Node) -> Site {
    Site { host: format!("{NAME}.localhost:{}", node.http_port), port: node.http_port }
}

fn answers(site: &Site) -> Result<(), String> {
    let answer = site.try_get("/")?;
    if answer.status == 200 { Ok(()) } else { Err(format!("{answer:?}")) }
}

/// Returns the node whose store a node without one uses.
fn used_by(node: &Node) -> Option<String> {
    let listed = node.run(&["nodes", "--json"]);
    let rows: Vec<Value> = serde_json::from_str(&listed.stdout).ok()?;
    let here = rows.into_iter().find(|row| row["here"] == true)?;
    here["store_node"].as_str().map(Into::into)
}

fn await_use(guest: &Node, of: &str) {
    wait_for(&format!("the store of node {of} to be used"), STATE_DEADLINE, || {
        let used = used_by(guest);
        if used.as_deref() == Some(of) { Ok(()) } else { Err(format!("{used:?}")) }
    });
}

fn await_value(node: &Node, key: &str, value: &str) {
    wait_for(&format!("{key} to be {value}"), STATE_DEADLINE, || {
        let got = node.run(&["store", "get", key]);
        if got.stdout == value { Ok(()) } else { Err(format!("{got:?}")) }
    });
}

/// Waits until the node without a store runs all of it, and no other node any.
fn await_all_on(node: &Node, guest: &str, count: usize) {
    let rows = node.await_ready(NAME, "web", count);
    assert!(rows.iter().all(|row| row.node == guest), "{rows:#?}");
}

fn large_file(project: &Path) {
    let mut state = 7_u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let bytes: Vec<u8> = (0..LARGE).map(|_| random()).collect();
    std::fs::write(project.join("large.bin"), bytes).expect("a large file");
}

#[test]
fn a_node_without_a_store_moves_to_another_one() {
    let [mut one, mut two, mut guest] = cluster([&KEEPER, &KEEPER, &["--roles", "agent"]]);
    let id = id_of(&guest);
    for node in [&one, &two] {
        let row = await_state(node, &id, "alive");
        assert!(row["store_node"].is_null(), "{row}");
        wait_for("its role", STATE_DEADLINE, || {
            let row = await_state(node, &id, "alive");
            if row["roles"] == serde_json::json!(["agent"]) { Ok(()) } else { Err(row.to_string()) }
        });
    }
    guest.run(&["nodes", "invite"]).refused().saying(&["keeps no store"]);

    // Another node without a store takes requests, and runs nothing.
    let front = join(&one, &["--roles", "router,checker"]);
    await_state(&two, &id_of(&front), "alive");

    // The push goes through a node that runs nothing itself; the source is fetched from it.
    let project = one.path(NAME);
    copy_of_example(NAME, &project);
    large_file(&project);
    one.push(&project, NAME);
    await_all_on(&two, &id, COUNT);
    for site in [through(&one), through(&two), through(&front)] {
        wait_for("an answer through any node", STATE_DEADLINE, || answers(&site));
    }
    assert!(through(&guest).try_get("/").is_err(), "it takes nothing from the public");

    // The store that it uses is lost.
    let (first, second) = (id_of(&one), id_of(&two));
    let used = used_by(&guest).expect("one is used");
    let (lost, kept) = if used == first { (&mut one, &mut two) } else { (&mut two, &mut one) };
    let other = if used == first { second } else { first };
    let callers = Callers::start(&through(kept), "/", &["Hello"]);
    let others = Callers::start(&through(&front), "/", &["Hello"]);
    callers.answered_more(100);
    others.answered_more(100);
    lost.kill_nine();
    guest.cortex(&["store", "set", "written::while", "lost"]);
    await_value(kept, "written::while", "lost");
    await_use(&guest, &other);
    kept.cortex(&["scale", "-a", NAME, &format!("web={}", COUNT + 1)]);
    await_all_on(kept, &id, COUNT + 1);
    callers.answered_more(100);
    others.answered_more(100);
    callers.finish_without_failure();
    others.finish_without_failure();

    // It is back; the other one stands still and says nothing.
    lost.up();
    await_state(lost, &other, "alive");
    await_state(lost, &id, "alive");
    kept.freeze();
    await_use(&guest, &used);
    guest.cortex(&["store", "set", "written::while", "still"]);
    await_value(lost, "written::while", "still");
    kept.thaw();
    await_value(kept, "written::while", "still");

    // It starts again and adopts what it ran.
    let before: Vec<_> = lost.await_ready(NAME, "web", COUNT + 1);
    guest.kill_nine();
    guest.up();
    await_state(lost, &id, "alive");
    let after = lost.await_ready(NAME, "web", COUNT + 1);
    let pids = |rows: &[crate::node::Row]| {
        let mut pids: Vec<_> = rows.iter().map(|row| row.pid).collect();
        pids.sort();
        pids
    };
    assert_eq!(pids(&before), pids(&after), "nothing was started again");

    lost.run(&["nodes", "remove", &id]).refused().saying(&["alive"]);
    lost.run(&["nodes", "remove", &id, "--force"]).succeeded().saying(&["is removed"]);
    wait_for("it to be off the roster", STATE_DEADLINE, || {
        let listed = kept.cortex(&["nodes", "--json"]);
        if listed.contains(&id) { Err(listed) } else { Ok(()) }
    });
    wait_for("its store to be refused to it", STATE_DEADLINE, || {
        let set = guest.run(&["store", "set", "while::removed", "unheard"]);
        if set.status.success() { Err("it is still heard".into()) } else { Ok(()) }
    });
}

#[test]
fn roles_that_cannot_be_are_refused() {
    let node = first(&["--roles", "store,router"]);
    node.run(&["up", "--roles", "cook"]).refused().saying(&["no role", "checker"]);
    node.run(&["up", "--roles", ""]).refused().saying(&["at least one role"]);
    let row = await_state(&node, &id_of(&node), "alive");
    assert_eq!(row["roles"], serde_json::json!(["store", "router"]));
    let project = node.path(NAME);
    copy_of_example(NAME, &project);
    node.try_push(&project, NAME).refused().saying(&["runs instances", "agent"]);
    let elsewhere = tempfile::TempDir::with_prefix("cortex-e2e-").expect("a directory");
    let mut alone = std::process::Command::new(crate::node::binary());
    alone.args(["up", "--roles", "agent", "--data-dir"]).arg(elsewhere.path().join("data"));
    run(alone, "cortex up --roles agent").refused().saying(&["--join", "nodes invite"]);
    // A node neither gains nor loses its store.
    let mut node = node;
    node.down();
    let mut changed = std::process::Command::new(crate::node::binary());
    changed.args(["up", "--roles", "agent", "--data-dir"]).arg(node.data());
    run(changed, "cortex up --roles agent").refused().saying(&["with a store", "nodes remove"]);
}
