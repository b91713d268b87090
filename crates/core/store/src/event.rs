//! What goes into the store's machine and what comes out of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::{Key, Timestamp};
use thiserror::Error;

use crate::clock::Stamp;
use crate::commit::{Action, Commit, Location, NodeTag, Position};
use crate::expiry::Expiry;
use crate::record::{self, Record};
use crate::replica::Horizons;
use crate::sync::message::{ClusterId, Message, Refusal, Vector};

/// Names one write until it is acknowledged or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The value travels inside the commit.
    SetInline {
        hash: [u8; 32],
        sha1: [u8; 20],
        size: u64,
        expires: Option<Expiry>,
    },
    /// The value is a content-addressed file that is already durable.
    SetFile {
        hash: [u8; 32],
        sha1: [u8; 20],
        size: u64,
        expires: Option<Expiry>,
    },
    Delete,
}

impl Change {
    /// What makes such a commit once more.
    pub fn again(commit: &Commit) -> Change {
        match (commit.action, commit.location) {
            (Action::Delete, _) => Change::Delete,
            (Action::Set { hash, sha1, size, expires }, Location::Log { .. }) => {
                Change::SetInline { hash, sha1, size, expires }
            }
            (Action::Set { hash, sha1, size, expires }, _) => {
                Change::SetFile { hash, sha1, size, expires }
            }
        }
    }

    /// Whether the key has a value at this time once the change is made.
    pub(crate) fn lives(&self, now: Timestamp) -> bool {
        match self {
            Change::SetInline { expires, .. } | Change::SetFile { expires, .. } => {
                !expires.is_some_and(|expires| expires.has_passed(now))
            }
            Change::Delete => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub ticket: Ticket,
    pub key: Key,
    pub change: Change,
    /// Only while this very commit gives the key its value, as this node sees it: what rests on
    /// reading first, such as a new expiry for the same value, is tried again otherwise.
    pub only_over: Option<Position>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Write(Vec<Write>),
    /// The values of these commits are to be written anew, as their segment is to be freed.
    Move(Vec<(Ticket, Position)>),
    /// The batch is durable; one location per entry, in order.
    Persisted {
        batch: u64,
        locations: Vec<Location>,
    },
    /// The disk could not take the batch, and nothing of it was written.
    Refused {
        batch: u64,
    },
    /// Drop history before this time, now.
    Squash {
        before: Timestamp,
    },
    /// A peer said this. Commits have their values at hand under their tickets, checked against
    /// their hashes; a large value's commit says whether its file is here.
    Received {
        from: NodeTag,
        message: Message,
    },
    /// Who can be talked to now, whatever the roster says.
    Reachable(BTreeSet<NodeTag>),
    /// This could not be sent, or a value of it not be read: the session is over.
    Lost {
        peer: NodeTag,
    },
    /// The files of these large values are here now, durable.
    Fetched(Vec<[u8; 32]>),
    /// Talk to everybody now.
    Sync,
    /// This node is to become a member of another cluster than its own. `listed` is the stamp of
    /// the entry on the roster that was made for it.
    Join {
        cluster: ClusterId,
        listed: Stamp,
    },
    /// Somebody looked at the clock and it is right.
    TrustClock,
    /// What a `SetAside` named is kept aside; these writes issue anew what was to be.
    SetAside {
        writes: Vec<Write>,
    },
}

/// One record of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The shell holds the value's bytes under the ticket.
    Commit {
        ticket: Ticket,
        commit: Commit,
    },
    /// The same, of a commit that is held and counts only while it is.
    Moved {
        ticket: Ticket,
        commit: Commit,
    },
    /// The value of a commit that is held has come as a file.
    Arrived {
        commit: Commit,
    },
    /// As `Commit`, from a peer's batch.
    Foreign {
        ticket: Ticket,
        commit: Commit,
        origin: Origin,
    },
    Horizons(Horizons),
    /// What this node holds of the others, and up to when it promises to issue nothing more.
    Vector {
        promise: Stamp,
        held: Vector,
    },
    /// As `Vector`, after a copy of everything that a peer holds.
    Copied {
        promise: Stamp,
        held: Vector,
        garbage: Stamp,
    },
    Standing(Standing),
    /// These are not held any more, and the clock stands at this stamp.
    Forgotten {
        positions: Vec<Position>,
        clock: Stamp,
    },
}

/// The batch of a session that a commit came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub peer: NodeTag,
    pub session: u64,
    pub batch: u32,
}

/// Who this node is to its cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    pub cluster: ClusterId,
    /// Changes when the node joins or finds that it lost a part of its past.
    pub incarnation: u64,
    /// Until it holds everything up to here, the node may take a peer for the authority.
    pub fresh_until: Stamp,
    /// When this node was put on the roster last: who knows only of an earlier stay has not heard
    /// that what it issued then counts no more.
    pub listed: Stamp,
    /// What it holds is of another cluster, until it has copied what this one holds.
    pub foreign: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make this durable, then report `Persisted`; at most one is on its way.
    Persist {
        batch: u64,
        entries: Arc<Vec<Entry>>,
    },
    /// None: the delete found nothing to delete, another commit stands where one was expected,
    /// or the moved commit was dropped meanwhile.
    Acknowledge {
        ticket: Ticket,
        cid: Option<[u8; 32]>,
    },
    Refuse {
        ticket: Ticket,
        reason: Unwritten,
    },
    /// The key's present value changed.
    Notify {
        arrival: u64,
        ticket: Ticket,
        commit: Commit,
    },
    /// The key's present value is the same, and its bytes have come: what could not be read when
    /// it was announced can be now.
    Arrived {
        arrival: u64,
        commit: Commit,
    },
    /// The instant of the key's value has passed.
    Expired {
        arrival: u64,
        commit: Commit,
    },
    Alarm(Alarm),
    Send {
        to: NodeTag,
        message: Message,
    },
    /// The value under the ticket is not needed any more.
    Release {
        ticket: Ticket,
    },
    /// Keep these where people find them, durably, then report `SetAside` with writes for those
    /// that are to be issued anew, under the keys given.
    SetAside {
        commits: Vec<Commit>,
        anew: Vec<(Position, Arc<str>)>,
    },
    /// Watchers cannot be told what changed: let them read again.
    Resync,
    /// The roster changed.
    Roster(BTreeSet<NodeTag>),
}

/// Why a write was refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Unwritten {
    #[error("too many writes wait; try again later")]
    TooMany,
    #[error("the disk did not take it; free space for the data directory, then try again")]
    NoRoom,
    #[error(
        "the log knows times {by_ms} ms ahead of this node's clock; set the clock right and \
         restart, or say that it is right: cortex store clock trust"
    )]
    ClockBehind { by_ms: u64 },
    #[error(
        "this node's clock is {by_ms} ms after the newest time in its log, more than a day; if \
         it is right, say so: cortex store clock trust"
    )]
    ClockLeapt { by_ms: u64 },
    #[error("a member's entry on the roster is written once: remove it first")]
    OnRoster,
}

/// What somebody has to look into. Each is reported once until it is over.
#[derive(Clone, Debug, Error, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alarm {
    /// Over when that peer and this node hold the same again.
    #[error(
        "two commits have one time and node: {position:?}, here and on node {peer:?}; two nodes \
         share an id, or {peer:?} was set back to an old copy: remove it and let it join again"
    )]
    Conflict { position: Position, peer: NodeTag },
    #[error("no session with node {peer:?}: {reason}")]
    Quarantined { peer: NodeTag, reason: Refusal },
    /// Over when a session with that node went well, or it was removed.
    #[error(
        "no session with node {by:?}: it does not have this node on its roster. If an older copy \
         of its data was put back there, let it join again: `cortex nodes remove --force {by:?}` \
         and `cortex nodes invite` here, then `cortex up --join WORD` there. If this node was \
         removed long ago, it is this one that has to join again"
    )]
    Unlisted { by: NodeTag },
    /// The same, as the other one sees it. Over when that node is a member, or calls no more.
    #[error(
        "node {peer:?} takes part in this cluster and this node does not have it on its roster, \
         so neither gets what the other writes. If an older copy of this node's data was put back, \
         let this one join again: on {peer:?} `cortex nodes remove --force {own:?}` and `cortex \
         nodes invite`, then here `cortex up --join WORD`. If {peer:?} was removed long ago, stop \
         it, or let it join again"
    )]
    Stranger { own: NodeTag, peer: NodeTag },
    #[error(
        "this node missed what its cluster has forgotten since, and no loss is on record: it \
         takes part in nothing until it joins again"
    )]
    Behind,
    #[error("this node was removed from its cluster; let it join again")]
    Evicted,
    /// Over when this node holds everything again.
    #[error("this node lost a part of its past; it copies from node {authority:?}")]
    LostPast { authority: NodeTag },
}

impl Alarm {
    /// The same without its figures.
    pub(crate) fn kind(&self) -> Alarm {
        match self {
            Alarm::Quarantined { peer, reason } => {
                Alarm::Quarantined { peer: *peer, reason: reason.kind() }
            }
            other => other.clone(),
        }
    }
}

impl Entry {
    /// What the log is to hold of it; `value` are the bytes under its ticket.
    pub fn record<'a>(&self, value: &'a [u8]) -> Record<'a> {
        match self {
            Entry::Commit { commit, .. } | Entry::Foreign { commit, .. } => {
                Record::Commit { commit: commit.clone(), value }
            }
            Entry::Moved { commit, .. } => Record::Moved { commit: commit.clone(), value },
            Entry::Arrived { commit } => Record::Moved { commit: commit.clone(), value: &[] },
            Entry::Horizons(horizons) => Record::Horizons(*horizons),
            Entry::Vector { promise, held } | Entry::Copied { promise, held, .. } => {
                Record::Vector { promise: *promise, held: held.clone() }
            }
            Entry::Standing(standing) => Record::Standing(*standing),
            Entry::Forgotten { positions, clock } => {
                Record::Forgotten { positions: positions.clone(), clock: *clock }
            }
        }
    }

    /// As the record of it, with nothing copied for it.
    pub fn encode(&self, value: &[u8], out: &mut Vec<u8>) {
        match self {
            Entry::Commit { commit, .. } | Entry::Foreign { commit, .. } => {
                record::encode_new(commit, value, out);
            }
            other => other.record(value).encode(out),
        }
    }

    /// Whose value the log takes in, if any.
    pub fn ticket(&self) -> Option<Ticket> {
        match self {
            Entry::Commit { ticket, .. }
            | Entry::Foreign { ticket, .. }
            | Entry::Moved { ticket, .. } => Some(*ticket),
            _ => None,
        }
    }

    /// Where its commit's value is, once its record lies at `here`.
    pub fn location(&self, here: Location) -> Location {
        match self {
            Entry::Commit { commit, .. }
            | Entry::Foreign { commit, .. }
            | Entry::Moved { commit, .. } => match commit.location {
                Location::Log { .. } => here,
                elsewhere => elsewhere,
            },
            _ => Location::Nowhere,
        }
    }
}
