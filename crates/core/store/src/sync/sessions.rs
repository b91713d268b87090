//! The sessions of this node: the four sides that it may be on, each of which changes its own state
//! alone, and what is true or to be done of all of them.

use model::Timestamp;

use crate::commit::NodeTag;
use crate::event::Origin;
use crate::machine::context::Context;
use crate::sync::cluster::Cluster;
use crate::sync::copy::Copier;
use crate::sync::give::Giver;
use crate::sync::lend::Lender;
use crate::sync::message::{Carried, SessionRefusal};
use crate::sync::park::Parked;
use crate::sync::session::SessionId;
use crate::sync::take::Taker;

pub(crate) struct Sessions {
    pub giver: Giver,
    pub taker: Taker,
    pub copier: Copier,
    pub lender: Lender,
    last: u64,
}

impl Sessions {
    /// Sessions are numbered above `last`.
    pub fn new(last: u64) -> Sessions {
        Sessions {
            giver: Giver::default(),
            taker: Taker::default(),
            copier: Copier::default(),
            lender: Lender::default(),
            last,
        }
    }

    /// Returns the name of the next session that this node begins.
    pub fn next(&mut self, peer: NodeTag) -> SessionId {
        self.last += 1;
        SessionId { peer, number: self.last }
    }

    /// Returns the peers of the sessions that this node has begun.
    pub fn asked(&self) -> impl Iterator<Item = NodeTag> + use<> {
        [self.giver.peer(), self.copier.peer()].into_iter().flatten()
    }

    /// Returns whether commits come in this session; it is broken off once.
    pub fn takes(&self, id: SessionId) -> bool {
        self.taker.takes(id) || self.copier.copies(id)
    }

    /// Takes commits that a peer has sent.
    pub fn take(
        &mut self,
        origin: Origin,
        commits: Vec<Carried>,
        parked: &mut Parked,
        cx: &mut Context<'_>,
    ) -> Result<(), SessionRefusal> {
        if self.copier.copies(origin.into()) {
            self.copier.take(origin, commits, parked, cx)
        } else {
            self.taker.take(origin, commits, parked, cx)
        }
    }

    /// Notes that a commit that came in a session is durable here.
    pub fn durable(&mut self, origin: Origin, cx: &mut Context<'_>) {
        if !self.taker.durable(origin, 1, cx) {
            self.copier.durable(origin, 1, cx);
        }
    }

    /// Notes that a batch that this node sent is durable there.
    pub fn durable_there(&mut self, id: SessionId, batch: u32, cx: &mut Context<'_>) {
        self.giver.durable(id, batch, cx);
        self.lender.durable(id, batch, cx);
    }

    /// Goes on with what waited for horizons; called whenever they may have risen.
    pub fn raised(&mut self, cluster: &Cluster, cx: &mut Context<'_>) {
        self.giver.raised(cluster, cx);
        self.taker.raised(cluster, cx);
    }

    /// Ends this session. Returns whether this node had begun it.
    pub fn end(&mut self, id: SessionId) -> bool {
        self.taker.end(id);
        self.lender.end(id);
        let (gave, copied) = (self.giver.end(id), self.copier.end(id));
        gave || copied
    }

    pub fn end_with(&mut self, peer: NodeTag) {
        self.giver.end_with(peer);
        self.copier.end_with(peer);
        self.taker.end_with(peer);
        self.lender.end_with(peer);
    }

    /// Ends all sessions that rest on what this node has issued or on who it is.
    pub fn stop(&mut self) {
        self.giver.stop();
        self.taker.stop();
        self.lender.stop();
    }

    /// Returns the sessions that have made no progress for too long.
    pub fn stalled(&self, now: Timestamp) -> Vec<SessionId> {
        let begun = self.giver.stalled(now).into_iter().chain(self.copier.stalled(now));
        begun.chain(self.taker.stalled(now)).chain(self.lender.stalled(now)).collect()
    }

    pub fn deadline(&self) -> Option<Timestamp> {
        let begun = self.giver.deadline().into_iter().chain(self.copier.deadline());
        begun.chain(self.taker.deadline()).chain(self.lender.deadline()).min()
    }
}
