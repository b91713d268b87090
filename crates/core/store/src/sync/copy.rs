//! The way back of a node that joins, that lost a part of its past or that was removed: a peer is
//! the authority up to its garbage horizon. The node takes everything the peer holds, drops what
//! the peer collected, and issues anew what the peer never saw of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::Timestamp;

use crate::clock::Stamp;
use crate::commit::{Commit, Location, NodeTag, Position};
use crate::event::Origin;
use crate::machine::context::Context;
use crate::machine::queue::QueuedItem;
use crate::mutants;
use crate::replica::{Horizons, Replica};
use crate::sync::cluster::{Cluster, check_horizons};
use crate::sync::give::STALLED_AFTER;
use crate::sync::members::member_of;
use crate::sync::mend::Doubtful;
use crate::sync::message::{Body, Carried, SessionRefusal, Vector};
use crate::sync::park::{Parked, newest_admitted};
use crate::sync::session::{SessionId, Undurable};
use crate::sync::take::release;

/// The beginning of keys that keep what nobody ever saw of a node and what a newer value had
/// replaced meanwhile.
const LOST: &str = "lost::";
const KEY_BYTES_MAX: usize = 1024;

/// The one session in which this node copies, if any.
#[derive(Default)]
pub(crate) struct Copier {
    copying: Option<Copying>,
}

struct Copying {
    id: SessionId,
    deadline: Timestamp,
    asked: Timestamp,
    /// What this node held up to the peer's horizon and the peer has not named yet; `None` until
    /// the peer's horizon is known.
    doubtful: Option<BTreeSet<Position>>,
    /// The doubtful commits that are newer than something that the peer named for their
    /// key. Had the peer collected them, it would have nothing older left.
    surpassing: BTreeSet<Position>,
    /// The newest entry on the roster that the peer has for this node.
    listed: Stamp,
    /// The positions at which the peer has another commit.
    clashing: BTreeSet<Position>,
    undurable: Undurable,
    ended: Option<Ended>,
}

/// The peer's last word.
struct Ended {
    vector: Vector,
    horizons: Horizons,
}

impl Copier {
    pub fn peer(&self) -> Option<NodeTag> {
        self.copying.as_ref().map(|copying| copying.id.peer)
    }

    pub fn is_copying(&self) -> bool {
        self.copying.is_some()
    }

    /// Returns whether this session goes on.
    pub fn copies(&self, id: SessionId) -> bool {
        self.copying.as_ref().is_some_and(|copying| copying.id == id)
    }

    /// Returns whether a session of this number goes on.
    pub fn copies_in(&self, session: u64) -> bool {
        self.copying.as_ref().is_some_and(|copying| copying.id.number == session)
    }

    pub fn deadline(&self) -> Option<Timestamp> {
        self.copying.as_ref().map(|copying| copying.deadline)
    }

    /// Returns the session if it has made no progress for too long.
    pub fn stalled(&self, now: Timestamp) -> Option<SessionId> {
        self.copying.as_ref().filter(|copying| now >= copying.deadline).map(|copying| copying.id)
    }

    pub fn end_with(&mut self, peer: NodeTag) {
        self.copying.take_if(|copying| copying.id.peer == peer);
    }

    /// Ends this session. Returns whether it went on.
    pub fn end(&mut self, id: SessionId) -> bool {
        self.copying.take_if(|copying| copying.id == id).is_some()
    }

    pub fn begin(&mut self, id: SessionId, cluster: &Cluster, cx: &mut Context<'_>) {
        self.copying = Some(Copying {
            id,
            deadline: cx.now.after(STALLED_AFTER),
            asked: cx.now,
            doubtful: None,
            surpassing: BTreeSet::new(),
            listed: Stamp::default(),
            clashing: BTreeSet::new(),
            undurable: Undurable::default(),
            ended: None,
        });
        let hello = cluster.hello(cx);
        cx.send(id, Body::CopyFrom { hello });
    }

    /// Returns this session, which has given a sign of life.
    fn session(&mut self, now: Timestamp, id: SessionId) -> Option<&mut Copying> {
        let copying = self.copying.as_mut().filter(|copying| copying.id == id)?;
        copying.deadline = now.after(STALLED_AFTER);
        Some(copying)
    }

    /// Returns when this session was asked for, to which the peer's hello is the answer.
    pub fn asked(
        &mut self,
        now: Timestamp,
        id: SessionId,
    ) -> Result<Option<Timestamp>, SessionRefusal> {
        match self.session(now, id) {
            // Beginning again would put in doubt what the peer has named already.
            Some(copying) if copying.doubtful.is_some() => Err(SessionRefusal::OutOfPlace),
            Some(copying) => Ok(Some(copying.asked)),
            None => Ok(None),
        }
    }

    /// Puts in doubt what is held up to the horizon of a peer that has agreed.
    pub fn begun(&mut self, id: SessionId, garbage: Stamp, joins: bool, cx: &Context<'_>) {
        let Some(copying) = self.session(cx.now, id) else { return };
        // A node that joins has issued nothing to this cluster yet: all it holds is in doubt.
        let held = cx.replica.history().iter().map(|commit| commit.at);
        let doubtful = held.take_while(|at| joins || at.stamp <= garbage).collect();
        copying.doubtful = Some(doubtful);
    }

    /// Queues commits of the peer for the disk; those from ahead of the clock are parked.
    pub fn take(
        &mut self,
        origin: Origin,
        commits: Vec<Carried>,
        parked: &mut Parked,
        cx: &mut Context<'_>,
    ) -> Result<(), SessionRefusal> {
        let (id, batch) = (SessionId::from(origin), origin.batch);
        let awaited = self.session(cx.now, id).filter(|copying| copying.awaits(batch));
        let Some(copying) = awaited else {
            release(&commits, cx);
            return Err(SessionRefusal::OutOfPlace);
        };
        let limit = newest_admitted(cx.now);
        let mut waits = 0;
        for carried in commits {
            copying.compare(&carried.commit, cx);
            if copying.has(&carried.commit, cx.replica) {
                cx.release(carried.ticket);
            } else if carried.commit.at.stamp >= limit {
                parked.park(carried, cx);
            } else {
                waits += 1;
                cx.stamps.learn(carried.commit.at.stamp);
                cx.wait(QueuedItem::Admit { carried, origin, horizons: None });
            }
        }
        copying.undurable.begin(batch, waits);
        if waits == 0 {
            self.durable(origin, 0, cx);
        }
        Ok(())
    }

    /// Notes that so many more commits of a batch are durable.
    pub fn durable(&mut self, origin: Origin, count: usize, cx: &mut Context<'_>) {
        let id = SessionId::from(origin);
        if let Some(copying) = self.copying.as_mut().filter(|copying| copying.id == id)
            && copying.undurable.durable(origin.batch, count)
        {
            cx.send(id, Body::Durable { batch: origin.batch });
        }
    }

    /// Notes that the peer has another commit at this position. Returns whether this session goes
    /// on.
    pub fn clash(&mut self, id: SessionId, position: Position) -> bool {
        let Some(copying) = self.copying.as_mut().filter(|copying| copying.id == id) else {
            return false;
        };
        copying.clashing.insert(position);
        true
    }

    /// Takes the peer's last word. Returns what is left in doubt then: what the peer never saw is
    /// to be issued anew, the rest to be dropped.
    pub fn copied(
        &mut self,
        id: SessionId,
        (vector, horizons): (Vector, Horizons),
        cluster: &Cluster,
        cx: &Context<'_>,
    ) -> Result<Option<Doubtful>, SessionRefusal> {
        let Some(copying) = self.session(cx.now, id) else { return Ok(None) };
        if !copying.undurable.is_empty() || copying.doubtful.is_none() || copying.ended.is_some() {
            return Err(SessionRefusal::OutOfPlace);
        }
        check_horizons(cx.now, horizons)?;
        if cluster.is_joining() && !copying.is_listed(cluster) {
            // This peer takes the node for the one that it was before.
            return Err(SessionRefusal::Unknown);
        }
        let ended = copying.ended.insert(Ended { vector, horizons });
        let Some(doubtful) = &copying.doubtful else { return Ok(None) };
        let (mut commits, mut anew) = (Vec::new(), Vec::new());
        for at in doubtful {
            let Some(commit) = cx.replica.history().get(*at) else { continue };
            let newest = cx.replica.newest(&commit.key);
            let wins = newest.is_some_and(|newest| newest.at == *at);
            let surpasses = copying.surpassing.contains(at);
            let seen = ended.has_seen(*at, cluster) && !ended.lacks(*at, wins, surpasses);
            if !seen || copying.clashing.contains(at) {
                anew.extend(new_key(cluster.node(), commit, wins).map(|key| (*at, key)));
            }
            commits.push(commit.clone());
        }
        Ok(Some(Doubtful { commits, anew }))
    }

    /// Concludes a copy once everything to be dropped is set aside and what is issued anew is
    /// queued before this.
    pub fn conclude(&mut self, cx: &mut Context<'_>) {
        let Some(copying) = self.copying.take() else { return };
        let (Some(doubtful), Some(ended)) = (copying.doubtful, copying.ended) else { return };
        cx.queue.conclude();
        let positions: Vec<Position> = doubtful.into_iter().collect();
        cx.queue.forget(&positions, cx.effects);
        cx.raise_to(cx.replica.horizons().max(ended.horizons));
        cx.wait(QueuedItem::Copied { vector: ended.vector, garbage: ended.horizons.garbage });
    }
}

impl Copying {
    fn awaits(&self, batch: u32) -> bool {
        self.doubtful.is_some() && self.ended.is_none() && self.undurable.admits(batch)
    }

    /// Compares a commit of the peer with what is held here.
    fn compare(&mut self, commit: &Commit, cx: &Context<'_>) {
        if member_of(&commit.key) == Some(cx.stamps.node()) {
            self.listed = self.listed.max(commit.at.stamp);
        }
        let newest = cx.replica.newest(&commit.key).map(|newest| newest.at);
        if let Some(newest) = newest.filter(|newest| *newest > commit.at)
            && self.doubtful.as_ref().is_some_and(|doubtful| doubtful.contains(&newest))
        {
            self.surpassing.insert(newest);
        }
    }

    /// Returns whether this node holds a commit of the peer, which is then no longer in doubt.
    fn has(&mut self, commit: &Commit, replica: &Replica) -> bool {
        let known = replica.history().get(commit.at);
        let same = known.is_some_and(|known| known.cid() == commit.cid());
        if same && let Some(doubtful) = &mut self.doubtful {
            doubtful.remove(&commit.at);
        }
        same
    }

    /// Returns whether the peer knows the entry on the roster that was made for this node, or a
    /// newer one.
    fn is_listed(&self, cluster: &Cluster) -> bool {
        self.listed >= cluster.standing().listed || mutants::active(mutants::JOIN_UNLISTED)
    }
}

impl Ended {
    /// Returns whether the peer was told of what was issued at this position.
    fn has_seen(&self, at: Position, cluster: &Cluster) -> bool {
        let (told, since) = (self.vector.get(&at.node), cluster.members().since(at.node));
        // If the node's entry was renewed, `told` covers what it issued since, and maybe no more.
        let renewed =
            since.is_some_and(|since| at.stamp < since && told.is_some_and(|told| *told >= since));
        // What was written in another cluster is known to nobody in this one.
        let foreign = cluster.standing().foreign;
        let told = !renewed && !foreign && told.is_some_and(|told| *told >= at.stamp);
        // Even of a former member, all members had what any of them had once garbage was collected
        // beyond it; vectors may say nothing of it any more.
        let here = !foreign && (renewed || at.node != cluster.node());
        told || here && self.has_collected(at)
    }

    /// Returns whether the peer would name this, or something newer, unless its disk was set back
    /// since.
    fn lacks(&self, at: Position, wins: bool, surpasses: bool) -> bool {
        wins && (!self.has_collected(at) || surpasses)
    }

    fn has_collected(&self, at: Position) -> bool {
        at.stamp <= self.horizons.garbage
    }
}

/// Returns the key under which a commit is issued anew: its own if it still wins it. Whether this
/// very node is a member is for others to say.
fn new_key(node: NodeTag, commit: &Commit, wins: bool) -> Option<Arc<str>> {
    match member_of(&commit.key) {
        Some(member) => return (wins && member != node).then(|| commit.key.clone()),
        None if wins => return Some(commit.key.clone()),
        None => {}
    }
    let fits = commit.key.len() + LOST.len() <= KEY_BYTES_MAX;
    let has_value = !commit.is_delete() && commit.location != Location::Nowhere;
    (fits && has_value && !commit.key.starts_with(LOST))
        .then(|| format!("{LOST}{}", commit.key).into())
}
