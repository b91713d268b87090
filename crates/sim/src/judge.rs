//! The judge: what must be true of every history. It looks only at the records and the processes,
//! as a stranger would, never into a machine.

use agent_core::application::IncarnationId;
use model::application::RolloutMode;
use model::instance::INCARNATIONS_MAX;
use model::{
    ApplicationName, BuildId, Claim, InstanceId, InstanceState, ProcessType, ReleaseId,
    RolloutPhase,
};

use crate::fault::Weather;
use crate::process::Quality;
use crate::world::World;

/// The most starts of a slot within a minute since anybody asked for anything: back-off allows
/// seven or so, of what serves before and after a rollout that fails, and the rollout tries twice.
const STARTS_PER_SLOT_AND_MINUTE_MAX: usize = 16;

/// How long a release that dies may serve: two lives, a start that fails, notices that come late,
/// and what is asked again meanwhile.
const DYING_SERVES_MAX_MS: u64 = 120_000;

/// The number of processes of a type that serve, and of those that really answer.
type Serving = std::collections::BTreeMap<ProcessType, (usize, usize)>;

impl World {
    fn mode(&self, name: &ApplicationName, release: &ReleaseId) -> RolloutMode {
        let record = self.records.releases.get(&(name.clone(), release.clone()));
        record.map(|release| release.settings.rollout).unwrap_or_default()
    }

    fn serving(&self, name: &ApplicationName) -> Option<&ReleaseId> {
        self.records.rollouts.get(name).and_then(|rollout| rollout.serving.as_ref())
    }

    /// Counts serving processes in the slots that are wanted.
    pub(crate) fn serving_well(&self, name: &ApplicationName) -> Serving {
        self.serving_where(name, |instance| {
            instance.slot as usize <= self.wanted(name, &instance.process)
        })
    }

    fn serving_where(
        &self,
        name: &ApplicationName,
        counts: impl Fn(&InstanceId) -> bool,
    ) -> Serving {
        let mut count = Serving::new();
        let Some(serving) = self.serving(name) else { return count };
        for (instance, claim) in self.records.claims_of(name).filter(|(id, _)| counts(id)) {
            let ready = claim.incarnations.iter().filter(|incarnation| {
                incarnation.state == InstanceState::Ready && incarnation.release == *serving
            });
            let (mut said, mut well) = (0, 0);
            for incarnation in ready {
                let generation = incarnation.generation;
                let id = IncarnationId { instance: instance.clone(), generation };
                said = 1;
                if self.processes.get(&id).is_some_and(|process| process.is_well()) {
                    well = 1;
                }
            }
            let entry = count.entry(instance.process.clone()).or_default();
            *entry = (entry.0 + said, entry.1 + well);
        }
        count
    }

    /// Returns how many are wanted: by the records, or by what the agent has been told of them.
    fn wanted(&self, name: &ApplicationName, process: &ProcessType) -> usize {
        let Some(spec) = self.records.specs.get(name) else { return 0 };
        let release = self
            .serving(name)
            .and_then(|serving| self.records.releases.get(&(name.clone(), serving.clone())));
        let recipe = release.and_then(|release| release.recipe.processes.get(process));
        let Some(recipe) = recipe else { return 0 };
        let chosen = spec.processes.get(process).map(|spec| spec.count);
        let agent = self.node.as_ref().and_then(|node| node.agents.get(name));
        let told = agent.and_then(|agent| agent.wanted.get(process).copied());
        let default = recipe.default_count;
        chosen.unwrap_or(default).min(told.unwrap_or(default)) as usize
    }

    /// Asserts that nothing but a fault, or a shutdown, takes away what serves.
    pub(crate) fn judge_change(&mut self, name: &ApplicationName, before: Serving) {
        if self.node.as_ref().is_some_and(|node| node.stopping.is_some()) {
            return;
        }
        let Some(rollout) = self.records.rollouts.get(name) else { return };
        let modes = [&rollout.serving, &rollout.target];
        let apart = modes
            .into_iter()
            .flatten()
            .chain(self.starting.get(name))
            .any(|release| self.mode(name, release) == RolloutMode::StopFirst);
        if apart {
            return;
        }
        let after = self.serving_well(name);
        for (process, (_, well)) in before {
            let said = after.get(&process).map_or(0, |count| count.0);
            let least = well.min(self.wanted(name, &process));
            assert!(said >= least, "{name}: only {said} of {process} serve, {least} did and could");
        }
    }

    pub(crate) fn judge_rollout(&mut self, name: &ApplicationName) {
        let Some(rollout) = self.records.rollouts.get(name) else { return };
        let (phase, serving) = (rollout.phase, rollout.serving.clone());
        // It was destroyed a moment ago, which the machine has not heard of.
        let release = |id: &ReleaseId| self.records.releases.get(&(name.clone(), id.clone()));
        if serving.as_ref().is_some_and(|serving| release(serving).is_none()) {
            return;
        }
        if let Some(serving) = serving {
            // A request that crossed the switch is kept.
            let switches = matches!(phase, RolloutPhase::Done | RolloutPhase::Requested);
            self.judge_serving(name, serving, switches);
        }
        let Some(rollout) = self.records.rollouts.get(name) else { return };
        if rollout.phase == RolloutPhase::Failed {
            let message = rollout.message.as_deref().unwrap_or_default();
            assert!(!message.is_empty(), "{name}: a failed rollout says why");
        }
        if rollout.phase == RolloutPhase::Done {
            let serving = rollout.serving.clone().expect("what is done serves");
            let release = &self.records.releases[&(name.clone(), serving)];
            let processes: Vec<ProcessType> = release.recipe.processes.keys().cloned().collect();
            let ready = self.serving_well(name);
            for process in processes {
                let count = ready.get(&process).map_or(0, |count| count.0);
                let wanted = self.wanted(name, &process);
                assert!(count >= wanted, "{name}: switched with {count} of {wanted} {process}");
            }
            self.served.insert(name.clone());
            self.note_switch(name);
        }
    }

    /// Notes a switch to another release, if something good served before: only then there is
    /// something to go back to.
    fn note_switch(&mut self, name: &ApplicationName) {
        let Some(rollout) = self.records.rollouts.get(name) else { return };
        let (serving, before) = (rollout.serving.clone(), rollout.before.clone());
        let returned = serving.as_ref().is_some_and(|serving| {
            let release = self.records.releases.get(&(name.clone(), serving.clone()));
            release.is_none_or(|release| release.takes_back.is_some())
        });
        let good = before.is_some_and(|before| {
            self.qualities.get(&(name.clone(), before)) == Some(&Quality::Good)
        });
        // Nobody watches over what begins to run long after that.
        let untried = serving
            .as_ref()
            .is_some_and(|serving| self.untried.contains(&(name.clone(), serving.clone())));
        match serving.filter(|_| good && !returned && !untried) {
            Some(serving) => drop(self.switched.insert(name.clone(), (serving, self.now))),
            None => drop(self.switched.remove(name)),
        }
    }

    /// Asserts that a bad release never serves, except one whose processes nobody wanted when it
    /// was pushed.
    fn judge_serving(&mut self, name: &ApplicationName, serving: ReleaseId, switches: bool) {
        let key = (name.clone(), serving);
        let quality = self.qualities[&key];
        let idle = switches && {
            let release = &self.records.releases[&key];
            release.recipe.processes.keys().all(|process| self.wanted(name, process) == 0)
        };
        let prepared = !matches!(quality, Quality::BadBuild | Quality::BadReleaseStep);
        if idle && prepared {
            self.untried.insert(key.clone());
        }
        let fine = matches!(quality, Quality::Good | Quality::Dies) || self.untried.contains(&key);
        assert!(fine, "{name}: {} serves, which is {quality:?}", key.1);
    }

    pub(crate) fn judge_start(&mut self, id: &IncarnationId) {
        let claim = self.records.claims.get(&id.instance);
        let known = claim.is_some_and(|claim| {
            claim.incarnations.iter().any(|incarnation| {
                incarnation.generation == id.generation
                    && incarnation.state == InstanceState::Starting
            })
        });
        assert!(known, "{id:?} was started before its claim was written");
        assert!(self.used.insert(id.clone()), "{id:?} was used before");
        let now = self.now;
        let starts = self.starts.entry(id.instance.clone()).or_default();
        starts.retain(|at| now - at < 60_000);
        starts.push(now);
        assert!(starts.len() <= STARTS_PER_SLOT_AND_MINUTE_MAX, "{} flaps", id.instance);
    }

    /// Notes that somebody asked for something: a push, a restart and another count begin a
    /// back-off of their own.
    pub(crate) fn asked(&mut self, name: &ApplicationName) {
        self.starts.retain(|instance, _| instance.application != *name);
    }

    /// Asserts, for a release that never served, that the first process of a type starts only while
    /// no other process is there whose type has not yet been ready.
    pub(crate) fn judge_first_start(&self, id: &IncarnationId, release: &model::Release) {
        let name = &id.instance.application;
        let unproven = |process: &ProcessType| {
            !self.proven.contains(&(name.clone(), release.id.clone(), process.clone()))
        };
        if self.serving(name) == Some(&release.id) || !unproven(&id.instance.process) {
            return;
        }
        let other = self.processes.values().find(|other| {
            let instance = &other.id.instance;
            let same = instance.application == *name && other.release == release.id;
            // A process that a dead actor started is not known to anybody yet.
            let claim = self.records.claims.get(instance);
            let known = claim.is_some_and(|claim| {
                let generations = claim.incarnations.iter().map(|one| one.generation);
                generations.into_iter().any(|generation| generation == other.id.generation)
            });
            same && other.is_alive() && known && unproven(&instance.process)
        });
        assert!(other.is_none(), "{} starts for the first time beside {other:?}", id.instance);
    }

    pub(crate) fn note_proven(&mut self, instance: &InstanceId) {
        let Some(claim) = self.records.claims.get(instance) else { return };
        let ready = claim.incarnations.iter().filter(|one| one.state == InstanceState::Ready);
        let (name, process) = (&instance.application, &instance.process);
        self.proven.extend(ready.map(|one| (name.clone(), one.release.clone(), process.clone())));
    }

    /// Asserts that a release that was made to take another back stays, and that nothing is taken
    /// back twice.
    pub(crate) fn judge_taking_back(
        &self,
        name: &ApplicationName,
        from: &ReleaseId,
        to: &ReleaseId,
    ) {
        assert!(to < from, "{name}: {from} is taken back for {to}");
        let release = &self.records.releases[&(name.clone(), from.clone())];
        let again = release.takes_back.is_some();
        assert!(!again, "{name}: {from} is taken back, which takes back another one");
        let made = self.records.releases.iter().filter(|((owner, _), release)| {
            owner == name && release.takes_back.as_ref() == Some(from)
        });
        assert!(made.count() <= 1, "{name}: {from} was taken back twice");
    }

    /// Asserts that what dies does not go on serving where something better served before.
    fn judge_dying(&self) {
        for (name, (serving, since)) in &self.switched {
            let kept = self.records.specs.contains_key(name) && self.serving(name) == Some(serving);
            let dies = self.qualities.get(&(name.clone(), serving.clone())) == Some(&Quality::Dies);
            let rollout = self.records.rollouts.get(name);
            let rests = rollout.is_some_and(|rollout| rollout.phase == RolloutPhase::Done);
            let web = self.wanted(name, &ProcessType::web()) > 0;
            if kept && dies && rests && web && self.node.is_some() {
                let since = (*since).max(self.disturbed_at);
                let long = self.now - since > DYING_SERVES_MAX_MS;
                assert!(!long, "{name}: {serving} goes on dying since {since}");
            }
        }
    }

    pub(crate) fn judge_launch(&self, id: &IncarnationId, release: &ReleaseId) {
        let name = &id.instance.application;
        let alive = || {
            let processes = self.processes.values().filter(|process| process.is_alive());
            processes.filter(|process| process.id.instance.application == *name)
        };
        let beside = alive().filter(|process| process.id.instance == id.instance).count();
        assert!(beside < INCARNATIONS_MAX, "{} has too many processes", id.instance);
        for other in alive().filter(|process| process.release != *release) {
            let newer = (&other.release).max(release);
            let apart = self.mode(name, newer) == RolloutMode::StopFirst;
            assert!(!apart, "{} overlaps with {}", id.instance, other.id.instance);
        }
    }

    pub(crate) fn judge_prune(&self, name: &ApplicationName, keep: &[BuildId]) {
        let processes = self
            .processes
            .values()
            .filter(|process| process.is_alive() && process.id.instance.application == *name);
        let known = |id: &IncarnationId| {
            let claim = self.records.claims.get(&id.instance);
            claim.is_some_and(|c| c.incarnations.iter().any(|i| i.generation == id.generation))
        };
        for process in processes.filter(|process| known(&process.id)) {
            let release = (name.clone(), process.release.clone());
            // Nothing is kept of an application that was destroyed meanwhile.
            let Some(record) = self.records.releases.get(&release) else { continue };
            assert!(keep.contains(&record.build_id()), "{:?} loses its directory", process.id);
        }
    }

    pub(crate) fn judge_stopped(&self, name: &ApplicationName) {
        let claims = self.records.claims_of(name).count();
        assert_eq!(claims, 0, "{name}: claims are left after all was stopped");
        for process in self.processes.values() {
            let ours = process.id.instance.application == *name;
            assert!(!(ours && process.is_alive()), "{:?} lives on", process.id);
        }
    }

    /// Judges after every happening: in fair weather a request always finds a process.
    pub(crate) fn judge(&self) {
        self.judge_dying();
        if self.weather != Weather::Fair {
            return;
        }
        for name in &self.served {
            if !self.records.specs.contains_key(name) {
                continue;
            }
            // It was taken for good; what served before is on its way.
            let serving = self.serving(name).map(|id| (name.clone(), id.clone()));
            if serving.is_some_and(|key| self.qualities.get(&key) == Some(&Quality::Dies)) {
                continue;
            }
            let web = ProcessType::web();
            let well = self.serving_where(name, |_| true).get(&web).map_or(0, |count| count.1);
            assert!(well >= 1, "{name}: a request finds nobody");
        }
    }

    /// Asserts, when nothing has happened for long, that exactly what is wanted runs, and says so.
    pub fn judge_quiet(&self, last: &[(ApplicationName, ReleaseId)]) {
        for (name, release) in last {
            let rollout = &self.records.rollouts[name];
            assert_eq!(rollout.phase, RolloutPhase::Done, "{name}: {:?}", rollout.message);
            assert_eq!(rollout.serving.as_ref(), Some(release), "{name}");
        }
        let mut wanted = 0;
        for ((name, id), release) in &self.records.releases {
            if self.serving(name) != Some(id) {
                continue;
            }
            for process in release.recipe.processes.keys() {
                let count = self.wanted(name, process);
                wanted += count;
                for slot in 1..=u32::try_from(count).expect("a small count") {
                    let process = process.clone();
                    self.judge_filled(InstanceId { application: name.clone(), process, slot }, id);
                }
            }
        }
        let alive: Vec<&IncarnationId> =
            self.processes.values().filter(|p| p.is_alive()).map(|p| &p.id).collect();
        assert_eq!(alive.len(), wanted, "processes: {alive:?}");
        assert_eq!(self.records.claims.len(), wanted, "claims: {:?}", self.records.claims);
        assert_eq!(self.processes.len(), wanted, "exits that nobody took note of");
    }

    fn judge_filled(&self, instance: InstanceId, release: &ReleaseId) {
        let claim = self.records.claims.get(&instance);
        let claim = claim.unwrap_or_else(|| panic!("{instance} has no claim"));
        let [incarnation] = &claim.incarnations[..] else {
            panic!("{instance} has no single incarnation: {claim:?}");
        };
        assert_eq!(incarnation.state, InstanceState::Ready, "{instance}");
        assert_eq!(incarnation.release, *release, "{instance}");
        let generation = incarnation.generation;
        let process = self.processes.get(&IncarnationId { instance: instance.clone(), generation });
        assert!(process.is_some_and(|process| process.is_well()), "{instance} is not well");
        let spec = &self.records.specs[&instance.application];
        assert_eq!(incarnation.restart, spec.restart, "{instance} was not restarted");
    }

    pub(crate) fn tell_claim(&mut self, instance: &InstanceId, claim: Option<&Claim>) {
        self.tell(|| {
            let incarnations = claim.map(|claim| claim.incarnations.as_slice()).unwrap_or_default();
            let shown: Vec<String> = incarnations
                .iter()
                .map(|i| {
                    let state = format!("{:?}", i.state).to_lowercase();
                    let reason = i.reason.as_ref().map(|reason| format!(" ({reason})"));
                    format!("{} {state}{}", i.release.short(), reason.unwrap_or_default())
                })
                .collect();
            let shown = if shown.is_empty() { "nothing".into() } else { shown.join(", ") };
            format!("claim {}: {shown}", instance.label())
        });
    }
}
