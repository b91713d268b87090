//! Two hosts that were cut off from each other, one of which has no room left on its disk when they
//! meet again: it can neither say what it gives up nor keep what the other one says.

use super::application::{INSTANCES, NAME, await_all_slots, await_each_once};
use super::lab::Lab;
use crate::faults::{arm, disarm};
use crate::fixtures::cluster::{Location, cluster_at};
use crate::machine::processes_below;
use crate::node::Node;
use crate::project::copy_of_example;
use crate::wait::{STATE_DEADLINE, wait_for};

/// The size of a value in bytes: small enough for the log, large enough to fill it soon.
const FILLING: usize = 4000;
/// The most writes, far more than the log has room for.
const WRITES_MAX: usize = 2000;

/// Fills the disk until nothing that is set finds room.
fn fill(node: &Node) {
    arm(node, "store.extend", "error");
    for size in [FILLING, 1] {
        let value = "v".repeat(size);
        let full = |_| !node.run(&["store", "set", "filling", &value]).status.success();
        assert!((0..WRITES_MAX).any(full), "the log was to be full");
    }
}

fn await_processes(what: &str, nodes: &[&Node], count: usize) {
    wait_for(what, 2 * STATE_DEADLINE, || {
        let living: Vec<usize> =
            nodes.iter().map(|node| processes_below(&node.data().join("apps")).len()).collect();
        if living.iter().sum::<usize>() == count { Ok(()) } else { Err(format!("{living:?}")) }
    });
}

#[test]
fn a_full_disk_keeps_no_duplicates_after_a_cut() {
    let Some(lab) = Lab::of(2) else { return };
    let fallible: &[&str] = &["--fail-points"];
    let [first, second] = [0, 1].map(|n| Location::Host(lab.host(n)));
    let [one, two] = cluster_at([(first, &[]), (second, fallible)]);
    let both = [&one, &two];
    let project = one.path(NAME);
    copy_of_example(NAME, &project);
    one.push(&project, NAME);
    one.cortex(&["scale", "-a", NAME, "web=2"]);
    await_processes("two to run", &both, 2);

    lab.host(1).cut_off(&[lab.host(0)]);
    // The claims of the first one are older, and the other does not hear of those on new slots.
    let wanted = format!("web={INSTANCES}");
    for node in both {
        node.cortex(&["scale", "-a", NAME, &wanted]);
        await_all_slots("one half to run all", &[node]);
    }
    fill(&two);
    (0..2).for_each(|n| lab.host(n).hear_all());
    await_processes("each slot to run once", &both, INSTANCES);
    let log = two.log();
    assert!(log.contains("agent.not_written") && log.contains("store.refused"), "{log}");

    disarm(&two, "store.extend");
    await_each_once("both to know so", &both);
}
