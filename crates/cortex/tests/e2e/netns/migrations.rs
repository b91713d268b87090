//! The loss of the network, or of a whole machine, in the middle of a migration. What served serves
//! on; a machine that is gone is replaced once no step of its can run any more; two halves of a
//! network that is cut may both run the step, and end in one state.

use std::collections::BTreeSet;
use std::thread::JoinHandle;

use super::application::Client;
use super::lab::{Host, Lab};
use crate::fixtures::cluster::{Location, await_acquaintance, cluster_at, id_of};
use crate::machine::processes_below;
use crate::migrations::{Migration, NAME, push, values};
use crate::node::{Node, Outcome, kill_nine};
use crate::project::edit;
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

/// The number of instances, one on each node.
const COUNT: usize = 2;
/// The number of callers of a client, each with one request at a time.
const CALLERS: usize = 2;

/// Two nodes that serve a release, and the step of the next one under way on the first of them.
struct Scene {
    one: Node,
    two: Node,
    migration: Migration,
    pushed: JoinHandle<Outcome>,
    old: String,
    new: String,
}

/// Returns a release's number as people write it, without the node that made it.
fn number(release: &str) -> &str {
    release.split('.').next().expect("a release")
}

fn release_of(migration: &Migration, run: usize) -> String {
    wait_for("a step to begin", STATE_DEADLINE, || {
        let lines = migration.lines();
        let begun = lines.iter().filter(|line| line[0] == "begin").nth(run);
        begun.map(|line| number(&line[1]).to_string()).ok_or_else(|| format!("{lines:?}"))
    })
}

impl Scene {
    fn new(lab: &Lab) -> Scene {
        let [one, two] = cluster_at([0, 1].map(|n| (Location::Host(lab.host(n)), &[][..])));
        let migration = Migration::new(two.directory.path());
        let project = one.path(NAME);
        migration.project(&project, COUNT);
        migration.ends();
        one.push(&project, NAME);
        let old = release_of(&migration, 0);
        for node in [&one, &two] {
            let rows = node.await_ready(NAME, "web", COUNT);
            assert!(rows.iter().all(|row| row.release == old), "{rows:#?}");
        }
        migration.holds();
        edit(&project.join("server.py"), "import http.server", "import sys, http.server");
        let pushed = push(&one, &project);
        let new = release_of(&migration, 1);
        assert_eq!(migration.lines()[2][2], id_of(&one));
        // No other node can go on with a release that only one has.
        wait_until("its files to be on both", || values(&two).is_superset(&values(&one)));
        Scene { one, two, migration, pushed, old, new }
    }

    /// Waits until the other node goes on; what served before still serves.
    #[track_caller]
    fn await_second_run(&self) {
        let lines = wait_for("the other one to run the step", STATE_DEADLINE, || {
            let lines = self.migration.lines();
            if lines.len() > 3 { Ok(lines) } else { Err(format!("{lines:?}")) }
        });
        let [what, release, node, _] = &lines[3];
        let begun = (what.as_str(), number(release), node.as_str());
        assert_eq!(begun, ("begin", self.new.as_str(), id_of(&self.two).as_str()), "{lines:?}");
        self.assert_serves(&self.two, &self.old);
    }

    /// Asserts that instances of this release alone take requests.
    #[track_caller]
    fn assert_serves(&self, node: &Node, release: &str) {
        let rows = node.ready(NAME, "web");
        let all: BTreeSet<&str> = rows.iter().map(|row| row.release.as_str()).collect();
        assert_eq!(all, [release].into(), "{rows:#?}");
    }

    #[track_caller]
    fn await_serving(&self, nodes: &[&Node], release: &str) {
        for node in nodes {
            wait_for("each slot to run once", STATE_DEADLINE, || {
                let mut rows = node.rows(NAME);
                // These are what the other side ran when it was last heard.
                rows.retain(|row| row.state != "lost");
                let slots: BTreeSet<u32> = rows.iter().map(|row| row.slot).collect();
                let good = |row: &crate::node::Row| row.is_ready() && row.release == release;
                let once = rows.len() == COUNT && slots.len() == COUNT;
                if once && rows.iter().all(good) { Ok(()) } else { Err(format!("{rows:#?}")) }
            });
        }
    }

    fn runs(&self) -> [usize; 2] {
        let lines = self.migration.lines();
        let of =
            |what: &str| lines.iter().filter(|l| l[0] == what && number(&l[1]) == self.new).count();
        [of("begin"), of("end")]
    }
}

fn lose(host: &Host, others: &[&Host], node: &mut Node) {
    // The network goes first, before anything on the host can say that it ends.
    host.cut_off(others);
    node.kill_nine();
    wait_until("all of its processes to be gone", || {
        let left = processes_below(&node.data());
        left.iter().for_each(|(pid, _)| kill_nine(*pid));
        left.is_empty()
    });
}

#[test]
fn a_machine_lost_in_a_migration_is_replaced_when_its_lease_is_over() {
    let Some(lab) = Lab::of(3) else { return };
    let mut scene = Scene::new(&lab);
    let client = Client::start_for(lab.host(2), NAME, &[&scene.two]);
    lose(lab.host(0), &[lab.host(1), lab.host(2)], &mut scene.one);
    scene.await_second_run();
    assert_eq!(scene.runs(), [2, 0]);
    scene.migration.ends();
    scene.await_serving(&[&scene.two], &scene.new);
    let (answered, failed) = client.finish();
    assert!(answered > 100 && failed.len() <= CALLERS, "{answered} answered, {failed:#?}");
    assert_eq!(scene.runs(), [2, 1], "of the one that was lost nothing ends");
    // The machine is back, with a network, and learns how it ended.
    (0..3).for_each(|n| lab.host(n).hear_all());
    scene.one.up();
    scene.await_serving(&[&scene.one, &scene.two], &scene.new);
    assert_eq!(scene.runs(), [2, 1], "what has ended is not begun again");
    scene.pushed.join().expect("it ends").refused();
}

fn cut(code: u8) {
    let Some(lab) = Lab::of(3) else { return };
    let scene = Scene::new(&lab);
    let (one, two) = (&scene.one, &scene.two);
    let clients = [one, two].map(|node| Client::start_for(lab.host(2), NAME, &[node]));
    lab.host(0).cut_off(&[lab.host(1)]);
    // The other half cannot know that the first still runs it.
    scene.await_second_run();
    scene.assert_serves(one, &scene.old);
    assert_eq!(scene.runs(), [2, 0], "both at once");
    scene.migration.ends_with(code);
    let expected = if code == 0 { &scene.new } else { &scene.old };
    wait_until("both to have ended", || scene.runs() == [2, 2]);
    // Each half runs all of it.
    scene.await_serving(&[one], expected);
    scene.await_serving(&[two], expected);
    (0..2).for_each(|n| lab.host(n).hear_all());
    await_acquaintance(&[one, two]);
    scene.await_serving(&[one, two], expected);
    let states = wait_for("one state on both", STATE_DEADLINE, || {
        let [here, there] = [one, two].map(|n| n.cortex(&["releases", "-a", NAME, "--json"]));
        if here == there { Ok(here) } else { Err(format!("{here}\n{there}")) }
    });
    assert!(states.contains(if code == 0 { "serving" } else { "failed" }), "{states}");
    assert_eq!(scene.runs(), [2, 2], "what has ended is not begun again");
    for client in clients {
        let (answered, failed) = client.finish();
        assert!(answered > 100 && failed.is_empty(), "{answered} answered, {failed:#?}");
    }
    let pushed = scene.pushed.join().expect("it ends");
    match code {
        0 => drop(pushed.succeeded()),
        _ => drop(pushed.refused()),
    }
}

#[test]
fn both_halves_of_a_network_cut_in_a_migration_may_run_it_and_end_as_one() {
    cut(0);
}

#[test]
fn a_migration_that_fails_on_both_halves_of_a_network_serves_nowhere() {
    cut(1);
}
