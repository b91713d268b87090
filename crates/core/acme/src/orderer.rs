//! The machine that one node runs for all names. It decides from the records of the store, whole:
//! whether a name is due, whose turn it is, and whether an order may be made; `run` takes one order
//! from step to step. A claim is durable before anything is asked of the authority, so that no
//! order is made that no record counts.

mod plan;
mod run;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::acme::{AcmeOrder, RenewalWindow};
use model::certificate::SecretText;
use model::{CertificateName, Machine, NodeId, Timestamp};

#[cfg(test)]
pub use self::plan::fresh;
use self::run::Run;
pub use self::run::{Authorization, OrderStatus, OrderView};
use crate::challenge::{ChallengeKind, Means};
use crate::problem::Problem;
use crate::renewal::{self, Facts};

/// How long a claim is good. Nobody else touches the order meanwhile, if its node is alive.
pub const ATTEMPT_MAX: Duration = Duration::from_secs(900);
/// How long a node works at an order; the rest of `ATTEMPT_MAX` is for a write that is late.
const WORK_MAX: Duration = Duration::from_secs(600);
/// How long an order can be gone on with. Let's Encrypt keeps one for a week, and a key that lay
/// around for longer is not worth it.
const RESUMED_MAX: Duration = Duration::from_secs(3600);
/// How long a node has to be lost until another one goes on with its order: longer than a restart.
const LOST_AFTER: Duration = Duration::from_secs(10);
/// How long after a claim its node looks whether another one claimed the name, too: writes reach
/// nodes that are connected in well under a second.
pub const SETTLE: Duration = Duration::from_secs(3);
/// How long nothing is claimed after a start, and after a node is back: it has to hear first what
/// the others did meanwhile.
const QUIET: Duration = Duration::from_secs(4);
/// How long the others wait for a node whose turn it is and that does nothing.
const TURN: Duration = Duration::from_secs(600);
/// Orders that one node works at. Each is a few small requests.
pub const RUNS_MAX: usize = 8;
/// The pause until a node looks again whether it has room for an order.
const ROOM_PAUSE: Duration = Duration::from_secs(5);
/// The pause after a write to the store failed.
const STORE_PAUSE: Duration = Duration::from_secs(30);

/// What of the outside has changed.
#[derive(Clone, Debug)]
pub enum Event {
    /// All names that want a certificate.
    Wanted(BTreeSet<CertificateName>),
    /// The certificate that the store has for a name.
    Certificate(CertificateName, Option<Facts>),
    /// The order that the store has for a name.
    Order(CertificateName, Option<AcmeOrder>),
    /// The other nodes that are alive.
    Alive(BTreeSet<NodeId>),
    /// What there is to order with; `None` without an account.
    Means(Option<Means>),
    /// A task is done. An answer to a task that nobody waits for is ignored.
    Done { name: CertificateName, serial: u64, outcome: Outcome },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Checked(Arrival),
    Saved,
    /// The store did not take a write.
    Unsaved,
    Ordered {
        url: String,
        key: SecretText,
    },
    Looked(OrderView),
    Prepared,
    Told,
    Finalized,
    Downloaded {
        chain: String,
        facts: Facts,
    },
    Written,
    Failed(Problem),
    /// The window for renewal, if the authority named one, and when to ask again.
    Renewal {
        window: Option<RenewalWindow>,
        again: Duration,
    },
    /// The authority could not be asked.
    NoRenewal,
}

/// Whether requests for a name come to this cluster, as another node of it found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    Arrives {
        http: bool,
        https: bool,
    },
    /// DNS has nothing for it, or something else answers.
    Elsewhere {
        why: String,
    },
    /// The name is answered by nobody. From inside a network that may be so although strangers are
    /// answered.
    Unknown {
        why: String,
    },
}

/// A challenge of an authorization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    pub kind: ChallengeKind,
    /// Whether the authority was told already that it is prepared.
    pub told: bool,
}

/// One step for the shell, which answers with `Event::Done`, but for `Withdraw`.
#[derive(Clone, Debug)]
pub struct Effect {
    pub name: CertificateName,
    pub serial: u64,
    pub task: Task,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Finds out whether requests for the name come here.
    Check,
    /// Writes the order to the store, durably.
    Save(Box<AcmeOrder>),
    /// Makes an order at the authority, and a key for the certificate. `replaces` is the
    /// certificate that it follows.
    Order {
        replaces: Option<String>,
    },
    Look {
        url: String,
    },
    Prepare {
        url: String,
        kind: ChallengeKind,
    },
    Tell {
        url: String,
        kind: ChallengeKind,
    },
    Finalize {
        url: String,
        key: SecretText,
    },
    Download {
        url: String,
    },
    /// Writes the certificate to the store.
    Write {
        chain: String,
        key: SecretText,
        facts: Facts,
    },
    /// Takes back what was prepared.
    Withdraw {
        kind: ChallengeKind,
    },
    /// Asks the authority when to renew this certificate.
    AskRenewal {
        id: String,
    },
}

/// All that is known of one name.
#[derive(Clone, Debug, Default)]
struct Entry {
    wanted: bool,
    certificate: Option<Facts>,
    record: Option<AcmeOrder>,
    /// The time since which this node sees that it is due.
    due_seen: Option<Timestamp>,
    /// The time since which the node that claimed it is not alive.
    lost_since: Option<Timestamp>,
    check: Check,
    asking: Asking,
    run: Option<Run>,
    wake: Option<Timestamp>,
}

/// The last look whether requests for a name come here.
#[derive(Clone, Debug, Default)]
struct Check {
    /// The serial of the task that is under way.
    under_way: Option<u64>,
    last: Option<(Timestamp, Arrival)>,
    /// The time since which nobody answers.
    unknown_since: Option<Timestamp>,
    /// Looks in a row that did not find the name here.
    failures: u32,
    next: Timestamp,
}

/// Questions about when to renew.
#[derive(Clone, Debug, Default)]
struct Asking {
    under_way: Option<u64>,
    failures: u32,
    next: Timestamp,
}

pub struct Orderer {
    node: NodeId,
    alive: BTreeSet<NodeId>,
    /// The nodes that were alive until then, shortly before: they are counted on for a while.
    missed: BTreeMap<NodeId, Timestamp>,
    means: Option<Means>,
    entries: BTreeMap<CertificateName, Entry>,
    agenda: BTreeSet<(Timestamp, CertificateName)>,
    serial: u64,
    runs: usize,
    /// The time before which nothing is claimed; `None` before the first event.
    quiet_until: Option<Timestamp>,
}

impl Orderer {
    pub fn new(node: NodeId) -> Orderer {
        Orderer {
            node,
            alive: BTreeSet::new(),
            missed: BTreeMap::new(),
            means: None,
            entries: BTreeMap::new(),
            agenda: BTreeSet::new(),
            serial: 0,
            runs: 0,
            quiet_until: None,
        }
    }

    /// Returns when a name is to be renewed as this node sees it.
    pub fn due(&self, name: &CertificateName) -> Option<Timestamp> {
        let entry = self.entries.get(name)?;
        let window = entry.record.as_ref().and_then(|record| record.renewal.as_ref());
        entry.certificate.as_ref().map(|facts| facts.due(window))
    }

    /// Returns the other nodes that are counted on: one that is out of sight for a moment comes
    /// back.
    fn counted(&self) -> BTreeSet<NodeId> {
        self.alive.iter().chain(self.missed.keys()).cloned().collect()
    }

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    fn send(&mut self, name: &CertificateName, task: Task, effects: &mut Vec<Effect>) -> u64 {
        let serial = self.next_serial();
        effects.push(Effect { name: name.clone(), serial, task });
        serial
    }

    /// Sets when this name is looked at again.
    fn wake(&mut self, name: &CertificateName, at: Option<Timestamp>) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        if let Some(before) = std::mem::replace(&mut entry.wake, at) {
            self.agenda.remove(&(before, name.clone()));
        }
        if let Some(at) = at {
            self.agenda.insert((at, name.clone()));
        }
    }

    fn entry(&mut self, name: &CertificateName) -> &mut Entry {
        self.entries.entry(name.clone()).or_default()
    }

    /// Forgets a name of which nothing is known any more.
    fn forget(&mut self, name: &CertificateName) {
        let gone = self.entries.get(name).is_some_and(|entry| {
            !entry.wanted
                && entry.certificate.is_none()
                && entry.record.is_none()
                && entry.run.is_none()
        });
        if gone {
            self.wake(name, None);
            self.entries.remove(name);
        }
    }

    fn look_at_all(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let names: Vec<CertificateName> = self.entries.keys().cloned().collect();
        for name in names {
            self.look(now, &name, effects);
        }
    }

    fn set_wanted(
        &mut self,
        now: Timestamp,
        wanted: &BTreeSet<CertificateName>,
        effects: &mut Vec<Effect>,
    ) {
        for name in wanted {
            self.entry(name);
        }
        let names: Vec<CertificateName> = self.entries.keys().cloned().collect();
        for name in names {
            let is_wanted = wanted.contains(&name);
            let entry = self.entry(&name);
            if entry.wanted == is_wanted {
                continue;
            }
            entry.wanted = is_wanted;
            (entry.due_seen, entry.check) = (None, Check::default());
            if !is_wanted {
                self.abandon(&name, effects);
            }
            self.look(now, &name, effects);
            self.forget(&name);
        }
    }

    fn set_alive(&mut self, now: Timestamp, alive: BTreeSet<NodeId>, effects: &mut Vec<Effect>) {
        if alive.iter().any(|node| !self.alive.contains(node)) {
            self.quiet_until = Some(now.after(QUIET));
        }
        for node in self.alive.difference(&alive) {
            self.missed.insert(node.clone(), now);
        }
        self.missed.retain(|node, _| !alive.contains(node));
        self.alive = alive;
        for entry in self.entries.values_mut() {
            let of = entry.record.as_ref().filter(|record| record.active).map(|r| &r.node);
            let lost = of.is_some_and(|node| *node != self.node && !self.alive.contains(node));
            entry.lost_since = lost.then(|| entry.lost_since.unwrap_or(now));
        }
        self.look_at_all(now, effects);
    }

    fn set_record(
        &mut self,
        now: Timestamp,
        name: &CertificateName,
        record: Option<AcmeOrder>,
        effects: &mut Vec<Effect>,
    ) {
        let (node, alive) = (self.node.clone(), self.alive.clone());
        let entry = self.entry(name);
        let of = record.as_ref().filter(|record| record.active).map(|record| &record.node);
        let lost = of.is_some_and(|of| *of != node && !alive.contains(of));
        let same = entry.record.as_ref().map(|r| &r.node) == record.as_ref().map(|r| &r.node);
        entry.lost_since = lost.then(|| entry.lost_since.filter(|_| same).unwrap_or(now));
        // A person who asked for another try says that the cause is mended.
        let asked = |r: Option<&AcmeOrder>| r.map_or(Timestamp(0), |record| record.rest_until);
        if asked(record.as_ref()) < asked(entry.record.as_ref()) {
            entry.check = Check::default();
        }
        entry.record = record;
        if self.is_overtaken(name) {
            self.abandon(name, effects);
        }
        self.look(now, name, effects);
        self.forget(name);
    }

    fn set_renewal(
        &mut self,
        now: Timestamp,
        name: &CertificateName,
        serial: u64,
        answer: Option<(Option<RenewalWindow>, Duration)>,
        effects: &mut Vec<Effect>,
    ) {
        let node = self.node.clone();
        let entry = self.entry(name);
        if entry.asking.under_way != Some(serial) {
            return;
        }
        entry.asking.under_way = None;
        let Some((window, again)) = answer else {
            let pause = renewal::ask_again_unheard(entry.asking.failures);
            entry.asking.failures = entry.asking.failures.saturating_add(1);
            entry.asking.next = now.after(pause);
            return self.look(now, name, effects);
        };
        entry.asking.failures = 0;
        entry.asking.next = now.after(renewal::ask_again(again));
        let known = entry.record.as_ref().and_then(|record| record.renewal.as_ref());
        // What changed is written, so that all nodes renew by it and can say so.
        let news = window.filter(|window| known != Some(window));
        let is_busy = entry.record.as_ref().is_some_and(|record| {
            record.active && record.node != node && now < record.claimed_at.after(ATTEMPT_MAX)
        });
        if let Some(window) = news.filter(|_| !is_busy && entry.run.is_none()) {
            let mut record = entry.record.clone().unwrap_or_else(|| plan::fresh(&node));
            // The certificate is there: a process that was lost did not say that it was done.
            (record.active, record.url, record.key) = (false, None, None);
            record.renewal = Some(window);
            entry.record = Some(record.clone());
            self.send(name, Task::Save(Box::new(record)), effects);
        }
        self.look(now, name, effects);
    }
}

impl Machine for Orderer {
    type Event = Event;
    type Effect = Effect;

    fn handle(&mut self, now: Timestamp, event: Event, effects: &mut Vec<Effect>) {
        self.quiet_until.get_or_insert(now.after(QUIET));
        match event {
            Event::Wanted(wanted) => self.set_wanted(now, &wanted, effects),
            Event::Alive(alive) => self.set_alive(now, alive, effects),
            Event::Means(means) => {
                self.means = means;
                self.look_at_all(now, effects);
            }
            Event::Certificate(name, facts) => {
                let entry = self.entry(&name);
                if entry.certificate != facts {
                    (entry.certificate, entry.due_seen) = (facts, None);
                    entry.asking = Asking::default();
                }
                self.look(now, &name, effects);
                self.forget(&name);
            }
            Event::Order(name, record) => self.set_record(now, &name, record, effects),
            Event::Done { name, serial, outcome } => match outcome {
                Outcome::Checked(arrival) => self.set_arrival(now, &name, serial, arrival, effects),
                Outcome::Renewal { window, again } => {
                    self.set_renewal(now, &name, serial, Some((window, again)), effects);
                }
                Outcome::NoRenewal => self.set_renewal(now, &name, serial, None, effects),
                outcome => self.advance(now, &name, serial, outcome, effects),
            },
        }
    }

    fn tick(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let before = self.missed.len();
        self.missed.retain(|_, since| since.after(LOST_AFTER) > now);
        if self.missed.len() < before {
            self.look_at_all(now, effects);
        }
        while let Some((at, name)) = self.agenda.first().cloned() {
            if at > now {
                break;
            }
            self.wake(&name, None);
            self.look(now, &name, effects);
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        let missed = self.missed.values().map(|since| since.after(LOST_AFTER));
        missed.chain(self.agenda.first().map(|(at, _)| *at)).min()
    }

    fn check_invariants(&self) {
        let runs = self.entries.values().filter(|entry| entry.run.is_some()).count();
        assert_eq!(runs, self.runs, "runs are counted");
        assert!(runs <= RUNS_MAX, "no more than a node works at");
        let awake = self.entries.values().filter(|entry| entry.wake.is_some()).count();
        assert_eq!(awake, self.agenda.len(), "each name is on the agenda once");
        for (name, entry) in &self.entries {
            assert!(entry.run.is_none() || entry.wanted, "{name} is ordered, and nobody wants it");
        }
    }
}
