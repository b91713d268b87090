//! What users and operators do: write and delete, squash, let nodes join, remove them, look after
//! alarms; and the course of one history, from the founding to the quiet at its end.

use std::collections::BTreeSet;

use model::{Key, NodeId, Timestamp};
use store::event::{Alarm, Event};
use store::{Change, Expiry, NodeTag, Stamp, Write};

use super::fault::Fault;
use super::world::{CLUSTER, EPOCH, Happening, World};

/// Quarantines of ten seconds, sessions that stall for ten, copies and vectors of thirty.
const QUIET_MS_MAX: u64 = 300_000;
/// Three rounds of vectors after the roster changed, and one more to collect.
const COLLECT_MS_MAX: u64 = 400_000;
const ROUND_MS: u64 = 1000;
/// One of so many histories goes on until its garbage is collected.
const COLLECTED_OF: u64 = 6;

pub(crate) fn roster_key(host: usize) -> Key {
    format!("cluster::nodes::n{host}").parse().expect("a valid key")
}

/// Whose entry on the roster this is.
pub(crate) fn listed(key: &str) -> Option<NodeTag> {
    let node: NodeId = key.strip_prefix("cluster::nodes::")?.parse().ok()?;
    Some(NodeTag::from(&node))
}

/// One history.
pub fn live(world: &mut World) {
    world.found();
    let end = EPOCH + world.climate.length_ms;
    world.run_until(end);
    world.calm_down();
    let members = world.until_converged(QUIET_MS_MAX);
    world.judge_end(&members);
    if world.random.between(0, COLLECTED_OF) == 0 {
        world.until_collected(&members);
    }
}

impl World {
    /// Nothing goes wrong before there is something.
    fn found(&mut self) {
        self.calm = true;
        self.hosts[0].connected = true;
        for host in 0..self.hosts.len() {
            let skew = super::chaos::SKEW_MS as u64;
            self.hosts[host].offset = self.random.between(0, 2 * skew + 1) as i64 - skew as i64;
            self.start(host);
        }
        self.set(0, roster_key(0));
        let later = if self.climate.members { self.hosts.len() / 2 } else { 0 };
        for host in 1..self.hosts.len() - later {
            self.run_until(self.now + 50);
            self.invite(host);
        }
        self.run_until(self.now + 500);
        self.calm = false;
        let wait = self.random.between(0, 3000);
        self.later(wait, Happening::Chaos);
        let wait = self.random.between(0, 500);
        self.later(wait, Happening::Operate);
    }

    // --- writes

    fn bytes(&mut self) -> Vec<u8> {
        self.random.draw().to_le_bytes().to_vec()
    }

    fn set(&mut self, host: usize, key: Key) {
        let value = self.bytes();
        let hash = *blake3::hash(&value).as_bytes();
        let size = value.len() as u64;
        let change = Change::SetInline { hash, sha1: [1; 20], size, expires: None };
        self.write(host, key, change, value);
    }

    fn write(&mut self, host: usize, key: Key, change: Change, value: Vec<u8>) {
        if !self.hosts[host].is_up() {
            return;
        }
        let ticket = self.hosts[host].take_ticket(value);
        self.act(host, Event::Write(vec![Write { ticket, key, change, only_over: None }]));
    }

    /// One write of a user, somewhere.
    pub(crate) fn operate(&mut self) {
        if self.calm {
            return;
        }
        let every = self.climate.write_every;
        let wait = self.random.between(1, 2 * every);
        self.later(wait, Happening::Operate);
        let host = self.any_host();
        let key = self.random.between(0, self.climate.keys);
        let key: Key = format!("k::{key}").parse().expect("a valid key");
        let kind = self.random.between(0, 100);
        if kind < 30 {
            return self.write(host, key, Change::Delete, Vec::new());
        }
        if kind < 90 {
            return self.set(host, key);
        }
        let value = self.bytes();
        let hash = *blake3::hash(&value).as_bytes();
        if kind < 94 {
            if self.hosts[host].is_up() {
                self.count(Fault::LargeValue);
                self.hosts[host].disk.keep_file(hash);
            }
            let change = Change::SetFile { hash, sha1: [1; 20], size: 100_000, expires: None };
            return self.write(host, key, change, Vec::new());
        }
        let lasts = self.random.between(10, 20_000);
        let expires = Some(Expiry::at(Timestamp(self.local(host).0 + lasts)));
        let change = Change::SetInline { hash, sha1: [1; 20], size: value.len() as u64, expires };
        self.write(host, key, change, value);
    }

    pub(crate) fn any_host(&mut self) -> usize {
        let count = self.hosts.len() as u64;
        self.random.between(0, count) as usize
    }

    // --- members

    /// A running member that knows what it says.
    pub(crate) fn sound_member(&mut self) -> Option<usize> {
        let sound = |host: &usize| self.hosts[*host].is_up() && self.hosts[*host].is_sound(*host);
        let mut sound: Vec<usize> = (0..self.hosts.len()).filter(sound).collect();
        if sound.is_empty() {
            // One that waits for members that are gone is better than none.
            sound = (0..self.hosts.len()).filter(|host| self.hosts[*host].is_member()).collect();
        }
        let index = self.random.between(0, sound.len() as u64) as usize;
        sound.get(index).copied()
    }

    /// Puts a node on the roster and tells it to join.
    pub(crate) fn invite(&mut self, host: usize) {
        let Some(member) = self.sound_member().filter(|member| *member != host) else { return };
        self.tell(|| format!("n{member} lets n{host} join"));
        self.count(if self.hosts[host].was_evicted { Fault::Rejoin } else { Fault::Join });
        if !self.hosts[host].connected && !self.hosts[host].replica().history().is_empty() {
            self.count(Fault::JoinWithPast);
        }
        self.hosts[host].connected = true;
        self.hosts[host].joining = true;
        // Whoever joins again is another member than before.
        self.write(member, roster_key(host), Change::Delete, Vec::new());
        self.set(member, roster_key(host));
        let wait = self.delay(10, 500, 3000);
        self.later(wait, Happening::Join(host));
    }

    pub(crate) fn join(&mut self, host: usize) {
        if self.hosts[host].is_up() && self.hosts[host].joining {
            self.tell(|| format!("n{host} joins"));
            self.hosts[host].alarms.clear();
            self.act(host, Event::Join { cluster: CLUSTER });
        }
    }

    pub(crate) fn evict(&mut self, host: usize) {
        let others = (0..self.hosts.len()).filter(|other| *other != host);
        let sound: Vec<usize> =
            others.filter(|other| self.hosts[*other].is_sound(*other)).collect();
        let up: Vec<usize> =
            sound.iter().copied().filter(|other| self.hosts[*other].is_up()).collect();
        let index = self.random.between(0, up.len() as u64) as usize;
        if let Some(member) = up.get(index).copied()
            && self.hosts[host].connected
            && !self.hosts[host].evicted
        {
            self.tell(|| format!("n{member} removes n{host}"));
            self.count(Fault::Eviction);
            self.write(member, roster_key(host), Change::Delete, Vec::new());
        }
    }

    /// An operator squashes nearly everything that a node's clock has seen.
    pub(crate) fn squash(&mut self, host: usize) {
        if !self.hosts[host].is_up() || !self.hosts[host].clock_right {
            return;
        }
        self.count(Fault::Squash);
        let age = self.random.between(0, 10_000);
        let before = Timestamp(self.local(host).0.saturating_sub(age));
        self.act(host, Event::Squash { before });
    }

    // --- the end

    fn calm_down(&mut self) {
        self.tell(|| "calm".into());
        self.calm = true;
        self.network.blocked.clear();
        self.network.forget_remembered();
        for host in 0..self.hosts.len() {
            if !self.hosts[host].clock_right {
                if self.hosts[host].is_up() {
                    self.stop(host, true);
                }
                self.mend_clock(host);
            }
            self.start(host);
        }
    }

    /// Operators look after alarms until everybody agrees.
    fn until_converged(&mut self, at_most: u64) -> Vec<usize> {
        let end = self.now + at_most;
        loop {
            self.run_until(self.now + ROUND_MS);
            self.look_after_alarms();
            match self.converged() {
                Ok(members) => return members,
                Err(problem) => {
                    assert!(self.now < end, "no agreement: {problem}");
                }
            }
        }
    }

    pub(crate) fn look_after_alarms(&mut self) {
        let Some(member) = self.sound_member() else { return };
        let roster = self.roster_of(member);
        for host in (0..self.hosts.len()).filter(|host| *host != member) {
            let Some(machine) = self.hosts[host].machine() else { continue };
            let joins = machine.sync().standing().fresh_until == Stamp(u64::MAX);
            let other = machine.sync().standing().cluster != CLUSTER;
            let listed = roster.contains(&self.hosts[host].tag);
            let alarms: &BTreeSet<Alarm> = &self.hosts[host].alarms;
            let stuck = alarms.contains(&Alarm::Behind) || alarms.contains(&Alarm::Evicted);
            if self.hosts[host].clock_right && machine.doubt().is_some() {
                self.trust_clock(host);
            }
            if self.hosts[host].joining || !self.hosts[host].connected && !self.calm {
                continue;
            }
            let unlisted = (joins || self.calm) && !listed && !self.hosts[host].evicted;
            let unlisted = unlisted && self.hosts[host].connected;
            if unlisted || listed && !joins && (stuck || other) {
                self.invite(host);
            }
        }
    }

    pub(crate) fn trust_clock(&mut self, host: usize) {
        self.tell(|| format!("n{host}: its clock is right"));
        self.count(Fault::TrustedClock);
        self.act(host, Event::TrustClock);
    }

    /// Deletes go everywhere once everybody has them, and nothing else does.
    fn until_collected(&mut self, members: &[usize]) {
        let Some(first) = members.first().copied() else { return };
        let before = self.contents(first);
        let newest = self.hosts[first].replica().history().last().map(|commit| commit.at.stamp);
        let newest = newest.unwrap_or_default();
        if newest.time().0 > self.now + ROUND_MS {
            // A node that is alone goes on from where its clock was, until that time comes.
            return;
        }
        let end = self.now + COLLECT_MS_MAX;
        let behind = |world: &World| {
            let of = |member: &usize| world.hosts[*member].replica().horizons().garbage;
            members.iter().map(of).min().unwrap_or_default() < newest
        };
        while behind(self) {
            assert!(self.now < end, "garbage is not collected");
            self.run_until(self.now + 10 * ROUND_MS);
            members.iter().for_each(|member| self.squash(*member));
        }
        let members = self.until_converged(QUIET_MS_MAX);
        self.judge_end(&members);
        assert_eq!(self.contents(first), before, "collecting garbage changed what is read");
        let replica = self.hosts[first].replica();
        let deletes = replica.history().iter().filter(|commit| commit.is_delete()).count();
        assert_eq!(deletes, 0, "deletes stay for ever");
    }
}
