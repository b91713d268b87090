//! Users and operators: they write and delete, squash, let nodes join, remove them, look after
//! alarms.

use std::collections::BTreeSet;

use model::{Key, NodeId, Timestamp};
use store_core::event::{Alarm, Event};
use store_core::{Change, Expiry, NodeTag, Stamp, Write};

use super::fault::Fault;
use super::host::Host;
use super::world::{CLUSTER, Happening, World};

pub(crate) fn roster_key(host: usize) -> Key {
    format!("cluster::nodes::n{host}").parse().expect("a valid key")
}

/// Returns the node whose entry on the roster this is.
pub(crate) fn listed(key: &str) -> Option<NodeTag> {
    let node: NodeId = key.strip_prefix("cluster::nodes::")?.parse().ok()?;
    Some(NodeTag::from(&node))
}

impl World {
    fn bytes(&mut self) -> Vec<u8> {
        self.random.draw().to_le_bytes().to_vec()
    }

    pub(crate) fn set(&mut self, host: usize, key: Key) {
        let value = self.bytes();
        let hash = *blake3::hash(&value).as_bytes();
        let size = value.len() as u64;
        let change = Change::SetInline { hash, sha1: [1; 20], size, expires: None };
        self.write(host, key, change, value);
    }

    pub(crate) fn write(&mut self, host: usize, key: Key, change: Change, value: Vec<u8>) {
        if !self.hosts[host].is_up() {
            return;
        }
        let ticket = self.hosts[host].take_ticket(value);
        self.act(host, Event::Write(vec![Write { ticket, key, change, only_over: None }]));
    }

    /// Performs one write of a user, somewhere.
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

    /// Returns a running member that knows what it says.
    pub(crate) fn sound_member(&mut self) -> Option<usize> {
        let sound = |host: &usize| self.hosts[*host].is_up() && self.hosts[*host].is_sound(*host);
        let mut sound: Vec<usize> = (0..self.hosts.len()).filter(sound).collect();
        if sound.is_empty() {
            // A node that waits for members that are gone is better than none.
            sound = (0..self.hosts.len()).filter(|host| self.hosts[*host].is_member()).collect();
        }
        let index = self.random.between(0, sound.len() as u64) as usize;
        sound.get(index).copied()
    }

    /// Puts a node on the roster and tells it to join.
    pub(crate) fn invite(&mut self, host: usize) {
        if let Some(member) = self.sound_member().filter(|member| *member != host) {
            self.invite_by(member, host);
        }
    }

    pub(crate) fn invite_by(&mut self, member: usize, host: usize) {
        self.tell(|| format!("n{member} lets n{host} join"));
        self.count(if self.hosts[host].was_evicted { Fault::Rejoin } else { Fault::Join });
        if !self.hosts[host].connected && !self.hosts[host].replica().history().is_empty() {
            self.count(Fault::JoinWithPast);
        }
        self.hosts[host].connected = true;
        self.hosts[host].joining = true;
        self.hosts[host].invited = None;
        // A node that joins again is another member than before.
        self.write(member, roster_key(host), Change::Delete, Vec::new());
        self.set(member, roster_key(host));
        let wait = self.delay(10, 500, 3000);
        self.later(wait, Happening::Join(host));
    }

    pub(crate) fn join(&mut self, host: usize) {
        if !self.hosts[host].is_up() || !self.hosts[host].joining {
            return;
        }
        let Some(listed) = self.hosts[host].invited else {
            // The member that let it in failed before the roster had it, so there was no answer.
            self.tell(|| format!("n{host} is not let in"));
            self.hosts[host].joining = false;
            // It waits for what an earlier invitation has promised, if there is one.
            let standing = self.hosts[host].machine().map(|machine| machine.sync().standing());
            self.hosts[host].invited = standing.map(|standing| standing.listed);
            self.hosts[host].connected = self.hosts[host].cluster == CLUSTER;
            return;
        };
        self.tell(|| format!("n{host} joins"));
        self.hosts[host].alarms.clear();
        self.act(host, Event::Join { cluster: CLUSTER, listed });
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
            self.evict_by(member, host);
        }
    }

    pub(crate) fn evict_by(&mut self, member: usize, host: usize) {
        self.tell(|| format!("n{member} removes n{host}"));
        self.count(Fault::Eviction);
        self.write(member, roster_key(host), Change::Delete, Vec::new());
    }

    /// Squashes nearly everything that a node's clock has seen, as an operator does.
    pub(crate) fn squash(&mut self, host: usize) {
        if !self.hosts[host].is_up() || !self.hosts[host].clock_right {
            return;
        }
        self.count(Fault::Squash);
        let age = self.random.between(0, 10_000);
        let before = Timestamp(self.local(host).0.saturating_sub(age));
        self.act(host, Event::Squash { before });
    }

    // --- alarms

    pub(crate) fn look_after_alarms(&mut self) {
        let doubts = |host: &Host| host.machine().is_some_and(|machine| machine.doubt().is_some());
        for host in 0..self.hosts.len() {
            if self.hosts[host].clock_right && doubts(&self.hosts[host]) {
                self.trust_clock(host);
            }
        }
        let Some(member) = self.sound_member() else { return };
        for host in (0..self.hosts.len()).filter(|host| *host != member) {
            let Some(machine) = self.hosts[host].machine() else { continue };
            let joins = machine.sync().standing().fresh_until == Stamp(u64::MAX);
            let other = machine.sync().standing().cluster != CLUSTER;
            // A disk may have taken the newest entry with it; what is left is of an earlier stay.
            let since = self.hosts[member]
                .machine()
                .and_then(|machine| machine.sync().members().since(self.hosts[host].tag));
            let listed = since.is_some_and(|since| {
                !joins || self.hosts[host].invited.is_none_or(|invited| invited <= since)
            });
            let alarms: &BTreeSet<Alarm> = &self.hosts[host].alarms;
            let stuck = alarms.contains(&Alarm::Behind) || alarms.contains(&Alarm::Evicted);
            if self.hosts[host].joining || !self.hosts[host].connected && !self.calm {
                continue;
            }
            // Its disk is from before the other one was there, which it has refused since, and it
            // says so.
            let strange = alarms.iter().any(|alarm| matches!(alarm, Alarm::Stranger { .. }));
            let refuses = self.calm && strange && !self.hosts[host].lists(&self.hosts[member]);
            let unlisted = (joins || self.calm) && !listed && !self.hosts[host].evicted;
            let unlisted = unlisted && self.hosts[host].connected;
            if unlisted || listed && !joins && (stuck || other || refuses) {
                self.invite(host);
            }
        }
    }

    pub(crate) fn trust_clock(&mut self, host: usize) {
        self.tell(|| format!("n{host}: its clock is right"));
        self.count(Fault::TrustedClock);
        self.act(host, Event::TrustClock);
    }
}
