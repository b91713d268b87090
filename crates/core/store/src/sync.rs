//! Replication: what nodes tell one another and what each concludes. Owns sessions, the roster, who
//! acknowledged what, and the way back of a node that missed too much. Must not know sockets nor
//! bytes of values; the store's machine drives it.

pub mod compare;
mod copy;
mod give;
mod greet;
pub mod links;
pub mod members;
pub mod mend;
pub mod message;
pub(crate) mod park;
pub mod schedule;
mod take;
pub mod wire;

use std::collections::{BTreeMap, BTreeSet};

use model::Timestamp;

use crate::commit::NodeTag;
use crate::event::{Standing, Ticket};

use self::copy::{Copying, Lending};
use self::give::Giving;
use self::links::SyncPeers;
use self::members::KnownMembers;
use self::park::Parked;
use self::schedule::{SYNC_INTERVAL, VECTOR_INTERVAL};
use self::take::Taking;

/// The reason why something is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aside {
    /// The clock was wrong.
    Mend,
    /// The copy of this session replaces it.
    Copy(u64),
}

/// What the machine knows beyond its own writes.
pub struct Sync {
    pub(crate) standing: Standing,
    /// Whether the standing is in the log, so that peers may hear of it.
    pub(crate) standing_kept: bool,
    /// The standing as the log has it.
    pub(crate) logged: Standing,
    pub(crate) members: KnownMembers,
    pub(crate) links: SyncPeers,
    pub(crate) giving: Option<Giving>,
    pub(crate) taking: BTreeMap<NodeTag, Taking>,
    pub(crate) copying: Option<Copying>,
    pub(crate) lending: BTreeMap<NodeTag, Lending>,
    pub(crate) parked: Parked,
    /// Whether commits are being issued anew: meanwhile nothing is said to peers.
    pub(crate) mending: bool,
    /// The writes of the batch under way that issue something anew.
    pub(crate) reissuing: BTreeSet<Ticket>,
    /// The reason why the shell was asked to set something aside; `None` if it was not asked or is
    /// done.
    pub(crate) aside: Option<Aside>,
    /// Whether a copy is complete and not yet in the log.
    pub(crate) concluding: bool,
    pub(crate) next_session: u64,
    pub(crate) push_at: Option<Timestamp>,
    /// The number of sessions in a row that told nobody anything new.
    pub(crate) futile: u8,
    pub(crate) sync_at: Timestamp,
    pub(crate) vector_at: Timestamp,
}

impl Sync {
    pub(crate) fn new(
        standing: Standing,
        standing_kept: bool,
        members: KnownMembers,
        links: SyncPeers,
        now: Timestamp,
    ) -> Sync {
        Sync {
            standing,
            standing_kept,
            logged: if standing_kept { standing } else { Standing::default() },
            members,
            links,
            giving: None,
            taking: BTreeMap::new(),
            copying: None,
            lending: BTreeMap::new(),
            parked: Parked::default(),
            mending: false,
            reissuing: BTreeSet::new(),
            aside: None,
            concluding: false,
            // Sessions of an earlier life must not be taken for those of this one.
            next_session: standing.incarnation.max(now.0 << 16),
            push_at: None,
            futile: give::FUTILE_MAX,
            sync_at: now.after(SYNC_INTERVAL),
            vector_at: now.after(VECTOR_INTERVAL),
        }
    }

    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Returns whether the standing is in the log.
    pub fn is_standing_kept(&self) -> bool {
        self.standing_kept
    }

    pub fn members(&self) -> &KnownMembers {
        &self.members
    }

    pub fn links(&self) -> &SyncPeers {
        &self.links
    }

    /// Returns whether a copy is under way, or complete and not yet in the log.
    pub fn is_copying(&self) -> bool {
        self.copying.is_some() || self.concluding
    }

    pub fn parked(&self) -> usize {
        self.parked.len()
    }
}
