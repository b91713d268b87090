//! What the command line says of peers.

use std::net::SocketAddr;
use std::sync::Arc;

use os::shared_port::Listeners;

use super::frame::Versions;
use super::invitation::Token;

/// The port of nodes, on all addresses, once it is needed.
pub const NODE_PORT: u16 = 8205;

/// What the command line says of peers.
#[derive(Clone, Debug, Default)]
pub struct PeerOptions {
    pub listen: Option<SocketAddr>,
    /// Told to others in place of where this node listens.
    pub advertise: Option<SocketAddr>,
    pub join: Option<Token>,
    /// A brand new node waits until a member adds it.
    pub awaits: bool,
    /// This node keeps no store.
    pub guest: bool,
    /// Seconds by which this node's clock is wrong, in tests.
    pub clock_off: i64,
    /// What this node says that it speaks; another build's in tests.
    pub versions: Versions,
    pub listeners: Arc<Listeners>,
}

impl PeerOptions {
    /// Whether this node is to come into a cluster.
    pub fn joins(&self) -> bool {
        self.join.is_some() || self.awaits
    }
}
