//! Nodes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::{ApplicationName, NodeId};
use crate::record::Unknown;
use crate::role::Roles;
use crate::time::Timestamp;
use crate::wall::{Wall, Walls};

/// `cluster::nodes::ID`: the roster. A node stays on it, alive or not, until it is removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    pub v: u32,
    pub id: NodeId,
    pub joined_at: Timestamp,
    /// The addresses at which it was reached when it came in; `node::ID::address` says where it is
    /// now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// The BLAKE3 of the public key that it showed when it came in, hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<String>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `node::ID::address`: where other members reach it, `HOST:PORT` each, and the key that it shows.
/// Written by that node when it changes, and by the node that lets it in again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeAddress {
    pub v: u32,
    pub addresses: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<String>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `node::ID::info`: written at each start of the node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeInfo {
    pub v: u32,
    pub hostname: String,
    pub version: String,
    pub cores: u32,
    pub memory_bytes: u64,
    /// The kind of processor, C library and system, as `x86_64-glibc2.36-debian12`: what is built
    /// on a node runs on others that say the same. Empty if it could not be told.
    #[serde(default)]
    pub platform: String,
    pub started_at: Timestamp,
    /// The address at which this node's public HTTP listens, if it has a router.
    pub http: String,
    #[serde(default)]
    pub roles: Roles,
    /// The kinds of walls that it can build around applications, as it found out when it started.
    /// One that cannot, or that is of a build that knows none, says nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub walls: Vec<String>,
    /// What its build knows of that earlier ones pass over; see `Feature`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl NodeInfo {
    /// Returns the walls that it can build.
    pub fn walls(&self) -> Walls {
        Walls::of_words(self.walls.iter().map(String::as_str))
    }

    /// Returns whether what asks for this wall, or none, can run there.
    pub fn can_build(&self, wall: Option<Wall>) -> bool {
        self.walls().contain(wall.into_iter().collect())
    }

    pub fn has(&self, feature: Feature) -> bool {
        self.features.iter().any(|known| known == feature.word())
    }
}

/// Something that a specification may say, and that builds from before it pass over as if it were
/// not said. Where that does harm, it is only asked for once all members know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// A specification with an end in it is that of an application which is not there.
    KeptApplications,
    /// Clients are asked for the application's password.
    Password,
    /// An application is behind the wall that an owner wants around it.
    IsolationMarks,
}

impl Feature {
    pub const ALL: [Feature; 3] =
        [Feature::KeptApplications, Feature::Password, Feature::IsolationMarks];

    pub fn word(self) -> &'static str {
        match self {
            Feature::KeptApplications => "kept-applications",
            Feature::Password => "password",
            Feature::IsolationMarks => "isolation-marks",
        }
    }

    /// Returns the words of all that this build knows.
    pub fn words() -> Vec<String> {
        Feature::ALL.map(|feature| feature.word().to_owned()).into()
    }
}

/// `cluster::drained::ID`: says that a node takes nothing new and gives away what it runs, until
/// the record is deleted. Written by a user's command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drained {
    pub v: u32,
    pub since: Timestamp,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `node::ID::load`: written when it changed by `LOAD_CHANGE_PERCENT`, at most every
/// `LOAD_INTERVAL_MS`, so that nothing periodic enters the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeLoad {
    pub v: u32,
    /// The larger of one-minute load per core and used memory, in percent.
    pub percent: u32,
    pub measured_at: Timestamp,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `node::ID::disk`: what applications' files take there. Written when one takes more or less by
/// `DISK_CHANGE_BYTES`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeDisk {
    pub v: u32,
    /// Bytes by application: persistent files, builds, caches and logs.
    pub bytes: BTreeMap<ApplicationName, u64>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A change that says something about a limit, and is rare enough to enter the store.
pub const DISK_CHANGE_BYTES: u64 = 10 << 20;
pub const LOAD_CHANGE_PERCENT: u32 = 5;
pub const LOAD_INTERVAL_MS: u64 = 5_000;
