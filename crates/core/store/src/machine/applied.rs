//! The application of a durable batch: only now is what it changes seen, announced and
//! acknowledged.

use std::sync::Arc;

use model::{Key, Timestamp};

use super::StoreMachine;
use super::queue::{FULL_DISK_PAUSE, QueuedItem};
use crate::commit::{Commit, CommitAction, Location, Position};
use crate::event::{Alarm, BatchEntry, Change, Effect, Origin, Ticket, Unwritten, Write};
use crate::replica::Admitted;
use crate::sync::members::is_roster_key;
use crate::sync::message::SessionRefusal;
use crate::watch::Arrivals;

impl StoreMachine {
    pub(super) fn persisted(
        &mut self,
        now: Timestamp,
        batch: u64,
        locations: Vec<Location>,
        effects: &mut Vec<Effect>,
    ) {
        let Some((_, entries)) = self.on_its_way.take_if(|(sent, _)| *sent == batch) else {
            return;
        };
        debug_assert_eq!(entries.len(), locations.len());
        for (entry, location) in Arc::unwrap_or_clone(entries).into_iter().zip(locations) {
            self.apply(now, entry, location, effects);
        }
        // Nothing of this node is under way now: all it stamped so far is in the log.
        self.sync.members.promise(self.durable_stamp);
        self.give_raised(effects);
        self.take_raised(now, effects);
        self.squash_early(now, effects);
    }

    /// Handles a batch that was refused. Nothing was written: the number is free again, and the log
    /// has no gap.
    pub(super) fn refused_batch(&mut self, now: Timestamp, batch: u64, effects: &mut Vec<Effect>) {
        let Some((_, entries)) = self.on_its_way.take_if(|(sent, _)| *sent == batch) else {
            return;
        };
        self.next_batch = batch;
        let mut owed = Vec::new();
        for entry in Arc::unwrap_or_clone(entries) {
            match entry {
                BatchEntry::Commit { ticket, commit } if self.sync.reissuing.remove(&ticket) => {
                    owed.extend(written_again(ticket, &commit).map(QueuedItem::Anew));
                }
                BatchEntry::Commit { ticket, .. } | BatchEntry::Moved { ticket, .. } => {
                    effects.push(Effect::Refuse { ticket, reason: Unwritten::NoRoom });
                }
                BatchEntry::Foreign { ticket, origin, .. } => {
                    effects.push(Effect::Release { ticket });
                    let Origin { peer, session, .. } = origin;
                    if self.takes_from(peer, session) {
                        self.break_off(now, peer, session, SessionRefusal::NoRoom, effects);
                    }
                }
                BatchEntry::Copied { held, garbage, .. } => {
                    owed.push(QueuedItem::Copied { vector: held, garbage });
                }
                BatchEntry::Forgotten { positions, .. } => owed.push(QueuedItem::Forget(positions)),
                // A copy rests on the horizons of its peer: what was forgotten must not come back.
                BatchEntry::Horizons(horizons) if self.sync.concluding => {
                    owed.push(QueuedItem::Horizons(horizons));
                }
                // The next batch states the standing again, and sessions wait for it.
                BatchEntry::Standing(_)
                | BatchEntry::Horizons(_)
                | BatchEntry::Vector { .. }
                | BatchEntry::Arrived { .. } => {}
            }
        }
        if !owed.is_empty() {
            self.persist_from = now.after(FULL_DISK_PAUSE);
        }
        owed.into_iter().rev().for_each(|waiting| self.waiting.push_front(waiting));
    }

    /// Notes in the log that these large values have come, for the commits that need them.
    pub(super) fn fetched(&mut self, hashes: &[[u8; 32]], effects: &mut Vec<Effect>) {
        let absent = self.replica.absent();
        let needed = hashes.iter().filter_map(|hash| absent.get(hash));
        let positions: Vec<Position> =
            needed.flat_map(|absent| absent.needed_by.iter().copied()).collect();
        for at in positions {
            self.wait(QueuedItem::Arrived(at), effects);
        }
    }

    fn apply(
        &mut self,
        now: Timestamp,
        entry: BatchEntry,
        location: Location,
        effects: &mut Vec<Effect>,
    ) {
        match entry {
            BatchEntry::Horizons(horizons) => {
                self.replica.raise(horizons);
            }
            BatchEntry::Moved { ticket, commit } => {
                let cid = self.replica.relocate(commit.at, location).then(|| commit.cid());
                effects.push(Effect::Acknowledge { ticket, cid });
            }
            BatchEntry::Arrived { commit } => {
                self.replica.relocate(commit.at, Location::File);
                let present = self.replica.get(&commit.key, now);
                if present.is_some_and(|present| present.at == commit.at) {
                    let arrival = self.arrivals.note(commit.key.clone());
                    effects.push(Effect::Arrived { arrival, commit });
                }
            }
            BatchEntry::Commit { ticket, commit } => {
                self.sync.reissuing.remove(&ticket);
                let commit = Commit { location, ..commit };
                let position = commit.at;
                let cid = commit.cid();
                if self.admit(now, ticket, commit, &cid, effects) == Admitted::Conflict {
                    self.alarm(Alarm::Conflict { position, peer: self.node }, effects);
                }
                effects.push(Effect::Acknowledge { ticket, cid: Some(cid) });
            }
            BatchEntry::Foreign { ticket, commit, origin } => {
                let commit = Commit { location, ..commit };
                let (position, cid) = (commit.at, commit.cid());
                if self.admit(now, ticket, commit, &cid, effects) == Admitted::Conflict {
                    self.clash(now, position, origin, effects);
                }
                self.durable(origin, 1, effects);
                effects.push(Effect::Release { ticket });
            }
            BatchEntry::Vector { promise, held } => {
                self.durable_stamp = self.durable_stamp.max(promise);
                self.sync.members.keep(promise, held);
            }
            BatchEntry::Copied { promise, held, .. } => {
                self.durable_stamp = self.durable_stamp.max(promise);
                self.sync.members.keep(promise, held);
                self.copy_kept(now, effects);
            }
            BatchEntry::Standing(standing) => {
                if standing.cluster != self.sync.logged.cluster {
                    self.replica.lower_horizons();
                }
                self.sync.logged = standing;
                self.sync.standing_kept = standing == self.sync.standing;
            }
            BatchEntry::Forgotten { positions, clock } => {
                self.replica.forget(&positions);
                self.replica.limit_squash(clock);
                self.sync.members.taken_back(clock);
                let more = self.waiting.iter().any(|w| matches!(w, QueuedItem::Forget(_)));
                self.sync.mending &= more;
                self.read_roster(now, effects);
                self.arrivals = Arrivals::new(self.arrivals.incarnation() + 1);
                effects.push(Effect::Resync);
                self.changed(now);
            }
        }
    }

    fn admit(
        &mut self,
        now: Timestamp,
        ticket: Ticket,
        commit: Commit,
        cid: &[u8; 32],
        effects: &mut Vec<Effect>,
    ) -> Admitted {
        self.durable_stamp = self.durable_stamp.max(commit.at.stamp);
        let admitted = self.replica.admit_as(commit.clone(), cid);
        if matches!(admitted, Admitted::Winner | Admitted::Ended) {
            if is_roster_key(&commit.key) {
                self.read_roster(now, effects);
            }
            let arrival = self.arrivals.note(commit.key.clone());
            // Whatever ended the value, it is no longer there.
            let commit = match admitted {
                Admitted::Ended => {
                    Commit { action: CommitAction::Delete, location: Location::Nowhere, ..commit }
                }
                _ => commit,
            };
            effects.push(Effect::Notify { arrival, ticket, commit });
        }
        if matches!(admitted, Admitted::Winner | Admitted::Superseded | Admitted::Ended) {
            self.changed(now);
        }
        admitted
    }

    fn read_roster(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.sync.members.read_roster(&self.replica, now) {
            self.calm_about_strangers();
            let roster = self.sync.members.roster();
            self.wait(QueuedItem::Vector, effects);
            effects.push(Effect::Roster(roster));
        }
    }
}

/// Returns the write that a commit came from; its value is still under its ticket.
fn written_again(ticket: Ticket, commit: &Commit) -> Option<Write> {
    let key = Key::try_from(commit.key.clone()).ok()?;
    Some(Write { ticket, key, change: Change::again(commit), only_over: None })
}
