//! The shedding of slots: those that another node won, and those that are too many, for balance one
//! at a time, by offering it; it runs on until the node that took it is ready. Owns when this node
//! last shed and since when it is overburdened. Driven by the machine.

use std::time::Duration;

use model::instance::Offer;
use model::{ApplicationName, Timestamp};

use super::claims::{ClaimStanding, SlotId};
use super::field::{Field, SHED_ABOVE, START_BELOW};
use super::{HeldSlot, Placement};
use crate::mutants;

/// The time for which a winner must be ready, as one that came back from the dead says ready before
/// it has looked.
pub const CONFIRM: Duration = Duration::from_secs(3);
/// The time for which a burden must last: one that passes by itself moves nothing.
const OVER_PATIENCE: Duration = Duration::from_secs(10);
/// The pause after shedding for load. The measured load is an average over a minute: it shows what
/// shedding did only then.
const SHED_INTERVAL: Duration = Duration::from_secs(60);
/// The pause after spreading instances, whose numbers show it at once.
const SPREAD_INTERVAL: Duration = Duration::from_secs(5);
/// The time that what has just come here stays, so that nothing flaps; it does not hold for what
/// came before the node that is to have it, which comes for the first time only once.
const SHED_AGE: Duration = Duration::from_secs(300);
const SPREAD_AGE: Duration = Duration::from_secs(120);
/// The time after which an offer that nobody takes up is taken back.
const OFFER_MAX: Duration = Duration::from_secs(20);
/// The time after which an offer whose taker does not become ready is taken back.
const TAKING_MAX: Duration = Duration::from_secs(300);
/// The pause before an offer after its taker could not run it: the same node would take it again.
const OFFER_AGAIN_AFTER_FAILURE: Duration = Duration::from_secs(3600);
/// The pause before a second offer of a slot, while the first could still be under way to somebody.
const OFFER_AGAIN: Duration = Duration::from_secs(60);
/// Slots that a drained node empties at a time.
const LEAVING_MAX: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Shedding {
    last: Option<Timestamp>,
    over_since: Option<Timestamp>,
}

type Name = (ApplicationName, SlotId);

impl Placement {
    /// Lets go of what others won.
    pub(super) fn give_way(&mut self, now: Timestamp) {
        let (mut lost, mut wake) = (Vec::new(), None::<Timestamp>);
        for (name, places) in &self.held {
            for (place, held) in places {
                match self.lost_at(now, name, place, held) {
                    Some(at) if at <= now => lost.push((name.clone(), place.clone())),
                    Some(at) => wake = Some(wake.map_or(at, |wake| wake.min(at))),
                    None => {}
                }
            }
        }
        for name in lost {
            self.let_go(&name);
        }
        if let Some(wake) = wake {
            self.wake_at(wake);
        }
    }

    /// Returns when the place goes to another node as things are now.
    fn lost_at(
        &self,
        now: Timestamp,
        name: &ApplicationName,
        place: &SlotId,
        held: &HeldSlot,
    ) -> Option<Timestamp> {
        if mutants::active(mutants::KEEP_DUPLICATES) {
            return None;
        }
        let own = self.own(name, place, held);
        let best = self.rivals(now, name, place).min_by_key(|(id, _, seen)| seen.rank(id));
        let (_, node, seen) = best.filter(|(id, _, seen)| seen.rank(id) < own.rank(&self.node))?;
        let nothing_started = !own.started && seen.offer.is_none();
        if nothing_started || mutants::active(mutants::GIVE_WAY_BEFORE_READY) {
            return Some(now);
        }
        let ready_since = seen.ready_since?.max(node.lives_since()?);
        // A winner that is itself on offer may just be leaving, as this one was better till now.
        let offered_at = held.offer.map_or(ready_since, |(_, at)| at);
        Some(ready_since.max(offered_at).after(CONFIRM))
    }

    fn let_go(&mut self, (name, place): &Name) {
        if let Some(places) = self.held.get_mut(name) {
            places.remove(place);
            if places.is_empty() {
                self.held.remove(name);
            }
        }
    }

    pub(super) fn shed(&mut self, now: Timestamp) {
        self.leave(now);
        self.take_back(now);
        let outstanding = self.held.values().flat_map(|places| places.values());
        let mut offers = outstanding.filter_map(|held| held.offer);
        let gives = offers.any(|(offer, _)| offer == Offer::Balance);
        if !gives && !self.is_taking(now) {
            self.balance(now);
        }
    }

    /// Returns whether something comes here from a node that offers it: until it has come, what
    /// each has is in between, and giving something back for it would go on for ever.
    fn is_taking(&self, now: Timestamp) -> bool {
        self.held.iter().any(|(name, places)| {
            places.iter().any(|(place, held)| {
                held.offer.is_none()
                    && self.own(name, place, held).standing != ClaimStanding::Ready
                    && self.rivals(now, name, place).any(|(.., seen)| seen.offer.is_some())
            })
        })
    }

    fn others_take(&self, now: Timestamp) -> bool {
        self.nodes.iter().any(|(id, node)| *id != self.node && node.takes(now))
    }

    /// Offers everything that may run elsewhere if the node is drained, and on any node what it
    /// cannot prepare.
    fn leave(&mut self, now: Timestamp) {
        let drained = self.nodes.get(&self.node).is_some_and(|node| node.view.drained);
        let others = self.others_take(now);
        let (mut leaving, mut lost, mut stays) = (0, Vec::new(), Vec::new());
        let mut offered = Vec::new();
        for (name, places) in &self.held {
            let holder = self.wanted.get(name).and_then(|wanted| wanted.holder.as_ref());
            let tied = holder == Some(&self.node);
            let elsewhere = holder.is_some() && !tied;
            let unfit = self.is_unfit(now, name);
            for (place, held) in places {
                let left = matches!(held.offer, Some((Offer::Leave, _)));
                let goes = !tied && others && (drained || unfit || elsewhere);
                if goes && unfit && !self.own(name, place, held).started {
                    lost.push((name.clone(), place.clone()));
                } else if goes && leaving < LEAVING_MAX {
                    leaving += 1;
                    if !left {
                        offered.push((name.clone(), place.clone()));
                    }
                } else if left && !goes {
                    stays.push((name.clone(), place.clone()));
                }
            }
        }
        lost.iter().for_each(|name| self.let_go(name));
        offered.iter().for_each(|name| self.offer(now, name, Offer::Leave));
        stays.iter().for_each(|name| self.withdraw(now, name, OFFER_AGAIN));
    }

    /// Takes back offers for balance that came to nothing.
    fn take_back(&mut self, now: Timestamp) {
        let mut over = Vec::new();
        let mut wake = None::<Timestamp>;
        for (name, places) in &self.held {
            for (place, held) in places {
                let Some((Offer::Balance, since)) = held.offer else { continue };
                let taken = self.rivals(now, name, place).any(|(.., seen)| seen.offer.is_none());
                let end = since.after(if taken { TAKING_MAX } else { OFFER_MAX });
                if end <= now {
                    let again = if taken { OFFER_AGAIN_AFTER_FAILURE } else { OFFER_AGAIN };
                    over.push(((name.clone(), place.clone()), again));
                } else {
                    wake = Some(wake.map_or(end, |wake| wake.min(end)));
                }
            }
        }
        over.iter().for_each(|(name, again)| self.withdraw(now, name, *again));
        if let Some(wake) = wake {
            self.wake_at(wake);
        }
    }

    fn held_mut(&mut self, (name, place): &Name) -> Option<&mut HeldSlot> {
        self.held.get_mut(name)?.get_mut(place)
    }

    fn offer(&mut self, now: Timestamp, name: &Name, offer: Offer) {
        if let Some(held) = self.held_mut(name) {
            held.offer = Some((offer, now));
        }
    }

    fn withdraw(&mut self, now: Timestamp, name: &Name, again: Duration) {
        if let Some(held) = self.held_mut(name) {
            held.offer = None;
            held.offered_again = now.after(again);
        }
    }

    /// Offers one slot, when this node has too much or too many of a kind.
    fn balance(&mut self, now: Timestamp) {
        let field = self.field(now);
        let Some(here) = field.at(&self.node).filter(|at| field.seats[*at].takes) else { return };
        let sheds = self.sheds(now, &field, here);
        let loaded = sheds && field.seats[here].is_loaded_by_others();
        let hasty = mutants::active(mutants::NO_HYSTERESIS);
        let interval = if loaded { SHED_INTERVAL } else { SPREAD_INTERVAL };
        let next = self.shedding.last.map_or(now, |last| last.after(interval));
        if next > now && !hasty {
            return self.wake_at(next);
        }
        let (mut best, mut wake) = (None, None::<Timestamp>);
        for (name, places) in &self.held {
            let mut process = None;
            let mut counts = Vec::new();
            for (place, held) in places {
                if process != Some(&place.0) {
                    counts = self.counts(now, &field, name, &place.0);
                    process = Some(&place.0);
                }
                let sparser = |to: &usize| {
                    field.seats[*to].is_sparser(counts[*to], &field.seats[here], counts[here])
                };
                let goes = |to: &usize| {
                    *to != here
                        && self.may_hold(name, &field.seats[*to])
                        && self.is_better_off(&field, &counts, *to, here)
                };
                let takers: Vec<usize> = (0..field.seats.len()).filter(goes).collect();
                let spread = takers.iter().any(sparser);
                if takers.is_empty() || !(spread || sheds) {
                    continue;
                }
                let newcomer = |to: &usize| {
                    let node = self.nodes.get(&field.seats[*to].id);
                    sparser(to) && node.is_some_and(|node| node.came_after(held.since))
                };
                let age = match spread {
                    true if takers.iter().any(newcomer) => Duration::ZERO,
                    true => SPREAD_AGE,
                    false => SHED_AGE,
                };
                let from = held.since.after(age).max(held.offered_again);
                let ready = self.own(name, place, held).standing == ClaimStanding::Ready;
                if from > now && !hasty {
                    wake = Some(wake.map_or(from, |wake| wake.min(from)));
                } else if ready && best.as_ref().is_none_or(|(most, _)| *most < counts[here]) {
                    best = Some((counts[here], (name.clone(), place.clone())));
                }
            }
        }
        if let Some((_, name)) = best {
            self.offer(now, &name, Offer::Balance);
            self.shedding.last = Some(now);
            self.wake_at(now.after(OFFER_MAX));
        } else if let Some(wake) = wake {
            self.wake_at(wake);
        }
    }

    /// Returns whether the node was overburdened for a while, and is not yet down to where it could
    /// start something.
    fn sheds(&mut self, now: Timestamp, field: &Field, here: usize) -> bool {
        let (burden, mean) = (field.seats[here].burden(), field.mean());
        if mutants::active(mutants::NO_HYSTERESIS) {
            return burden > mean;
        }
        if burden > mean + SHED_ABOVE {
            self.shedding.over_since.get_or_insert(now);
        } else if burden < mean + START_BELOW {
            self.shedding.over_since = None;
        }
        let Some(since) = self.shedding.over_since else { return false };
        let from = since.after(OVER_PATIENCE);
        if from > now {
            self.wake_at(from);
        }
        from <= now
    }
}
