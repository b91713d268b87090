//! The messages that two nodes exchange in a session. A session pushes one way: its opener gives,
//! the other takes. A node that missed too much asks for a copy instead.

use std::collections::BTreeMap;
use std::fmt;

use model::Timestamp;
use thiserror::Error;

use crate::clock::Stamp;
use crate::commit::{Commit, NodeTag, Position};
use crate::event::Ticket;
use crate::replica::Horizons;
use crate::sum::Fingerprint;
use model::time::CLOCK_AHEAD_MAX_MS;

/// Per node, the stamp up to which something is known of it.
pub type Vector = BTreeMap<NodeTag, Stamp>;

/// The name of one cluster; nodes of different clusters refuse each other.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub [u8; 16]);

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The start of a commit's id: enough to tell the commits of a range apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShortId(pub [u8; 16]);

impl ShortId {
    pub fn of(commit: &Commit) -> ShortId {
        let mut short = [0; 16];
        short.copy_from_slice(&commit.cid()[..16]);
        ShortId(short)
    }
}

/// The stamps from `from` on and before `until`; the last range has no end but the largest stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampRange {
    pub from: Stamp,
    pub until: Stamp,
}

impl StampRange {
    pub const ALL: StampRange = StampRange { from: Stamp(0), until: Stamp(u64::MAX) };

    pub fn bounds(&self) -> (Option<Position>, Option<Position>) {
        let until = (self.until != StampRange::ALL.until).then(|| Position::start_of(self.until));
        (Some(Position::start_of(self.from)), until)
    }
}

/// What one node holds in a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeSummary {
    pub range: StampRange,
    pub held: RangeHoldings,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeHoldings {
    /// The ids, in order.
    Ids(Vec<ShortId>),
    Sum {
        fingerprint: Fingerprint,
        count: u64,
    },
}

/// The taker's answer to one summary; ranges that are equal get none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SummaryAnswer {
    /// The commits that the taker lacks, by their index in a range whose ids were named.
    Lacks { range: StampRange, missing: Vec<u32> },
    /// What the taker holds there, as ids or in parts.
    Holds(Vec<RangeSummary>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub cluster: ClusterId,
    pub node: NodeTag,
    pub incarnation: u64,
    pub clock: Timestamp,
    pub horizons: Horizons,
    pub head: Fingerprint,
    pub count: u64,
    /// A[m] as far as the sender knows; its own entry is what it has made durable.
    pub acks: Vector,
    /// Whether the sender has not yet caught up since it joined or lost its past.
    pub fresh: bool,
}

/// A commit under way. Its ticket names the bytes of its value inside one shell alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    pub ticket: Ticket,
    pub commit: Commit,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The number that the opener chose; both sides drop what belongs to an older session.
    pub session: u64,
    pub body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Opens a session; the summaries hold if the taker's horizons are the same.
    Open {
        hello: Hello,
        summaries: Vec<RangeSummary>,
    },
    /// Answers an opening; no answers if the taker's horizons were higher and the giver must
    /// compare again.
    Opened {
        hello: Hello,
        answers: Option<Vec<SummaryAnswer>>,
    },
    Compare(Vec<RangeSummary>),
    Answers(Vec<SummaryAnswer>),
    Commits {
        batch: u32,
        commits: Vec<Carried>,
    },
    /// Everything of this batch is durable.
    Durable {
        batch: u32,
    },
    /// The taker has everything now; what the giver holds, it holds too.
    Done {
        vector: Vector,
    },
    /// The taker concluded so, unless something is parked until its time comes.
    Noted {
        whole: bool,
        head: Fingerprint,
    },
    /// Asks for everything: the giver is the authority up to its garbage horizon.
    CopyFrom {
        hello: Hello,
    },
    Copying {
        hello: Hello,
    },
    Copied {
        vector: Vector,
        horizons: Horizons,
    },
    Refused(SessionRefusal),
}

#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, PartialOrd, Ord)]
pub enum SessionRefusal {
    #[error("the peer belongs to another cluster")]
    OtherCluster,
    #[error(
        "the clocks of the two nodes are {} ms apart; set both right (NTP), restart the wrong one",
        how_far(*.0)
    )]
    ClocksApart(u64),
    #[error("one of the two nodes does not have the other on its roster yet")]
    Unknown,
    #[error("the peer was removed from the cluster; let it join again")]
    Evicted,
    #[error("the giver missed what the cluster has forgotten since; it must copy first")]
    Behind,
    #[error("the peer claims a horizon that it cannot have")]
    Implausible,
    #[error("a commit is older than what everybody was said to hold")]
    BelowGarbage,
    #[error("two different commits have the same time and node")]
    Conflict,
    #[error("the value of a commit does not match its hash")]
    ValueMismatch,
    #[error("the horizons rose meanwhile")]
    HorizonsRose,
    #[error("there is no room for more")]
    NoRoom,
    #[error("the node is busy with its own catching up")]
    Busy,
    #[error("the session made no progress")]
    Stalled,
    #[error("the message does not belong here")]
    OutOfPlace,
}

/// Returns how far apart the clocks are, as text; a refusal without its figures has 0 there.
fn how_far(ms: u64) -> String {
    if ms == 0 { format!("more than {CLOCK_AHEAD_MAX_MS}") } else { ms.to_string() }
}

impl SessionRefusal {
    /// Returns the same refusal without its figures, as it is reported once.
    pub fn kind(self) -> SessionRefusal {
        match self {
            SessionRefusal::ClocksApart(_) => SessionRefusal::ClocksApart(0),
            other => other,
        }
    }

    /// Returns whether somebody has to look into it; otherwise it ends by itself.
    pub fn alarms(self) -> bool {
        !matches!(
            self,
            SessionRefusal::Unknown
                | SessionRefusal::Behind
                | SessionRefusal::HorizonsRose
                | SessionRefusal::NoRoom
                | SessionRefusal::Busy
                | SessionRefusal::Stalled
        )
    }
}
