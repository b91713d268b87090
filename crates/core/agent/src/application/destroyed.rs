//! The end of applications of this name. What was written of one without knowledge of its end is
//! newer than its removal: its specification counts as absent, and what is left of it goes. Where
//! it was written over the records of an application that was made anew, those are written again.
//! Asked whenever such a record comes, and in each pass; what exactly is left is `remains`.

use std::collections::BTreeSet;
use std::time::Duration;

use model::application::Holder;
use model::{ApplicationSpec, Release, Timestamp};

use super::coordination::{REQUEST_WAIT_MAX, RESTORE_STEP};
use super::{Application, Effect};
use crate::mutants;

#[derive(Debug, Default)]
pub(super) struct Ends {
    /// The times at which the applications of this name that were destroyed had been created.
    destroyed: BTreeSet<Timestamp>,
    /// The time since which the store has another specification than this application's, or none.
    overwritten: Option<(Timestamp, Stored)>,
    /// The time since which the store has another application's word on who holds the files.
    holder_overwritten: Option<Timestamp>,
    /// The time at which something was heard that may be left of one that was destroyed.
    left: Option<Timestamp>,
}

/// What the store has in place of this application's specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    Another,
    Nothing,
}

impl Application {
    pub(super) fn end_heard(&mut self, now: Timestamp, created_at: Timestamp, destroyed: bool) {
        if !destroyed || mutants::active(mutants::LATE_SPECIFICATION_COUNTS) {
            self.ends.destroyed.remove(&created_at);
            return;
        }
        self.ends.destroyed.insert(created_at);
        self.ends.left = Some(now);
        let holder = self.elsewhere.holder.take();
        self.elsewhere.holder = holder.filter(|holder| !self.is_of_destroyed(holder));
        if self.spec.as_ref().is_some_and(|spec| spec.created_at == created_at) {
            // The rollout that was heard of may be that of the application to be heard of next.
            self.ended_meanwhile(now);
        }
    }

    /// Takes the application for absent, but for the rollout that was heard of.
    fn ended_meanwhile(&mut self, now: Timestamp) {
        self.ends.overwritten = None;
        let heard = self.heard.take();
        self.spec_changed(now, None);
        (self.rollout, self.heard) = (heard.clone(), heard);
    }

    pub(super) fn spec_heard(&mut self, now: Timestamp, spec: Option<ApplicationSpec>) {
        let is_kept = |spec: &ApplicationSpec| {
            spec.end.is_some() && !self.ends.destroyed.contains(&spec.created_at)
        };
        if spec.as_ref().is_some_and(is_kept) {
            // It may be brought back before all of it has stopped, and goes on by its rollout then.
            return self.ended_meanwhile(now);
        }
        let stored = match &spec {
            Some(spec) if self.ends.destroyed.contains(&spec.created_at) => Some(Stored::Another),
            // Others may have removed what came late, without knowledge of this application; its
            // own end is on record, and follows within a moment.
            None if !self.ends.destroyed.is_empty() => Some(Stored::Nothing),
            _ => None,
        };
        if stored == Some(Stored::Another) {
            self.ends.left = Some(now);
        }
        match stored.filter(|_| self.spec.is_some()) {
            Some(stored) => self.ends.overwritten = Some((now, stored)),
            None => {
                self.ends.overwritten = None;
                self.spec_changed(now, spec.filter(|_| stored.is_none()));
            }
        }
    }

    pub(super) fn note_remains(&mut self, now: Timestamp, release: &Release) {
        let application_created_at = release.settings.application_created_at;
        if application_created_at
            .is_some_and(|created_at| self.ends.destroyed.contains(&created_at))
        {
            self.ends.left = Some(now);
        }
    }

    pub(super) fn holder_heard(&mut self, now: Timestamp, holder: Option<Holder>) {
        let late = holder.as_ref().is_some_and(|holder| self.is_of_destroyed(holder));
        let known = self.holder().is_some();
        self.ends.holder_overwritten = (late && known).then_some(now);
        if !late {
            self.elsewhere.holder = holder;
        }
    }

    fn is_of_destroyed(&self, holder: &Holder) -> bool {
        holder.created_at.is_some_and(|created_at| self.ends.destroyed.contains(&created_at))
    }

    /// Returns whether something is left to be removed before the end of this machine.
    pub(super) fn has_remains(&self) -> bool {
        self.ends.left.is_some() && !self.shutdown
    }

    /// Writes again what was overwritten, and has removed what is left; the nodes do so one after
    /// the other, as any of those that live may be the only one to know. Returns true if something
    /// changed.
    pub(super) fn look_at_ends(&mut self, now: Timestamp) -> bool {
        if self.shutdown {
            return false;
        }
        let before = self.elsewhere.live.iter().filter(|node| **node < self.node).count();
        let turn = RESTORE_STEP * u32::try_from(before).unwrap_or(u32::MAX);
        self.restore_specification(now, turn)
            || self.restore_holder(now, turn)
            || self.remove_remains(now, turn)
    }

    fn restore_specification(&mut self, now: Timestamp, turn: Duration) -> bool {
        let Some((since, stored)) = self.ends.overwritten else { return false };
        let Some(spec) = self.spec.clone() else { return false };
        let patience = match stored {
            Stored::Another => Duration::ZERO,
            Stored::Nothing => REQUEST_WAIT_MAX,
        };
        if self.is_early(now, since, patience + turn) {
            return false;
        }
        self.ends.overwritten = None;
        let own =
            |release: &Release| release.settings.application_created_at == Some(spec.created_at);
        // Whoever destroys it removes its releases too, and may not know of records of ends yet.
        if stored == Stored::Nothing && !self.releases.values().any(own) {
            self.spec_changed(now, None);
        } else {
            self.note(
                "Its specification is written again, as one that came late replaced it".into(),
            );
            self.emit(Effect::WriteSpec(spec));
        }
        true
    }

    fn restore_holder(&mut self, now: Timestamp, turn: Duration) -> bool {
        let Some(since) = self.ends.holder_overwritten else { return false };
        if self.is_early(now, since, turn) {
            return false;
        }
        self.ends.holder_overwritten = None;
        let Some(holder) = self.elsewhere.holder.clone() else { return false };
        self.emit(Effect::WriteHolder(holder));
        true
    }

    fn remove_remains(&mut self, now: Timestamp, turn: Duration) -> bool {
        let Some(since) = self.ends.left else { return false };
        if self.is_early(now, since, REQUEST_WAIT_MAX + turn) {
            return false;
        }
        self.ends.left = None;
        self.emit(Effect::ClearRemains);
        true
    }

    fn is_early(&mut self, now: Timestamp, since: Timestamp, wait: Duration) -> bool {
        let due = since.after(wait);
        if due > now {
            self.wake_at(due);
        }
        due > now
    }
}

#[cfg(test)]
mod tests;
