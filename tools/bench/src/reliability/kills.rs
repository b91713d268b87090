//! Kills during a load, and how long until what was killed is replaced: a random node with
//! everything that it runs, or a random instance alone. Times count from the first signal.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use super::client::Load;
use super::cluster::Cluster;
use super::lost;
use api_types::InstanceRow;
use os::observe::process::stat;

/// The node through which requests come. Like the thesis's balancer it is apart and is not killed.
pub const ENTRY: usize = 0;
/// The longest random pause before a kill, so that kills do not coincide with whatever happens
/// regularly.
const PAUSE_MS_MAX: u64 = 1000;
/// The time limit for a successor's first answer; without one it is no replacement for those who
/// ask.
const FIRST_ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(2);

#[derive(Clone, Debug, Serialize)]
pub struct Kill {
    pub node: String,
    /// The number of instances that were lost.
    pub instances: usize,
    /// The number of processes that were killed.
    pub processes: usize,
    /// The time until as many instances as before were ready elsewhere.
    pub ready_s: f64,
    /// The time until each of the new instances had answered a request; `None` if that was not
    /// watched, or one never did.
    pub answered_s: Option<f64>,
    #[serde(skip)]
    pub at: Instant,
}

pub struct Killer<'a> {
    pub cluster: &'a mut Cluster,
    pub application: &'a str,
    /// The number of instances that the application has.
    pub count: usize,
    random: SmallRng,
    /// The slots whose turn is still to come: one that fails again and again is made to wait.
    slots: Vec<u32>,
}

fn name(row: &InstanceRow) -> String {
    format!("{}@{}", row.pid.unwrap_or(0), row.node)
}

impl<'a> Killer<'a> {
    pub fn new(
        cluster: &'a mut Cluster,
        application: &'a str,
        count: usize,
        seed: u64,
    ) -> Killer<'a> {
        let (random, slots) = (SmallRng::seed_from_u64(seed), Vec::new());
        Killer { cluster, application, count, random, slots }
    }

    fn pause(&mut self) -> anyhow::Result<()> {
        std::thread::sleep(Duration::from_millis(self.random.random_range(0..PAUSE_MS_MAX)));
        self.cluster.interrupted().check()
    }

    /// Kills a node other than the entry that runs an instance. It is started again when its
    /// instances have been replaced; the method returns when everything is quiet.
    pub fn lose_node(&mut self, load: Option<&Load>) -> anyhow::Result<Kill> {
        self.pause()?;
        let before = self.cluster.await_quiet(self.application, self.count)?;
        let runs = |member: &usize| before.iter().any(|row| row.node == self.cluster.id(*member));
        let busy: Vec<usize> =
            (0..self.cluster.size()).filter(|n| *n != ENTRY).filter(runs).collect();
        ensure!(!busy.is_empty(), "no node but the entry runs an instance");
        let victim = busy[self.random.random_range(0..busy.len())];
        let node = self.cluster.id(victim).to_owned();
        let instances = before.iter().filter(|row| row.node == node).count();
        let loss = self.cluster.lose(victim)?;
        let (rows, ready_s) = self.replaced(loss.at, load, |row| row.node != node)?;
        let answered_s = self.answered(loss.at, load, &before, &rows)?;
        eprintln!("node {node} with {instances} instances lost: replaced after {ready_s:.2} s");
        self.cluster.start_again(victim)?;
        self.cluster.await_quiet(self.application, self.count)?;
        Ok(Kill { node, instances, processes: loss.processes, ready_s, answered_s, at: loss.at })
    }

    /// Kills an instance, in another slot each time.
    pub fn lose_instance(&mut self, load: Option<&Load>) -> anyhow::Result<Kill> {
        self.pause()?;
        let before = self.cluster.await_quiet(self.application, self.count)?;
        if self.slots.is_empty() {
            self.slots = before.iter().map(|row| row.slot).collect();
            self.slots.shuffle(&mut self.random);
        }
        let slot = self.slots.pop().context("an application without slots")?;
        let victim = before.iter().find(|row| row.slot == slot).context("a slot is gone")?;
        let process = victim.pid.and_then(stat).context("an instance ended by itself")?;
        let at = Instant::now();
        lost::kill(&process)?;
        let gone = |row: &InstanceRow| row.slot == slot && row.pid == Some(process.pid);
        let (rows, ready_s) = self.replaced(at, load, |row| !gone(row))?;
        let answered_s = self.answered(at, load, &before, &rows)?;
        eprintln!("instance {} lost: replaced after {ready_s:.2} s", name(victim));
        let node = victim.node.clone();
        Ok(Kill { node, instances: 1, processes: 1, ready_s, answered_s, at })
    }

    /// Waits until all slots are ready, without rows for which `counts` is false.
    fn replaced(
        &self,
        at: Instant,
        load: Option<&Load>,
        counts: impl Fn(&InstanceRow) -> bool,
    ) -> anyhow::Result<(Vec<InstanceRow>, f64)> {
        let rows = self.cluster.wait("what was lost to be replaced", || {
            self.cluster.ready(ENTRY, self.application, self.count, &counts)
        });
        let said = load.map(|load| format!("{} were answered meanwhile", load.answered()));
        let rows = rows.with_context(|| said.unwrap_or_else(|| "under load".into()))?;
        Ok((rows, at.elapsed().as_secs_f64()))
    }

    fn answered(
        &self,
        at: Instant,
        load: Option<&Load>,
        before: &[InstanceRow],
        after: &[InstanceRow],
    ) -> anyhow::Result<Option<f64>> {
        let Some(load) = load else { return Ok(None) };
        let before: BTreeSet<String> = before.iter().map(name).collect();
        let new: Vec<String> = after.iter().map(name).filter(|one| !before.contains(one)).collect();
        let deadline = Instant::now() + FIRST_ANSWER_TIME_MAX;
        while Instant::now() < deadline {
            self.cluster.interrupted().check()?;
            let heard: Option<Vec<Instant>> =
                new.iter().map(|one| load.first_answer(one)).collect();
            if let Some(last) = heard.and_then(|heard| heard.into_iter().max()) {
                return Ok(Some(last.saturating_duration_since(at).as_secs_f64()));
            }
            std::thread::sleep(POLL);
        }
        Ok(None)
    }
}
