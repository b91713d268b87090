//! A release that cannot be started on one node (an interpreter is missing there): it is left to
//! nodes that can; its rollout fails when none can. Reads what other nodes' claims say; asked by
//! rollout and supervision.

use std::collections::btree_map::Entry;
use std::time::Duration;

use model::{Release, Timestamp};

use super::rollout::EXITS_MAX;
use super::slot::Process;
use super::{Application, Effect};

/// The time after the last failure for placement to find another node that tries.
const NEXT_NODE_WITHIN: Duration = Duration::from_secs(20);

impl Application {
    /// Leaves the target, which the coordinator could not start here, to others. Returns false if
    /// none could try.
    pub(super) fn leave_to_others(&mut self, now: Timestamp, why: &str, words: &str) -> bool {
        let Some(attempt) = &mut self.attempt else { return false };
        let target = attempt.target.clone();
        let failure = (why.to_string(), words.to_string());
        if attempt.failed.insert(self.node.clone(), failure).is_none() {
            attempt.failed_at = now;
        }
        if !self.others_are_left() {
            return false;
        }
        self.become_unfit(target, why);
        true
    }

    /// Notes a failure where another node coordinates, and this one fails again and again.
    pub(super) fn note_unfit(&mut self, process: &Process, why: &str) {
        let release = &process.record.release;
        let failed = process.failed || process.record.restarts + 1 >= EXITS_MAX;
        let followed = self.followed() == Some(release);
        let alone = self.elsewhere.live.len() < 2;
        let tied = self.releases.get(release).is_some_and(|release| release.recipe.is_tied());
        if failed && followed && !alone && !tied {
            self.become_unfit(release.clone(), why);
        }
    }

    fn become_unfit(&mut self, release: model::ReleaseId, why: &str) {
        if self.unfit_for.as_ref() == Some(&release) {
            return;
        }
        self.note(format!("{} is left to other nodes: {why}", release.short()));
        self.unfit_for = Some(release);
        self.emit(Effect::Unfit);
    }

    fn others_are_left(&self) -> bool {
        let Some(attempt) = &self.attempt else { return false };
        let release = self.releases.get(&attempt.target);
        let tied = release.is_some_and(|release| release.recipe.is_tied());
        let mut others = self.elsewhere.live.iter().filter(|node| **node != self.node);
        !tied && self.is_placed() && others.any(|node| !attempt.failed.contains_key(node))
    }

    /// Fails the coordinator's rollout when every node that could try has failed.
    pub(super) fn no_node_can(&mut self, now: Timestamp, release: &Release) -> bool {
        let failures = self.elsewhere.failures(&release.id);
        let Some(attempt) = &mut self.attempt else { return false };
        for (node, why) in failures {
            if let Entry::Vacant(entry) = attempt.failed.entry(node) {
                entry.insert((why, String::new()));
                attempt.failed_at = now;
            }
        }
        let attempt = attempt.clone();
        // This node's own words say most, if there are any.
        let own = attempt.failed.get(&self.node);
        let Some((why, words)) = own.or(attempt.failed.values().next()).cloned() else {
            return false;
        };
        let fit = |node: &model::NodeId| !attempt.failed.contains_key(node);
        let here = fit(&self.node);
        let left = !release.recipe.is_tied() && (here || self.others_are_left());
        let places = self.held.as_ref().is_none_or(|held| !held.is_empty());
        let tries = (here && places) || self.elsewhere.claimants().any(fit);
        let until = attempt.failed_at.after(NEXT_NODE_WITHIN);
        if left && (tries || until > now) {
            if until > now {
                self.wake_at(until);
            }
            return false;
        }
        self.fail_rollout(now, why, &words);
        true
    }

    /// Looks whether the release is still unfit. That holds as long as it is rolled out, and then
    /// for as long as placement holds it if it serves.
    pub(super) fn look_at_fitness(&mut self) -> bool {
        let Some(release) = &self.unfit_for else { return false };
        let under_way = self.rollout.as_ref().is_some_and(|rollout| {
            let over =
                matches!(rollout.phase, model::RolloutPhase::Done | model::RolloutPhase::Failed);
            rollout.target.as_ref() == Some(release) && !over
        });
        if under_way {
            return false;
        }
        let serves = self.serving.as_ref() == Some(release);
        self.unfit_for = None;
        if !serves {
            self.emit(Effect::Fit);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use model::application::ApplicationSpec;
    use model::release::{ProcessRecipe, Recipe};
    use model::value::ContentHash;
    use model::{
        Claim, Incarnation, InstanceId, InstanceState, Machine, NodeId, ProcessType, Release,
        Rollout, RolloutPhase, Slot,
    };

    use super::*;
    use crate::application::Event;
    use crate::placement::Hold;

    const START: Timestamp = Timestamp(1_000_000);

    /// The coordinator `n1`, on which each process ends as soon as it is started, and what it says.
    struct Coordinator {
        now: Timestamp,
        machine: Application,
        said: Vec<Effect>,
    }

    fn node(id: &str) -> NodeId {
        id.parse().unwrap()
    }

    fn release() -> Release {
        let recipe = ProcessRecipe { default_count: 2, ..ProcessRecipe::default() };
        Release {
            v: 1,
            id: "v1.n1".parse().unwrap(),
            source: ContentHash([0; 32]),
            source_bytes: 1,
            build: None,
            recipe: Recipe {
                processes: [(ProcessType::web(), recipe)].into(),
                ..Recipe::default()
            },
            settings: Default::default(),
            created_at: START,
            author: "ann".into(),
            note: String::new(),
            replaces: None,
            revision: None,
            remark: None,
            takes_back: None,
            unknown: Default::default(),
        }
    }

    fn instance(slot: Slot) -> InstanceId {
        InstanceId { application: "shop".parse().unwrap(), process: ProcessType::web(), slot }
    }

    impl Coordinator {
        fn pushes_to(nodes: &[&str]) -> Coordinator {
            let machine = Application::new(node("n1"), "shop".parse().unwrap());
            let mut coordinator = Coordinator { now: START, machine, said: Vec::new() };
            let live = nodes.iter().map(|id| node(id)).collect();
            let places: BTreeMap<_, _> = [((ProcessType::web(), 1), Hold::Keep)].into();
            let rollout = Rollout {
                target: Some(release().id),
                phase: RolloutPhase::Requested,
                ..Rollout::new(node("n1"), START)
            };
            for event in [
                Event::Live(live),
                Event::Places(places),
                Event::Spec(Some(ApplicationSpec::new(START))),
                Event::Release(release().id, Some(release())),
                Event::Rollout(Some(rollout)),
                Event::Adopted(Vec::new()),
            ] {
                coordinator.event(event);
            }
            coordinator
        }

        fn event(&mut self, event: Event) {
            let mut events = vec![event];
            while let Some(event) = events.pop() {
                let mut effects = Vec::new();
                self.machine.handle(self.now, event, &mut effects);
                for effect in effects {
                    events.extend(answer(&effect));
                    self.said.push(effect);
                }
            }
        }

        fn pass(&mut self, wait: Duration) {
            let end = self.now.after(wait);
            while let Some(at) = self.machine.deadline().filter(|at| *at <= end) {
                self.now = at;
                let mut effects = Vec::new();
                self.machine.tick(self.now, &mut effects);
                for effect in effects {
                    let answers = answer(&effect);
                    self.said.push(effect);
                    answers.into_iter().for_each(|answer| self.event(answer));
                }
            }
            self.now = end;
        }

        /// Tells the coordinator what another node has of it.
        fn other(&mut self, id: &str, slot: Slot, state: InstanceState, restarts: u32) {
            let incarnation = Incarnation {
                generation: 1,
                release: release().id,
                restart: 0,
                state,
                port: None,
                ports: Default::default(),
                process: None,
                started_at: None,
                concurrency: None,
                restarts,
                reason: Some("exit status 127".into()),
                remark: None,
            };
            let claim = Claim { incarnations: vec![incarnation], ..Claim::new(self.now) };
            self.event(Event::Other(instance(slot), node(id), Some(claim)));
        }

        fn count(&self, what: impl Fn(&Effect) -> bool) -> usize {
            self.said.iter().filter(|effect| what(effect)).count()
        }

        fn phase(&self) -> RolloutPhase {
            let mut phases = self.said.iter().filter_map(|effect| match effect {
                Effect::WriteRollout(rollout) => Some(rollout.phase),
                _ => None,
            });
            phases.next_back().unwrap()
        }
    }

    fn answer(effect: &Effect) -> Option<Event> {
        match effect {
            Effect::Build { release } => {
                Some(Event::Built { release: release.id.clone(), result: Ok(()) })
            }
            Effect::Start { id, .. } => {
                Some(Event::StartFailed { id: id.clone(), why: "no interpreter".into() })
            }
            _ => None,
        }
    }

    #[test]
    fn a_release_that_fails_on_one_node_is_left_to_the_other() {
        let mut one = Coordinator::pushes_to(&["n1", "n2"]);
        assert_eq!(one.phase(), RolloutPhase::Starting);
        assert_eq!(one.count(|effect| *effect == Effect::Unfit), 1);
        let starts = |one: &Coordinator| one.count(|e| matches!(e, Effect::Start { .. }));
        assert_eq!(starts(&one), EXITS_MAX as usize);
        one.other("n2", 1, InstanceState::Starting, 0);
        one.pass(NEXT_NODE_WITHIN * 2);
        assert_eq!(one.phase(), RolloutPhase::Starting, "the other one tries");
        assert_eq!(starts(&one), EXITS_MAX as usize, "it is not tried here again");
        one.other("n2", 1, InstanceState::Ready, 0);
        one.other("n2", 2, InstanceState::Ready, 0);
        assert_eq!(one.phase(), RolloutPhase::Done);
        assert_eq!(one.count(|effect| *effect == Effect::Fit), 0);
    }

    #[test]
    fn it_fails_when_no_node_can() {
        let alone = Coordinator::pushes_to(&["n1"]);
        assert_eq!(alone.phase(), RolloutPhase::Failed);
        let mut both = Coordinator::pushes_to(&["n1", "n2"]);
        both.other("n2", 2, InstanceState::Crashed, EXITS_MAX - 1);
        assert_eq!(both.phase(), RolloutPhase::Failed);
        // What failed does not keep what serves from this node.
        assert_eq!(both.count(|effect| *effect == Effect::Fit), 1);
        let mut nobody = Coordinator::pushes_to(&["n1", "n2"]);
        nobody.pass(NEXT_NODE_WITHIN / 2);
        assert_eq!(nobody.phase(), RolloutPhase::Starting);
        nobody.pass(NEXT_NODE_WITHIN);
        assert_eq!(nobody.phase(), RolloutPhase::Failed, "no other node tries");
    }
}
