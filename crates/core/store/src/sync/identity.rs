//! This node as its cluster knows it: its standing, and what the log has of it. Peers must not hear
//! of a standing that a crash could take back.

use crate::clock::Stamp;
use crate::event::Standing;
use crate::sync::message::ClusterId;

pub(crate) struct Identity {
    standing: Standing,
    /// Whether the standing is in the log, so that peers may hear of it.
    kept: bool,
    /// The standing as the log has it.
    logged: Standing,
}

impl Identity {
    /// Goes on with the standing of the log. A node whose log has none is of this cluster, and this
    /// is its first incarnation.
    pub fn new(logged: Standing, cluster: ClusterId, incarnation: u64) -> Identity {
        let kept = logged.incarnation != 0;
        let standing = if kept { logged } else { Standing { cluster, incarnation, ..logged } };
        let logged = if kept { logged } else { Standing::default() };
        Identity { standing, kept, logged }
    }

    pub fn standing(&self) -> Standing {
        self.standing
    }

    pub fn logged(&self) -> Standing {
        self.logged
    }

    /// Returns whether the standing is in the log.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// Returns whether the node has nothing of its cluster yet.
    pub fn is_joining(&self) -> bool {
        self.standing.fresh_until == Stamp(u64::MAX)
    }

    /// Begins to join a cluster that has listed this node at this stamp.
    pub fn join(&mut self, cluster: ClusterId, listed: Stamp, incarnation: u64) {
        let foreign = cluster != self.standing.cluster;
        // Until the node has joined, another invitation changes nothing.
        let foreign = foreign || self.is_joining() && self.standing.foreign;
        let fresh_until = Stamp(u64::MAX);
        self.change(Standing { cluster, incarnation, fresh_until, listed, foreign });
    }

    /// Notes that the node has joined, and has its first stamp.
    pub fn joined(&mut self, first: Stamp) {
        self.change(Standing { fresh_until: first, foreign: false, ..self.standing });
    }

    /// Begins another incarnation, which has to catch up to this stamp.
    pub fn lose_past(&mut self, incarnation: u64, until: Stamp) {
        self.change(Standing { incarnation, fresh_until: until, ..self.standing });
    }

    /// Has the node catch up to this stamp again.
    pub fn catch_up(&mut self, until: Stamp) {
        self.change(Standing { fresh_until: until, ..self.standing });
    }

    /// Has the log state the standing once more.
    pub fn restate(&mut self) {
        self.kept = false;
    }

    fn change(&mut self, standing: Standing) {
        self.standing = standing;
        self.kept = false;
    }

    /// Notes what the log says now. Returns whether that is another cluster than before.
    pub fn log(&mut self, standing: Standing) -> bool {
        let moved = standing.cluster != self.logged.cluster;
        self.logged = standing;
        self.kept = standing == self.standing;
        moved
    }
}
