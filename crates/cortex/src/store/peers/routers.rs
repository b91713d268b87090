//! What routers need of the node port: calls to the router of another member, calls from one, and
//! which members do not answer. Must not know what routers say to each other.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, OnceLock};

use anyhow::Context;
use async_trait::async_trait;
use model::NodeId;
use tokio::sync::watch;
use tokio_rustls::rustls::ServerConnection;
use tokio_rustls::{client, server};

use super::tls::ALPN_ROUTER;
use super::{Peers, dial};

pub type CalledRouter = client::TlsStream<tokio::net::TcpStream>;

/// A member called; who it is has been proven.
pub struct RouterCall {
    pub peer: NodeId,
    pub stream: TcpStream,
    pub tls: ServerConnection,
}

impl RouterCall {
    pub fn of(
        peer: NodeId,
        stream: server::TlsStream<tokio::net::TcpStream>,
    ) -> anyhow::Result<RouterCall> {
        let (stream, tls) = stream.into_inner();
        Ok(RouterCall { peer, stream: stream.into_std()?, tls })
    }
}

impl RouterCall {
    /// Says one word, as far as the other side takes it in at once, and ends.
    pub fn refuse(mut self, word: &[u8]) {
        // Whoever does not hear it finds the connection closed.
        self.tls.writer().write_all(word).ok();
        self.tls.send_close_notify();
        while self.tls.wants_write() {
            if !self.tls.write_tls(&mut self.stream).is_ok_and(|written| written > 0) {
                return;
            }
        }
        self.stream.shutdown(Shutdown::Write).ok();
    }
}

pub type Take = Box<dyn Fn(RouterCall) + Send + Sync>;

/// Where calls for this node's router go, once it is there.
#[derive(Clone, Default)]
pub struct Door(Arc<OnceLock<Take>>);

impl Door {
    pub fn hand_over(&self, call: RouterCall) -> anyhow::Result<()> {
        let take = self.0.get().context("this node has no router: it keeps the store alone")?;
        take(call);
        Ok(())
    }
}

/// Other members, as a router needs them.
#[async_trait]
pub trait RouterPeers: Send + Sync {
    /// Calls from routers of other members go there. The first one stays.
    fn set_router(&self, take: Take);

    /// A connection to the router of another member, proven to be that.
    async fn call_router(&self, node: &NodeId) -> anyhow::Result<CalledRouter>;

    /// Members that were there and do not answer.
    fn down(&self) -> watch::Receiver<BTreeSet<NodeId>>;
}

#[async_trait]
impl RouterPeers for Peers {
    fn set_router(&self, take: Take) {
        self.router.0.set(take).ok();
    }

    async fn call_router(&self, node: &NodeId) -> anyhow::Result<CalledRouter> {
        let net = self.net.get().context("this node does not speak to others yet")?;
        let (addresses, config) = (net.addresses(), net.tls.router_client());
        dial::connect(net, node, &addresses, config, ALPN_ROUTER).await
    }

    fn down(&self) -> watch::Receiver<BTreeSet<NodeId>> {
        self.down.subscribe()
    }
}
