//! The world of a cluster: time, the queue of what is to happen, the nodes, and what users and
//! operators want. `shell.rs` performs effects, `chaos.rs` does harm, `judge.rs` watches.

use std::collections::BTreeMap;

use model::{Machine, Timestamp};
use store_core::event::Event;
use store_core::sync::message::ClusterId;
use store_core::{Past, Position, StoreMachine};

use super::fault::{Counts, Fault};
use super::host::{Host, State};
use super::ledger::Ledger;
use super::network::{Network, Parcel};
use crate::random::Random;

/// The limit on happenings, so that a history that never rests ends.
const HAPPENINGS_MAX: u64 = 2_000_000;
pub(crate) const EPOCH: u64 = 1_700_000_000_000;
pub(crate) const CLUSTER: ClusterId = ClusterId([7; 16]);

#[derive(Clone, Debug)]
pub(crate) enum Happening {
    Tick {
        host: usize,
        life: u64,
    },
    /// The disk has done its part, or refused.
    Synced {
        host: usize,
        life: u64,
        batch: u64,
        refused: bool,
    },
    Arrive(Parcel),
    Lost {
        host: usize,
        life: u64,
        peer: usize,
    },
    Cut {
        pair: (usize, usize),
        epoch: u64,
    },
    /// The liveness view is renewed, the clock drifts, large values are fetched.
    Look(usize),
    Fetched {
        host: usize,
        life: u64,
        hash: [u8; 32],
    },
    /// What was to be set aside is in its file.
    Aside {
        host: usize,
        life: u64,
        writes: Vec<(Position, store_core::Write)>,
    },
    Start(usize),
    Join(usize),
    Operate,
    Chaos,
    Heal {
        blocked: Vec<(usize, usize)>,
    },
}

/// How bad this world is: some kinds of harm come often, others never.
#[derive(Clone, Debug, Default)]
pub(crate) struct Climate {
    /// How many of a hundred steps of chaos do harm.
    pub harm: u64,
    pub replays: bool,
    pub slow: bool,
    pub full_disks: bool,
    pub clocks: bool,
    pub disks: bool,
    pub members: bool,
    pub partitions: bool,
    pub crashes: bool,
    /// The mean time between two writes, in milliseconds.
    pub write_every: u64,
    pub keys: u64,
    pub length_ms: u64,
}

pub struct World {
    pub now: u64,
    pub counts: Counts,
    pub trace: Vec<String>,
    pub tracing: bool,
    pub(crate) random: Random,
    pub(crate) hosts: Vec<Host>,
    pub(crate) network: Network,
    pub(crate) ledger: Ledger,
    pub(crate) climate: Climate,
    /// Whether nothing bad happens any more.
    pub(crate) calm: bool,
    pub(crate) has_lost_disks: bool,
    queue: BTreeMap<(u64, u64), Happening>,
    sequence: u64,
    happenings: u64,
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let count = [2, 2, 3, 3, 3, 4, 4, 5, 6, 7][random.between(0, 10) as usize];
        let climate = Climate {
            harm: random.between(5, 60),
            replays: random.chance(30),
            slow: random.chance(30),
            full_disks: random.chance(30),
            clocks: random.chance(45),
            disks: random.chance(45),
            members: random.chance(50),
            partitions: random.chance(70),
            crashes: random.chance(70),
            write_every: random.between(50, 2000),
            keys: random.between(1, 7),
            length_ms: random.between(10_000, 400_000 / count),
        };
        World {
            now: EPOCH,
            counts: Counts::new(),
            trace: Vec::new(),
            tracing: false,
            random,
            hosts: (0..count as usize).map(Host::new).collect(),
            network: Network::default(),
            ledger: Ledger::default(),
            climate,
            calm: false,
            has_lost_disks: false,
            queue: BTreeMap::new(),
            sequence: 0,
            happenings: 0,
        }
    }

    pub(crate) fn tell(&mut self, line: impl FnOnce() -> String) {
        if self.tracing {
            let line = line();
            self.trace.push(format!("{:>8.3} {line}", (self.now - EPOCH) as f64 / 1000.0));
        }
    }

    pub(crate) fn count(&mut self, fault: Fault) {
        *self.counts.entry(fault).or_default() += 1;
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.calm
    }

    /// Returns true now and then in a world that is slow.
    pub(crate) fn hazard(&mut self, low: u64, high: u64) -> bool {
        !self.calm && self.climate.slow && self.random.between(0, 100) < (low + high) / 2
    }

    /// Returns a time between `low` and `usual`, sometimes up to `worst`.
    pub(crate) fn delay(&mut self, low: u64, usual: u64, worst: u64) -> u64 {
        let until = if !self.calm && self.random.chance(10) { worst } else { usual };
        self.random.between(low, until + 1)
    }

    pub(crate) fn later(&mut self, wait: u64, happening: Happening) {
        self.sequence += 1;
        self.queue.insert((self.now + wait, self.sequence), happening);
    }

    pub(crate) fn run_until(&mut self, end: u64) {
        while let Some(((at, _), _)) = self.queue.first_key_value()
            && *at <= end
        {
            let ((at, _), happening) = self.queue.pop_first().expect("it was there");
            self.now = at;
            self.happen(happening);
            self.happenings += 1;
            assert!(self.happenings < HAPPENINGS_MAX, "the world does not come to rest");
        }
        self.now = end;
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Tick { host, life } if self.lives(host, life) => self.tick(host),
            Happening::Synced { host, life, batch, refused } if self.lives(host, life) => {
                self.synced(host, batch, refused);
            }
            Happening::Arrive(parcel) => self.arrive(&parcel),
            Happening::Lost { host, life, peer } if self.lives(host, life) => {
                let peer = self.hosts[peer].tag;
                self.act(host, Event::Lost { peer });
            }
            Happening::Cut { pair, epoch } => self.cut(pair, Some(epoch)),
            Happening::Look(host) => self.look(host),
            Happening::Fetched { host, life, hash } if self.lives(host, life) => {
                self.fetched(host, hash);
            }
            Happening::Aside { host, life, writes } if self.lives(host, life) => {
                self.set_aside(host, writes);
            }
            Happening::Start(host) => self.start(host),
            Happening::Join(host) => self.join(host),
            Happening::Operate => self.operate(),
            Happening::Chaos => self.chaos(),
            Happening::Heal { blocked } => {
                self.tell(|| "healed".into());
                self.network.blocked.retain(|way| !blocked.contains(way));
            }
            Happening::Tick { .. }
            | Happening::Synced { .. }
            | Happening::Lost { .. }
            | Happening::Fetched { .. }
            | Happening::Aside { .. } => {}
        }
    }

    fn lives(&self, host: usize, life: u64) -> bool {
        self.hosts[host].is_up() && self.hosts[host].life == life
    }

    pub(crate) fn index_of(&self, tag: store_core::NodeTag) -> Option<usize> {
        self.hosts.iter().position(|host| host.tag == tag)
    }

    // --- machines

    pub(crate) fn act(&mut self, host: usize, event: Event) {
        let now = self.hosts[host].clock(self.now);
        let Some(machine) = self.hosts[host].machine_mut() else { return };
        let mut effects = Vec::new();
        machine.handle(now, event, &mut effects);
        self.acted(host, effects);
    }

    fn tick(&mut self, host: usize) {
        if self.hosts[host].tick_at != Some(self.now) {
            // An earlier tick was asked for meanwhile.
            return;
        }
        self.hosts[host].tick_at = None;
        let now = self.hosts[host].clock(self.now);
        let Some(machine) = self.hosts[host].machine_mut() else { return };
        let mut effects = Vec::new();
        if machine.deadline().is_some_and(|deadline| deadline <= now) {
            machine.tick(now, &mut effects);
            let deadline = machine.deadline();
            assert!(deadline.is_none_or(|at| at > now), "n{host} would be asked again at once");
        }
        self.acted(host, effects);
    }

    fn acted(&mut self, host: usize, effects: Vec<store_core::Effect>) {
        self.perform(host, effects);
        let now = self.now;
        let this = &mut self.hosts[host];
        let Some(machine) = this.machine() else { return };
        machine.check_invariants();
        let Some(deadline) = machine.deadline() else { return };
        let at = this.when(deadline).max(now);
        if this.tick_at.is_none_or(|tick| tick > at) {
            this.tick_at = Some(at);
            let life = this.life;
            self.later(at - now, Happening::Tick { host, life });
        }
    }

    pub(crate) fn start(&mut self, host: usize) {
        let this = &mut self.hosts[host];
        let State::Down(past) = &mut this.state else { return };
        let past: Past = std::mem::take(&mut **past);
        this.life += 1;
        this.restart_clock();
        let now = this.clock(self.now);
        let machine = StoreMachine::new(&this.id, now, past, this.home);
        this.state = State::Up(Box::new(machine));
        self.tell(|| format!("n{host} starts"));
        self.judge_host(host);
        self.acted(host, Vec::new());
        let life = self.hosts[host].life;
        let wait = self.random.between(0, 300);
        if life == 1 {
            self.later(wait, Happening::Look(host));
        }
        if self.hosts[host].joining {
            self.join(host);
        }
    }

    /// Stops a process; what its disk says remains.
    pub(crate) fn stop(&mut self, host: usize, orderly: bool) {
        let this = &mut self.hosts[host];
        let State::Up(machine) = &this.state else { return };
        let (head, horizons) = (machine.replica().history().head(), machine.replica().horizons());
        let next_batch = machine.next_batch();
        let mut closed = false;
        if orderly && this.batch.is_none() {
            this.disk.close(next_batch);
            closed = true;
        } else {
            this.disk.crash(&mut self.random);
        }
        let past = this.disk.recover();
        let batch = this.batch.take();
        let survived = batch.as_ref().is_some_and(|batch| past.next_batch > batch.number);
        assert!(past.next_batch + 1 >= next_batch, "n{host} lost a batch that was durable");
        if batch.is_none() || !survived {
            let replica = &past.replica;
            assert_eq!(replica.history().head(), head, "n{host} forgot, or learnt, by a crash");
            assert_eq!(replica.horizons(), horizons, "n{host} forgot horizons by a crash");
        }
        assert!(!closed || !past.unclean, "n{host} does not know that it ended in order");
        this.state = State::Down(Box::new(past));
        let torn = match (&batch, survived) {
            (None, _) => None,
            (Some(_), true) => Some(Fault::WrittenUnheard),
            (Some(_), false) => Some(Fault::TornWrite),
        };
        torn.into_iter().for_each(|fault| self.count(fault));
        self.count(if closed { Fault::Shutdown } else { Fault::Crash });
        self.tell(|| format!("n{host} {}, {torn:?}", if closed { "stops" } else { "crashes" }));
        if let Some(batch) = batch.filter(|_| survived)
            && self.durable(host, &batch.entries)
        {
            self.read_roster();
        }
        self.hosts[host].forget_process();
        self.judge_host(host);
        self.cut_all_of(host);
    }

    pub(crate) fn local(&mut self, host: usize) -> Timestamp {
        let now = self.now;
        self.hosts[host].clock(now)
    }
}
