//! Foreign load: something else keeps one machine busy. Its node gets lighter by itself, takes
//! nothing new, and is used again when the load has ended.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::fixtures::cluster::{Location, await_acquaintance, first_at, id_of, join_at};
use crate::node::{Node, Running};
use crate::project::copy_of_example;
use crate::wait::{STATE_DEADLINE, wait_for};

const NAME: &str = "hello";
const INSTANCES: usize = 6;
/// The machine's memory, of which a fifth is used.
const MEMORY: &str = "MemTotal: 8000000 kB\nMemFree: 1 kB\nMemAvailable: 6400000 kB\n";
/// How much older the instances are made, as no node gives away for a load what came lately.
const OLDER_MS: u64 = 3_600_000;

/// A machine of its own for a node. All nodes of a test share one machine and its figures, so each
/// is given a view of `/proc` in which they are its own: what the kernel would say of a machine on
/// which so many processes run.
struct Machine {
    loadavg: PathBuf,
    meminfo: PathBuf,
    foreign: Vec<Running>,
}

impl Machine {
    fn new(directory: &Path, name: &str) -> Machine {
        let loadavg = directory.join(format!("{name}.loadavg"));
        let meminfo = directory.join(format!("{name}.meminfo"));
        std::fs::write(&meminfo, MEMORY).expect("a file of the test's own");
        let machine = Machine { loadavg, meminfo, foreign: Vec::new() };
        machine.show();
        machine
    }

    fn show(&self) {
        let runs = self.foreign.len();
        let text = format!("{runs}.10 {runs}.10 {runs}.10 {}/100 1\n", runs + 1);
        // The file is written in place, as it is mounted.
        std::fs::write(&self.loadavg, text).expect("a file of the test's own");
    }

    fn enter(&self) -> Vec<String> {
        let (loadavg, meminfo) = (self.loadavg.display(), self.meminfo.display());
        let script = format!(
            "mount --bind '{loadavg}' /proc/loadavg && mount --bind '{meminfo}' /proc/meminfo && \
             exec \"$@\""
        );
        let words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", &script, "sh"];
        words.map(String::from).into()
    }

    /// Starts twice as many endless processes as there are cores.
    fn becomes_busy(&mut self) {
        let cores = std::thread::available_parallelism().expect("a number").get();
        for _ in 0..2 * cores {
            let mut command = Command::new("nice");
            command.args(["-n", "19", "sh", "-c", "while :; do :; done"]);
            command.stdin(Stdio::null());
            self.foreign.push(Running(command.spawn().expect("a shell")));
        }
        self.show();
    }

    fn becomes_free(&mut self) {
        self.foreign.clear();
        self.show();
    }
}

/// Makes a node's instances look as if they had been there for long; no other node may run any.
fn age(node: &mut Node) {
    for key in node.cortex(&["store", "ls", &format!("instance::{NAME}")]).lines() {
        let text = node.cortex(&["store", "get", key]);
        let mut claim: Value = serde_json::from_str(&text).expect("a claim");
        let claimed_at = claim["claimed_at"].as_u64().expect("a time");
        claim["claimed_at"] = (claimed_at - OLDER_MS).into();
        node.cortex(&["store", "set", key, &claim.to_string()]);
    }
    node.kill_nine();
    node.up();
}

struct Pair {
    busy: Node,
    other: Node,
}

impl Pair {
    /// Returns the numbers of instances on the busy node and on the other one.
    fn counts(&self) -> [usize; 2] {
        let rows = self.other.ready(NAME, "web");
        let on = |node: &Node| rows.iter().filter(|row| row.node == id_of(node)).count();
        [on(&self.busy), on(&self.other)]
    }

    fn await_counts(&self, what: &str, good: impl Fn([usize; 2]) -> bool) -> [usize; 2] {
        wait_for(what, STATE_DEADLINE, || {
            let (counts, rows) = (self.counts(), self.other.rows(NAME));
            let settled = rows.len() == counts.iter().sum::<usize>();
            if settled && good(counts) { Ok(counts) } else { Err(format!("{counts:?} {rows:#?}")) }
        })
    }

    /// Waits until the other node knows how busy this one is.
    fn await_load(&self, good: impl Fn(u64) -> bool) {
        let id = id_of(&self.busy);
        wait_for("its load to be known", STATE_DEADLINE, || {
            let text = self.other.cortex(&["nodes", "--json"]);
            let rows: Vec<Value> = serde_json::from_str(&text).expect("rows");
            let row = rows.iter().find(|row| row["id"] == *id).expect("a row");
            let load = row["load_percent"].as_u64();
            if load.is_some_and(&good) { Ok(()) } else { Err(row.to_string()) }
        });
    }
}

#[test]
fn a_node_under_a_foreign_load_gets_lighter_and_is_used_again() {
    let directory = tempfile::TempDir::with_prefix("cortex-load-").expect("a directory");
    let mut machine = Machine::new(directory.path(), "busy");
    let idle = Machine::new(directory.path(), "idle");
    let mut busy = first_at(Location::Machine(machine.enter()), &[]);
    let project = busy.path(NAME);
    copy_of_example(NAME, &project);
    busy.push(&project, NAME);
    busy.cortex(&["scale", "-a", NAME, &format!("web={INSTANCES}")]);
    busy.await_ready(NAME, "web", INSTANCES);
    age(&mut busy);
    busy.await_ready(NAME, "web", INSTANCES);
    let other = join_at(&busy, Location::Machine(idle.enter()), &[]);
    await_acquaintance(&[&busy, &other]);
    let pair = Pair { busy, other };
    let half = [INSTANCES / 2; 2];
    pair.await_counts("each to have half", |counts| counts == half);

    machine.becomes_busy();
    pair.await_load(|load| load >= 150);
    let lighter = |counts: [usize; 2]| counts[0] < half[0] && counts[0] + counts[1] == INSTANCES;
    let before = pair.await_counts("it to get lighter", lighter);
    pair.other.cortex(&["scale", "-a", NAME, &format!("web={}", INSTANCES + 2)]);
    let all = |counts: [usize; 2]| counts[0] + counts[1] == INSTANCES + 2;
    let loaded = pair.await_counts("the new ones to run", all);
    assert!(loaded[0] <= before[0], "nothing new comes to it: {before:?} {loaded:?}");

    machine.becomes_free();
    pair.await_load(|load| load < 30);
    pair.other.cortex(&["scale", "-a", NAME, &format!("web={}", 2 * INSTANCES)]);
    let again =
        |counts: [usize; 2]| counts[0] > loaded[0] && counts[0] + counts[1] == 2 * INSTANCES;
    pair.await_counts("it to be used again", again);
}
