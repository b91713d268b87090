//! Two nodes that share the instances of one application: when one is lost the other runs all of
//! them, and when it is back each slot runs once again.

use std::collections::BTreeMap;

use crate::fixtures::cluster::{await_loads, cluster, id_of};
use crate::node::Node;
use crate::project::copy_of_example;
use crate::wait::{STATE_DEADLINE, wait_for};

const NAME: &str = "hello";
const COUNT: usize = 4;

/// Returns the number of ready instances on each node, as one node knows them.
fn shares(node: &Node) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    for row in node.ready(NAME, "web") {
        *shares.entry(row.node).or_default() += 1;
    }
    shares
}

fn await_shares(node: &Node, what: &str, good: impl Fn(&BTreeMap<String, usize>) -> bool) {
    wait_for(what, STATE_DEADLINE, || {
        let shares = shares(node);
        if good(&shares) { Ok(()) } else { Err(format!("{shares:?}")) }
    });
}

#[test]
fn two_nodes_share_an_application_and_one_takes_over() {
    let [mut one, two] = cluster([&[], &[]]);
    let (first, second) = (id_of(&one), id_of(&two));
    // A node that has just come is given something only later, when what runs has run for a while.
    await_loads(&[&one, &two]);
    let project = one.path(NAME);
    copy_of_example(NAME, &project);
    one.push(&project, NAME);
    let shared = |shares: &BTreeMap<String, usize>| {
        let there = |node| shares.get(node).copied().unwrap_or_default();
        there(&first) >= 1 && there(&second) >= 1 && there(&first) + there(&second) == COUNT
    };
    await_shares(&one, "both to run a part", shared);
    await_shares(&two, "both to see it alike", shared);
    one.kill_nine();
    await_shares(&two, "the other one to run everything", |shares| {
        shares.get(&second) == Some(&COUNT)
    });
    one.up();
    await_shares(&two, "each slot to run once again", shared);
    await_shares(&one, "both to see it alike", shared);
}
