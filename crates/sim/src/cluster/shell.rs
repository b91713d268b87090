//! The shell: performs what a node's machine asks for, as the binary's shell does: bytes to the
//! disk, bytes to peers, values under their tickets, large values fetched from nodes that have
//! them.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::Timestamp;
use store_core::event::{BatchEntry, Effect, Event};
use store_core::sync::members::is_roster_key;
use store_core::sync::message::{Body, Hello, Message, Vector};
use store_core::sync::wire;
use store_core::{Change, Commit, CommitAction, Location, NodeTag, Position, Stamp, Ticket, Write};

use super::fault::Fault;
use super::host::Batch;
use super::network::Parcel;
use super::world::{Happening, World};

impl World {
    pub(crate) fn perform(&mut self, host: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Persist { batch, entries } => self.persist(host, batch, entries),
                Effect::Acknowledge { ticket, cid } => self.acknowledged(host, ticket, cid),
                Effect::Refuse { ticket, .. } | Effect::Release { ticket } => {
                    self.hosts[host].values.remove(&ticket);
                    self.hosts[host].anew.remove(&ticket);
                }
                Effect::Send { to, message } => self.say(host, to, &message),
                Effect::SetAside { commits, anew } => self.keep_aside(host, &commits, &anew),
                Effect::Alarm(alarm) => {
                    self.tell(|| format!("n{host} alarm: {alarm}"));
                    self.judge_alarm(host, &alarm);
                    self.hosts[host].alarms.insert(alarm);
                }
                Effect::Expired { .. } => self.count(Fault::Expiry),
                Effect::Notify { .. } | Effect::Arrived { .. } => {}
                Effect::Resync | Effect::Roster(_) => {}
            }
        }
    }

    fn persist(&mut self, host: usize, batch: u64, entries: Arc<Vec<BatchEntry>>) {
        assert!(self.hosts[host].batch.is_none(), "two batches are on their way");
        self.judge_batch(host, &entries);
        let refused = self.climate.full_disks && !self.calm && self.random.chance(8);
        let slow = self.climate.slow && !self.calm && self.random.chance(5);
        let wait = if slow { self.random.between(100, 2000) } else { self.random.between(0, 8) };
        if slow {
            self.count(Fault::SlowDisk);
        }
        if refused {
            self.count(Fault::FullDisk);
        } else {
            let this = &mut self.hosts[host];
            let values = &this.values;
            let none: &[u8] = &[];
            this.disk.write(batch, &entries, |t| values.get(&t).map_or(none, |v| v));
        }
        self.hosts[host].batch = Some(Batch { number: batch, entries });
        let life = self.hosts[host].life;
        self.later(wait, Happening::Synced { host, life, batch, refused });
    }

    pub(crate) fn synced(&mut self, host: usize, batch: u64, refused: bool) {
        let Some(sent) = self.hosts[host].batch.take() else { return };
        assert_eq!(sent.number, batch);
        if refused {
            self.tell(|| format!("n{host} has no room for batch {batch}"));
            return self.act(host, Event::Refused { batch });
        }
        self.tell(|| format!("n{host} keeps {batch}: {}", shown(&sent.entries)));
        let locations = self.hosts[host].disk.sync(batch);
        let roster = self.durable(host, &sent.entries);
        self.act(host, Event::Persisted { batch, locations });
        if roster {
            self.read_roster();
        }
        self.judge_host(host);
    }

    fn acknowledged(&mut self, host: usize, ticket: Ticket, cid: Option<[u8; 32]>) {
        let this = &mut self.hosts[host];
        assert!(this.values.remove(&ticket).is_some(), "n{host} answers twice");
        if this.anew.remove(&ticket).is_some() && cid.is_none() {
            self.tell(|| format!("n{host} does not issue it anew"));
        }
    }

    // --- what nodes say

    fn say(&mut self, host: usize, to: NodeTag, message: &Message) {
        let Some(peer) = self.index_of(to) else { return };
        self.judge_message(host, message);
        self.tell(|| format!("n{host} -> n{peer} {}", told(message)));
        let values: Vec<Option<Vec<u8>>> = match &message.body {
            Body::Commits { commits, .. } => {
                commits.iter().map(|carried| self.value_of(host, &carried.commit)).collect()
            }
            _ => Vec::new(),
        };
        let values: Vec<Option<&[u8]>> = values.iter().map(Option::as_deref).collect();
        let mut bytes = Vec::new();
        wire::encode(message, &values, &mut bytes);
        self.send(host, peer, bytes);
    }

    /// Returns a small value, read from the log.
    pub(crate) fn value_of(&self, host: usize, commit: &Commit) -> Option<Vec<u8>> {
        let Location::Log { offset, .. } = commit.location else { return None };
        let value = self.hosts[host].disk.value(offset).expect("a value that is held is there");
        let CommitAction::Set { hash, .. } = commit.action else { return None };
        assert_eq!(*blake3::hash(&value).as_bytes(), hash, "n{host} reads another value");
        Some(value)
    }

    pub(crate) fn arrive(&mut self, parcel: &Parcel) {
        if !self.arrives(parcel) {
            return;
        }
        let Parcel { from, to, bytes, .. } = parcel;
        let decoded = wire::decode(bytes).expect("what was encoded can be read");
        let mut message = decoded.message;
        let this = &mut self.hosts[*to];
        if let Body::Commits { commits, .. } = &mut message.body {
            for (carried, value) in commits.iter_mut().zip(decoded.values) {
                let commit = &mut carried.commit;
                if let CommitAction::Set { hash, .. } = commit.action {
                    match value {
                        Some(bytes) => assert_eq!(*blake3::hash(bytes).as_bytes(), hash),
                        None if this.disk.holds_file(&hash) => commit.location = Location::File,
                        None => {}
                    }
                }
                carried.ticket = this.take_ticket(value.unwrap_or_default().into());
            }
        }
        let from = self.hosts[*from].tag;
        let concludes = matches!(message.body, Body::Done { .. });
        self.act(*to, Event::Received { from, message });
        if concludes {
            self.judge_claims(*to);
        }
    }

    // --- what nodes do by themselves

    /// Renews the liveness view, lets the clock drift, fetches large values, and makes backups.
    pub(crate) fn look(&mut self, host: usize) {
        let wait = self.random.between(500, 1500);
        self.later(wait, Happening::Look(host));
        if !self.hosts[host].is_up() {
            return;
        }
        if self.hosts[host].clock_right {
            let drift = self.random.between(0, 11) as i64 - 5;
            let offset = self.hosts[host].offset + drift;
            self.hosts[host].offset = offset.clamp(-super::chaos::SKEW_MS, super::chaos::SKEW_MS);
        }
        let mut seen = BTreeSet::new();
        for peer in (0..self.hosts.len()).filter(|peer| *peer != host) {
            let there = &self.hosts[peer];
            let joined = self.hosts[host].connected && there.connected;
            let mut reached = joined && there.is_up() && self.network.is_open(host, peer);
            if joined && !self.calm && self.random.chance(4) {
                reached = !reached;
                self.count(Fault::WrongLiveness);
            }
            if reached {
                seen.insert(self.hosts[peer].tag);
            }
        }
        if seen != self.hosts[host].reachable {
            self.hosts[host].reachable = seen.clone();
            self.act(host, Event::Reachable(seen));
        }
        self.fetch(host);
        if self.random.chance(10) {
            let now = Timestamp(self.now);
            self.hosts[host].disk.copy(now);
        }
        self.judge_claims(host);
        self.judge_memory(host);
    }

    /// Fetches one large value at a time, from any node that has it.
    fn fetch(&mut self, host: usize) {
        let Some(machine) = self.hosts[host].machine() else { return };
        if self.hosts[host].fetching {
            return;
        }
        let mut absent = machine.replica().absent().keys().copied();
        let found = absent.find(|hash| {
            (0..self.hosts.len()).any(|peer| {
                let there = &self.hosts[peer];
                let reached = there.is_up() && self.network.is_open(host, peer);
                (peer == host || reached) && there.disk.holds_file(hash)
            })
        });
        if let Some(hash) = found {
            self.hosts[host].fetching = true;
            let life = self.hosts[host].life;
            let wait = self.delay(1, 300, 5000);
            self.later(wait, Happening::Fetched { host, life, hash });
        }
    }

    pub(crate) fn fetched(&mut self, host: usize, hash: [u8; 32]) {
        self.hosts[host].fetching = false;
        if !self.calm && self.random.chance(20) {
            return self.count(Fault::CutFetch);
        }
        self.hosts[host].disk.keep_file(hash);
        self.act(host, Event::Fetched(vec![hash]));
    }

    /// Writes what is dropped into a file that nobody replicates, then issues some of it anew.
    fn keep_aside(&mut self, host: usize, commits: &[Commit], anew: &[(Position, Arc<str>)]) {
        self.tell(|| format!("n{host} sets {} commits aside, {} anew", commits.len(), anew.len()));
        let limit = self.local(host);
        for commit in commits {
            let at = commit.at;
            let issued = anew.iter().any(|(anew, _)| *anew == at);
            // Older words on who is a member are of no use to anybody.
            let dropped = at.stamp.time() > limit || is_roster_key(&commit.key);
            // What the members of that time could not hear of is its writer's to bring back.
            let writers = at.node != self.hosts[host].tag && self.ledger.is_outside(at);
            if issued || dropped || writers {
                self.hosts[host].forgettable.insert(at);
            }
            if !issued && dropped {
                self.hosts[host].superseded.insert(at);
            }
        }
        let mut writes = Vec::new();
        for (at, key) in anew {
            let commit = commits.iter().find(|commit| commit.at == *at).expect("it is aside");
            let change = Change::again(commit);
            let value = self.value_of(host, commit).unwrap_or_default();
            let ticket = self.hosts[host].take_ticket(value);
            let key = key.parse().expect("a key that was one");
            writes.push((*at, Write { ticket, key, change, only_over: None }));
        }
        let life = self.hosts[host].life;
        let wait = self.delay(0, 10, 500);
        self.later(wait, Happening::Aside { host, life, writes });
    }

    pub(crate) fn set_aside(&mut self, host: usize, writes: Vec<(Position, Write)>) {
        self.tell(|| format!("n{host} issues {} commits anew", writes.len()));
        let this = &mut self.hosts[host];
        this.anew.extend(writes.iter().map(|(at, write)| (write.ticket, *at)));
        let writes = writes.into_iter().map(|(_, write)| write).collect();
        self.act(host, Event::SetAside { writes });
    }
}

fn shown(entries: &[BatchEntry]) -> String {
    let shown = entries.iter().map(|entry| match entry {
        BatchEntry::Commit { commit, .. } => format!("own {}", named(commit)),
        BatchEntry::Foreign { commit, origin, .. } => {
            format!("{} of {:?}", named(commit), origin.peer)
        }
        BatchEntry::Horizons(horizons) => {
            format!("S {} G {}", at(horizons.squash), at(horizons.garbage))
        }
        BatchEntry::Vector { promise, held } => format!("V {} {}", at(*promise), all(held)),
        BatchEntry::Copied { promise, held, .. } => {
            format!("copied {} {}", at(*promise), all(held))
        }
        BatchEntry::Forgotten { positions, clock } => {
            let positions: Vec<String> = positions.iter().map(|at| placed(*at)).collect();
            format!("forgot {} clock {}", positions.join(" "), at(*clock))
        }
        BatchEntry::Standing(standing) => {
            format!("in {:?} until {}", standing.cluster.0[0], at(standing.fresh_until))
        }
        other => format!("{other:?}"),
    });
    shown.collect::<Vec<_>>().join(", ")
}

pub(crate) fn named(commit: &Commit) -> String {
    let what = if commit.is_delete() { "del" } else { "set" };
    format!("{what} {} {}", commit.key, placed(commit.at))
}

fn at(stamp: Stamp) -> String {
    match stamp {
        Stamp(0) => "-".into(),
        Stamp(u64::MAX) => "ever".into(),
        stamp => placed(Position::start_of(stamp)),
    }
}

fn all(vector: &Vector) -> String {
    let shown = vector.iter().map(|(node, stamp)| format!("{node:?}{}", at(*stamp)));
    shown.collect::<Vec<_>>().join(" ")
}

fn greeting(hello: &Hello) -> String {
    let Hello { horizons, head, count, acks, fresh, .. } = hello;
    let (squash, garbage) = (at(horizons.squash), at(horizons.garbage));
    let fresh = if *fresh { "fresh" } else { "" };
    format!("S {squash} G {garbage} A {} {count}:{} {fresh}", all(acks), &head.to_string()[..4])
}

/// Formats a position in seconds of the world's time.
pub(crate) fn placed(at: Position) -> String {
    let ms = at.stamp.time().0 as i64 - super::world::EPOCH as i64;
    format!("@{:.3}.{}{:?}", ms as f64 / 1000.0, at.stamp.counter(), at.node)
}

fn told(message: &Message) -> String {
    let session = message.session % 10_000;
    match &message.body {
        Body::Open { hello, .. } => format!("[{session}] open {}", greeting(hello)),
        Body::Opened { hello, answers } => {
            format!("[{session}] opened {} {}", answers.is_some(), greeting(hello))
        }
        Body::CopyFrom { hello } => format!("[{session}] copy from {}", greeting(hello)),
        Body::Copying { hello } => format!("[{session}] copying {}", greeting(hello)),
        Body::Done { vector } => format!("[{session}] done {}", all(vector)),
        Body::Copied { vector, .. } => format!("[{session}] copied {}", all(vector)),
        Body::Compare(summaries) => format!("[{session}] compare {}", summaries.len()),
        Body::Answers(answers) => format!("[{session}] answers {}", answers.len()),
        Body::Commits { batch, commits } => {
            let names: Vec<String> = commits.iter().map(|c| named(&c.commit)).collect();
            format!("[{session}] commits {batch}: {}", names.join(", "))
        }
        other => format!("[{session}] {other:?}"),
    }
}
