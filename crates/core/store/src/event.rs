//! The events that go into the store's machine and the effects that come out of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::{Key, Timestamp};
use thiserror::Error;

use crate::clock::Stamp;
use crate::commit::{Commit, CommitAction, Location, NodeTag, Position};
use crate::expiry::Expiry;
use crate::record::{self, Record};
use crate::replica::Horizons;
use crate::sync::message::{ClusterId, Message, SessionRefusal, Vector};

/// The name of one write until it is acknowledged or refused.
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
    /// The value is a content-addressed file, which is already durable.
    SetFile {
        hash: [u8; 32],
        sha1: [u8; 20],
        size: u64,
        expires: Option<Expiry>,
    },
    Delete,
}

impl Change {
    /// Returns the change that makes the same commit once more.
    pub fn again(commit: &Commit) -> Change {
        match (commit.action, commit.location) {
            (CommitAction::Delete, _) => Change::Delete,
            (CommitAction::Set { hash, sha1, size, expires }, Location::Log { .. }) => {
                Change::SetInline { hash, sha1, size, expires }
            }
            (CommitAction::Set { hash, sha1, size, expires }, _) => {
                Change::SetFile { hash, sha1, size, expires }
            }
        }
    }

    /// Returns whether the key has a value at this time once the change is made.
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
    /// The commit that must still give the key its value, as this node sees it, for the write to
    /// happen. A write that rests on an earlier read, such as a new expiry for the same value, is
    /// otherwise tried again.
    pub only_over: Option<Position>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Write(Vec<Write>),
    /// The values of these commits are to be written anew because their segment is to be freed.
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
    /// History before this time is to be dropped now.
    Squash {
        before: Timestamp,
    },
    /// A peer sent this. The values of its commits are at hand under their tickets and were checked
    /// against their hashes; the commit of a large value says whether its file is here.
    Received {
        from: NodeTag,
        message: Message,
    },
    /// These nodes can be talked to now, whatever the roster says.
    Reachable(BTreeSet<NodeTag>),
    /// This message could not be sent, or a value of it not be read: the session is over.
    Lost {
        peer: NodeTag,
    },
    /// The files of these large values are here now and durable.
    Fetched(Vec<[u8; 32]>),
    /// This node is to talk to all others now.
    Sync,
    /// This node is to become a member of another cluster. `listed` is the stamp of the roster
    /// entry that was made for it.
    Join {
        cluster: ClusterId,
        listed: Stamp,
    },
    /// Somebody looked at the clock and it is right.
    TrustClock,
    /// The commits that a `SetAside` named have been set aside; these writes issue anew those that
    /// were to be kept.
    SetAside {
        writes: Vec<Write>,
    },
}

/// One record of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchEntry {
    /// A commit of this node; the shell holds the value's bytes under the ticket.
    Commit {
        ticket: Ticket,
        commit: Commit,
    },
    /// The value of a held commit, written anew; it counts only while the commit is held.
    Moved {
        ticket: Ticket,
        commit: Commit,
    },
    /// The value of a held commit has come as a file.
    Arrived {
        commit: Commit,
    },
    /// A commit from a peer's batch.
    Foreign {
        ticket: Ticket,
        commit: Commit,
        origin: Origin,
    },
    Horizons(Horizons),
    /// What this node holds of the others, and the stamp up to which it promises to issue nothing
    /// more.
    Vector {
        promise: Stamp,
        held: Vector,
    },
    /// The same as `Vector`, after a copy of everything that a peer holds.
    Copied {
        promise: Stamp,
        held: Vector,
        garbage: Stamp,
    },
    Standing(Standing),
    /// These commits are no longer held, and the clock stands at this stamp.
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

/// What this node is to its cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    pub cluster: ClusterId,
    /// The node's current incarnation; it changes when the node joins or finds that it lost a part
    /// of its past.
    pub incarnation: u64,
    /// The stamp up to which the node must hold everything; until then it may take a peer for the
    /// authority.
    pub fresh_until: Stamp,
    /// The stamp of this node's newest entry on the roster. A peer that knows only of an earlier
    /// stay has not heard that what this node issued then no longer counts.
    pub listed: Stamp,
    /// Whether what it holds is of another cluster, as it is until it has copied what this one
    /// holds.
    pub foreign: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make this durable, then report `Persisted`; at most one is under way.
    Persist {
        batch: u64,
        entries: Arc<Vec<BatchEntry>>,
    },
    /// The write has become the commit `cid`; `None` if the delete found nothing to delete, another
    /// commit stands where one was expected, or the moved commit was dropped meanwhile.
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
    /// The bytes of the key's present value have come: what could not be read when it was announced
    /// can be now.
    Arrived {
        arrival: u64,
        commit: Commit,
    },
    /// The key's value has expired.
    Expired {
        arrival: u64,
        commit: Commit,
    },
    Alarm(Alarm),
    Send {
        to: NodeTag,
        message: Message,
    },
    /// The value under the ticket is no longer needed.
    Release {
        ticket: Ticket,
    },
    /// Keep these commits where people can find them, durably, then report `SetAside` with writes,
    /// under the keys given, for those that are to be issued anew.
    SetAside {
        commits: Vec<Commit>,
        anew: Vec<(Position, Arc<str>)>,
    },
    /// Watchers cannot be told what changed and must read again.
    Resync,
    /// The roster changed.
    Roster(BTreeSet<NodeTag>),
}

/// The reason why a write was refused.
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

/// Something that a person has to look into. Each alarm is reported once until it is over.
#[derive(Clone, Debug, Error, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alarm {
    /// The alarm is over when that peer and this node hold the same again.
    #[error(
        "two commits have one time and node: {position:?}, here and on node {peer:?}; two nodes \
         share an id, or {peer:?} was set back to an old copy: remove it and let it join again"
    )]
    Conflict { position: Position, peer: NodeTag },
    #[error("no session with node {peer:?}: {reason}")]
    Quarantined { peer: NodeTag, reason: SessionRefusal },
    /// The alarm is over when a session with that node went well, or the node was removed.
    #[error(
        "no session with node {by:?}: it does not have this node on its roster. If an older copy \
         of its data was put back there, let it join again: `cortex nodes remove --force {by:?}` \
         and `cortex nodes invite` here, then `cortex up --join WORD` there. If this node was \
         removed long ago, it is this one that has to join again"
    )]
    Unlisted { by: NodeTag },
    /// The same as the other node sees it. The alarm is over when that node is a member, or no
    /// longer calls.
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
    /// The alarm is over when this node holds everything again.
    #[error("this node lost a part of its past; it copies from node {authority:?}")]
    LostPast { authority: NodeTag },
}

impl Alarm {
    /// Returns the same alarm without its figures.
    pub(crate) fn kind(&self) -> Alarm {
        match self {
            Alarm::Quarantined { peer, reason } => {
                Alarm::Quarantined { peer: *peer, reason: reason.kind() }
            }
            other => other.clone(),
        }
    }
}

impl BatchEntry {
    /// Returns what the log is to hold of it; `value` are the bytes under its ticket.
    pub fn record<'a>(&self, value: &'a [u8]) -> Record<'a> {
        match self {
            BatchEntry::Commit { commit, .. } | BatchEntry::Foreign { commit, .. } => {
                Record::Commit { commit: commit.clone(), value }
            }
            BatchEntry::Moved { commit, .. } => Record::Moved { commit: commit.clone(), value },
            BatchEntry::Arrived { commit } => Record::Moved { commit: commit.clone(), value: &[] },
            BatchEntry::Horizons(horizons) => Record::Horizons(*horizons),
            BatchEntry::Vector { promise, held } | BatchEntry::Copied { promise, held, .. } => {
                Record::Vector { promise: *promise, held: held.clone() }
            }
            BatchEntry::Standing(standing) => Record::Standing(*standing),
            BatchEntry::Forgotten { positions, clock } => {
                Record::Forgotten { positions: positions.clone(), clock: *clock }
            }
        }
    }

    /// Encodes it as its record, without copying anything for it.
    pub fn encode(&self, value: &[u8], out: &mut Vec<u8>) {
        match self {
            BatchEntry::Commit { commit, .. } | BatchEntry::Foreign { commit, .. } => {
                record::encode_new(commit, value, out);
            }
            other => other.record(value).encode(out),
        }
    }

    /// Returns the ticket of the value that the log takes in, if any.
    pub fn ticket(&self) -> Option<Ticket> {
        match self {
            BatchEntry::Commit { ticket, .. }
            | BatchEntry::Foreign { ticket, .. }
            | BatchEntry::Moved { ticket, .. } => Some(*ticket),
            _ => None,
        }
    }

    /// Returns where the commit's value is once its record lies at `here`.
    pub fn location(&self, here: Location) -> Location {
        match self {
            BatchEntry::Commit { commit, .. }
            | BatchEntry::Foreign { commit, .. }
            | BatchEntry::Moved { commit, .. } => match commit.location {
                Location::Log { .. } => here,
                elsewhere => elsewhere,
            },
            _ => Location::Nowhere,
        }
    }
}
