//! The schedule: when which instance is probed, and what is written of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::probe::{HealthState, Verdict};
use model::record::{RECORD_VERSION, Unknown};
use model::{Generation, InstanceId, Machine, Timestamp};

use crate::mutants;
use crate::probe::{BadProbes, ProbeOutcome, RECHECK, Target};

/// Probes that run at once. Each holds a socket; a node with hundreds of instances still finishes a
/// round in time.
pub const PROBES_AT_ONCE_MAX: usize = 64;
/// The time after which a report is lost: one that never comes (its task died) must not stop an
/// instance from being probed for ever.
const REPORT_LOST_AFTER: Duration = Duration::from_secs(60);

/// The events of the checker. `I` names an instance: of this node by itself, of another one
/// together with that node.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<I = InstanceId> {
    /// An instance is to be probed (or probed otherwise than before); `None` if no longer.
    Target(I, Option<Target>),
    /// The verdict that this node wrote earlier, read at start.
    Written(I, Verdict),
    /// The router could not reach it: it is probed at once.
    Suspect(I, Generation),
    /// The answer to `Effect::Probe`.
    Probed { instance: I, generation: Generation, outcome: ProbeOutcome },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect<I = InstanceId> {
    Probe {
        instance: I,
        target: Target,
    },
    /// Write this verdict; `None` if nothing is to be said of this instance any more.
    WriteVerdict {
        instance: I,
        verdict: Option<Verdict>,
    },
}

/// The checker of one node.
#[derive(Debug)]
pub struct Checker<I = InstanceId> {
    /// The state of the chance that spreads probes of instances that came together; seeded from
    /// outside.
    random: u64,
    watched: BTreeMap<I, WatchedInstance>,
    /// The same instances by the time of their next step.
    due: BTreeSet<(Timestamp, I)>,
    written: BTreeMap<I, Verdict>,
    probing: usize,
}

#[derive(Debug)]
struct WatchedInstance {
    target: Target,
    tally: BadProbes,
    next: Timestamp,
    probing: bool,
}

impl<I: Clone + Ord> Checker<I> {
    pub fn new(seed: u64) -> Checker<I> {
        Checker {
            random: seed,
            watched: BTreeMap::new(),
            due: BTreeSet::new(),
            written: BTreeMap::new(),
            probing: 0,
        }
    }

    fn target(
        &mut self,
        now: Timestamp,
        instance: I,
        target: Option<Target>,
        effects: &mut Vec<Effect<I>>,
    ) {
        let Some(target) = target else {
            self.forget(&instance);
            if self.written.remove(&instance).is_some() {
                effects.push(Effect::WriteVerdict { instance, verdict: None });
            }
            return;
        };
        if self.watched.get(&instance).is_some_and(|watched| watched.target == target) {
            return;
        }
        let same = self
            .watched
            .get(&instance)
            .is_some_and(|watched| watched.target.generation == target.generation);
        self.forget(&instance);
        if !same && self.written.get(&instance).is_some_and(|v| v.generation != target.generation) {
            self.written.remove(&instance);
            effects.push(Effect::WriteVerdict { instance: instance.clone(), verdict: None });
        }
        let next = now.after(self.jitter(target.interval));
        self.due.insert((next, instance.clone()));
        let tally = BadProbes::default();
        self.watched.insert(instance, WatchedInstance { target, tally, next, probing: false });
    }

    fn forget(&mut self, instance: &I) {
        if let Some(watched) = self.watched.remove(instance) {
            self.due.remove(&(watched.next, instance.clone()));
            self.probing -= usize::from(watched.probing);
        }
    }

    fn schedule(&mut self, instance: &I, at: Timestamp) {
        if let Some(watched) = self.watched.get_mut(instance) {
            self.due.remove(&(watched.next, instance.clone()));
            watched.next = at;
            self.due.insert((at, instance.clone()));
        }
    }

    fn suspect(&mut self, now: Timestamp, instance: &I, generation: Generation) {
        let fresh = self
            .watched
            .get(instance)
            .is_some_and(|watched| watched.target.generation == generation && !watched.probing);
        if fresh {
            self.schedule(instance, now);
        }
    }

    fn probed(
        &mut self,
        now: Timestamp,
        instance: I,
        generation: Generation,
        outcome: &ProbeOutcome,
        effects: &mut Vec<Effect<I>>,
    ) {
        let Some(watched) = self.watched.get_mut(&instance) else { return };
        if watched.target.generation != generation || !watched.probing {
            return;
        }
        watched.probing = false;
        self.probing -= 1;
        if *outcome == ProbeOutcome::Unreached && !mutants::active(mutants::SILENCE_IS_GONE) {
            watched.tally = BadProbes::default();
            let wait = watched.target.interval;
            self.schedule(&instance, now.after(wait));
            if self.written.remove(&instance).is_some() {
                effects.push(Effect::WriteVerdict { instance, verdict: None });
            }
            return;
        }
        let health = watched.tally.count(outcome);
        let wait = if watched.tally.in_doubt() { RECHECK } else { watched.target.interval };
        self.schedule(&instance, now.after(wait));
        let Some(health) = health else { return };
        let said = self.written.get(&instance);
        // Nothing written means healthy: what was never ill needs no record.
        let before = said.map_or(HealthState::Healthy, |verdict| verdict.health);
        if before == health && said.is_none_or(|verdict| verdict.generation == generation) {
            return;
        }
        let detail = match outcome {
            ProbeOutcome::Well => "answers".into(),
            ProbeOutcome::Absent { detail } | ProbeOutcome::Unwell { detail } => detail.clone(),
            ProbeOutcome::Unreached => "its node is silent".into(),
        };
        let verdict = Verdict {
            v: RECORD_VERSION,
            generation,
            health,
            detail,
            changed_at: now,
            unknown: Unknown::new(),
        };
        self.written.insert(instance.clone(), verdict.clone());
        effects.push(Effect::WriteVerdict { instance, verdict: Some(verdict) });
    }

    /// Starts what is due, as far as probes may run at once.
    fn start_due(&mut self, now: Timestamp, effects: &mut Vec<Effect<I>>) {
        self.give_up_lost(now);
        while self.probing < PROBES_AT_ONCE_MAX {
            let Some((at, instance)) = self.due.first().cloned() else { break };
            if at > now {
                break;
            }
            self.schedule(&instance, now.after(REPORT_LOST_AFTER));
            let Some(watched) = self.watched.get_mut(&instance) else { break };
            watched.probing = true;
            self.probing += 1;
            effects.push(Effect::Probe { instance, target: watched.target.clone() });
        }
    }

    /// Gives up a probe under way whose next step has come: it was never reported.
    fn give_up_lost(&mut self, now: Timestamp) {
        for (_, instance) in self.due.iter().take_while(|(at, _)| *at <= now) {
            if let Some(watched) = self.watched.get_mut(instance)
                && watched.probing
            {
                watched.probing = false;
                self.probing -= 1;
            }
        }
    }

    /// Returns a random pause of up to one interval.
    fn jitter(&mut self, interval: Duration) -> Duration {
        let span = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX).max(1);
        Duration::from_millis(model::hash::draw(&mut self.random) % span)
    }
}

impl<I: Clone + Ord> Machine for Checker<I> {
    type Event = Event<I>;
    type Effect = Effect<I>;

    fn handle(&mut self, now: Timestamp, event: Event<I>, effects: &mut Vec<Effect<I>>) {
        match event {
            Event::Target(instance, target) => self.target(now, instance, target, effects),
            Event::Written(instance, verdict) => {
                self.written.entry(instance).or_insert(verdict);
            }
            Event::Suspect(instance, generation) => self.suspect(now, &instance, generation),
            Event::Probed { instance, generation, outcome } => {
                self.probed(now, instance, generation, &outcome, effects);
            }
        }
        self.start_due(now, effects);
    }

    fn tick(&mut self, now: Timestamp, effects: &mut Vec<Effect<I>>) {
        self.start_due(now, effects);
    }

    fn deadline(&self) -> Option<Timestamp> {
        // With all probes under way only a report (or its loss) can make room.
        if self.probing >= PROBES_AT_ONCE_MAX {
            return self.watched.values().filter(|w| w.probing).map(|w| w.next).min();
        }
        self.due.first().map(|(at, _)| *at)
    }

    fn check_invariants(&self) {
        assert_eq!(self.due.len(), self.watched.len(), "each instance has one next step");
        assert_eq!(self.probing, self.watched.values().filter(|w| w.probing).count());
        assert!(self.probing <= PROBES_AT_ONCE_MAX);
    }
}

#[cfg(test)]
mod tests;
