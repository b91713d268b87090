//! The nodes side by side at one moment: how burdened each is, and which is to take a free slot
//! first. Weighted rendezvous over what is left of each, so that nodes with the same picture agree.
//! Owns no state; made anew for each decision.

use std::cmp::Ordering;

use model::{ApplicationName, NodeId, ProcessType, Slot, Walls, hash};

/// A burden in thousandths of a percent.
pub(super) type Burden = u64;
const POINT: Burden = 1_000;
const FULL: Burden = 100 * POINT;

/// The excess over the mean burden below which a node starts an instance (the thesis's rule).
pub const START_BELOW: Burden = 10 * POINT;
/// The excess over the mean burden above which a node begins to shed (the thesis's rule); it goes
/// on until it could start an instance again.
pub const SHED_ABOVE: Burden = 20 * POINT;
/// The burden up to which a node takes instances; the rest of a machine is the platform's and the
/// system's, as long as any node has room.
pub const ROOM: Burden = 90 * POINT;
/// The least weight in the draw: even a full node may have to take something when all are full.
const WEIGHT_MIN: Burden = 5 * POINT;

#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub id: NodeId,
    pub takes: bool,
    /// The walls that it can build around applications.
    pub walls: Walls,
    hash: u64,
    capacity: u64,
    load: Burden,
    instances: u64,
    /// The instances whose load is not in the measured one yet.
    unready: u64,
}

impl Seat {
    pub fn new(id: NodeId, capacity: Option<u32>, load: Option<u32>, takes: bool) -> Seat {
        let hash = hash::bytes(id.as_str().as_bytes());
        let capacity = u64::from(capacity.unwrap_or(1).max(1));
        let load = u64::from(load.unwrap_or(0)) * POINT;
        Seat { id, takes, walls: Walls::ALL, hash, capacity, load, instances: 0, unready: 0 }
    }

    pub fn with_walls(self, walls: Walls) -> Seat {
        Seat { walls, ..self }
    }

    pub fn count(&mut self, ready: bool) {
        self.instances += 1;
        self.unready += u64::from(!ready);
    }

    /// Returns what one instance more adds.
    pub fn unit(&self) -> Burden {
        FULL / self.capacity
    }

    /// Returns the larger of what was measured and of what its instances should come to.
    pub fn burden(&self) -> Burden {
        let measured = self.load + self.unready * self.unit();
        measured.max(self.instances * FULL / self.capacity)
    }

    pub fn is_loaded_by_others(&self) -> bool {
        self.load > self.instances * FULL / self.capacity
    }

    /// Returns whether it is better off with one more of a kind than another node with those it
    /// has: it has none, or fewer for its size.
    pub fn is_sparser(&self, mine: u32, other: &Seat, theirs: u32) -> bool {
        let mine = (u64::from(mine) + 1) * other.capacity;
        theirs >= 2 && (mine == other.capacity || mine < u64::from(theirs) * self.capacity)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Field {
    /// The nodes, by id.
    pub seats: Vec<Seat>,
    sum: Burden,
    taking: u64,
}

impl Field {
    pub fn new(seats: Vec<Seat>) -> Field {
        debug_assert!(seats.is_sorted_by(|a, b| a.id < b.id));
        let taking = seats.iter().filter(|seat| seat.takes);
        let (sum, taking) = (taking.clone().map(Seat::burden).sum(), taking.count() as u64);
        Field { seats, sum, taking }
    }

    pub fn at(&self, node: &NodeId) -> Option<usize> {
        self.seats.binary_search_by(|seat| seat.id.cmp(node)).ok()
    }

    pub fn mean(&self) -> Burden {
        self.sum / self.taking.max(1)
    }

    /// Takes one more instance into account.
    pub fn assume(&mut self, at: usize) {
        let before = self.seats[at].burden();
        self.seats[at].count(false);
        if self.seats[at].takes {
            self.sum += self.seats[at].burden() - before;
        }
    }

    /// Returns whether it may start an instance while others could do so instead.
    pub fn has_room(&self, at: usize) -> bool {
        self.has_room_for(at, self.seats[at].burden())
    }

    /// Returns whether it would still have room if its burden came to this.
    pub fn has_room_for(&self, at: usize, burden: Burden) -> bool {
        self.seats[at].takes && burden < self.mean() + START_BELOW && burden < ROOM
    }

    /// Returns what decides which node takes a slot first: room, then few of the same kind (none at
    /// all first, then few for its size), then the draw. The least comes first.
    pub fn claim_to(&self, at: usize, same: u32, slot: u64) -> ClaimTo {
        let seat = &self.seats[at];
        let level = match same {
            0 => 0,
            same => (u64::from(same) + 1) * POINT / seat.capacity,
        };
        let left = FULL.saturating_sub(seat.burden()).max(WEIGHT_MIN);
        let weight = seat.capacity as f64 * left as f64;
        // A uniform number in (0, 1); the logarithm makes the draw proportional to the weights.
        let uniform = ((hash::mix(slot ^ seat.hash) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        ClaimTo { full: !self.has_room(at), level, draw: -uniform.ln() / weight }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ClaimTo {
    full: bool,
    level: u64,
    draw: f64,
}

impl Ord for ClaimTo {
    fn cmp(&self, other: &ClaimTo) -> Ordering {
        let first = (self.full, self.level).cmp(&(other.full, other.level));
        first.then(self.draw.total_cmp(&other.draw))
    }
}

impl PartialOrd for ClaimTo {
    fn partial_cmp(&self, other: &ClaimTo) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ClaimTo {
    fn eq(&self, other: &ClaimTo) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ClaimTo {}

/// Returns a slot's ticket in the draw.
pub(super) fn ticket(application: &ApplicationName, process: &ProcessType, slot: Slot) -> u64 {
    hash::bytes(format!("{application}/{process}.{slot}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat(id: &str, capacity: u32, load: u32) -> Seat {
        Seat::new(id.parse().unwrap(), Some(capacity), Some(load), true)
    }

    /// Returns how often each node comes first in the draw.
    fn firsts(field: &Field) -> Vec<usize> {
        let (name, web) = ("shop".parse().unwrap(), ProcessType::web());
        let mut firsts = vec![0; field.seats.len()];
        for slot in 1..=2_000 {
            let ticket = ticket(&name, &web, slot);
            let claim_to = |at: &usize| field.claim_to(*at, 0, ticket);
            firsts[(0..field.seats.len()).min_by_key(claim_to).unwrap()] += 1;
        }
        firsts
    }

    #[test]
    fn the_draw_follows_size_and_what_is_left() {
        let equal = firsts(&Field::new(vec![seat("a", 16, 30), seat("b", 16, 30)]));
        assert!((900..1_100).contains(&equal[0]), "{equal:?}");
        let sizes = firsts(&Field::new(vec![seat("a", 8, 30), seat("b", 24, 30)]));
        assert!((400..600).contains(&sizes[0]), "{sizes:?}");
        // One has 55 percent left, the other 45.
        let loads = firsts(&Field::new(vec![seat("a", 16, 55), seat("b", 16, 45)]));
        assert!((830..970).contains(&loads[0]), "{loads:?}");
    }

    #[test]
    fn a_node_ten_points_above_the_mean_comes_last() {
        let field = Field::new(vec![seat("a", 16, 60), seat("b", 16, 30)]);
        assert!(!field.has_room(0) && field.has_room(1));
        assert_eq!(firsts(&field), [0, 2_000]);
        let near = Field::new(vec![seat("a", 16, 48), seat("b", 16, 30)]);
        assert!(near.has_room(0) && near.has_room(1));
        let both_full = Field::new(vec![seat("a", 16, 92), seat("b", 16, 95)]);
        assert!(!both_full.has_room(0) && !both_full.has_room(1));
    }

    #[test]
    fn few_of_the_same_kind_come_before_the_draw() {
        let field = Field::new(vec![seat("a", 32, 0), seat("b", 8, 0)]);
        let less = |a, b| field.claim_to(0, a, 7) < field.claim_to(1, b, 7);
        assert!(!less(1, 0), "none at all comes first, whatever the size");
        assert!(less(1, 1) && less(2, 1) && less(3, 1), "then few for the size");
        assert!(!less(8, 1));
        let (a, b) = (&field.seats[0], &field.seats[1]);
        assert!(b.is_sparser(0, a, 2) && !b.is_sparser(0, a, 1));
        assert!(!b.is_sparser(1, a, 8) && b.is_sparser(1, a, 9));
    }

    #[test]
    fn slots_that_were_just_assigned_count_as_load() {
        let mut field = Field::new(vec![seat("a", 10, 0), seat("b", 10, 0)]);
        field.assume(0);
        assert_eq!((field.seats[0].burden(), field.mean()), (10_000, 5_000));
        field.assume(0);
        assert!(!field.has_room(0) && field.has_room(1));
    }
}
