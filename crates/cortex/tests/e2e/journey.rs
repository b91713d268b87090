//! The journey that every application with a web process must go through, whatever it is written
//! in: push, scale up and down, a second release under load, a broken one refused, an instance
//! killed and back, the node killed and its processes adopted, a rollback, an orderly end.

use std::path::Path;

use crate::machine::{Identity, lives};
use crate::node::{Node, kill_nine};
use crate::outside::{CALLERS, Callers, Site};
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

/// The number of answers that must arrive before and after each event under load.
const ANSWERS_BETWEEN: u64 = 40;

pub struct Journey<'a> {
    pub name: &'a str,
    pub project: &'a Path,
    /// The path on which the application says which version it is.
    pub path: &'a str,
    pub first: &'a str,
    pub second: &'a str,
    /// Changes the project so that it says `second`.
    pub edit: &'a dyn Fn(&Path),
    /// Changes the project so that it cannot start (or be prepared) any more.
    pub spoil: &'a dyn Fn(&Path),
    /// What `push` must say of the broken release.
    pub complaint: &'a str,
    /// The most requests that one instance has in its hands.
    pub in_hand_max: u64,
}

impl Journey<'_> {
    /// Goes through all steps; `between` runs after each with the site, for what only this
    /// application can check.
    pub fn run(&self, node: &mut Node, between: &mut dyn FnMut(&Site)) {
        let site = node.push(self.project, self.name);
        site.get(self.path).assert_ok(self.first);
        between(&site);
        self.scale(node, &site);
        between(&site);
        self.second_release(node, &site);
        between(&site);
        self.broken_release(node, &site);
        between(&site);
        self.kill_instance(node, &site);
        between(&site);
        self.kill_node(node, &site);
        between(&site);
        node.cortex(&["rollback", "-a", self.name]);
        site.get(self.path).assert_ok(self.first);
        between(&site);
        let processes = self.processes(node);
        node.down();
        assert!(!processes.iter().copied().any(lives), "`down` left something running");
    }

    fn processes(&self, node: &Node) -> Vec<Identity> {
        let rows = node.rows(self.name);
        let found: Vec<Identity> = rows.iter().filter_map(|row| row.identity()).collect();
        assert!(!found.is_empty(), "nothing runs: {rows:#?}");
        found
    }

    fn scale(&self, node: &Node, site: &Site) {
        let callers = Callers::start(site, self.path, &[self.first]);
        node.cortex(&["scale", "web=3", "-a", self.name]);
        let three = node.await_ready(self.name, "web", 3);
        let mut pids: Vec<_> = three.iter().map(|row| row.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        assert_eq!(pids.len(), 3, "three processes: {three:#?}");
        callers.answered_more(ANSWERS_BETWEEN);
        node.cortex(&["scale", "web=1", "-a", self.name]);
        let one = node.await_ready(self.name, "web", 1);
        callers.answered_more(ANSWERS_BETWEEN);
        callers.finish_without_failure();
        assert_eq!(one[0].slot, 1, "the highest slots go first");
        for row in three.iter().filter(|row| row.pid != one[0].pid) {
            wait_until("the others to end", || row.identity().is_none());
        }
        node.cortex(&["scale", "web=2", "-a", self.name]);
        node.await_ready(self.name, "web", 2);
    }

    fn second_release(&self, node: &Node, site: &Site) {
        let before = self.processes(node);
        let callers = Callers::start(site, self.path, &[self.first, self.second]);
        callers.answered_more(ANSWERS_BETWEEN);
        (self.edit)(self.project);
        let pushed = node.push(self.project, self.name);
        assert_eq!(pushed, *site, "a release does not move the application");
        callers.answered_more(ANSWERS_BETWEEN);
        let rows = node.await_ready(self.name, "web", 2);
        assert!(rows.iter().all(|row| row.release == "v2"), "{rows:#?}");
        wait_until("the first release's processes to end", || !before.iter().copied().any(lives));
        callers.finish_without_failure();
        site.get(self.path).assert_ok(self.second);
    }

    fn broken_release(&self, node: &Node, site: &Site) {
        let before = self.processes(node);
        let callers = Callers::start(site, self.path, &[self.second]);
        (self.spoil)(self.project);
        node.try_push(self.project, self.name).refused().saying(&[self.complaint]);
        callers.answered_more(ANSWERS_BETWEEN);
        callers.finish_without_failure();
        assert_eq!(self.processes(node), before, "a broken release touches nothing that runs");
    }

    fn kill_instance(&self, node: &Node, site: &Site) {
        let callers = Callers::start(site, self.path, &[self.second]);
        callers.answered_more(ANSWERS_BETWEEN);
        let victim = node.ready(self.name, "web").remove(0);
        kill_nine(victim.pid.expect("a ready one has a pid"));
        wait_for("another process in the slot", STATE_DEADLINE, || {
            let rows = node.ready(self.name, "web");
            let back = rows.iter().any(|row| row.slot == victim.slot && row.pid != victim.pid);
            if back { Ok(()) } else { Err(format!("{:#?}", node.rows(self.name))) }
        });
        callers.answered_more(ANSWERS_BETWEEN);
        let tally = callers.finish();
        let in_hand_max = self.in_hand_max.min(CALLERS as u64);
        assert!(
            tally.failures.count <= in_hand_max,
            "more requests failed than the {in_hand_max} in the killed one's hands: {tally:#?}"
        );
        node.await_ready(self.name, "web", 2);
    }

    fn kill_node(&self, node: &mut Node, site: &Site) {
        let before = self.processes(node);
        node.kill_nine();
        assert!(before.iter().copied().all(lives), "applications outlive the node process");
        node.up();
        node.await_ready(self.name, "web", 2);
        assert_eq!(self.processes(node), before, "same pids and start times: adopted");
        wait_until("the router to answer again", || {
            site.try_get(self.path).is_ok_and(|answer| answer.body.contains(self.second))
        });
    }
}
