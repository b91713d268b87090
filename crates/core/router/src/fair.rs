//! The queue of waiting requests, in one line per client, and which of them is next: deficit round
//! robin (Shreedhar and Varghese, "Efficient Fair Queueing Using Deficit Round Robin", 1995). A
//! client that floods stands in its own way alone. Pure; `router/queue.rs` holds it behind its
//! lock.
//!
//! A turn is worth one unit. A request costs one, and one more for every 64 KiB that it announces,
//! so most go in plain turn, and one with a large body once its line has saved up for it. Any
//! request that may be served is served: nobody's savings keep an endpoint idle.
//!
//! A client that comes with nothing waiting, and has had no turn in this round, need not wait for
//! one: it is next, as with FQ-CoDel (RFC 8290, section 4.2), once between two turns of the others.
//! So nobody waits for more than twice a round, however many come anew.
//!
//! Turns alone would let slow requests pile up: half of the turns are a quick client's, but nearly
//! all of the time is a slow one's. So a client that has half of the places, where these are
//! counted, waits while any waits that has less.
//!
//! A request that is known to be slow is not due at once. Until it is, those that are due go first,
//! as many of its client as of others, and an eighth of the places is not for it: where they are
//! counted, a quick one finds one free.

use std::collections::{BTreeMap, VecDeque};

use model::hash;

/// Clients with a line of their own. More wait at a time only where very many ask a little each.
pub const OWN_LINES_MAX: usize = 256;
/// Lines that the other clients share, by hash.
const SHARED_LINES: u64 = 64;
/// The divisor of the whole queue, and of all places, that gives a client's share while others wait
/// too: a flood leaves room for everybody else.
const SHARE_DIVISOR: usize = 2;
/// The divisor of all places that gives those kept for requests that are due. It gives none where
/// places are few: one of them would be too much to lose for slow requests.
const KEPT_DIVISOR: usize = 8;
/// Bytes of a body that cost as much as a request.
const BODY_BYTES_PER_UNIT: u64 = 64 * 1024;
/// Rounds that the largest upload waits while others have a turn in each.
pub const COST_MAX: u32 = 16;

/// Returns what a request costs that announces this much of a body; `None` for a body of unknown
/// length.
pub fn cost(body_bytes: Option<u64>) -> u32 {
    let units = body_bytes.map_or(1, |bytes| 1 + bytes / BODY_BYTES_PER_UNIT);
    u32::try_from(units).unwrap_or(COST_MAX).min(COST_MAX)
}

/// The moment at which a request may be served.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub now_ms: u64,
    /// The places that are free; the largest number if they are not counted.
    pub free: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Own(u64),
    Shared(u64),
}

#[derive(Debug)]
struct Waiting<T> {
    class: u64,
    cost: u32,
    due_ms: u64,
    item: T,
}

#[derive(Debug)]
struct Line<T> {
    waiting: VecDeque<Waiting<T>>,
    /// The turns that it had and could not use; at most what the dearest request costs.
    saved: u32,
}

/// What becomes of clients that come with nothing waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Newcomer {
    /// The next one goes to the front.
    Welcome,
    /// One waits at the front.
    Waits(Name),
    /// Another client has a turn first.
    Served,
}

#[derive(Debug)]
pub struct Fair<T> {
    lines: BTreeMap<Name, Line<T>>,
    /// The lines in order, the first of which is next. A line that had its turn and is empty stays
    /// until the round is over, so that a client that comes back to it is no newcomer.
    ring: VecDeque<Name>,
    newcomer: Newcomer,
    length: usize,
    length_max: usize,
    /// The places that clients have now, of only those that have some.
    held: BTreeMap<u64, u32>,
    /// The number of places with which a client waits behind those that have less.
    held_max: u32,
    /// The free places that are only for requests that are due.
    kept: usize,
}

/// What became of a request that came.
#[derive(Debug, PartialEq, Eq)]
pub enum Pushed<T> {
    Waits,
    /// It waits, and the last of the longest line has to go for it.
    InsteadOf(T),
    /// There is no room for it.
    Refused(T),
}

impl<T> Fair<T> {
    pub fn new(length_max: usize) -> Fair<T> {
        let (lines, ring) = (BTreeMap::new(), VecDeque::new());
        Fair {
            lines,
            ring,
            newcomer: Newcomer::Welcome,
            length: 0,
            length_max,
            held: BTreeMap::new(),
            held_max: u32::MAX,
            kept: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Removes all requests: nobody waits any more.
    pub fn clear(&mut self) {
        self.lines.clear();
        self.ring.clear();
        (self.newcomer, self.length) = (Newcomer::Welcome, 0);
    }

    /// Sets the number of places, of which no client is to have most, nor the slow requests all.
    pub fn share_out(&mut self, places: usize) {
        self.kept = places / KEPT_DIVISOR;
        self.held_max = u32::try_from(places.div_ceil(SHARE_DIVISOR)).unwrap_or(u32::MAX).max(1);
    }

    /// Notes that a request of this client has a place.
    pub fn hold(&mut self, class: u64) {
        *self.held.entry(class).or_insert(0) += 1;
    }

    /// Notes that it no longer has it.
    pub fn let_go(&mut self, class: u64) {
        let Some(count) = self.held.get_mut(&class) else {
            return debug_assert!(false, "it had no place");
        };
        *count -= 1;
        if *count == 0 {
            self.held.remove(&class);
        }
    }

    /// Returns whether there is a place for a request that is not due yet.
    pub fn has_room_for_slow(&self, free: usize) -> bool {
        free > self.kept
    }

    /// Returns whether any request that fits may be served now.
    pub fn may_take(&self, moment: Moment, mut fits: impl FnMut(&T) -> bool) -> bool {
        let has_room = self.has_room_for_slow(moment.free);
        let mut waiting = self.lines.values().flat_map(|line| &line.waiting);
        waiting.any(|one| (has_room || one.due_ms <= moment.now_ms) && fits(&one.item))
    }

    fn has_its_share(&self, class: u64) -> bool {
        self.held.get(&class).is_some_and(|count| *count >= self.held_max)
    }

    /// Adds a request. Before `due_ms` it lets all others go first that are due.
    pub fn push(&mut self, class: u64, cost: u32, due_ms: u64, item: T) -> Pushed<T> {
        let name = self.name(class);
        let own = self.lines.get(&name).map_or(0, |line| line.waiting.len());
        if self.length > own && own >= self.length_max.div_ceil(SHARE_DIVISOR) {
            return Pushed::Refused(item);
        }
        let mut instead_of = None;
        if self.length >= self.length_max {
            let Some(longest) = self.longest().filter(|(_, length)| *length > own + 1) else {
                return Pushed::Refused(item);
            };
            instead_of = self.drop_last(longest.0);
        }
        let line = self.lines.entry(name).or_insert_with(|| {
            if self.newcomer == Newcomer::Welcome && cost <= 1 {
                self.newcomer = Newcomer::Waits(name);
                self.ring.push_front(name);
            } else {
                self.ring.push_back(name);
            }
            Line { waiting: VecDeque::new(), saved: 0 }
        });
        line.waiting.push_back(Waiting { class, cost: cost.clamp(1, COST_MAX), due_ms, item });
        self.length += 1;
        self.check_invariants();
        instead_of.map_or(Pushed::Waits, Pushed::InsteadOf)
    }

    /// Takes, of all that fit, the one whose turn it is; in each line the one that has waited
    /// longest. A request of a client that has its share of the places is taken only if no other
    /// fits. Among those that are alike in that, one that is not due yet is taken only if none fits
    /// that is, and there is room for it. `fits` is asked once at most for each, and no more after
    /// it has said yes.
    pub fn take(&mut self, moment: Moment, mut fits: impl FnMut(&T) -> bool) -> Option<T> {
        let has_room = self.has_room_for_slow(moment.free);
        let groups = [(false, true), (false, false), (true, true), (true, false)].into_iter();
        let mut groups = groups.filter(|(_, is_due)| *is_due || has_room);
        let (rounds, position, index) = groups.find_map(|(has_its_share, is_due)| {
            self.find(|one| {
                is_due == (one.due_ms <= moment.now_ms)
                    && has_its_share == self.has_its_share(one.class)
                    && fits(&one.item)
            })
        })?;
        self.pass_turns(rounds, position);
        self.serve(index)
    }

    /// Returns how many rounds from now, at which place in the ring, and where in that line.
    fn find(&self, mut fits: impl FnMut(&Waiting<T>) -> bool) -> Option<(u32, usize, usize)> {
        // The lines go by how many more turns each needs: the next round begins when none can be
        // served.
        for round in 0..COST_MAX {
            for (position, name) in self.ring.iter().enumerate() {
                let Some(line) = self.lines.get(name) else { continue };
                if line.rounds_to_save() != round {
                    continue;
                }
                if let Some(index) = line.waiting.iter().position(&mut fits) {
                    return Some((round, position, index));
                }
            }
        }
        None
    }

    /// Gives up those that nobody waits for any more.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.length = 0;
        self.lines.retain(|_, line| {
            let had_its_turn = line.waiting.is_empty();
            line.waiting.retain(|one| keep(&one.item));
            self.length += line.waiting.len();
            had_its_turn || !line.waiting.is_empty()
        });
        if self.length == 0 {
            self.clear();
        }
        self.ring.retain(|name| self.lines.contains_key(name));
        if matches!(self.newcomer, Newcomer::Waits(name) if !self.lines.contains_key(&name)) {
            self.newcomer = Newcomer::Welcome;
        }
        self.check_invariants();
    }

    /// Passes this many whole rounds, and one more for those before `position`; the line at
    /// `position` comes to the end of the ring, and before it those that had a turn and saved it.
    /// Lines that had nothing to send where there was room keep their place.
    fn pass_turns(&mut self, rounds: u32, position: usize) {
        let (mut stay, mut saved) = (VecDeque::new(), VecDeque::new());
        for (at, name) in std::mem::take(&mut self.ring).into_iter().enumerate() {
            let Some(line) = self.lines.get_mut(&name) else { continue };
            if line.waiting.is_empty() && (rounds > 0 || at < position) {
                self.lines.remove(&name);
                continue;
            }
            let saves = line.rounds_to_save() > rounds;
            line.saved = (line.saved + rounds + u32::from(saves && at < position)).min(COST_MAX);
            if at == position || (saves && at < position) {
                saved.push_back(name);
            } else {
                stay.push_back(name);
            }
        }
        stay.append(&mut saved);
        self.ring = stay;
    }

    /// Serves a request of the line at the end of the ring, which has its turn.
    fn serve(&mut self, index: usize) -> Option<T> {
        let name = *self.ring.back()?;
        let line = self.lines.get_mut(&name)?;
        let served = line.waiting.remove(index)?;
        line.saved = (line.saved + 1).saturating_sub(served.cost);
        if line.waiting.is_empty() {
            line.saved = 0;
        }
        self.newcomer = match self.newcomer {
            Newcomer::Waits(first) if first == name => Newcomer::Served,
            Newcomer::Waits(first) => Newcomer::Waits(first),
            Newcomer::Served | Newcomer::Welcome => Newcomer::Welcome,
        };
        self.length -= 1;
        if self.length == 0 {
            self.clear();
        }
        self.check_invariants();
        Some(served.item)
    }

    fn name(&self, class: u64) -> Name {
        let shared = Name::Shared(hash::mix(class) % SHARED_LINES);
        let waits_there = |line: &Line<T>| line.waiting.iter().any(|one| one.class == class);
        if self.lines.get(&shared).is_some_and(waits_there) {
            // The client's earlier requests wait there, and this one behind them.
            return shared;
        }
        let own = Name::Own(class);
        let is_known = self.lines.contains_key(&own);
        let has_room = || self.lines.range(..Name::Shared(0)).count() < OWN_LINES_MAX;
        if is_known || has_room() { own } else { shared }
    }

    fn longest(&self) -> Option<(Name, usize)> {
        let lengths = self.lines.iter().map(|(name, line)| (*name, line.waiting.len()));
        lengths.max_by_key(|(_, length)| *length)
    }

    fn drop_last(&mut self, name: Name) -> Option<T> {
        let dropped = self.lines.get_mut(&name)?.waiting.pop_back()?;
        self.length -= 1;
        Some(dropped.item)
    }

    fn check_invariants(&self) {
        debug_assert_eq!(self.ring.len(), self.lines.len());
        debug_assert!(self.length > 0 || self.lines.is_empty());
        debug_assert!(self.lines.range(..Name::Shared(0)).count() <= OWN_LINES_MAX);
        debug_assert!(self.length <= self.length_max);
    }
}

impl<T> Line<T> {
    /// Returns how many rounds pass until its first can be served, after this turn.
    fn rounds_to_save(&self) -> u32 {
        let cost = self.waiting.front().map_or(1, |first| first.cost);
        cost.saturating_sub(self.saved + 1)
    }
}

#[cfg(test)]
mod tests;
