//! The choice of the node that builds a release. What is of use on other nodes as it is (an
//! artefact) is built once, at the emptiest of those that are alike, and the others fetch it; a
//! build that lacks a tool here is tried on another node. The node that builds coordinates the
//! rollout, so one that dies is replaced as any coordinator is. Asked by rollout and plan; decides,
//! and moves nothing itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::{BuildId, NodeId, Release, ReleaseId, RolloutPhase, Timestamp};

use super::rollout::Stage;
use super::{Application, Build, Effect, StepFailure};

/// The time to wait for candidates. They are read from this node's own store: at once, or something
/// is wrong with it.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The percent by which another node must be emptier, as in placement: less is no reason to go
/// elsewhere.
const EMPTIER_BY_PERCENT: u32 = 10;
/// Nodes that try to build a source; one that cannot be built on so many is at fault itself.
pub const BUILDERS_MAX: usize = 3;
/// The time for sharing a build. Packing writes the tree once, at most 2 GiB of it; longer is not
/// worth waiting for.
const SHARE_WITHIN: Duration = Duration::from_secs(120);
/// The time to wait for an artefact's record, which was written before the rollout's that tells of
/// it and may come after it.
const RECORD_WITHIN: Duration = Duration::from_secs(5);
/// The beginning of what is said of a release that was tried on several nodes.
pub(super) const NOWHERE: &str = "no node could build it";

/// A node that might build, as its records say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildCandidate {
    pub node: NodeId,
    /// The node's load; `None` if nothing is known of it.
    pub load_percent: Option<u32>,
    /// Whether what is built there runs here: it has the same kind of machine and system.
    pub alike: bool,
}

/// Whether it was decided where the target of an attempt is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Open,
    /// Candidates were asked for at this time.
    Asked(Timestamp),
    Made,
}

/// What is known of artefacts.
#[derive(Debug, Default)]
pub(super) struct Artefacts {
    /// The builders of each build, and whether what they built runs on this node.
    known: BTreeMap<BuildId, BTreeMap<NodeId, bool>>,
    /// The builds that could not be had: those are built here.
    lost: BTreeSet<BuildId>,
    /// The artefact that a rollout's record tells of and that is still to come, and since when.
    awaited: Option<(ReleaseId, Timestamp)>,
}

impl Artefacts {
    pub fn note(&mut self, build: BuildId, builder: NodeId, fits: Option<bool>) {
        let of = self.known.entry(build.clone()).or_default();
        match fits {
            Some(fits) => drop(of.insert(builder, fits)),
            None => drop(of.remove(&builder)),
        }
        if of.is_empty() {
            self.known.remove(&build);
        }
    }

    /// Returns another node whose artefact runs here.
    fn fitting(&self, build: &BuildId, own: &NodeId) -> Option<&NodeId> {
        let usable = |(builder, fits): &(&NodeId, &bool)| **fits && *builder != own;
        self.known.get(build)?.iter().find(usable).map(|(builder, _)| builder)
    }

    pub fn keep(&mut self, keep: &[BuildId]) {
        self.lost.retain(|build| keep.contains(build));
    }
}

impl Application {
    /// Fetches what another node has built, or builds.
    pub(super) fn build(&mut self, id: &ReleaseId) {
        let Some(release) = self.releases.get(id).cloned() else { return };
        let build = release.build_id();
        let history = match self.builds.get(&build) {
            Some(Build::Failed(history)) => history.clone(),
            _ => Default::default(),
        };
        self.builds.insert(build.clone(), Build::Running(history));
        let fitting = self.artefacts.fitting(&build, &self.node);
        match fitting.filter(|_| !self.artefacts.lost.contains(&build)).cloned() {
            Some(builder) => self.emit(Effect::Fetch { release, builder }),
            None => self.emit(Effect::Build { release }),
        }
    }

    pub(super) fn fetched(&mut self, release: &ReleaseId, result: Result<(), String>) {
        let build = self.build_of(release);
        if !matches!(self.builds.get(&build), Some(Build::Running(_))) {
            return;
        }
        match result {
            Ok(()) => drop(self.builds.insert(build, Build::Done)),
            Err(why) => {
                self.builds.remove(&build);
                self.artefacts.lost.insert(build);
                let short = release.short();
                self.note(format!("{short} is built here, as what was built cannot be had: {why}"));
            }
        }
    }

    /// Has a node that only follows wait a moment for the record of what was built elsewhere.
    pub(super) fn await_artefact(&mut self, now: Timestamp) {
        let told = self.rollout.as_ref().filter(|rollout| {
            let theirs = rollout.built_on.as_ref().is_some_and(|node| *node != self.node);
            theirs && rollout.phase == RolloutPhase::Starting
        });
        let known = |id: &&ReleaseId| {
            let build = self.build_of(id);
            self.builds.contains_key(&build) || self.artefacts.known.contains_key(&build)
        };
        let release = told.and_then(|rollout| rollout.target.as_ref()).filter(|id| !known(id));
        let since = match &self.artefacts.awaited {
            Some((before, since)) if Some(before) == release => *since,
            _ => now,
        };
        self.artefacts.awaited = release.map(|release| (release.clone(), since));
    }

    /// Returns until when an artefact is waited for.
    pub(super) fn artefact_until(&self, release: &ReleaseId) -> Option<Timestamp> {
        let (awaited, since) = self.artefacts.awaited.as_ref()?;
        (awaited == release).then(|| since.after(RECORD_WITHIN))
    }

    /// Returns whether the release's build is of use on other nodes, and there are some, or were.
    fn is_shared(&self, release: &Release) -> bool {
        let recipe = &release.recipe;
        let worth = recipe.portable.is_some() && !recipe.build.is_empty() && !recipe.is_tied();
        worth && self.is_placed() && self.elsewhere.met
    }

    /// Chooses where the target is built, and returns true if something changed. Until that is
    /// decided, nothing is built.
    pub(super) fn choose_builder(&mut self, now: Timestamp, release: &Release) -> bool {
        let shared = self.is_shared(release);
        let Some(attempt) = &mut self.attempt else { return false };
        match attempt.choice {
            Choice::Made => return false,
            Choice::Open if shared => attempt.choice = Choice::Asked(now),
            Choice::Open => attempt.choice = Choice::Made,
            Choice::Asked(since) if since.after(ANSWER_WITHIN) > now => {
                self.wake_at(since.after(ANSWER_WITHIN));
                return false;
            }
            Choice::Asked(_) => {
                self.builders_found(now, &release.id, Vec::new());
                return true;
            }
        }
        if shared {
            self.emit(Effect::FindBuilders { release: release.id.clone() });
        }
        true
    }

    pub(super) fn builders_found(
        &mut self,
        now: Timestamp,
        release: &ReleaseId,
        mut candidates: Vec<BuildCandidate>,
    ) {
        let asked = |choice| matches!(choice, Choice::Asked(_));
        let attempt = self.attempt.as_mut().filter(|a| a.target == *release && asked(a.choice));
        let Some(attempt) = attempt else { return };
        attempt.choice = Choice::Made;
        let lacking = attempt.lacking.take();
        candidates.retain(|one| self.elsewhere.live.contains(&one.node));
        let Some(failure) = lacking else {
            if let Some(node) = emptiest(&self.node, &candidates) {
                self.hand_to(now, node, "is emptier and builds it");
            }
            return;
        };
        let Some(rollout) = &mut self.rollout else { return };
        let mut tried = rollout.unable.clone();
        tried.insert(self.node.clone(), failure.why.clone());
        candidates.retain(|one| !tried.contains_key(&one.node));
        let next = candidates.into_iter().min_by_key(|one| (load(one), one.node.clone()));
        match next.filter(|_| tried.len() < BUILDERS_MAX) {
            Some(next) => {
                rollout.unable = tried;
                self.hand_to(now, next.node, "may have the tool and tries");
            }
            None if tried.len() == 1 => self.fail_rollout(now, failure.why, &failure.last_words),
            None => {
                let why = format!("{NOWHERE}: {}", told(&tried));
                self.fail_rollout(now, why, &failure.last_words);
            }
        }
    }

    /// Looks for other nodes after a build failed here for want of a tool. Returns true if some may
    /// have it.
    pub(super) fn ask_others(&mut self, now: Timestamp, failure: &StepFailure) -> bool {
        let target = self.attempt.as_ref().and_then(|a| self.releases.get(&a.target));
        let tied = target.is_none_or(|release| release.recipe.is_tied());
        let alone = !self.is_placed() || self.elsewhere.live.len() < 2;
        // Release steps that ran here do not run again elsewhere.
        let attempt = self.attempt.as_mut().filter(|attempt| attempt.stage == Stage::Building);
        let Some(attempt) = attempt.filter(|_| failure.lacks_tool && !tied && !alone) else {
            return false;
        };
        attempt.lacking = Some(failure.clone());
        attempt.choice = Choice::Asked(now);
        let release = attempt.target.clone();
        self.note(format!("{} cannot be built here: {}", release.short(), failure.why));
        self.emit(Effect::FindBuilders { release });
        true
    }

    fn hand_to(&mut self, now: Timestamp, node: NodeId, why: &str) {
        let Some(attempt) = self.attempt.take() else { return };
        // Once it is built there, it may be had from there.
        self.builds.remove(&self.build_of(&attempt.target));
        self.note(format!("Node {node} {why}"));
        let Some(rollout) = &mut self.rollout else { return };
        rollout.coordinator = node;
        rollout.phase = RolloutPhase::Requested;
        rollout.changed_at = now;
        let record = rollout.clone();
        self.emit_rollout(record);
    }

    /// Shares the target, which is built. Returns true while it is made available to other nodes
    /// first.
    pub(super) fn share(&mut self, now: Timestamp, release: &Release) -> bool {
        if !self.is_shared(release) {
            return false;
        }
        let build = release.build_id();
        let fitting = self.artefacts.fitting(&build, &self.node).cloned();
        if fitting.is_some() && !self.artefacts.lost.contains(&build) {
            self.built_on(fitting);
            return false;
        }
        let Some(attempt) = &mut self.attempt else { return false };
        (attempt.stage, attempt.since) = (Stage::Sharing, now);
        self.emit(Effect::Share { release: release.clone() });
        true
    }

    pub(super) fn built_on(&mut self, node: Option<NodeId>) {
        if let Some(rollout) = &mut self.rollout {
            rollout.built_on = node;
        }
    }

    /// Returns whether sharing took too long, so that others build it themselves.
    pub(super) fn sharing_takes_too_long(&mut self, now: Timestamp, since: Timestamp) -> bool {
        let end = since.after(SHARE_WITHIN);
        if end > now {
            self.wake_at(end);
        }
        end <= now
    }

    /// Returns what the user who pushed should know although it serves.
    pub(super) fn unable(&self) -> Option<String> {
        let rollout = self.rollout.as_ref().filter(|rollout| !rollout.unable.is_empty())?;
        Some(format!("not every node could build it: {}", told(&rollout.unable)))
    }
}

fn told(unable: &BTreeMap<NodeId, String>) -> String {
    let one = |(node, why): (&NodeId, &String)| format!("on node {node} {why}");
    unable.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Returns the load of a candidate; an unknown one counts as the highest.
fn load(candidate: &BuildCandidate) -> u32 {
    candidate.load_percent.unwrap_or(u32::MAX)
}

/// Returns another node than this one, if one is much emptier.
fn emptiest(own: &NodeId, candidates: &[BuildCandidate]) -> Option<NodeId> {
    let here = candidates.iter().find(|one| one.node == *own).map(load)?;
    let others = candidates.iter().filter(|one| one.node != *own && one.alike);
    let best = others.min_by_key(|one| (load(one), &one.node))?;
    (load(best).saturating_add(EMPTIER_BY_PERCENT) <= here).then(|| best.node.clone())
}

#[cfg(test)]
mod tests;
