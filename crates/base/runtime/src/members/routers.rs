//! The other members, as a router needs them: calls to the router of one, calls from one, and which
//! do not answer.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{Shutdown, TcpStream};

use async_trait::async_trait;
use model::NodeId;
use tokio::sync::watch;
use tokio_rustls::rustls::ServerConnection;
use tokio_rustls::{client, server};

pub type CalledRouter = client::TlsStream<tokio::net::TcpStream>;

/// A call from another member, whose identity has been proven.
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
    /// Sends one word, as far as the other side takes it in at once, and ends.
    pub fn refuse(mut self, word: &[u8]) {
        // A side that does not hear it finds the connection closed.
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

/// The other members, as a router needs them.
#[async_trait]
pub trait RouterPeers: Send + Sync {
    /// Passes calls from routers of other members to `take`. The first registration stays.
    fn set_router(&self, take: Take);

    /// Opens a connection to the router of another member, whose identity is proven.
    async fn call_router(&self, node: &NodeId) -> anyhow::Result<CalledRouter>;

    /// Returns the members that were there and do not answer.
    fn down(&self) -> watch::Receiver<BTreeSet<NodeId>>;
}
