//! An application over three hosts, one of which is cut off for longer than a lease.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use agent_core::lease::LEASE;

use super::lab::{Host, Lab};
use crate::fixtures::cluster::{Location, cluster_at, id_of};
use crate::machine::processes_below;
use crate::node::{Node, Row};
use crate::project::copy_of_example;
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

pub const NAME: &str = "hello";
pub const INSTANCES: usize = 6;

/// A client that sends numbered requests, one after the other from each of two callers, until its
/// input ends. It prints a line for each: the number, and the status or what went wrong.
const CLIENT: &str = r#"
import http.client, sys, threading

name, targets = sys.argv[1], sys.argv[2:]
ended, lock, number = threading.Event(), threading.Lock(), 0

def call(target):
    global number
    while not ended.wait(0.02):
        with lock:
            number += 1
            mine = number
        try:
            connection = http.client.HTTPConnection(target, timeout=300)
            connection.request("GET", "/", headers={"Host": name, "X-Request-Number": str(mine)})
            answer = connection.getresponse()
            answer.read()
            result = str(answer.status)
            connection.close()
        except Exception as error:
            result = f"{target}: {error!r}"
        with lock:
            print(mine, result, flush=True)

callers = [threading.Thread(target=call, args=(t,)) for t in targets for _ in range(2)]
[caller.start() for caller in callers]
sys.stdin.read()
ended.set()
[caller.join() for caller in callers]
"#;

pub struct Client(Child);

impl Client {
    fn start(host: &Host, nodes: &[&Node]) -> Client {
        Client::start_for(host, NAME, nodes)
    }

    /// Starts a client of another application.
    pub fn start_for(host: &Host, name: &str, nodes: &[&Node]) -> Client {
        let enter = host.enter();
        let mut command = Command::new(&enter[0]);
        command.args(&enter[1..]).args(["python3", "-c", CLIENT, &format!("{name}.localhost")]);
        command.args(nodes.iter().map(|node| node.http_address()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Client(command.spawn().expect("python3 starts"))
    }

    /// Returns how many requests were answered, and what became of the others.
    pub fn finish(mut self) -> (usize, Vec<String>) {
        drop(self.0.stdin.take());
        let lines = BufReader::new(self.0.stdout.take().expect("it is piped")).lines();
        let lines: Vec<String> = lines.map(|line| line.expect("text")).collect();
        let (good, bad): (Vec<_>, Vec<_>) =
            lines.into_iter().partition(|line| line.ends_with(" 200"));
        (good.len(), bad)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn ready_on(node: &Node, nodes: &[&Node]) -> Vec<Row> {
    let ids: Vec<String> = nodes.iter().map(|node| id_of(node)).collect();
    let rows = node.ready(NAME, "web").into_iter();
    rows.filter(|row| ids.contains(&row.node)).collect()
}

/// Waits until `nodes` run every slot, as the first of them sees it.
#[track_caller]
pub fn await_all_slots(what: &str, nodes: &[&Node]) {
    wait_for(what, 2 * STATE_DEADLINE, || {
        let rows = ready_on(nodes[0], nodes);
        let slots: BTreeSet<u32> = rows.iter().map(|row| row.slot).collect();
        if slots.len() == INSTANCES { Ok(()) } else { Err(format!("{rows:#?}")) }
    });
}

/// Waits until every slot runs once, as all see it and counted by process.
#[track_caller]
pub fn await_each_once(what: &str, nodes: &[&Node]) {
    wait_for(what, 2 * STATE_DEADLINE, || {
        for node in nodes {
            let rows = node.rows(NAME);
            let slots: BTreeSet<u32> = rows.iter().map(|row| row.slot).collect();
            let once = rows.len() == INSTANCES && slots.len() == INSTANCES;
            if !once || !rows.iter().all(Row::is_ready) {
                return Err(format!("{rows:#?}"));
            }
        }
        let living: Vec<_> =
            nodes.iter().flat_map(|node| processes_below(&node.data().join("apps"))).collect();
        if living.len() == INSTANCES { Ok(()) } else { Err(format!("{living:#?}")) }
    });
}

#[test]
fn a_node_that_is_cut_off_is_replaced_and_in_the_end_each_slot_runs_once() {
    let Some(lab) = Lab::of(4) else { return };
    let hosts = [0, 1, 2].map(|n| (Location::Host(lab.host(n)), &[][..]));
    let [one, two, three] = cluster_at(hosts);
    let all = [&one, &two, &three];
    let project = one.path(NAME);
    copy_of_example(NAME, &project);
    one.push(&project, NAME);
    one.cortex(&["scale", "-a", NAME, &format!("web={INSTANCES}")]);
    await_each_once("each slot to run once", &all);
    assert!(!ready_on(&one, &[&three]).is_empty(), "{:#?}", one.rows(NAME));

    let client = Client::start(lab.host(3), &[&one, &two]);
    lab.host(2).cut_off(&[lab.host(0), lab.host(1)]);
    let cut = Instant::now();
    await_all_slots("the others to run all", &[&one, &two]);
    // The cut node cannot know that others are alive: it runs everything too.
    await_all_slots("the cut node to run all", &[&three]);
    let asked_cut = Client::start(lab.host(3), &[&three]);
    // A cut stops neither half, however long it is.
    wait_until("a lease to be over", || cut.elapsed() > LEASE + LEASE / 4);
    await_all_slots("the others to run all still", &[&one, &two]);
    await_all_slots("the cut node to run all still", &[&three]);
    (0..3).for_each(|n| lab.host(n).hear_all());
    await_each_once("each slot to run once again", &all);
    for (side, client) in [("the others", client), ("the cut node", asked_cut)] {
        let (answered, failed) = client.finish();
        println!("{side}: {answered} answered, {} failed", failed.len());
        assert!(answered > 0 && failed.is_empty(), "{side}: {answered} answered, {failed:#?}");
    }
}
