//! Leases: two nodes, one of whose processes dies or hangs while its machine lives on. What its
//! shims hold outlives a restart, and not a long absence; in the end no slot runs twice, counted by
//! process.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::fixtures::cluster::{await_loads, cluster, id_of};
use crate::machine::{Identity, lives, processes_below};
use crate::node::{Node, Row};
use crate::project::copy_of_example;
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

const NAME: &str = "hello";
/// The number of instances that the example asks for.
const INSTANCES: usize = 4;

struct Pair {
    one: Node,
    two: Node,
}

impl Pair {
    /// Starts both nodes, each of which runs some of the application.
    fn start() -> Pair {
        let [one, two] = cluster([&[], &[]]);
        await_loads(&[&one, &two]);
        let pair = Pair { one, two };
        let project = pair.one.path(NAME);
        copy_of_example(NAME, &project);
        pair.one.push(&project, NAME);
        pair.await_one_of_each();
        let rows = pair.rows_of(&pair.two);
        assert!(!rows.is_empty() && rows.len() < INSTANCES, "{:#?}", pair.one.rows(NAME));
        pair
    }

    fn rows_of(&self, node: &Node) -> Vec<Row> {
        let id = id_of(node);
        let rows = self.one.ready(NAME, "web").into_iter();
        rows.filter(|row| row.node == id).collect()
    }

    /// Returns the processes of the application that live on either node, whatever the records say.
    fn living(&self) -> Vec<(u32, String)> {
        let nodes = [&self.one, &self.two].into_iter();
        nodes.flat_map(|node| processes_below(&node.data().join("apps"))).collect()
    }

    /// Waits until each slot is ready once, and no other process of the application is left.
    fn await_one_of_each(&self) -> Vec<Row> {
        wait_for("each slot to run once", STATE_DEADLINE, || {
            let (rows, living) = (self.one.rows(NAME), self.living());
            let slots: BTreeSet<u32> = rows.iter().map(|row| row.slot).collect();
            let once = rows.len() == INSTANCES && slots.len() == INSTANCES;
            let good = once && rows.iter().all(Row::is_ready) && living.len() == INSTANCES;
            if good { Ok(rows) } else { Err(format!("{rows:#?} {living:#?}")) }
        })
    }

    /// Waits until `one` runs everything.
    fn await_taken_over(&self) {
        wait_for("the other node to run all", STATE_DEADLINE, || {
            let rows = self.rows_of(&self.one);
            if rows.len() == INSTANCES { Ok(()) } else { Err(format!("{rows:#?}")) }
        });
    }

    fn exits(&self) -> Vec<PathBuf> {
        let run = self.two.data().join("run").join(NAME);
        let entries = std::fs::read_dir(run).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().join("exit.json")).filter(|path| path.exists()).collect()
    }
}

fn processes(rows: &[Row]) -> Vec<Identity> {
    rows.iter().map(|row| row.identity().expect("it lives")).collect()
}

#[test]
fn what_a_dead_node_process_left_is_adopted_or_stopped_when_its_lease_is_over() {
    let mut pair = Pair::start();
    let before = processes(&pair.rows_of(&pair.two));
    pair.two.kill_nine();
    pair.two.up();
    pair.await_one_of_each();
    assert_eq!(processes(&pair.rows_of(&pair.two)), before, "the same processes, adopted");

    pair.two.kill_nine();
    pair.await_taken_over();
    wait_until("its shims to stop them", || !before.iter().copied().any(lives));
    wait_until("their ends to be on disk", || pair.exits().len() == before.len());
    for exit in pair.exits() {
        let text = std::fs::read_to_string(&exit).expect("it is there");
        let exit: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(exit["lease_over"], true, "nothing else ended it: {text}");
    }
    pair.two.up();
    pair.await_one_of_each();
}

#[test]
fn a_node_process_that_hung_for_longer_than_its_lease_leaves_no_duplicates() {
    let pair = Pair::start();
    let before = processes(&pair.rows_of(&pair.two));
    pair.two.freeze();
    pair.await_taken_over();
    wait_until("its shims to stop them", || !before.iter().copied().any(lives));
    pair.two.thaw();
    pair.await_one_of_each();
}
