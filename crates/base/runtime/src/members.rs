//! The other members of the cluster, as parts need them: which are alive, and streams to them and
//! from them. A contract alone: the node joins the part that reaches them and the parts that speak
//! with them.

mod routers;

use std::collections::BTreeSet;

use async_trait::async_trait;
use model::NodeId;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

pub use routers::{CalledRouter, RouterCall, RouterPeers, Take};

/// The versions of this protocol that this build speaks.
pub const VERSION_LOWEST: u16 = 1;
pub const VERSION_HIGHEST: u16 = 1;

pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}
pub type BoxedStream = Box<dyn Stream>;

/// The purpose of a stream between two members. The kinds are told apart before anything is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// Files of an application that moves.
    Files,
    /// A checker's questions about instances.
    Probe,
    /// Requests of somebody who is connected to another node.
    Call,
    /// The question how many subscribers channels of the bus have.
    Listeners,
    /// Questions about names that want certificates.
    Certificates,
    /// The question for a key that seals secrets.
    Secrets,
}

impl StreamKind {
    pub const ALL: [StreamKind; 6] = [
        StreamKind::Files,
        StreamKind::Probe,
        StreamKind::Call,
        StreamKind::Listeners,
        StreamKind::Certificates,
        StreamKind::Secrets,
    ];
}

/// A function that takes a stream that another member opened.
pub type ServeStream = Box<dyn Fn(NodeId, BoxedStream) + Send + Sync>;

#[async_trait]
pub trait Members: Send + Sync {
    /// Returns the other nodes that are alive, directly or through others.
    fn alive(&self) -> watch::Receiver<BTreeSet<NodeId>>;

    /// Returns the members with which this node can decide: its store and theirs come to hold the
    /// same.
    fn in_touch(&self) -> watch::Receiver<BTreeSet<NodeId>>;

    /// Returns whether this node was removed and has heard so from others; the store may not know
    /// it yet.
    fn removed(&self) -> watch::Receiver<bool>;

    /// Whether writes wait until this node has what its cluster has.
    fn is_joining(&self) -> bool;

    /// Passes streams of this kind to `serve` from now on. The first registration stays.
    fn serve(&self, kind: StreamKind, serve: ServeStream);

    /// Opens a stream to another member, whose identity is proven.
    async fn open(&self, node: &NodeId, kind: StreamKind) -> anyhow::Result<BoxedStream>;
}
