//! The filling of free slots: which node takes which, and when it is this node's turn. A node first
//! assumes, slot by slot, what the others will do with the same picture; when they do not, it steps
//! in.

use std::collections::BTreeMap;
use std::time::Duration;

use model::instance::Offer;
use model::{ApplicationName, ProcessType, Timestamp};

use super::claims::{ClaimStanding, SlotId};
use super::field::{Field, ticket};
use super::{HeldSlot, Placement, SLOTS_MAX};
use crate::mutants;

/// The time in which a claim reaches everybody; then the next in line may take the slot.
pub const STEP: Duration = Duration::from_secs(2);
/// Instances that a machine starts at a time, as starting is the heaviest part of an instance's
/// life.
pub const STARTING_MAX: usize = 8;
/// The time after which an instance that does not become ready no longer holds up the start of
/// others.
pub const STARTING_LONG: Duration = Duration::from_secs(60);
/// The pause after preparing failed here: by then somebody may have installed what was missing.
pub const UNFIT_PAUSE: Duration = Duration::from_secs(600);

/// The number of instances of one process type on each node, by the field's order.
type Counts = Vec<u32>;

impl Placement {
    pub(super) fn fill(&mut self, now: Timestamp) {
        let mut field = self.field(now);
        let mut free = BTreeMap::new();
        let mut taken = Vec::new();
        let mut starting = self.starting(now);
        let mut wake = self.wake;
        for (name, wanted) in &self.wanted {
            for (process, count) in &wanted.counts {
                let mut counts = None;
                for slot in 1..=(*count).min(SLOTS_MAX) {
                    let place = (process.clone(), slot);
                    if !self.is_free(now, name, &place) {
                        continue;
                    }
                    let key = (name.clone(), place.clone());
                    let since = self.free.get(&key).copied().unwrap_or(now);
                    free.insert(key, since);
                    let counts =
                        counts.get_or_insert_with(|| self.counts(now, &field, name, process));
                    let turn = self.turn(now, &mut field, counts, name, &place, since);
                    let Some(turn) = turn else { continue };
                    if turn > now {
                        wake = Some(wake.map_or(turn, |wake| wake.min(turn)));
                    } else if starting < STARTING_MAX {
                        taken.push((name.clone(), place));
                        starting += 1;
                    } else {
                        let later = now.after(STEP);
                        wake = Some(wake.map_or(later, |wake| wake.min(later)));
                    }
                }
            }
        }
        self.free = free;
        for (name, place) in taken {
            self.free.remove(&(name.clone(), place.clone()));
            self.held.entry(name).or_default().insert(place, HeldSlot::new(now));
        }
        self.wake = wake;
    }

    fn is_free(&self, now: Timestamp, name: &ApplicationName, place: &SlotId) -> bool {
        let held = self.held.get(name).and_then(|places| places.get(place));
        let mut rivals = self.rivals(now, name, place);
        held.is_none() && rivals.all(|(_, _, seen)| seen.offer.is_some())
    }

    /// Returns how many of its own claims are young and not ready.
    fn starting(&self, now: Timestamp) -> usize {
        let all = self
            .held
            .iter()
            .flat_map(|(name, places)| places.iter().map(move |(place, held)| (name, place, held)));
        let young = all.filter(|(_, _, held)| held.since.after(STARTING_LONG) > now);
        young.filter(|(n, p, held)| self.own(n, p, held).standing == ClaimStanding::Unready).count()
    }

    pub(super) fn counts(
        &self,
        now: Timestamp,
        field: &Field,
        name: &ApplicationName,
        process: &ProcessType,
    ) -> Counts {
        let mut counts = vec![0; field.seats.len()];
        for (place, node, seen) in self.claims.of(name) {
            let counted = *node != self.node
                && place.0 == *process
                && seen.standing != ClaimStanding::Leaving
                && self.nodes.get(node).is_some_and(|node| node.holds(now));
            if let Some(at) = field.at(node).filter(|_| counted) {
                counts[at] += 1;
            }
        }
        if let Some(at) = field.at(&self.node) {
            let held = self.held.get(name).into_iter().flatten();
            counts[at] = held.filter(|(place, _)| place.0 == *process).count() as u32;
        }
        counts
    }

    /// Returns when this node may take the slot, if at all; assumes that the node whose turn it is
    /// now takes it.
    fn turn(
        &self,
        now: Timestamp,
        field: &mut Field,
        counts: &mut Counts,
        name: &ApplicationName,
        place: &SlotId,
        since: Timestamp,
    ) -> Option<Timestamp> {
        let ticket = ticket(name, &place.0, place.1);
        let mut line: Vec<usize> = (0..field.seats.len())
            .filter(|at| self.may_take(now, field, counts, *at, name, place))
            .collect();
        let claim_to = |at: usize| field.claim_to(at, counts[at], ticket);
        line.sort_by_cached_key(|at| claim_to(*at));
        let steps = now.since(since).as_millis() / STEP.as_millis();
        let steps = usize::try_from(steps).unwrap_or(usize::MAX);
        if let Some(at) = line.get(steps.min(line.len().saturating_sub(1))) {
            counts[*at] += 1;
            field.assume(*at);
        }
        let rank = line.iter().position(|at| field.seats[*at].id == self.node)?;
        Some(since.after(STEP * u32::try_from(rank).unwrap_or(u32::MAX)))
    }

    pub(super) fn may_take(
        &self,
        now: Timestamp,
        field: &Field,
        counts: &Counts,
        at: usize,
        name: &ApplicationName,
        place: &SlotId,
    ) -> bool {
        let seat = &field.seats[at];
        let own = seat.id == self.node;
        let unfit = own && (self.is_unfit(now, name) || self.paused.contains(name));
        if !seat.takes || unfit || !self.may_hold(name, seat) {
            return false;
        }
        self.rivals(now, name, place).all(|(id, _, seen)| {
            let Some(from) = field.at(id).filter(|from| *from != at) else { return false };
            match seen.offer {
                None => false,
                Some(Offer::Leave) => true,
                Some(Offer::Balance) => self.is_better_off(field, counts, at, from),
            }
        })
    }

    /// Returns whether an instance at `from` had better be at `to`.
    pub(super) fn is_better_off(
        &self,
        field: &Field,
        counts: &Counts,
        to: usize,
        from: usize,
    ) -> bool {
        let (taker, giver) = (&field.seats[to], &field.seats[from]);
        let after = taker.burden() + taker.unit();
        let sparser = taker.is_sparser(counts[to], giver, counts[from]);
        let lighter = after + giver.unit() <= giver.burden();
        taker.takes && field.has_room_for(to, after) && (sparser || lighter)
    }

    /// Returns whether a node may hold an application: one with files runs where they are, and one
    /// behind a wall where that can be built.
    pub(super) fn may_hold(&self, name: &ApplicationName, seat: &super::Seat) -> bool {
        let wanted = self.wanted.get(name);
        if wanted.is_some_and(|wanted| !seat.walls.contain(wanted.walls)) {
            return false;
        }
        let holder = wanted.and_then(|wanted| wanted.holder.as_ref());
        mutants::active(mutants::DATA_STAYS_BEHIND)
            || holder.is_none_or(|holder| *holder == seat.id)
    }

    pub(super) fn is_unfit(&self, now: Timestamp, name: &ApplicationName) -> bool {
        self.unfit.get(name).is_some_and(|since| since.after(UNFIT_PAUSE) > now)
    }
}
