//! The judge: what must hold among nodes whatever goes wrong.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::time::CLOCK_AHEAD_MAX_MS;
use store_core::event::{Alarm, BatchEntry, Standing};
use store_core::sync::members::is_roster_key;
use store_core::sync::message::{Body, Message, SessionRefusal, Vector};
use store_core::{Commit, NodeTag, Position, Stamp};

use super::chaos::SKEW_MS;
use super::host::{Host, State};
use super::ledger::{Gone, Ledger};
use super::shell::{named, placed};
use super::world::{CLUSTER, World};

/// The most values that a node's machine has not released: the waiting, the parked and some
/// batches.
const VALUES_MAX: usize = 4096;

impl World {
    fn standing(&self, host: usize) -> Standing {
        self.hosts[host].standing()
    }

    /// Returns whether the cluster cannot hear of what this node writes.
    fn is_outside(&self, host: usize) -> bool {
        let this = &self.hosts[host];
        this.evicted || this.joining || self.standing(host).cluster != CLUSTER
    }

    /// Judges a batch that is about to be written.
    pub(crate) fn judge_batch(&mut self, host: usize, entries: &[BatchEntry]) {
        let this = &self.hosts[host];
        let limit = self.now + CLOCK_AHEAD_MAX_MS + SKEW_MS as u64;
        for entry in entries {
            let BatchEntry::Foreign { commit, origin, .. } = entry else { continue };
            assert!(self.ledger.knows(commit), "{} came from nowhere", named(commit));
            let ahead = commit.at.stamp.time().0 > limit;
            assert!(
                !(ahead && this.clock_right),
                "n{host} takes {} of {:?} ahead of its time",
                named(commit),
                origin.peer
            );
        }
    }

    /// Notes entries that can be lost no more, unless the disk is. Returns true if the roster is to
    /// be read again once the node holds them.
    pub(crate) fn durable(&mut self, host: usize, entries: &[BatchEntry]) -> bool {
        let outside = self.is_outside(host);
        let mut roster = false;
        for entry in entries {
            match entry {
                BatchEntry::Commit { ticket, commit } => {
                    let removed = commit.is_delete().then(|| super::operator::listed(&commit.key));
                    if let Some(gone) = removed.flatten().and_then(|tag| self.index_of(tag)) {
                        self.hosts[gone].was_evicted = true;
                    }
                    if let Some(new) = self.entered(commit) {
                        self.hosts[new].invited = Some(commit.at.stamp);
                    }
                    self.ledger.accept(commit, outside);
                    if let Some(replaced) = self.hosts[host].anew.get(ticket) {
                        self.ledger.replaced(*replaced);
                    }
                    roster |= is_roster_key(&commit.key);
                }
                BatchEntry::Foreign { commit, .. } if self.hosts[host].cluster == CLUSTER => {
                    roster |= self.ledger.found(commit.at) && is_roster_key(&commit.key);
                }
                BatchEntry::Standing(standing) => {
                    if standing.cluster != self.hosts[host].cluster {
                        // Another cluster has another truth.
                        let mut ledger = std::mem::take(&mut self.ledger);
                        ledger.leave_behind(self.hosts[host].tag, self.hosts[host].replica());
                        self.ledger = ledger;
                        self.hosts[host].cluster = standing.cluster;
                        self.hosts[host].shown.clear();
                    }
                    let this = &mut self.hosts[host];
                    let heard = this.invited.is_some_and(|invited| standing.listed >= invited);
                    this.joining &= !(heard && standing.cluster == CLUSTER);
                }
                BatchEntry::Forgotten { positions, .. } => {
                    let this = &mut self.hosts[host];
                    let superseded = positions.iter().filter(|at| this.superseded.contains(at));
                    superseded.for_each(|at| self.ledger.replaced(*at));
                    for at in positions.iter().filter(|at| this.forgettable.contains(at)) {
                        this.shown.values_mut().for_each(|shown| _ = shown.remove(at));
                    }
                }
                _ => {}
            }
        }
        roster
    }

    /// Returns the node that was waiting for this entry on the roster.
    fn entered(&self, commit: &Commit) -> Option<usize> {
        let listed = super::operator::listed(&commit.key).filter(|_| !commit.is_delete());
        let host = self.index_of(listed?)?;
        self.hosts[host].joining.then_some(host)
    }

    /// Learns from the newest entries of the roster which nodes were removed.
    pub(crate) fn read_roster(&mut self) {
        let mut removed = false;
        for host in 0..self.hosts.len() {
            let key = super::operator::roster_key(host);
            let newest = self.ledger.newest_of(key.as_str());
            let evicted = newest.is_some_and(|ended| ended);
            removed |= evicted && !self.hosts[host].evicted;
            self.hosts[host].evicted = evicted;
            self.hosts[host].was_evicted |= evicted;
        }
        if removed {
            self.reassess(Gone::Member);
        }
    }

    /// Judges anew what members had, after a disk or a member is gone.
    pub(crate) fn reassess(&mut self, gone: Gone) {
        let mut ledger = std::mem::take(&mut self.ledger);
        let inside = self.hosts.iter().filter(|host| host.cluster == CLUSTER && !host.joining);
        let inside: Vec<&Host> = inside.collect();
        // Nobody hears what a node says that is on no other node's roster.
        let alone = inside.len() == 1;
        let known = |host: &&Host| {
            let mut others = inside.iter().filter(|other| other.tag != host.tag);
            alone || gone == Gone::Member || others.any(|other| other.lists(host))
        };
        let (hosts, unheard): (Vec<_>, Vec<_>) = inside.iter().copied().partition(known);
        // A disk that is gone may have been the last one that knew of a removal.
        let members = || inside.iter().filter(|host| !host.evicted);
        let told = |host: &Host| gone == Gone::Member || members().any(|other| !other.lists(host));
        let is_removed = |host: &&Host| host.evicted && told(host);
        let (removed, staying): (Vec<_>, Vec<_>) = hosts.iter().copied().partition(is_removed);
        // What a clock that is ahead has stamped will be stamped anew, and covers nothing.
        let limit = self.now + 2 * CLOCK_AHEAD_MAX_MS;
        let held_by = |hosts: &[&Host], ledger: &Ledger, key: &str, at: Position| {
            hosts.iter().any(|host| {
                let newest = host.replica().newest(key).map(|commit| commit.at.stamp.time().0);
                // What was written by a node that is no member, any more or yet, covers nothing
                // that members hold.
                let joins = host.standing().fresh_until == Stamp(u64::MAX);
                let covers = !host.evicted && !joins && newest.is_none_or(|newest| newest <= limit);
                holds(host, at) || covers && ledger.covers(host.replica(), key, at)
            })
        };
        let fate = |ledger: &Ledger, key: &str, at: Position| {
            if held_by(&staying, ledger, key, at) {
                return None;
            }
            // A node that was removed gives nothing to anybody; it brings what it wrote itself.
            let writer = removed.iter().find(|host| host.tag == at.node);
            let brought = writer.is_some_and(|host| ledger.covers(host.replica(), key, at));
            Some(if brought { Gone::Member } else { Gone::Disk })
        };
        ledger.reassess(&fate);
        if gone == Gone::Disk {
            ledger.bury(&|ledger, key, at| held_by(&hosts, ledger, key, at));
        }
        ledger.excuse(&|at| unheard.iter().chain(&removed).any(|host| holds(host, at)));
        self.ledger = ledger;
    }

    /// Judges everything that can be seen of a node.
    pub(crate) fn judge_host(&mut self, host: usize) {
        self.judge_shown(host);
        self.judge_claims(host);
        let garbage = self.hosts[host].replica().horizons().garbage;
        if self.hosts[host].garbage != garbage {
            self.hosts[host].garbage = garbage;
            self.judge_garbage(host, garbage);
        }
    }

    /// Asserts that a key never shows an older commit than one it has shown.
    fn judge_shown(&mut self, host: usize) {
        let this = &mut self.hosts[host];
        let (replica, shown) = match &this.state {
            State::Up(machine) => (machine.replica(), &mut this.shown),
            State::Down(past) => (&past.replica, &mut this.shown),
        };
        let garbage = replica.horizons().garbage;
        for key in self.ledger.keys.keys() {
            let floor = shown.get(key).and_then(|shown| shown.last().copied());
            let now = match replica.newest(key) {
                Some(commit) if this.forgettable.contains(&commit.at) => continue,
                Some(commit) => Some(commit.at),
                None => {
                    let Some(floor) = floor else { continue };
                    let ended = self.ledger.ended(key, floor, garbage);
                    assert!(ended.is_some(), "n{host} shows no {key} after {}", placed(floor));
                    ended
                }
            };
            let Some(at) = now else { continue };
            if let Some(floor) = floor {
                let (is, was) = (placed(at), placed(floor));
                assert!(at >= floor, "n{host} shows {key} {is} after {was}: it came back");
            }
            if floor != Some(at) {
                shown.entry(key.clone()).or_default().insert(at);
            }
        }
    }

    /// Asserts that a node holds what it says it holds of each node.
    pub(crate) fn judge_claims(&mut self, host: usize) {
        let this = &mut self.hosts[host];
        let claims: Vector = match &this.state {
            State::Up(machine) => {
                let members = machine.sync().members();
                let fresh = machine.sync().standing().fresh_until > members.told();
                if this.impaired.is_some_and(|told| !fresh && members.told() >= told) {
                    this.impaired = None;
                }
                this.told = this.told.max(members.told());
                members.vector()
            }
            State::Down(past) => past.held.clone(),
        };
        // A node that joins has told nothing yet.
        let standing = self.standing(host);
        let joins = standing.fresh_until == Stamp(u64::MAX);
        // A copy's vector comes before the horizons that it rests on; nobody is told meanwhile.
        let copies = self.hosts[host].machine().is_some_and(|machine| machine.is_copying());
        if standing.cluster != CLUSTER || self.hosts[host].evicted || joins || copies {
            return;
        }
        let replica = self.hosts[host].replica();
        for (origin, until) in claims {
            // What a member issued before it was put on the roster anew is no part of a claim.
            let machine = self.hosts[host].machine();
            let since = machine.and_then(|machine| machine.sync().members().since(origin));
            let since = since.unwrap_or_default();
            if let Some((key, at)) = self.ledger.uncovered(replica, origin, since, until) {
                let until = placed(Position { stamp: until, node: origin });
                panic!("n{host} claims everything up to {until}, and has not {key} {}", placed(at));
            }
        }
    }

    /// Asserts, for a node that collects garbage up to a stamp, that every member holds what any
    /// member holds up to it.
    fn judge_garbage(&self, host: usize, garbage: Stamp) {
        let Some(machine) = self.hosts[host].machine() else { return };
        let roster: BTreeSet<NodeTag> = machine.sync().members().roster();
        let in_cluster = |other: &usize| {
            roster.contains(&self.hosts[*other].tag) && self.standing(*other).cluster == CLUSTER
        };
        let members: Vec<usize> = (0..self.hosts.len()).filter(in_cluster).collect();
        for holder in &members {
            let this = &self.hosts[*holder];
            // By the entry that is known it has still to join, and all it holds is in doubt.
            let since = machine.sync().members().since(this.tag);
            let awaited = this.joining && this.invited.is_some() && since >= this.invited;
            if awaited || self.standing(*holder).fresh_until == Stamp(u64::MAX) {
                continue;
            }
            let history = this.replica().history();
            for commit in history.iter().take_while(|commit| commit.at.stamp <= garbage) {
                for other in &members {
                    let there = &self.hosts[*other];
                    let settled = there.impaired.is_none() && !self.is_fresh(*other);
                    let covered = || self.ledger.covers(there.replica(), &commit.key, commit.at);
                    assert!(
                        !settled || covered(),
                        "n{host} collects up to {}, and n{other} has not {}, which n{holder} has",
                        placed(Position::start_of(garbage)),
                        named(commit)
                    );
                }
            }
        }
    }

    pub(crate) fn is_fresh(&self, host: usize) -> bool {
        match &self.hosts[host].state {
            State::Up(machine) => {
                let sync = machine.sync();
                sync.standing().fresh_until > sync.members().told()
            }
            State::Down(past) => {
                let least = past.held.values().min().copied().unwrap_or_default();
                past.standing.fresh_until > least.min(past.clock)
            }
        }
    }

    pub(crate) fn judge_message(&self, host: usize, message: &Message) {
        if let Body::Refused(refusal) = &message.body {
            let never =
                matches!(refusal, SessionRefusal::BelowGarbage | SessionRefusal::ValueMismatch);
            assert!(!never, "n{host} refuses: {refusal}");
            let conflict = *refusal == SessionRefusal::Conflict;
            assert!(!conflict || self.has_lost_disks, "n{host} refuses: {refusal}");
        }
    }

    pub(crate) fn judge_alarm(&self, host: usize, alarm: &Alarm) {
        let lost = self.has_lost_disks;
        let allowed = match alarm {
            Alarm::Conflict { .. } | Alarm::LostPast { .. } => lost,
            Alarm::Behind => lost || self.hosts[host].was_evicted,
            Alarm::Evicted => self.hosts[host].was_evicted,
            Alarm::Quarantined { .. } | Alarm::Unlisted { .. } | Alarm::Stranger { .. } => true,
        };
        assert!(allowed, "n{host} alarms for no reason: {alarm}");
    }

    pub(crate) fn judge_memory(&self, host: usize) {
        let this = &self.hosts[host];
        assert!(this.values.len() <= VALUES_MAX, "n{host} keeps {} values", this.values.len());
    }

    // --- when all is quiet

    /// Returns the members on which all agree; an error while a node sees it otherwise, or has not
    /// caught up.
    pub(crate) fn converged(&self) -> Result<Vec<usize>, String> {
        let reference = (0..self.hosts.len())
            .find(|host| {
                let this = &self.hosts[*host];
                this.connected && !this.evicted && self.is_member(*host)
            })
            .ok_or("nobody is a member")?;
        let roster = self.roster_of(reference);
        let members: Vec<usize> =
            (0..self.hosts.len()).filter(|host| roster.contains(&self.hosts[*host].tag)).collect();
        let replica = self.hosts[reference].replica();
        let (head, horizons) = (replica.history().head(), replica.horizons());
        for member in &members {
            let this = &self.hosts[*member];
            let Some(machine) = this.machine() else { return Err(format!("n{member} is down")) };
            let replica = machine.replica();
            let same = replica.history().head() == head && replica.horizons() == horizons;
            let problem = match () {
                () if machine.sync().standing().cluster != CLUSTER => "has not joined",
                () if machine.sync().standing().fresh_until == Stamp(u64::MAX) => "joins",
                () if !same => "holds something else",
                () if self.lacks_file(*member, &members) => "lacks a large value",
                () if machine.doubt().is_some() => "doubts its clock",
                () if !this.values.is_empty() => "waits for its writes",
                () => continue,
            };
            return Err(format!("n{member} {problem} (by n{reference})"));
        }
        Ok(members)
    }

    /// Returns whether a node lacks a large value that a member still has; other values may be gone
    /// with the disks of those that wrote them.
    fn lacks_file(&self, host: usize, members: &[usize]) -> bool {
        let mut absent = self.hosts[host].replica().absent().keys();
        absent.any(|hash| members.iter().any(|other| self.hosts[*other].disk.holds_file(hash)))
    }

    pub(crate) fn roster_of(&self, host: usize) -> BTreeSet<NodeTag> {
        let machine = self.hosts[host].machine();
        machine.map(|machine| machine.sync().members().roster()).unwrap_or_default()
    }

    fn is_member(&self, host: usize) -> bool {
        let standing = self.standing(host);
        standing.cluster == CLUSTER
            && standing.fresh_until != Stamp(u64::MAX)
            && self.roster_of(host).contains(&self.hosts[host].tag)
    }

    /// Asserts that nothing that counted was lost, and that every value can be read.
    pub(crate) fn judge_end(&self, members: &[usize]) {
        let is_member = |tag: NodeTag| members.iter().any(|m| self.hosts[*m].tag == tag);
        let Some(first) = members.first() else { return };
        let replica = self.hosts[*first].replica();
        for (key, at) in self.ledger.required(&is_member) {
            assert!(
                self.ledger.covers(replica, key, at),
                "lost: {key} {}; the newest is {:?}",
                placed(at),
                replica.newest(key).map(named)
            );
        }
        for member in members {
            let replica = self.hosts[*member].replica();
            replica.check_invariants();
            for commit in replica.history().iter() {
                assert!(self.ledger.knows(commit), "{} came from nowhere", named(commit));
                self.value_of(*member, commit);
            }
        }
    }

    /// Returns what everybody reads, to be compared with later.
    pub(crate) fn contents(&self, host: usize) -> Vec<(Arc<str>, Position)> {
        let replica = self.hosts[host].replica();
        let winners = replica.winners(&model::Prefix::all());
        // A node that has to join again is put on the roster anew.
        let users = winners.into_iter().filter(|commit| !is_roster_key(&commit.key));
        let live = users.filter(|commit| !commit.is_delete());
        let lasting = live.filter(|commit| commit.expires().is_none());
        lasting.map(|commit| (commit.key.clone(), commit.at)).collect()
    }
}

fn holds(host: &Host, at: Position) -> bool {
    host.replica().history().get(at).is_some()
}
