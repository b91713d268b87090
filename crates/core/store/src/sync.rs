//! Replication: what nodes tell one another and what each concludes. Must not know sockets nor
//! bytes of values; the store's machine drives it. It routes what comes to its parts, and each of
//! these changes its own state alone; one that returns a refusal wants its session broken off:
//!
//! | part | owns |
//! | --- | --- |
//! | `Cluster` | this node among the others, in the four parts below; hellos |
//! | `Identity` | its standing, now and in the log |
//! | `KnownMembers` | the roster, who holds what of whom, the promise, how far garbage goes |
//! | `SyncPeers` | who can be talked to, who is left alone and why, whose history is the same |
//! | `Alarms` | what a person has to look into |
//! | `Sessions` | the sides of sessions, in the four parts below |
//! | `Giver` | the session in which this node gives: comparison, then commits |
//! | `Taker` | the sessions in which it takes |
//! | `Copier` | the session in which it copies everything, and what that puts in doubt |
//! | `Lender` | the sessions in which others copy from it |
//! | `Parked` | commits from ahead of the clock |
//! | `Mending` | what is set aside and issued anew |
//! | `Timetable` | when to talk, and when to write down what is held |

mod alarms;
mod cluster;
pub mod compare;
mod copy;
mod give;
pub(crate) mod identity;
mod lend;
pub mod links;
pub mod members;
pub(crate) mod mend;
pub mod message;
pub(crate) mod park;
pub mod schedule;
pub(crate) mod session;
mod sessions;
mod take;
pub mod wire;

use std::collections::BTreeSet;

use model::Timestamp;

use crate::clock::Stamp;
use crate::commit::{Commit, NodeTag, Position};
use crate::event::{Alarm, BatchEntry, Effect, Origin, Standing, Write};
use crate::machine::context::Context;
use crate::machine::queue::QueuedItem;
use crate::replica::Horizons;
use crate::sum::Fingerprint;

use self::cluster::{Cluster, has_missed};
use self::compare::SUMMARIES_MAX;
use self::identity::Identity;
use self::links::SyncPeers;
use self::members::{KnownMembers, is_roster_key};
use self::mend::{Aside, Doubtful, Mending, forget_beyond_clock, right_stamp};
use self::message::{
    Body, ClusterId, Hello, Message, RangeSummary, SessionRefusal, SummaryAnswer, Vector,
};
use self::park::{Parked, newest_admitted};
use self::schedule::{Due, Timetable};
use self::session::SessionId;
use self::sessions::Sessions;

/// What the machine knows beyond its own writes.
pub struct Sync {
    cluster: Cluster,
    sessions: Sessions,
    parked: Parked,
    mending: Mending,
    timetable: Timetable,
}

impl Sync {
    pub(crate) fn new(
        identity: Identity,
        members: KnownMembers,
        links: SyncPeers,
        now: Timestamp,
    ) -> Sync {
        // Sessions of an earlier life must not be taken for those of this one.
        let last_session = identity.standing().incarnation.max(now.0 << 16);
        Sync {
            cluster: Cluster::new(identity, members, links),
            sessions: Sessions::new(last_session),
            parked: Parked::default(),
            mending: Mending::default(),
            timetable: Timetable::new(now),
        }
    }

    pub fn standing(&self) -> Standing {
        self.cluster.standing()
    }

    /// Returns whether the standing is in the log.
    pub fn is_standing_kept(&self) -> bool {
        self.cluster.identity().is_kept()
    }

    pub fn members(&self) -> &KnownMembers {
        self.cluster.members()
    }

    pub fn links(&self) -> &SyncPeers {
        self.cluster.links()
    }

    pub fn parked(&self) -> usize {
        self.parked.len()
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub(crate) fn is_copying(&self) -> bool {
        self.sessions.copier.is_copying()
    }

    /// Returns whether this node may issue writes of its own.
    pub(crate) fn may_issue(&self) -> bool {
        !self.cluster.is_joining() && !self.mending.is_of_clock()
    }

    pub(crate) fn alarm(&mut self, alarm: Alarm, cx: &mut Context<'_>) {
        self.cluster.alarm(alarm, cx);
    }

    /// Notes that something is new here, which others are to have soon.
    pub(crate) fn changed(&mut self, now: Timestamp) {
        self.timetable.changed(now);
    }

    pub(crate) fn sync_now(&mut self, now: Timestamp) {
        self.timetable.sync_now(now);
    }

    pub(crate) fn received(&mut self, from: NodeTag, message: Message, cx: &mut Context<'_>) {
        let id = SessionId { peer: from, number: message.session };
        let went = match message.body {
            Body::Open { hello, summaries } => self.open(id, hello, summaries, cx),
            Body::Opened { hello, answers } => self.opened(id, &hello, answers, cx),
            Body::Compare(summaries) => self.sessions.taker.compare(id, &summaries, cx),
            Body::Answers(answers) => self.sessions.giver.answered(id, &answers, cx),
            Body::Commits { batch, commits } => {
                let origin = Origin { peer: from, session: id.number, batch };
                self.sessions.take(origin, commits, &mut self.parked, cx)
            }
            Body::Durable { batch } => {
                self.sessions.durable_there(id, batch, cx);
                Ok(())
            }
            Body::Done { vector } => self.done(id, &vector, cx),
            Body::Noted { whole, head } => {
                self.noted(id, (whole, head), cx);
                Ok(())
            }
            Body::CopyFrom { hello } => self.lend(id, &hello, cx),
            Body::Copying { hello } => self.copy_begun(id, &hello, cx),
            Body::Copied { vector, horizons } => {
                let rest = self.sessions.copier.copied(id, (vector, horizons), &self.cluster, cx);
                rest.map(|rest| self.copied(id, rest, cx))
            }
            Body::Refused(refusal) => {
                self.refused(id, refusal, cx);
                Ok(())
            }
        };
        if let Err(refusal) = went {
            self.break_off(id, refusal, cx);
        }
    }

    /// Learns from a hello. `asked` is when this node spoke last, if the hello answers that.
    fn greet(
        &mut self,
        from: NodeTag,
        hello: &Hello,
        asked: Option<Timestamp>,
        cx: &mut Context<'_>,
    ) -> Result<(), SessionRefusal> {
        self.cluster.recognise(from, hello, asked, cx)?;
        if cx.stamps.are_doubted(cx.now) {
            self.trust_clock(cx);
        }
        if self.mending.is_of_clock() || cx.stamps.are_doubted(cx.now) {
            return Err(SessionRefusal::Busy);
        }
        self.cluster.hear(hello, cx);
        Ok(())
    }

    /// Answers an opening, now or once the horizons are as high as the giver's. One that is
    /// declined ends no other session with the giver.
    fn open(
        &mut self,
        id: SessionId,
        hello: Hello,
        summaries: Vec<RangeSummary>,
        cx: &mut Context<'_>,
    ) -> Result<(), SessionRefusal> {
        self.sessions.taker.end_with(id.peer);
        let greeted = match summaries.len() {
            0..=SUMMARIES_MAX => self.greet(id.peer, &hello, None, cx),
            _ => Err(SessionRefusal::OutOfPlace),
        };
        if let Err(refusal) = greeted {
            self.decline(id, refusal, cx);
        } else if self.cluster.must_copy_from(&hello) {
            cx.send(id, Body::Refused(SessionRefusal::Busy));
            self.copy_from(id.peer, cx);
        } else if has_missed(cx.replica, &hello) {
            cx.send(id, Body::Refused(SessionRefusal::Behind));
        } else if self.sessions.copier.is_copying() || self.mending.is_of_clock() {
            cx.send(id, Body::Refused(SessionRefusal::Busy));
        } else {
            self.sessions.taker.begin(id, (hello, summaries), cx);
            self.sessions.taker.raised(&self.cluster, cx);
        }
        Ok(())
    }

    fn opened(
        &mut self,
        id: SessionId,
        hello: &Hello,
        answers: Option<Vec<SummaryAnswer>>,
        cx: &mut Context<'_>,
    ) -> Result<(), SessionRefusal> {
        let Some(asked) = self.sessions.giver.asked(cx.now, id)? else { return Ok(()) };
        self.greet(id.peer, hello, Some(asked), cx)?;
        if self.cluster.must_copy_from(hello) {
            self.sessions.end_with(id.peer);
            self.copy_from(id.peer, cx);
            return Ok(());
        }
        if has_missed(cx.replica, hello) {
            return Err(SessionRefusal::Behind);
        }
        self.sessions.giver.opened(id, (hello.horizons, answers), &self.cluster, cx)
    }

    fn done(
        &mut self,
        id: SessionId,
        vector: &Vector,
        cx: &mut Context<'_>,
    ) -> Result<(), SessionRefusal> {
        let Some(taken) = self.sessions.taker.done(id, cx)? else { return Ok(()) };
        let whole = taken.whole && !vector.is_empty();
        if whole {
            self.cluster.take_over(id.peer, vector, &taken.acks, newest_admitted(cx.now));
        }
        self.cluster.calm(cx.now, id.peer, whole);
        let head = cx.replica.history().head();
        cx.send(id, Body::Noted { whole, head });
        Ok(())
    }

    fn noted(&mut self, id: SessionId, (whole, head): (bool, Fingerprint), cx: &Context<'_>) {
        let Some(given) = self.sessions.giver.noted(id, self.cluster.node()) else { return };
        let whole = whole && given.whole;
        self.cluster.calm(cx.now, id.peer, whole);
        self.cluster.gave(id.peer, head, whole.then_some(given.has));
        if !given.whole {
            self.timetable.changed(cx.now);
        }
        self.timetable.spread_on(cx.now, given.was_news);
    }

    /// Begins to send everything to a node that may copy.
    fn lend(
        &mut self,
        id: SessionId,
        hello: &Hello,
        cx: &mut Context<'_>,
    ) -> Result<(), SessionRefusal> {
        let agreed = match self.greet(id.peer, hello, None, cx) {
            Ok(()) if self.cluster.must_copy_from(hello) => Err(SessionRefusal::Busy),
            Ok(()) if !hello.fresh => Err(SessionRefusal::OutOfPlace),
            greeted => greeted,
        };
        if let Err(refusal) = agreed {
            self.decline(id, refusal, cx);
            return Ok(());
        }
        let hello = self.cluster.hello(cx);
        cx.send(id, Body::Copying { hello });
        self.sessions.lender.begin(id, self.cluster.members().vector(), cx);
        Ok(())
    }

    /// Begins a copy if the log says why this node missed something; otherwise somebody must look
    /// into it.
    fn copy_from(&mut self, peer: NodeTag, cx: &mut Context<'_>) {
        if !self.cluster.is_fresh() {
            return self.cluster.behind(peer, cx);
        }
        if self.sessions.copier.is_copying() || self.is_mending(cx) || !self.is_standing_kept() {
            return;
        }
        self.sessions.giver.stop();
        self.sessions.taker.stop();
        let id = self.sessions.next(peer);
        self.sessions.copier.begin(id, &self.cluster, cx);
    }

    fn copy_begun(
        &mut self,
        id: SessionId,
        hello: &Hello,
        cx: &mut Context<'_>,
    ) -> Result<(), SessionRefusal> {
        let Some(asked) = self.sessions.copier.asked(cx.now, id)? else { return Ok(()) };
        self.greet(id.peer, hello, Some(asked), cx)?;
        self.sessions.copier.begun(id, hello.horizons.garbage, self.cluster.is_joining(), cx);
        Ok(())
    }

    /// Has what a copy left in doubt set aside, before the copy is concluded.
    fn copied(&mut self, id: SessionId, rest: Option<Doubtful>, cx: &mut Context<'_>) {
        match rest {
            Some(rest) if rest.commits.is_empty() => self.sessions.copier.conclude(cx),
            Some(rest) => self.mending.set_aside(Aside::Copy(id.number), rest, cx),
            None => {}
        }
    }

    fn refused(&mut self, id: SessionId, refusal: SessionRefusal, cx: &mut Context<'_>) {
        if !self.sessions.end(id) && refusal != SessionRefusal::Unknown {
            return;
        }
        if refusal == SessionRefusal::Evicted {
            self.cluster.alarm(Alarm::Evicted, cx);
        }
        match refusal {
            SessionRefusal::Behind if self.cluster.is_fresh() => self.copy_from(id.peer, cx),
            SessionRefusal::Behind => self.cluster.behind(id.peer, cx),
            refusal => self.cluster.shun(id.peer, refusal, cx),
        }
    }

    /// Says no to whoever opens a session, and leaves the peer alone for a while.
    fn decline(&mut self, id: SessionId, reason: SessionRefusal, cx: &mut Context<'_>) {
        cx.send(id, Body::Refused(reason));
        self.cluster.shun(id.peer, reason, cx);
    }

    /// Ends all sessions with a peer, and leaves it alone for a while.
    fn break_off(&mut self, id: SessionId, reason: SessionRefusal, cx: &mut Context<'_>) {
        cx.send(id, Body::Refused(reason));
        self.sessions.end_with(id.peer);
        self.cluster.shun(id.peer, reason, cx);
    }

    /// Ends all sessions with a peer whose connection is gone.
    pub(crate) fn lost(&mut self, now: Timestamp, peer: NodeTag) {
        self.sessions.end_with(peer);
        self.cluster.lost(now, peer);
    }

    /// Notes who can be reached. Sessions with peers that have fallen silent end: they would keep
    /// news from all others until they count as stalled, as a machine that lost its power closes no
    /// connection.
    pub(crate) fn set_reachable(&mut self, now: Timestamp, reachable: &BTreeSet<NodeTag>) {
        self.cluster.set_reachable(reachable);
        for peer in self.sessions.asked().filter(|peer| !reachable.contains(peer)) {
            self.lost(now, peer);
        }
        self.cluster.calm_about_strangers();
    }

    pub(crate) fn join(&mut self, cluster: ClusterId, listed: Stamp, cx: &mut Context<'_>) {
        if cluster != self.standing().cluster {
            // Members of the other cluster are unknown in this one.
            let history = cx.replica.history().iter();
            let roster = history.filter(|commit| is_roster_key(&commit.key));
            let roster: Vec<Position> = roster.map(|commit| commit.at).collect();
            cx.queue.forget(&roster, cx.effects);
        }
        self.sessions.stop();
        self.cluster.join(cluster, listed, cx);
        self.sync_now(cx.now);
    }

    /// Trusts the clock: what was stamped beyond it is issued anew.
    pub(crate) fn trust_clock(&mut self, cx: &mut Context<'_>) {
        cx.stamps.trust();
        let is_right = !cx.stamps.are_doubted(cx.now);
        if is_right || self.is_mending(cx) || cx.queue.is_under_way() {
            return;
        }
        let right = right_stamp(cx.replica.history(), cx.now);
        cx.stamps.set_back(right);
        self.cluster.take_back(right);
        self.sessions.stop();
        self.mending.mend_clock(cx);
    }

    /// Issues anew, by these writes, what had to be set aside first.
    pub(crate) fn issue_anew(&mut self, writes: Vec<Write>, cx: &mut Context<'_>) {
        let Some(aside) = self.mending.take_aside() else { return };
        let counts = match aside {
            Aside::Mend => true,
            // A copy that was cut off meanwhile begins again.
            Aside::Copy(session) => self.sessions.copier.copies_in(session),
        };
        for write in writes {
            if counts {
                cx.wait(QueuedItem::Anew(write));
            } else {
                cx.effects.push(Effect::Acknowledge { ticket: write.ticket, cid: None });
            }
        }
        match aside {
            Aside::Mend => forget_beyond_clock(cx),
            Aside::Copy(_) if counts => self.sessions.copier.conclude(cx),
            Aside::Copy(_) => {}
        }
    }

    /// Returns whether what was set aside or copied is not in the log yet: nothing else may begin.
    fn is_mending(&self, cx: &Context<'_>) -> bool {
        self.mending.is_under_way() || cx.queue.is_concluding()
    }

    pub(crate) fn tick(&mut self, cx: &mut Context<'_>) {
        for id in self.sessions.stalled(cx.now) {
            self.break_off(id, SessionRefusal::Stalled, cx);
        }
        for carried in self.parked.due(cx.now) {
            let origin = Origin { peer: self.cluster.node(), session: 0, batch: 0 };
            cx.wait(QueuedItem::Admit { carried, origin, horizons: None });
        }
        if !self.cluster.is_alone() && self.timetable.is_vector_due(cx.now) {
            self.keep_vector(cx);
            self.squash(cx.replica.horizons().squash, cx);
        }
        let Some(due) = self.timetable.due(cx.now) else { return };
        if due != Due::Push {
            self.cluster.tell_strangers(cx);
        }
        if self.sessions.giver.is_giving()
            || self.sessions.copier.is_copying()
            || self.is_mending(cx)
        {
            return self.timetable.put_off(cx.now, due);
        }
        self.timetable.pushed();
        self.begin(due, cx);
    }

    fn begin(&mut self, due: Due, cx: &mut Context<'_>) {
        if !self.is_standing_kept() {
            // Peers must not hear of a standing that a crash could take back.
            self.cluster.keep_standing(cx);
            return self.changed(cx.now);
        }
        let Some(peer) = self.cluster.choose(due != Due::Push, cx) else { return };
        if self.cluster.is_joining() {
            self.copy_from(peer, cx);
        } else {
            let id = self.sessions.next(peer);
            self.sessions.giver.begin(id, &self.cluster, cx);
        }
    }

    /// Puts what this node holds of others, and promises of itself, into the log.
    fn keep_vector(&mut self, cx: &mut Context<'_>) {
        self.timetable.vector_kept(cx.now);
        cx.wait(QueuedItem::Vector);
    }

    /// Raises the horizons: history is squashed up to here, and garbage is collected up to what all
    /// members are known to hold.
    pub(crate) fn squash(&mut self, squash: Stamp, cx: &mut Context<'_>) {
        let garbage = self.garbage_below(squash, cx);
        if self.cluster.is_alone() && garbage > cx.replica.horizons().garbage {
            // Future members must not think that this node missed what it has collected.
            cx.wait(QueuedItem::Vector);
        }
        cx.raise_to(Horizons { squash, garbage });
    }

    fn garbage_below(&mut self, squash: Stamp, cx: &Context<'_>) -> Stamp {
        match self.mending.is_of_clock() {
            true => cx.replica.horizons().garbage,
            false => self.cluster.garbage_below(squash, cx),
        }
    }

    pub(crate) fn deadline(&self) -> Option<Timestamp> {
        let times = [
            self.sessions.deadline(),
            self.parked.deadline(),
            self.cluster.talks().then(|| self.timetable.talk_deadline()),
            (!self.cluster.is_alone()).then(|| self.timetable.vector_deadline()),
        ];
        times.into_iter().flatten().min()
    }
}

/// What the log takes in, and what has become durable there.
impl Sync {
    /// Breaks off the session of a commit for which the horizons rose while it waited: whether it
    /// still counts must be asked again.
    pub(crate) fn outdated(&mut self, origin: Origin, cx: &mut Context<'_>) {
        if self.sessions.taker.takes(origin.into()) {
            self.break_off(origin.into(), SessionRefusal::HorizonsRose, cx);
        }
    }

    /// Breaks off the session of a commit for which the disk had no room, once.
    pub(crate) fn no_room(&mut self, origin: Origin, cx: &mut Context<'_>) {
        if self.sessions.takes(origin.into()) {
            self.break_off(origin.into(), SessionRefusal::NoRoom, cx);
        }
    }

    pub(crate) fn catch_up_again(&mut self, commit: &Commit) -> Option<Standing> {
        self.cluster.catch_up_again(commit)
    }

    pub(crate) fn vector_entry(&self, cx: &mut Context<'_>) -> BatchEntry {
        self.cluster.vector_entry(cx)
    }

    pub(crate) fn copied_entry(
        &mut self,
        vector: &Vector,
        garbage: Stamp,
        cx: &mut Context<'_>,
    ) -> BatchEntry {
        self.cluster.copied_entry(vector, garbage, cx)
    }

    /// Notes that a commit of a session is durable.
    pub(crate) fn durable(&mut self, origin: Origin, cx: &mut Context<'_>) {
        self.sessions.durable(origin, cx);
    }

    /// Handles a commit at whose position the log holds another.
    pub(crate) fn clash(&mut self, position: Position, origin: Origin, cx: &mut Context<'_>) {
        let (id, peer) = (SessionId::from(origin), origin.peer);
        self.cluster.alarm(Alarm::Conflict { position, peer }, cx);
        if position.node == self.cluster.node() {
            // The peer has what this node issued before it lost that and issued the stamp again.
            self.cluster.lose_past(peer, position.stamp, cx);
        }
        if !self.sessions.copier.clash(id, position) && self.sessions.taker.takes(id) {
            self.break_off(id, SessionRefusal::Conflict, cx);
        }
    }

    pub(crate) fn read_roster(&mut self, cx: &mut Context<'_>) {
        self.cluster.read_roster(cx);
    }

    pub(crate) fn vector_logged(&mut self, promise: Stamp, held: Vector) {
        self.cluster.vector_logged(promise, held);
    }

    /// Concludes a copy of which everything is in the log: the node holds what its peer holds.
    pub(crate) fn copy_logged(&mut self, promise: Stamp, held: Vector, cx: &mut Context<'_>) {
        self.cluster.vector_logged(promise, held);
        cx.queue.concluded();
        if self.cluster.is_joining() {
            self.cluster.joined(cx);
        }
        self.keep_vector(cx);
        self.changed(cx.now);
    }

    /// Notes the standing that is in the log now. Returns whether it is of another cluster than
    /// before.
    pub(crate) fn standing_logged(&mut self, standing: Standing) -> bool {
        self.cluster.standing_logged(standing)
    }

    /// Notes that the log has forgotten something, under a clock that stands at this stamp.
    pub(crate) fn forgotten(&mut self, clock: Stamp, cx: &mut Context<'_>) {
        self.cluster.taken_back(clock);
        self.mending.forgotten(cx.queue.has_to_forget());
        self.cluster.read_roster(cx);
    }

    /// Notes that a batch is in the log, up to this stamp, and goes on with what waited for
    /// horizons.
    pub(crate) fn batch_logged(&mut self, durable: Stamp, cx: &mut Context<'_>) {
        // Nothing of this node is under way now: all it stamped so far is in the log.
        self.cluster.promise(durable);
        self.sessions.raised(&self.cluster, cx);
    }
}
