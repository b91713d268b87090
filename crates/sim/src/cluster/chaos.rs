//! The faults that happen by themselves: of connections, disks, clocks, machines, and operators in
//! a hurry.

use model::Prefix;
use store_core::event::Event;

use super::disk::Disk;
use super::fault::Fault;
use super::ledger::Gone;
use super::world::{CLUSTER, Happening, World};

/// The largest deviation of a clock that is right from the true time.
pub(crate) const SKEW_MS: i64 = 200;

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;

impl World {
    pub(crate) fn chaos(&mut self) {
        if self.calm {
            return;
        }
        let wait = self.random.between(50, 2000);
        self.later(wait, Happening::Chaos);
        if self.random.chance(30) {
            self.look_after_alarms();
        }
        if !self.random.chance(self.climate.harm) {
            return;
        }
        let host = self.any_host();
        match self.random.between(0, 16) {
            0 | 1 => self.cut_some(),
            2 if self.climate.partitions => self.partition(),
            3 if self.climate.partitions => self.block_one_way(),
            4 | 5 if self.climate.crashes => self.fail(host),
            6 if self.climate.clocks => self.break_clock(host),
            7 if self.climate.clocks => self.repair_clocks(),
            8 if self.climate.disks => self.roll_back(host),
            9 if self.climate.disks => self.lose_disk(host),
            10 | 11 => self.squash(host),
            12 if self.climate.members => self.evict_some(host),
            13 if self.climate.members => self.let_join(),
            14 if self.climate.replays => self.replay_something(),
            15 => self.act(host, Event::Sync),
            _ => {}
        }
    }

    fn cut_some(&mut self) {
        let connected = self.network.connected();
        let index = self.random.between(0, connected.len() as u64) as usize;
        if let Some(pair) = connected.get(index) {
            self.cut(*pair, None);
        }
    }

    fn partition(&mut self) {
        let side: Vec<bool> = self.hosts.iter().map(|_| false).collect();
        let side: Vec<bool> = side.into_iter().map(|_| self.random.chance(50)).collect();
        let mut blocked = Vec::new();
        for a in 0..side.len() {
            let apart = (0..side.len()).filter(|b| side[a] != side[*b]);
            blocked.extend(apart.map(|b| (a, b)));
        }
        self.count(Fault::Partition);
        self.block(blocked);
    }

    fn block_one_way(&mut self) {
        let (a, b) = (self.any_host(), self.any_host());
        if a != b {
            self.count(Fault::OneWay);
            self.block(vec![(a, b)]);
        }
    }

    fn block(&mut self, blocked: Vec<(usize, usize)>) {
        self.tell(|| format!("blocked {blocked:?}"));
        self.network.blocked.extend(blocked.iter().copied());
        let wait = self.random.between(500, 60_000);
        self.later(wait, Happening::Heal { blocked });
    }

    fn fail(&mut self, host: usize) {
        if self.hosts[host].is_up() {
            let orderly = self.random.chance(20);
            self.stop(host, orderly);
            self.start_later(host);
        }
    }

    fn start_later(&mut self, host: usize) {
        let wait = self.delay(5, 3000, 60_000);
        self.later(wait, Happening::Start(host));
    }

    // --- clocks

    /// Makes a clock jump while the node is off.
    fn break_clock(&mut self, host: usize) {
        if !self.hosts[host].is_up() || !self.hosts[host].clock_right {
            return;
        }
        self.stop(host, false);
        let jump = match self.random.between(0, 4) {
            0 => self.random.between(600, MINUTE_MS),
            1 => self.random.between(24 * HOUR_MS, 48 * HOUR_MS),
            _ => self.random.between(2 * MINUTE_MS, 5 * HOUR_MS),
        };
        let forth = self.random.chance(60);
        self.count(match (jump < MINUTE_MS, forth) {
            (true, _) => Fault::ClockSkew,
            (false, true) => Fault::ClockForth,
            (false, false) => Fault::ClockBack,
        });
        let this = &mut self.hosts[host];
        this.offset = if forth { jump as i64 } else { -(jump as i64) };
        this.clock_right = false;
        self.tell(|| {
            format!("n{host} has its clock set by {}{jump}", if forth { '+' } else { '-' })
        });
        self.start_later(host);
    }

    fn repair_clocks(&mut self) {
        let wrong = |host: &usize| !self.hosts[*host].clock_right;
        let Some(host) = (0..self.hosts.len()).find(wrong) else { return };
        if self.hosts[host].is_up() {
            let orderly = self.random.chance(50);
            self.stop(host, orderly);
            self.start_later(host);
        }
        self.mend_clock(host);
    }

    pub(crate) fn mend_clock(&mut self, host: usize) {
        self.tell(|| format!("n{host} has its clock mended"));
        let offset = self.random.between(0, 2 * SKEW_MS as u64 + 1) as i64 - SKEW_MS;
        self.hosts[host].offset = offset;
        self.hosts[host].clock_right = true;
    }

    // --- disks

    /// Returns whether a disk may be lost: somebody else must hold what counts, or there is nothing
    /// left to test.
    fn may_lose(&self, host: usize) -> bool {
        let others = (0..self.hosts.len()).filter(|other| *other != host);
        self.hosts[host].connected && others.into_iter().any(|o| self.hosts[o].is_sound(o))
    }

    fn roll_back(&mut self, host: usize) {
        if !self.may_lose(host) || !self.hosts[host].disk.has_copies() {
            return;
        }
        if self.hosts[host].is_up() {
            self.stop(host, false);
            self.start_later(host);
        }
        let Some(made) = self.hosts[host].disk.roll_back(&mut self.random) else { return };
        self.count(Fault::Rollback);
        let made = made.saturating_sub(super::world::EPOCH);
        self.tell(|| format!("n{host} has its disk of {made} back"));
        self.forget_disk(host);
        // The copy is of a time when it knew nobody: somebody has to let it join again.
        if !self.knows_others(host) {
            self.hosts[host].disk = Disk::default();
            self.estrange(host);
        }
    }

    fn knows_others(&self, host: usize) -> bool {
        let roster: Prefix = "cluster::nodes".parse().expect("a valid prefix");
        let entries = self.hosts[host].replica().winners(&roster);
        let others = entries.iter().filter(|commit| !commit.is_delete());
        others.count() > 1 && self.hosts[host].cluster == CLUSTER
    }

    /// Gives a node that is down another disk than it had.
    pub(crate) fn put_back(&mut self, host: usize, disk: Disk) {
        self.count(Fault::Rollback);
        self.hosts[host].disk = disk;
        self.forget_disk(host);
    }

    fn lose_disk(&mut self, host: usize) {
        if !self.may_lose(host) || !self.random.chance(40) {
            return;
        }
        if self.hosts[host].is_up() {
            self.stop(host, false);
            self.start_later(host);
        }
        self.lose_disk_of(host);
    }

    pub(crate) fn lose_disk_of(&mut self, host: usize) {
        self.count(Fault::LostDisk);
        self.tell(|| format!("n{host} has an empty disk"));
        self.hosts[host].disk = Disk::default();
        self.estrange(host);
    }

    fn estrange(&mut self, host: usize) {
        self.forget_disk(host);
        // It is a stranger until somebody finds it and lets it join again.
        self.hosts[host].connected = false;
        self.hosts[host].joining = false;
        self.hosts[host].home = super::host::stranger(host);
    }

    /// Forgets what the node had shown and told from a disk that is no more.
    fn forget_disk(&mut self, host: usize) {
        self.has_lost_disks = true;
        let this = &mut self.hosts[host];
        let past = this.disk.recover();
        this.garbage = past.replica.horizons().garbage;
        this.cluster = past.standing.cluster;
        this.state = super::host::State::Down(Box::new(past));
        this.shown.clear();
        this.forgettable.clear();
        this.superseded.clear();
        this.alarms.clear();
        let told = this.told;
        this.impaired = Some(this.impaired.unwrap_or_default().max(told));
        self.reassess(Gone::Disk);
        self.judge_host(host);
    }

    // --- members

    fn evict_some(&mut self, host: usize) {
        if self.random.chance(50) {
            self.evict(host);
        }
    }

    fn let_join(&mut self) {
        let outside = |host: &usize| {
            let this = &self.hosts[*host];
            this.is_up() && (!this.connected || this.evicted)
        };
        if let Some(host) = (0..self.hosts.len()).find(outside) {
            self.invite(host);
        }
    }
}
