//! Two nodes, either of which is lost without warning: during a steady load, during a push through
//! the other one, and during a push through itself. One client asks the survivor; another knows
//! both addresses and connects again. The push must succeed, or say that it failed.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use super::Plan;
use super::client::{Load, Window};
use super::cluster::{Cluster, project, set_version};
use super::connection::Connection;
use crate::interrupted::Interrupted;

const INSTANCES: usize = 4;
const PAUSE: Duration = Duration::from_millis(20);
/// The number of callers of each of the two clients.
const CALLERS: usize = 4;
const NAME: &str = "pair";
/// The number of requests that are answered before anything is killed.
const ANSWERED_FIRST: u64 = 20;
/// The time within which the node is lost; a push takes about as long on an idle machine.
const PUSH_MS: u64 = 800;
/// The number of answers from which the serving versions are learnt.
const LOOKS: u64 = 24;
const SEED_OFFSET: u64 = 2000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum During {
    Load,
    /// The surviving node takes the push.
    PushToSurvivor,
    /// The lost node takes the push.
    PushToLost,
}

const SITUATIONS: [During; 3] = [During::Load, During::PushToSurvivor, During::PushToLost];

#[derive(Debug, Serialize)]
pub struct Round {
    pub during: During,
    /// The place of the node that is lost; 0 is the one that was first.
    pub lost: usize,
    pub ready_s: f64,
    pub survivor: Window,
    pub both: Window,
    pub push: Option<Push>,
}

#[derive(Debug, Serialize)]
pub struct Push {
    /// The time from the start of the push until the node was lost.
    pub lost_after_ms: u64,
    pub said_success: bool,
    /// The last words of a push that failed.
    pub said: String,
    /// Whether the pushed version serves once everything is quiet.
    pub serves: bool,
    /// Whether only one version answers, and the push did not claim success without serving.
    pub right: bool,
}

pub fn measure(
    plan: &Plan,
    directory: &Path,
    interrupted: &Interrupted,
) -> anyhow::Result<Vec<Round>> {
    let mut cluster = Cluster::start(&directory.join("pair"), &[None, None], interrupted)?;
    let project = project(directory, NAME, INSTANCES, PAUSE)?;
    cluster.push(0, &project)?;
    cluster.await_quiet(NAME, INSTANCES)?;
    let mut random = SmallRng::seed_from_u64(plan.seed.wrapping_add(SEED_OFFSET));
    let mut rounds = Vec::new();
    for turn in 0..plan.pair_rounds {
        for (place, during) in SITUATIONS.into_iter().enumerate() {
            // Both nodes are lost even in a single turn.
            let lost = (turn as usize + place) % 2;
            let version = 2 + rounds.len() as u32;
            eprintln!("node {} of 2 is lost, {during:?}", lost + 1);
            let after = Duration::from_millis(random.random_range(0..PUSH_MS));
            rounds.push(round(&mut cluster, &project, during, lost, version, after)?);
        }
    }
    Ok(rounds)
}

fn round(
    cluster: &mut Cluster,
    project: &Path,
    during: During,
    lost: usize,
    version: u32,
    after: Duration,
) -> anyhow::Result<Round> {
    let (host, left) = (format!("{NAME}.localhost"), 1 - lost);
    let survivor = Load::start(&host, &[cluster.http(left)], CALLERS);
    let both = Load::start(&host, &[cluster.http(lost), cluster.http(left)], CALLERS);
    cluster.wait("a steady load", || {
        Ok((survivor.answered() > ANSWERED_FIRST && both.answered() > ANSWERED_FIRST).then_some(()))
    })?;
    let taker = match during {
        During::Load => None,
        During::PushToSurvivor => Some(left),
        During::PushToLost => Some(lost),
    };
    let push = taker.map(|taker| start_push(cluster, taker, project, version)).transpose()?;
    std::thread::sleep(after);
    let loss = cluster.lose(lost)?;
    let gone = cluster.id(lost).to_owned();
    let replaced = || cluster.ready(left, NAME, INSTANCES, |row| row.node != gone);
    cluster.wait("the other node to run everything", replaced)?;
    let ready_s = loss.at.elapsed().as_secs_f64();
    let ended = push.map(|push| push.end(cluster)).transpose()?;
    // The node comes back under load: that must cost nobody a request either.
    cluster.start_again(lost)?;
    cluster.await_quiet(NAME, INSTANCES)?;
    let times: [Instant; 1] = [loss.at];
    let (survivor, both) = (survivor.finish(&times), both.finish(&times));
    let push = match ended {
        None => None,
        Some((said_success, said)) => {
            let versions = versions(cluster)?;
            let serves = versions.contains(&version.to_string());
            let right = versions.len() == 1 && (serves || !said_success);
            let lost_after_ms = after.as_millis() as u64;
            Some(Push { lost_after_ms, said_success, said, serves, right })
        }
    };
    Ok(Round { during, lost, ready_s, survivor, both, push })
}

/// Returns the versions that answer through both nodes.
fn versions(cluster: &Cluster) -> anyhow::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for number in 0..LOOKS {
        let target = cluster.http((number % 2) as usize);
        let answer = Connection::ask(&mut None, target, &format!("{NAME}.localhost"), number);
        let answer = answer.map_err(|fault| anyhow::anyhow!("{fault:?}"));
        found.insert(answer.context("when everything was quiet again")?.version);
    }
    ensure!(!found.is_empty(), "nobody answered");
    Ok(found)
}

/// A push that is killed when it is dropped before its end.
struct Pushing(std::process::Child);

impl Drop for Pushing {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn start_push(
    cluster: &Cluster,
    taker: usize,
    project: &Path,
    version: u32,
) -> anyhow::Result<Pushing> {
    set_version(project, version)?;
    let mut command = cluster.command(taker);
    // It prints a screenful at most, which fits into a pipe.
    command.arg("push").arg(project).stdout(Stdio::null()).stderr(Stdio::piped());
    Ok(Pushing(command.spawn().context("a push cannot be started")?))
}

impl Pushing {
    /// Waits for the end, and returns whether it succeeded, and its last words if not.
    fn end(mut self, cluster: &Cluster) -> anyhow::Result<(bool, String)> {
        let status = cluster.wait("the push to end", || Ok(self.0.try_wait()?))?;
        let stderr = self.0.stderr.take().context("it is piped")?;
        let said = std::io::read_to_string(stderr)?;
        let complaint = said.lines().rev().find(|line| line.contains("Error"));
        let last = complaint.or(said.lines().last()).unwrap_or_default();
        let said = if status.success() { String::new() } else { last.trim().to_owned() };
        Ok((status.success(), said))
    }
}
