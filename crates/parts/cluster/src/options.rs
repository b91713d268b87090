//! The peer options of the command line.

use std::net::SocketAddr;
use std::sync::Arc;

use os::shared_port::Listeners;

use super::frame::Versions;
use super::invitation::Token;

/// The default port of nodes, on all addresses, opened once it is needed.
pub const NODE_PORT: u16 = 8205;

/// The peer options of the command line.
#[derive(Clone, Debug, Default)]
pub struct PeerOptions {
    pub listen: Option<SocketAddr>,
    /// The address that others are told in place of the one where this node listens.
    pub advertise: Option<SocketAddr>,
    pub join: Option<Token>,
    /// Whether a brand new node waits until a member adds it.
    pub awaits: bool,
    /// Whether this node keeps no store.
    pub guest: bool,
    /// The seconds by which this node's clock is wrong, in tests.
    pub clock_off: i64,
    /// The versions that this node says it speaks; those of another build in tests.
    pub versions: Versions,
    pub listeners: Arc<Listeners>,
}

impl PeerOptions {
    /// Returns whether this node is to join a cluster.
    pub fn joins(&self) -> bool {
        self.join.is_some() || self.awaits
    }
}
