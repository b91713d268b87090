//! The same test, harder: an outside client numbers its requests, and the application pauses, so
//! that the processors of one machine are not what is measured. Nodes are killed, then instances
//! alone. Callers of routers that are killed are counted apart.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::client::{Load, Window};
use super::cluster::{Cluster, project};
use super::kills::{ENTRY, Kill, Killer};
use super::thesis::INSTANCES;
use super::{AGENTS, Plan};
use crate::interrupted::Interrupted;

/// The application's pause for each answer.
const PAUSE: Duration = Duration::from_millis(20);
const CALLERS: usize = 12;
/// The number of callers of the routers of nodes that are killed.
const CALLERS_OF_AGENTS: usize = 4;
const POLL: Duration = Duration::from_millis(20);
const NAME: &str = "pausing";
/// The offset to the seed, so that the kills differ from those of the thesis's part.
const SEED_OFFSET: u64 = 1000;

#[derive(Debug, Serialize)]
pub struct Numbered {
    pub callers: usize,
    pub pause_ms: u64,
    pub calm: Phase,
    pub nodes_killed: Phase,
    pub instances_killed: Phase,
}

#[derive(Debug, Serialize)]
pub struct Phase {
    pub kills: Vec<Kill>,
    /// The requests through the node that is not killed.
    pub entry: Window,
    /// The requests through the nodes that are killed: each caller knows all of them.
    pub agents: Window,
}

pub fn measure(
    plan: &Plan,
    directory: &Path,
    interrupted: &Interrupted,
) -> anyhow::Result<Numbered> {
    let mut cluster = Cluster::start(&directory.join("numbered"), &AGENTS, interrupted)?;
    let project = project(directory, NAME, INSTANCES, PAUSE)?;
    cluster.push(ENTRY, &project)?;
    cluster.await_quiet(NAME, INSTANCES)?;
    // Connections are made and all code was used before the first answer counts.
    phase(&mut cluster, plan, |_, _| Ok(Vec::new()), plan.warm_up)?;
    eprintln!("{CALLERS} callers without kills");
    let calm = phase(&mut cluster, plan, |_, _| Ok(Vec::new()), plan.seconds)?;
    eprintln!("the same, while nodes are killed {} times", plan.kills);
    let lose_nodes = |killer: &mut Killer<'_>, load: &Load| {
        (0..plan.kills).map(|_| killer.lose_node(Some(load))).collect()
    };
    let nodes_killed = phase(&mut cluster, plan, lose_nodes, Duration::ZERO)?;
    eprintln!("the same, while instances are killed {} times", plan.kills);
    let lose_instances = |killer: &mut Killer<'_>, load: &Load| {
        (0..plan.kills).map(|_| killer.lose_instance(Some(load))).collect()
    };
    let instances_killed = phase(&mut cluster, plan, lose_instances, Duration::ZERO)?;
    let pause_ms = PAUSE.as_millis() as u64;
    Ok(Numbered { callers: CALLERS, pause_ms, calm, nodes_killed, instances_killed })
}

/// Runs both loads for as long as the kills take, and at least for `time_min`.
fn phase(
    cluster: &mut Cluster,
    plan: &Plan,
    kill: impl FnOnce(&mut Killer<'_>, &Load) -> anyhow::Result<Vec<Kill>>,
    time_min: Duration,
) -> anyhow::Result<Phase> {
    let host = format!("{NAME}.localhost");
    let agents: Vec<SocketAddr> =
        (0..cluster.size()).filter(|n| *n != ENTRY).map(|n| cluster.http(n)).collect();
    let interrupted = cluster.interrupted().clone();
    let started = Instant::now();
    let entry = Load::start(&host, &[cluster.http(ENTRY)], CALLERS);
    let others = Load::start(&host, &agents, CALLERS_OF_AGENTS);
    let seed = plan.seed.wrapping_add(SEED_OFFSET);
    let kills = kill(&mut Killer::new(cluster, NAME, INSTANCES, seed), &entry)?;
    while started.elapsed() < time_min {
        interrupted.check()?;
        std::thread::sleep(POLL);
    }
    let times: Vec<Instant> = kills.iter().map(|kill| kill.at).collect();
    Ok(Phase { entry: entry.finish(&times), agents: others.finish(&times), kills })
}
