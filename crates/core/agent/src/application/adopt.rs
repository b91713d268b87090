//! The adoption of what an earlier process of this node left: claims in the store and processes
//! under shims are matched, once, before anything is decided.

use std::collections::BTreeMap;

use model::{Claim, Incarnation, InstanceId, InstanceState, Timestamp};

use super::slot::{Phase, Process, SlotState};
use super::supervise::place_of;
use super::{Adopted, Application, Effect, Exit, IncarnationId};
use crate::mutants;

/// What is left to do about an incarnation once all of them are known.
enum End {
    Waking,
    Exited(Exit),
    Lost(Incarnation, Phase),
}

impl Application {
    pub(super) fn adopt(&mut self, now: Timestamp, adopted: Vec<Adopted>) {
        if self.adopted {
            return;
        }
        self.adopted = true;
        self.sort_releases();
        if !self.is_ending() {
            self.return_to_rollout(now);
        }
        let mut held: BTreeMap<IncarnationId, Adopted> =
            adopted.into_iter().map(|adopted| (adopted.id.clone(), adopted)).collect();
        let mut ended = Vec::new();
        for (instance, claim) in std::mem::take(&mut self.read) {
            self.adopt_claim(now, instance, claim, &mut held, &mut ended);
        }
        // Only now is every claim known in full, so that effects may write claims again.
        for (id, end) in ended {
            match end {
                End::Waking => self.await_healthy(id),
                End::Exited(exit) => self.exited(now, id, exit),
                End::Lost(record, phase) => self.lost(now, &id, record, phase),
            }
        }
        for (id, adopted) in held {
            self.generation_floor = self.generation_floor.max(id.generation);
            if let Some(slot) = self.slots.get_mut(&place_of(&id)) {
                slot.last_generation = slot.last_generation.max(id.generation);
            }
            if adopted.exit.is_some() {
                self.emit(Effect::Forget { id });
            } else if !mutants::active(mutants::FORGET_STRAYS) {
                self.note(format!("{} is stopped: no claim names it", id.instance.label()));
                self.stop_stray(now, id);
            }
        }
    }

    fn adopt_claim(
        &mut self,
        now: Timestamp,
        instance: InstanceId,
        claim: Claim,
        held: &mut BTreeMap<IncarnationId, Adopted>,
        ended: &mut Vec<(IncarnationId, End)>,
    ) {
        let place = (instance.process.clone(), instance.slot);
        let highest = claim.incarnations.iter().map(|record| record.generation).max();
        let mut slot = SlotState::new(claim.claimed_at, highest.unwrap_or_default());
        self.generation_floor = self.generation_floor.max(slot.last_generation);
        let mut records = claim.incarnations.clone();
        records.sort_by_key(|record| record.generation);
        slot.written = Some(claim);
        self.slots.insert(place, slot);
        for record in records {
            let id = IncarnationId { instance: instance.clone(), generation: record.generation };
            let phase = match record.state {
                InstanceState::Starting => Phase::Waking,
                InstanceState::Ready => Phase::Ready,
                InstanceState::Draining => Phase::Draining,
                InstanceState::Stopped | InstanceState::Crashed => {
                    self.remember(&id, record);
                    continue;
                }
            };
            let same = |adopted: &Adopted| {
                record.process.as_ref().is_none_or(|process| *process == adopted.process)
            };
            if held.get(&id).is_some_and(same)
                && let Some(adopted) = held.remove(&id)
            {
                let end = self.take_over(now, adopted, record, phase);
                ended.extend(end.map(|end| (id, end)));
            } else {
                ended.push((id, End::Lost(record, phase)));
            }
        }
    }

    fn take_over(
        &mut self,
        now: Timestamp,
        adopted: Adopted,
        mut record: Incarnation,
        phase: Phase,
    ) -> Option<End> {
        let id = adopted.id;
        record.process = Some(adopted.process);
        record.port = adopted.port;
        record.ports = adopted.ports;
        record.started_at = record.started_at.or(Some(now));
        if let Some(slot) = self.slots.get_mut(&place_of(&id)) {
            slot.living.push(Process::new(record, phase, now));
        }
        match adopted.exit {
            Some(exit) => Some(End::Exited(exit)),
            None => (phase == Phase::Waking).then_some(End::Waking),
        }
    }

    fn remember(&mut self, id: &IncarnationId, record: Incarnation) {
        if let Some(slot) = self.slots.get_mut(&place_of(id)) {
            slot.crashed = Some(record);
        }
    }

    /// Handles a claim whose process is gone, and its shim with it: a reboot, most likely.
    fn lost(&mut self, now: Timestamp, id: &IncarnationId, record: Incarnation, phase: Phase) {
        let launched = record.process.is_some();
        let serving = self.serving.as_ref() == Some(&record.release);
        if !launched || !serving || phase == Phase::Draining {
            return;
        }
        let mut process = Process::new(record, phase, now);
        let why = "was gone when the node came back";
        process.record.reason = Some(why.into());
        let place = place_of(id);
        if let Some(slot) = self.slots.get_mut(&place) {
            // A node that took the place meanwhile keeps it.
            slot.claimed_at = slot.claimed_at.max(now);
        }
        self.count_failure(now, &place, &process, why, "");
        self.bury(&place, process, InstanceState::Crashed);
    }
}
