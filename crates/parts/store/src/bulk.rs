//! Large values between nodes: finds out which node has one and transfers its bytes, which are
//! checked group by group on arrival so that nothing false is ever kept. Works over any pair of
//! streams; knows nothing of how peers are found or trusted, of commits and of keys.

mod fetch;
pub mod fetch_board;
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

/// The name by which the transport knows this protocol; the version is part of it.
pub const ALPN: &[u8] = b"cortex-bulk/1";
/// The size of a group in bytes. Whole groups travel and are checked, so a false byte costs one at
/// most.
pub const GROUP_BYTES: usize = 16 << 10;
/// The number of groups in a span, whose hashes are sent together: 8 KiB of hashes, 4 MiB of value.
pub const SPAN_GROUPS: usize = 256;
/// The size in bytes of the buffer between a stream and the disk, on either side of a transfer.
pub const BUFFER_BYTES: usize = 4 * GROUP_BYTES;
/// The number of names asked for in one message: 8 KiB of hashes.
pub const ASKED_MAX: usize = 256;
/// The time after which a silent peer is given up; one that is hashing a file says so in time.
const STALL_MAX: Duration = Duration::from_secs(20);

/// A BLAKE3 chaining value inside the tree, or its root where it stands for a whole value.
pub type Cv = [u8; 32];

/// The name of a large value: its hash and length, both told by its commit.
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

/// What a commit says of a large value, apart from its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatedHash {
    pub sha1: [u8; 20],
    /// The node that wrote the commit; `key` is the key it wrote.
    pub by: NodeId,
    pub key: Arc<str>,
}

/// The other nodes of the cluster, whose identity the transport has verified.
#[async_trait]
pub trait BulkPeers: Send + Sync + 'static {
    /// Returns the peers that can be reached now.
    fn reachable(&self) -> Vec<NodeId>;
    /// Opens a stream of this protocol, which that node serves.
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
    /// The peer, or its disk, gave bytes that are not the value's, or it spoke out of turn.
    #[error("the peer sent what is false: {0}")]
    False(&'static str),
    /// This node's own disk failed.
    #[error("the value cannot be kept here ({0}): free space, then it comes by itself")]
    Disk(#[source] io::Error),
    /// The value is whole, but no commit that names it gives its true SHA-1.
    #[error(
        "the commit of '{}' by node {} gives another SHA-1 than the value has: the value is not \
         taken in; set that key again", .0.key, .0.by
    )]
    Claimed(StatedHash),
    /// Bytes that an earlier run left were damaged; they are gone, and fetching can go on.
    #[error("what was kept of the value was damaged and is fetched again")]
    Damaged,
}
