//! Hands events to the machine and performs the effects it asks for: the log, the answers, the news
//! for watchers.

use std::time::Instant;

use model::Machine;
use store_core::event::{BatchEntry, Effect, Event, Ticket, Unwritten};
use store_core::{Commit, Location};

use super::{Committer, DiskRefusal, Pending, copy_of};
use crate::log::{Batch, LogError};
use crate::{CommitId, Cursor, StoreError, Written};

/// The number of effects whose memory is kept; a squash of everything may have more.
const EFFECTS_KEPT_MAX: usize = 4096;

impl Committer {
    /// Feeds an event, or a tick for `None`, and performs what follows until nothing more does.
    pub(super) fn feed(&mut self, event: Option<Event>) -> Result<(), LogError> {
        let [mut effects, mut next] = std::mem::take(&mut self.effects);
        self.handle(event, &mut effects);
        while !effects.is_empty() {
            for effect in effects.drain(..) {
                self.perform(effect, &mut next)?;
            }
            std::mem::swap(&mut effects, &mut next);
        }
        effects.shrink_to(EFFECTS_KEPT_MAX);
        next.shrink_to(EFFECTS_KEPT_MAX);
        self.effects = [effects, next];
        Ok(())
    }

    fn perform(&mut self, effect: Effect, next: &mut Vec<Effect>) -> Result<(), LogError> {
        match effect {
            Effect::Persist { batch, entries } => {
                let event = self.persist(batch, &entries)?;
                // Refused entries are looked at before their values go, kept ones afterwards.
                if matches!(event, Event::Refused { .. }) {
                    self.know_unkept(&entries);
                    drop(entries);
                    self.handle(Some(event), next);
                } else if self.unkept.is_empty() {
                    drop(entries);
                    self.handle(Some(event), next);
                } else {
                    self.handle(Some(event), next);
                    self.forget_unkept(&entries);
                }
            }
            Effect::Acknowledge { ticket, cid } => self.answer(ticket, Ok(cid.map(CommitId))),
            Effect::Refuse { ticket, reason } => {
                let disk = self.refusal.as_ref().filter(|_| reason == Unwritten::NoRoom);
                let refused = || StoreError::Refused(reason.to_string());
                let error = disk.map_or_else(refused, DiskRefusal::error);
                self.answer(ticket, Err(error));
            }
            Effect::Alarm(alarm) => tracing::error!(%alarm, "store.alarm"),
            Effect::Release { ticket } => {
                self.pending.remove(&ticket);
            }
            Effect::Send { to, message } => self.send(to, message),
            Effect::SetAside { commits, anew } => {
                if let Some(event) = self.set_aside(commits, anew) {
                    self.handle(Some(event), next);
                }
            }
            Effect::Resync => self.resync(),
            // The transport watches the keys of the roster.
            Effect::Roster(_) => {}
            // These are delivered under the machine's lock.
            Effect::Notify { .. } | Effect::Arrived { .. } | Effect::Expired { .. } => {}
        }
        Ok(())
    }

    /// Hands an event to the machine. Watchers hear of changes before anybody can see later ones.
    fn handle(&mut self, event: Option<Event>, effects: &mut Vec<Effect>) {
        let now = self.clock.now();
        let known = effects.len();
        let mut machine = self.shared.machine_mut();
        match event {
            Some(event) => machine.handle(now, event, effects),
            None => machine.tick(now, effects),
        }
        let incarnation = machine.arrivals().incarnation();
        for effect in &effects[known..] {
            match effect {
                Effect::Notify { arrival, ticket, commit } => {
                    let cursor = Cursor { incarnation, arrival: *arrival };
                    self.announce(cursor, *ticket, commit);
                }
                Effect::Arrived { arrival, commit } => {
                    let cursor = Cursor { incarnation, arrival: *arrival };
                    self.shared
                        .announce(cursor, &commit.key, false, || self.shared.value(commit, None));
                }
                Effect::Expired { arrival, commit } => {
                    let cursor = Cursor { incarnation, arrival: *arrival };
                    self.shared.announce(cursor, &commit.key, true, || None);
                }
                _ => {}
            }
        }
    }

    fn announce(&self, cursor: Cursor, ticket: Ticket, commit: &Commit) {
        let inline = self.pending.get(&ticket).map(|pending| &pending.value);
        match (commit.location, inline) {
            (Location::Log { .. }, Some(value)) => self.shared.cache().put(commit.location, value),
            (Location::Nowhere, None) if !commit.is_delete() => {
                self.shared.fetch_board.look_again()
            }
            _ => {}
        }
        self.shared
            .announce(cursor, &commit.key, false, || self.shared.value(commit, inline.cloned()));
    }

    fn answer(&mut self, ticket: Ticket, answer: Written) {
        if let Some(Pending { reply: Some((reply, _place)), .. }) = self.pending.remove(&ticket) {
            reply.say(answer);
        }
    }

    fn persist(&mut self, number: u64, entries: &[BatchEntry]) -> Result<Event, LogError> {
        let batch = Batch::encode(number, entries, |entry| {
            let pending = entry.ticket().and_then(|ticket| self.pending.get(&ticket));
            pending.map_or(&[], |pending| &pending.value)
        });
        // Every batch before this one is in the index, so it covers all full segments.
        let begins = self.log.begins_segment(batch.frames.len());
        let frozen = begins.then(|| self.shared.machine().freeze());
        let began = Instant::now();
        match self.log.append(&batch) {
            Ok(appended) => {
                self.refusal = None;
                self.last_batch = (entries.len(), began.elapsed());
                if let Some(frozen) = frozen {
                    self.start_snapshot(number - 1, frozen);
                }
                let locations = batch.locations(entries, appended);
                Ok(Event::Persisted { batch: number, locations })
            }
            Err(LogError::Refused(source)) => {
                let what = LogError::Refused(copy_of(&source)).to_string();
                tracing::warn!(error = what, "store.refused");
                self.refusal = Some(DiskRefusal { what, source });
                Ok(Event::Refused { batch: number })
            }
            Err(error) => Err(error),
        }
    }
}
