//! What one node knows of another: its size, its load, whether it lives. How long a death must last
//! before its slots are taken over grows with the number of deaths. Fed by the machine.

use std::collections::VecDeque;
use std::time::Duration;

use model::{Timestamp, Walls};

use crate::mutants;

/// The time for which a member that nobody has heard of yet may be starting, like this node.
pub const UNHEARD_MAX: Duration = Duration::from_secs(10);
/// The time that deaths are counted for; those longer ago say nothing about the next one.
const DEATHS_WINDOW: Duration = Duration::from_secs(600);
/// Times that a process may be lost from sight in the window: the slots are taken over at once.
const ABSENCES_FREE: usize = 2;
/// Processes of a node that may end in the window: one killed every minute is replaced at once.
const ENDS_FREE: usize = 12;
/// The wait after more of them; each further one doubles it, so that a flapping node moves little.
const DEATH_PATIENCE: Duration = Duration::from_secs(10);
/// Doublings of the wait; a node that is really dead is replaced after at most that.
const DOUBLINGS_MAX: usize = 4;
/// Deaths that are kept; more are not counted.
const DEATHS_KEPT: usize = ENDS_FREE + DOUBLINGS_MAX + 1;

/// Bytes of memory kept for the system and the platform itself.
const MEMORY_RESERVED: u64 = 512 << 20;
/// Bytes of memory that an instance of a framework takes, roughly; the measured load corrects it.
const INSTANCE_MEMORY: u64 = 128 << 20;
/// Instances for each processor core, as those of web applications wait most of the time.
const INSTANCES_PER_CORE: u64 = 8;
/// Instances of a machine: more than any here has, which keeps sums small.
const CAPACITY_MAX: u64 = 4_096;

/// Returns how many instances a machine has room for beside the platform: a weight, not a promise.
pub fn capacity(cores: u32, memory_bytes: u64) -> u32 {
    let by_memory = memory_bytes.saturating_sub(MEMORY_RESERVED) / INSTANCE_MEMORY;
    let capacity = (u64::from(cores) * INSTANCES_PER_CORE).min(by_memory);
    capacity.clamp(1, CAPACITY_MAX) as u32
}

/// What a member's records say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The result of `capacity`; `None` while the node has not said what it is: it is given
    /// nothing.
    pub capacity: Option<u32>,
    /// The load in percent, as the node wrote it last.
    pub load: Option<u32>,
    /// Whether it takes nothing new and gives away what it has.
    pub drained: bool,
    /// The walls that it can build around applications.
    pub walls: Walls,
    /// The time at which its process started, as it says itself: tells one from the next.
    pub started_at: Option<Timestamp>,
}

#[derive(Clone, Debug)]
pub(super) struct ObservedNode {
    pub view: NodeView,
    first_seen: Timestamp,
    /// Whether it is alive; `None` if it was never heard of.
    alive: Option<bool>,
    changed_at: Timestamp,
    /// The first time at which slots could go there.
    took_first: Option<Timestamp>,
    deaths: VecDeque<Death>,
}

#[derive(Clone, Copy, Debug)]
struct Death {
    at: Timestamp,
    /// The start of the process that was alive before.
    of: Option<Timestamp>,
}

impl ObservedNode {
    pub fn new(view: NodeView, now: Timestamp) -> ObservedNode {
        let (first_seen, changed_at) = (now, now);
        let (alive, took_first, deaths) = (None, None, VecDeque::new());
        ObservedNode { view, first_seen, alive, changed_at, took_first, deaths }
    }

    pub fn set_alive(&mut self, now: Timestamp, alive: bool) {
        if self.alive == Some(alive) {
            return;
        }
        if self.alive == Some(true) {
            self.deaths.push_back(Death { at: now, of: self.view.started_at });
            if self.deaths.len() > DEATHS_KEPT {
                self.deaths.pop_front();
            }
        }
        self.alive = Some(alive);
        self.changed_at = now;
    }

    /// Returns whether its slots are its own.
    pub fn holds(&self, now: Timestamp) -> bool {
        let lives = self.alive == Some(true) || mutants::active(mutants::IGNORE_DEATHS);
        lives || now < self.lost_at()
    }

    /// Returns whether new slots may go there.
    pub fn takes(&self, now: Timestamp) -> bool {
        let lives = self.alive.unwrap_or_else(|| self.holds(now));
        let drained = self.view.drained && !mutants::active(mutants::DRAINED_TAKES);
        lives && !drained && self.view.capacity.is_some()
    }

    /// Notes that it was a member before this node's process started.
    pub fn was_there(&mut self) {
        if self.view.capacity.is_some() {
            self.took_first = Some(Timestamp(0));
        }
    }

    /// Notes when it could first take slots; called before each decision.
    pub fn note_arrival(&mut self, now: Timestamp) {
        if self.took_first.is_none() && self.takes(now) {
            self.took_first = Some(now);
        }
    }

    /// Returns whether a slot that was claimed then could not have gone there: it was no choice
    /// between nodes. A node that is back after a death is no newcomer.
    pub fn came_after(&self, claimed: Timestamp) -> bool {
        self.took_first.is_some_and(|first| first > claimed)
    }

    /// Returns since when it lives without a break; `None` if it does not.
    pub fn lives_since(&self) -> Option<Timestamp> {
        (self.alive != Some(false)).then_some(self.changed_at)
    }

    /// Returns when others take over what a node that is not alive now held.
    pub fn lost_at(&self) -> Timestamp {
        if self.alive.is_none() {
            return self.first_seen.after(UNHEARD_MAX);
        }
        let recent = |death: &&Death| self.changed_at.since(death.at) < DEATHS_WINDOW;
        let deaths = self.deaths.iter().filter(recent);
        let (mut ends, mut absences) = (0_usize, 0_usize);
        for death in deaths {
            // After an absence the process is there again: what it ran was started twice for
            // nothing. What an ended one ran is gone, and has to be started somewhere.
            ends += 1;
            absences += usize::from(death.of == self.view.started_at);
        }
        let beyond = absences.checked_sub(ABSENCES_FREE + 1).max(ends.checked_sub(ENDS_FREE + 1));
        match beyond {
            None => self.changed_at,
            Some(more) => {
                let doublings = more.min(DOUBLINGS_MAX) as u32;
                self.changed_at.after(DEATH_PATIENCE * 2_u32.pow(doublings))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CYCLE: Duration = Duration::from_secs(20);

    /// Returns how long its slots stay its own after the last of this many deaths.
    fn patience(deaths: usize, is_new_process: bool) -> Duration {
        let mut now = Timestamp(1_000_000);
        let started_at = Some(now);
        let (capacity, load, walls) = (Some(8), Some(10), Walls::ALL);
        let view = NodeView { capacity, load, drained: false, walls, started_at };
        let mut node = ObservedNode::new(view, now);
        for _ in 0..deaths {
            node.set_alive(now, true);
            if is_new_process {
                node.view.started_at = Some(now);
            }
            now = now.after(CYCLE);
            node.set_alive(now, false);
        }
        node.lost_at().since(now)
    }

    #[test]
    fn a_process_that_is_lost_from_sight_again_and_again_keeps_its_slots_for_longer() {
        let waits: Vec<u64> = (1..=9).map(|deaths| patience(deaths, false).as_secs()).collect();
        assert_eq!(waits, [0, 0, 10, 20, 40, 80, 160, 160, 160]);
    }

    #[test]
    fn ended_processes_are_replaced_at_once_a_dozen_times() {
        let waits: Vec<u64> = (11..=14).map(|deaths| patience(deaths, true).as_secs()).collect();
        assert_eq!(waits, [0, 0, 10, 20]);
    }

    #[test]
    fn what_long_gone_processes_did_is_forgotten() {
        let mut now = Timestamp(1_000_000);
        let (capacity, load, walls, started_at) = (None, None, Walls::ALL, None);
        let view = NodeView { capacity, load, drained: false, walls, started_at };
        let mut node = ObservedNode::new(view, now);
        for _ in 0..30 {
            node.set_alive(now, true);
            now = now.after(DEATHS_WINDOW);
            node.set_alive(now, false);
            assert_eq!(node.lost_at(), now);
        }
    }
}
