//! Nodes that die, and data directories that are in use.

use crate::machine::lives;
use crate::node::{Node, kill_nine, run};
use crate::project::copy_of_example;
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

#[test]
fn a_second_up_on_one_data_directory_is_refused() {
    let node = Node::start();
    let mut second = node.up_command();
    second.args(["--http", "127.0.0.1:0"]);
    let mut command = std::process::Command::new(second.get_program());
    command.args(["up", "--data-dir"]).arg(node.data());
    command.args(["--http", &format!("127.0.0.1:{}", crate::machine::free_port())]);
    run(command, "a second cortex up").refused().saying(&["data"]);
    node.cortex(&["status"]);
}

#[test]
fn a_taken_public_port_is_refused_and_named() {
    let node = Node::start();
    let other = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new(crate::node::binary());
    command.args(["up", "--data-dir"]).arg(other.path().join("data"));
    command.args(["--http", &format!("127.0.0.1:{}", node.http_port)]);
    run(command, "cortex up on a taken port").refused().saying(&[&node.http_port.to_string()]);
}

/// Asserts that the next node process notices and replaces what ended while none was there.
#[test]
fn an_instance_that_dies_while_the_node_is_away_is_replaced() {
    let mut node = Node::start();
    let project = node.path("hello");
    copy_of_example("hello", &project);
    let site = node.push(&project, "hello");
    let before = node.await_ready("hello", "web", 4);
    node.kill_nine();
    let victim = before[1].identity().expect("it lives");
    kill_nine(victim.pid);
    wait_until("it to be gone", || !lives(victim));
    node.up();
    let after = wait_for("another process in its slot", STATE_DEADLINE, || {
        let rows = node.ready("hello", "web");
        let back = rows.len() == 4 && rows.iter().all(|row| row.pid != Some(victim.pid));
        if back { Ok(rows) } else { Err(format!("{rows:#?}")) }
    });
    for (old, new) in before.iter().zip(&after) {
        assert_eq!(old.pid == new.pid, old.slot != before[1].slot, "{before:#?} {after:#?}");
    }
    site.get("/").assert_ok("Hello from");
}

/// Asserts that `down` works without a node process as well, and stops what that left behind.
#[test]
fn down_after_a_killed_node_stops_what_it_ran() {
    let mut node = Node::start();
    let project = node.path("hello");
    copy_of_example("hello", &project);
    node.push(&project, "hello");
    let processes: Vec<_> =
        node.await_ready("hello", "web", 4).iter().filter_map(|row| row.identity()).collect();
    node.kill_nine();
    node.cortex(&["down"]);
    wait_until("all to be stopped", || !processes.iter().copied().any(lives));
    node.up();
    assert_eq!(node.await_ready("hello", "web", 4).len(), 4, "`up` runs them again");
}
