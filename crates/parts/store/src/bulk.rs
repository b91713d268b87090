//! Large values between nodes: who has one, and its bytes, checked group by group on arrival so
//! that nothing false is ever kept. Works over any pair of streams; knows nothing of how peers are
//! found or trusted, of commits and of keys.

pub mod desk;
mod fetch;
mod frame;
mod links;
pub mod outline;
mod partial;
pub mod reader;
pub mod schedule;
mod serve;
#[cfg(test)]
mod tests;
mod thread;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use model::NodeId;
use model::value::ContentHash;
use thiserror::Error;

use runtime::members::BoxedStream;

/// What the transport names this protocol by; the version is part of it.
pub const ALPN: &[u8] = b"cortex-bulk/1";
/// Whole groups travel and are checked; a false byte costs at most one.
pub const GROUP_BYTES: usize = 16 << 10;
/// Groups whose hashes are told together: 8 KiB of hashes, 4 MiB of value.
pub const SPAN_GROUPS: usize = 256;
/// What waits between a stream and the disk, on either side of a transfer.
pub const BUFFER_BYTES: usize = 4 * GROUP_BYTES;
/// Names asked for in one message: 8 KiB of hashes.
pub const ASKED_MAX: usize = 256;
/// A peer that says nothing for this long is given up; one that hashes a file says so in time.
const STALL_MAX: Duration = Duration::from_secs(20);

/// A BLAKE3 hash inside the tree, or its root where it stands for a whole value.
pub type Cv = [u8; 32];

/// A large value by name and length; a commit tells both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ValueName {
    pub hash: [u8; 32],
    pub size: u64,
}

impl ValueName {
    pub fn text(&self) -> String {
        ContentHash(self.hash).to_string()
    }
}

/// What a commit says of a large value beside its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub sha1: [u8; 20],
    /// Who wrote the commit, and of which key.
    pub by: NodeId,
    pub key: Arc<str>,
}

/// The other nodes of the cluster, already known for who they are.
#[async_trait]
pub trait BulkPeers: Send + Sync + 'static {
    /// Who can be talked to now.
    fn reachable(&self) -> Vec<NodeId>;
    /// A stream of this protocol, which that node serves.
    async fn connect(&self, peer: &NodeId) -> io::Result<BoxedStream>;
}

#[derive(Debug, Error)]
pub enum BulkError {
    #[error("the connection was cut: {0}")]
    Cut(#[from] io::Error),
    #[error("the peer said nothing for {} s", STALL_MAX.as_secs())]
    Stalled,
    #[error("the peer does not have the value (any more)")]
    Lacks,
    #[error("the peer cannot give the value: {0}")]
    Unable(String),
    /// The peer, or its disk, gives what is not the value, or speaks out of turn.
    #[error("the peer sent what is false: {0}")]
    False(&'static str),
    /// This node's own disk.
    #[error("the value cannot be kept here ({0}): free space, then it comes by itself")]
    Disk(#[source] io::Error),
    /// The value is whole, and no commit that names it says the truth of it.
    #[error(
        "the commit of '{}' by node {} gives another SHA-1 than the value has: the value is not \
         taken in; set that key again", .0.key, .0.by
    )]
    Claimed(Claim),
    /// Bytes of an earlier run were not what they should be; they are gone, go on.
    #[error("what was kept of the value was damaged and is fetched again")]
    Damaged,
}
