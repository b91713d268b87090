//! The faults: every kind by name, what each does to the world, and how all of them end.

use agent_core::application::IncarnationId;
use agent_core::lease::{LEASE, LEASE_GRACE};
use model::Timestamp;

use super::checking::Condition;
use super::happening::Happening;
use super::node::Process;
use super::replica::{Key, Record};
use super::world::World;

/// The faults, each of which has to happen in a sweep: one that never happens tests nothing.
pub const FAULTS: [&str; 34] = [
    "machine lost",
    "node process killed",
    "node process hung",
    "lease over",
    "machine frozen",
    "cut one way",
    "cut both ways",
    "some ways cut",
    "clock off",
    "disk full",
    "write refused",
    "given up unwritten",
    "instance crashed",
    "instance refuses",
    "instance stuck",
    "well again",
    "checker hung",
    "mistaken",
    "judged by its checker",
    "judged by witnesses",
    "node removed",
    "node joined",
    "drained",
    "load",
    "push",
    "pushes crossed",
    "broken release",
    "scale",
    "restart",
    "overtaken",
    "shared",
    "fetched",
    "not fetched",
    "handed over",
];

/// The number of checkers from which one may be mistaken: any node may lack its own, which is off,
/// and two others are left to disagree with one.
const CHECKERS_MIN: usize = 4;
/// The largest deviation of wall clocks, which are off by hours.
const CLOCK_OFF_MS: u64 = 5 * 3_600_000;
/// The longest time since a shim was heard when its node process ends.
const RENEWED_MS: u64 = 5_000;
/// The time between SIGTERM and the end of a process, in milliseconds.
const END_MS: (u64, u64) = (20, 300);

impl World {
    /// Takes away the machine, or its node process alone.
    pub fn down(&mut self, at: usize, machine: bool, back_after: Option<u64>) {
        if !self.nodes[at].runs() {
            return;
        }
        self.count(if machine { "machine lost" } else { "node process killed" });
        self.tell(|| format!("down {at}, machine {machine}, back {back_after:?}"));
        self.nodes[at].machines = None;
        if machine {
            self.nodes[at].processes.clear();
        } else {
            self.away(at);
        }
        if let Some(wait) = back_after {
            self.later(wait, Happening::Up { at });
        }
        self.disturbed();
    }

    /// Hangs the node process alone: its machine and its shims go on.
    pub(super) fn hang(&mut self, at: usize, milliseconds: u64) {
        if !self.nodes[at].runs() {
            return;
        }
        self.count("node process hung");
        self.tell(|| format!("hang {at} for {milliseconds}"));
        self.nodes[at].hung = true;
        self.away(at);
        self.later(milliseconds, Happening::Wake { at });
        self.disturbed();
    }

    pub(super) fn wake(&mut self, at: usize) {
        if !self.nodes[at].hung {
            return;
        }
        self.tell(|| format!("wake {at}"));
        self.nodes[at].hung = false;
        self.nodes[at].free_since = self.now;
        self.speaks(at);
        self.disturbed();
    }

    /// Takes the node away from its shims, which hear nothing from now on.
    fn away(&mut self, at: usize) {
        let heard = Timestamp(self.now - self.random.between(0, RENEWED_MS));
        let limit = (self.members(at) > 1).then_some(LEASE);
        let now = self.now;
        let node = &mut self.nodes[at];
        node.lease.renew(limit, heard);
        node.away_since = limit.map(|_| now);
        if limit.is_some() {
            let wait = (heard.after(LEASE).0).saturating_sub(now);
            self.later(wait, Happening::LeaseEnds { at });
        }
    }

    pub(super) fn speaks(&mut self, at: usize) {
        let now = Timestamp(self.now);
        self.nodes[at].lease.heard(now);
        self.nodes[at].away_since = None;
    }

    /// Lets shims stop what they hold, if the node is still away.
    pub(super) fn lease_ends(&mut self, at: usize) {
        let now = Timestamp(self.now);
        let node = &self.nodes[at];
        if node.machines.is_some() && !node.hung || !node.lease.is_over(now) {
            return;
        }
        let running = node.processes.iter().filter(|(_, process)| process.exit.is_none());
        let running: Vec<IncarnationId> = running.map(|(id, _)| id.clone()).collect();
        if !running.is_empty() {
            self.count("lease over");
        }
        for id in running {
            let wait = self.random.between(END_MS.0, END_MS.1);
            self.later(wait, Happening::Exit { at, id, lease_over: true });
        }
    }

    /// Asserts that nothing runs any more where the node has been away for too long.
    pub(super) fn judge_leases(&self) {
        let limit = (LEASE + LEASE_GRACE).as_millis() as u64;
        for node in &self.nodes {
            let Some(since) = node.away_since.filter(|_| !node.frozen) else { continue };
            let mut running = node.processes.iter().filter(|(_, process)| process.exit.is_none());
            let over = self.now - since > limit;
            let first = running.next();
            assert!(!over || first.is_none(), "{} runs {first:?} without a node", node.id);
        }
    }

    pub fn freeze(&mut self, at: usize, milliseconds: u64) {
        if self.nodes[at].runs() {
            self.count("machine frozen");
            self.tell(|| format!("freeze {at} for {milliseconds}"));
            self.nodes[at].frozen = true;
            self.later(milliseconds, Happening::Thaw { at });
            self.disturbed();
        }
    }

    pub(super) fn thaw(&mut self, at: usize) {
        self.tell(|| format!("thaw {at}"));
        self.nodes[at].frozen = false;
        self.nodes[at].free_since = self.now;
        self.disturbed();
    }

    pub(super) fn fill_disk(&mut self, at: usize, milliseconds: u64) {
        if self.nodes[at].runs() && !self.nodes[at].disk_full {
            self.count("disk full");
            self.tell(|| format!("disk full at {at} for {milliseconds}"));
            self.nodes[at].disk_full = true;
            self.later(milliseconds, Happening::DiskFree { at });
        }
    }

    pub(super) fn disk_free(&mut self, at: usize) {
        self.tell(|| format!("disk free at {at}"));
        self.nodes[at].disk_full = false;
        self.nodes[at].free_since = self.now;
        // It hears again what it missed.
        self.disturbed_at = self.now;
    }

    pub(super) fn crash_instance(&mut self, at: usize) {
        let running = self.nodes[at].processes.iter().filter(|(_, process)| process.ready);
        let running: Vec<IncarnationId> = running.map(|(id, _)| id.clone()).collect();
        if running.is_empty() || self.nodes[at].frozen {
            return;
        }
        let id = running[self.random.between(0, running.len() as u64) as usize].clone();
        self.count("instance crashed");
        self.tell(|| format!("crash {} at {at}", id.instance));
        self.exit(at, &id, false);
    }

    /// Lets a process live without serving, for a while or until it is replaced.
    pub(super) fn sicken(&mut self, at: usize) {
        let well = |process: &Process| {
            let up = process.ready && !process.leaving && process.exit.is_none();
            up && process.condition == Condition::Well
        };
        let running = self.nodes[at].processes.iter().filter(|(_, process)| well(process));
        let running: Vec<IncarnationId> = running.map(|(id, _)| id.clone()).collect();
        if running.is_empty() {
            return;
        }
        let id = running[self.random.between(0, running.len() as u64) as usize].clone();
        let refuses = self.random.chance(50);
        self.count(if refuses { "instance refuses" } else { "instance stuck" });
        self.set_condition(at, &id, if refuses { Condition::Refuses } else { Condition::Stuck });
        if self.random.chance(50) {
            let wait = self.random.between(500, 60_000);
            self.later(wait, Happening::Recovers { at, id });
        }
    }

    pub(super) fn recovers(&mut self, at: usize, id: &IncarnationId) {
        let process = self.nodes[at].processes.get(id);
        if process.is_some_and(|process| process.exit.is_none()) {
            self.count("well again");
            self.set_condition(at, id, Condition::Well);
        }
    }

    /// Returns whether one witness may be wrong, which takes others that are heard too.
    pub(super) fn may_be_mistaken(&self) -> bool {
        self.nodes.iter().filter(|node| node.member && node.checks).count() >= CHECKERS_MIN
    }

    /// Removes a node for good, although it may still run: nobody speaks to it any more, and its
    /// owner switches it off.
    pub(super) fn remove(&mut self, at: usize) {
        let members = self.nodes.iter().filter(|node| node.member).count();
        let by = (0..self.nodes.len()).find(|by| *by != at && self.can_write(*by));
        // The first node stays, as the judge asks it.
        let (Some(by), true) = (by, at > 0 && members > 2 && self.nodes[at].member) else { return };
        self.count("node removed");
        self.tell(|| format!("remove {at} at {by}"));
        self.nodes[at].member = false;
        let key = Key::Node(self.nodes[at].id.clone());
        self.write(by, key, None);
        self.write(by, Key::Roles(self.nodes[at].id.clone()), None);
        if self.mistaken == Some(at) || !self.may_be_mistaken() {
            self.mistaken = None;
        }
        self.nodes[at].machines = None;
        self.nodes[at].processes.clear();
        self.nodes[at].away_since = None;
        self.disturbed();
    }

    /// Lets a machine join that was not there before: it copies what another one has, then says
    /// what it is.
    pub fn join(&mut self, at: usize) {
        let from = (0..self.nodes.len()).find(|from| self.nodes[*from].runs());
        let (Some(from), true) = (from, self.nodes[at].is_spare) else { return };
        self.count("node joined");
        self.tell(|| format!("join {at} at {from}"));
        let replica = self.nodes[from].replica.clone();
        let node = &mut self.nodes[at];
        node.replica = replica;
        (node.is_spare, node.member) = (false, true);
        let view = self.view();
        self.up(at);
        let key = Key::Node(self.nodes[at].id.clone());
        self.write(at, key, Some(Record::Node(view)));
    }

    /// Cuts the network into two sides, one way or both.
    pub(super) fn cut_off(&mut self) {
        let one_way = self.random.chance(50);
        self.count(if one_way { "cut one way" } else { "cut both ways" });
        let sides: Vec<bool> = (0..self.nodes.len()).map(|_| self.random.chance(50)).collect();
        let first = self.random.between(0, self.nodes.len() as u64) as usize;
        for a in 0..self.nodes.len() {
            for b in 0..self.nodes.len() {
                if (sides[a] || a == first) && !(sides[b] || b == first) {
                    self.cut.insert((a, b));
                    if !one_way {
                        self.cut.insert((b, a));
                    }
                }
            }
        }
        self.tell(|| "cut".into());
        self.disturbed();
    }

    /// Cuts most ways to and from one node, each in one direction; what is left carries records.
    pub(super) fn cut_some(&mut self, at: usize) {
        self.count("some ways cut");
        for other in (0..self.nodes.len()).filter(|other| *other != at) {
            if self.random.chance(70) {
                let out = self.random.chance(50);
                self.cut.insert(if out { (at, other) } else { (other, at) });
            }
        }
        self.tell(|| format!("some ways of {at} are cut"));
        self.disturbed();
    }

    pub(super) fn cut_off_one(&mut self, at: usize) {
        self.count("cut both ways");
        let others = (0..self.nodes.len()).filter(|other| *other != at);
        self.cut.extend(others.flat_map(|other| [(at, other), (other, at)]));
        self.tell(|| format!("cut off {at}"));
        self.disturbed();
    }

    pub(super) fn reconnect(&mut self) {
        self.cut.clear();
        self.tell(|| "reconnected".into());
        self.disturbed();
    }

    /// Ends all faults; clocks stay wrong.
    pub(super) fn heal(&mut self) {
        self.reconnect();
        for at in 0..self.nodes.len() {
            self.disk_free(at);
            if self.nodes[at].frozen {
                self.thaw(at);
            }
            if self.nodes[at].hung {
                self.wake(at);
            }
            self.up(at);
        }
        self.run(2_000);
        for at in 0..self.nodes.len() {
            self.change_node(at, Some(20), Some(false));
        }
        // One of the nodes is drained.
        if self.nodes.iter().filter(|node| node.member).count() > 2 {
            self.change_node(0, None, Some(true));
        }
    }

    pub(super) fn turn_clock(&mut self, at: usize) {
        let off = self.random.between(0, 2 * CLOCK_OFF_MS);
        self.count("clock off");
        self.tell(|| format!("clock of {at} is off by {} ms", off as i64 - CLOCK_OFF_MS as i64));
        self.nodes[at].clock_off = off as i64 - CLOCK_OFF_MS as i64;
    }
}
