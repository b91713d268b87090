//! The members of the cluster, what each is known to hold, and how far garbage may be collected.
//! The roster is data; who can be reached plays no part here, as a dead member may come back.

use std::collections::{BTreeMap, BTreeSet};

use model::key::SEPARATOR;
use model::{NodeId, Prefix, Timestamp};

use crate::clock::Stamp;
use crate::commit::{Commit, NodeTag};
use crate::mutants;
use crate::replica::Replica;
use crate::sync::message::Vector;
use model::time::CLOCK_AHEAD_MAX_MS;

const ROSTER: [&str; 2] = ["cluster", "nodes"];
/// Rounds in which everybody must have heard from everybody after the roster changed: once to know
/// the change, once to know what others held of it, once for changes that crossed.
const ROUNDS: u8 = 3;
/// The time in milliseconds by which a round's barrier lies ahead, so that every clock has passed
/// the stamp at which the round was decided.
const ROUND_AHEAD_MS: u64 = 2 * CLOCK_AHEAD_MAX_MS;

pub fn is_roster_key(key: &str) -> bool {
    member_of(key).is_some()
}

/// Returns the member whose entry on the roster has this key.
pub(crate) fn member_of(key: &str) -> Option<NodeTag> {
    // Nearly every key ends here.
    if !key.starts_with(ROSTER[0]) {
        return None;
    }
    let mut tokens = key.split(SEPARATOR);
    let node = match (tokens.next()?, tokens.next()?, tokens.next()?, tokens.next()) {
        (cluster, nodes, node, None) if [cluster, nodes] == ROSTER => node,
        _ => return None,
    };
    node.parse::<NodeId>().ok().map(|node| NodeTag::from(&node))
}

/// The state after a change of the roster: nothing is collected until everybody knows it and has
/// passed on what it took from the old members.
#[derive(Clone, Copy, Debug)]
struct Settling {
    rounds: u8,
    barrier: Stamp,
}

pub struct KnownMembers {
    node: NodeTag,
    /// The members, each with the stamp of its entry: up to there a member has issued nothing.
    roster: BTreeMap<NodeTag, Stamp>,
    evicted: BTreeSet<NodeTag>,
    settling: Option<Settling>,
    /// A[m]: what each member is known to hold of everybody, durably.
    acks: Vector,
    /// V: what this node holds of each.
    held: Vector,
    /// V as the log has it.
    kept: Vector,
    /// The stamp up to which this node issues nothing more.
    promised: Stamp,
    /// The promise as the log has it.
    promise_kept: Stamp,
    /// The nodes that may still hold commits of this node that its disk lost.
    unconfirmed: BTreeSet<NodeTag>,
    /// The time when each was last heard of; kept for a deliberate mistake alone.
    heard: BTreeMap<NodeTag, Timestamp>,
}

impl KnownMembers {
    pub fn new(node: NodeTag, replica: &Replica, held: Vector, promised: Stamp) -> KnownMembers {
        let mut members = KnownMembers {
            node,
            roster: BTreeMap::new(),
            evicted: BTreeSet::new(),
            settling: None,
            acks: Vector::new(),
            kept: held.clone(),
            held,
            promised,
            promise_kept: promised,
            unconfirmed: BTreeSet::new(),
            heard: BTreeMap::new(),
        };
        members.read_roster(replica, Timestamp::default());
        members
    }

    /// Reads the roster and returns true if it changed. A member that was put on it anew is another
    /// than before. `now` is when this node hears of the change, which may be long after it was
    /// made: what members told of themselves in between rests on the roster of before.
    pub fn read_roster(&mut self, replica: &Replica, now: Timestamp) -> bool {
        let prefix: Prefix = ROSTER.join(SEPARATOR).parse().expect("a well-formed prefix");
        let mut roster = BTreeMap::new();
        let mut evicted = BTreeSet::new();
        let mut newest = Stamp::default();
        for commit in replica.winners(&prefix) {
            let Some(member) = member_of(&commit.key) else { continue };
            newest = newest.max(commit.at.stamp);
            if commit.is_delete() {
                evicted.insert(member);
            } else {
                roster.insert(member, commit.at.stamp);
            }
        }
        let changed = roster != self.roster || evicted != self.evicted;
        if changed {
            self.acks.retain(|member, _| roster.get(member) == self.roster.get(member));
            if newest > replica.horizons().garbage {
                self.settling =
                    Some(Settling { rounds: ROUNDS, barrier: after(newest.time().max(now)) });
            }
            self.unconfirmed.retain(|member| roster.contains_key(member));
            // A new member may have taken what this node issued and its disk lost since.
            let new = roster.iter().filter(|(m, since)| self.roster.get(m) != Some(since));
            self.unconfirmed.extend(new.map(|(m, _)| *m).filter(|m| *m != self.node));
        }
        self.roster = roster;
        self.evicted = evicted;
        changed
    }

    pub(crate) fn node(&self) -> NodeTag {
        self.node
    }

    pub fn is_member(&self, node: NodeTag) -> bool {
        self.roster.contains_key(&node)
    }

    pub fn since(&self, node: NodeTag) -> Option<Stamp> {
        self.roster.get(&node).copied()
    }

    pub fn is_evicted(&self, node: NodeTag) -> bool {
        self.evicted.contains(&node)
    }

    pub fn others(&self) -> impl Iterator<Item = NodeTag> {
        self.roster.keys().copied().filter(|member| *member != self.node)
    }

    pub fn roster(&self) -> BTreeSet<NodeTag> {
        self.roster.keys().copied().collect()
    }

    pub fn is_alone(&self) -> bool {
        self.others().next().is_none()
    }

    pub fn promised(&self) -> Stamp {
        self.promised
    }

    /// Promises to issue nothing more up to `durable`, which is in the log, with nothing of this
    /// node up to it under way.
    pub fn promise(&mut self, durable: Stamp) {
        if self.unconfirmed.is_empty() || mutants::active(mutants::PROMISE_AFTER_RESTART) {
            self.promised = self.promised.max(durable);
        }
    }

    /// Returns what may be promised, once it is in the log, if nothing at or below `stamp` is
    /// issued.
    pub fn may_promise(&self, stamp: Stamp) -> Stamp {
        let confirmed = self.unconfirmed.is_empty();
        let all = confirmed || mutants::active(mutants::PROMISE_AFTER_RESTART);
        if all { self.promised.max(stamp) } else { self.promised }
    }

    /// Takes back, as the clock went back, promises that nobody can have taken for true.
    pub fn take_back(&mut self, right: Stamp) {
        self.promised = self.promised.min(right);
        self.promise_kept = self.promise_kept.min(right);
        forget_beyond(&mut self.held, right);
    }

    /// Takes them back in what the log has, too, once the log says so.
    pub fn taken_back(&mut self, clock: Stamp) {
        self.take_back(clock);
        forget_beyond(&mut self.kept, clock);
    }

    pub fn confirm(&mut self, giver: NodeTag) {
        self.unconfirmed.remove(&giver);
    }

    /// Confirms everybody: after a copy nobody can hold more of this node's past than it does
    /// itself.
    pub fn confirm_all(&mut self) {
        self.unconfirmed.clear();
    }

    /// Returns V as of now, for a peer that takes everything this node holds.
    pub fn vector(&self) -> Vector {
        let mut vector = self.held.clone();
        vector.insert(self.node, self.promised);
        vector
    }

    /// Puts everything that was held in doubt.
    pub fn begin_anew(&mut self) {
        self.held.clear();
    }

    /// Notes that what a giver holds is held here too now.
    pub fn merge(&mut self, vector: &Vector, limit: Stamp) {
        for (node, stamp) in vector {
            // A vector may name any nodes; the log keeps it whole.
            let known = self.roster.contains_key(node) || self.held.contains_key(node);
            if *node != self.node && known && *stamp <= limit {
                raise(&mut self.held, *node, *stamp);
            }
        }
    }

    pub fn held(&self) -> &Vector {
        &self.held
    }

    /// Returns V as the log has it.
    pub fn kept(&self) -> &Vector {
        &self.kept
    }

    pub fn keep(&mut self, promise: Stamp, held: Vector) {
        self.promised = self.promised.max(promise);
        self.promise_kept = promise;
        self.kept = held;
    }

    pub fn promise_kept(&self) -> Stamp {
        self.promise_kept
    }

    /// Returns min(V) as the log has it: what peers may hear.
    pub fn told(&self) -> Stamp {
        self.told_of(self.roster.keys().copied())
    }

    fn told_of(&self, members: impl Iterator<Item = NodeTag>) -> Stamp {
        let of = |member: NodeTag| {
            if member == self.node {
                return self.promise_kept;
            }
            let kept =
                if mutants::active(mutants::V_BEFORE_KEPT) { &self.held } else { &self.kept };
            at(kept, member).max(self.roster[&member])
        };
        members.map(of).min().unwrap_or_default().min(self.promise_kept)
    }

    /// Returns whether this is somebody's entry on the roster that comes late: older than what this
    /// node said that it holds of everybody. Only a member of an earlier stay that nobody heard
    /// until it came back can have made it. What the new member issued since may be missing here.
    pub fn would_set_back(&self, commit: &Commit) -> bool {
        let Some(member) = member_of(&commit.key).filter(|_| !commit.is_delete()) else {
            return false;
        };
        let news = self.since(member).is_none_or(|since| since < commit.at.stamp);
        news && commit.at.stamp < self.told()
    }

    pub fn acks(&self) -> Vector {
        let mut acks = self.acks.clone();
        acks.insert(self.node, self.told());
        acks
    }

    pub fn ack_of(&self, node: NodeTag) -> Stamp {
        if node == self.node { self.told() } else { at(&self.acks, node) }
    }

    pub fn hear_from(&mut self, now: Timestamp, peer: NodeTag) {
        self.heard.insert(peer, now);
        self.heard.retain(|member, _| self.roster.contains_key(member));
    }

    /// Notes what members hold, as a giver knows it. It is taken over only once everything is that
    /// the giver held when it said so: also the change of the roster that such a word may rest on.
    pub fn hear(&mut self, acks: &Vector, limit: Stamp) {
        for (node, stamp) in acks {
            if *node != self.node && *stamp <= limit {
                raise(&mut self.acks, *node, *stamp);
            }
        }
        // Gossip may name any nodes; only members' words are ever needed.
        self.acks.retain(|node, _| self.roster.contains_key(node));
    }

    /// Returns how far garbage may be collected: up to what every member on the roster holds, dead
    /// or not.
    pub fn garbage(&mut self, now: Timestamp, reachable: &BTreeSet<NodeTag>) -> Option<Stamp> {
        let members: Vec<NodeTag> = self.counted(now, reachable).collect();
        if !self.settle(now, &members) {
            return None;
        }
        if self.is_alone() {
            return Some(Stamp(u64::MAX));
        }
        let acks = members.iter().map(|member| self.ack_of(*member)).min();
        Some(acks.unwrap_or(Stamp(u64::MAX)).min(self.told_of(members.into_iter())))
    }

    /// Returns everybody on the roster, unless a mistake is made on purpose.
    fn counted(
        &self,
        now: Timestamp,
        reachable: &BTreeSet<NodeTag>,
    ) -> impl Iterator<Item = NodeTag> {
        self.roster.keys().copied().filter(move |member| {
            let dead = !reachable.contains(member) && *member != self.node;
            let heard = self.heard.get(member);
            let silent = heard.is_none_or(|heard| now.since(*heard).as_secs() > 60);
            !(mutants::active(mutants::G_IGNORES_DEAD) && dead
                || mutants::active(mutants::G_BY_TIMEOUT) && dead && silent)
        })
    }

    fn settle(&mut self, now: Timestamp, members: &[NodeTag]) -> bool {
        let Some(settling) = self.settling else { return true };
        if mutants::active(mutants::EVICTION_UNSETTLED) {
            return true;
        }
        if self.is_alone() {
            self.settling = None;
            return true;
        }
        if members.iter().any(|member| self.ack_of(*member) < settling.barrier) {
            return false;
        }
        let rounds = settling.rounds - 1;
        let barrier = after(now);
        self.settling = (rounds > 0).then_some(Settling { rounds, barrier });
        self.settling.is_none()
    }
}

/// Forgets what was concluded from clocks as wrong as this one was.
pub(crate) fn forget_beyond(vector: &mut Vector, clock: Stamp) {
    vector.retain(|_, stamp| *stamp <= after(clock.time()));
}

/// Returns a stamp that every clock shows later than this.
fn after(time: Timestamp) -> Stamp {
    Stamp::start_of(Timestamp(time.0.saturating_add(ROUND_AHEAD_MS)))
}

fn at(vector: &Vector, node: NodeTag) -> Stamp {
    vector.get(&node).copied().unwrap_or_default()
}

fn raise(vector: &mut Vector, node: NodeTag, stamp: Stamp) {
    let entry = vector.entry(node).or_default();
    *entry = (*entry).max(stamp);
}
