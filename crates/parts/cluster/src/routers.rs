//! The node port as routers need it. Must not know what routers say to each other.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use anyhow::Context;
use async_trait::async_trait;
use model::NodeId;
use tokio::sync::watch;

use super::tls::ALPN_ROUTER;
use super::{Peers, dial};
use runtime::members::{CalledRouter, RouterCall, RouterPeers, Take};

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
