//! The node port as routers use it. Must not know what routers say to each other.

use std::collections::BTreeSet;

use anyhow::Context;
use async_trait::async_trait;
use model::NodeId;
use tokio::sync::watch;

use super::dial;
use super::peers::Peers;
use super::tls::ALPN_ROUTER;
use runtime::members::{CalledRouter, RouterPeers, Take};

#[async_trait]
impl RouterPeers for Peers {
    fn set_router(&self, take: Take) {
        self.router.set(take);
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
