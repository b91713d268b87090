//! Streams on which files of applications go from node to node, and on which checkers ask about
//! instances: calls to another member, and calls from one. Must not know what is said over them.

use std::sync::{Arc, OnceLock};

use anyhow::Context;
use model::NodeId;

use super::Peers;
use crate::store::bulk::BoxedStream;

pub type Take = Box<dyn Fn(NodeId, BoxedStream) + Send + Sync>;

/// Where such calls go, once somebody is there to take them.
#[derive(Clone, Default)]
pub struct Door(Arc<OnceLock<Take>>);

impl Door {
    pub fn hand_over(&self, peer: NodeId, stream: BoxedStream) -> anyhow::Result<()> {
        let take = self.0.get().context("this node has no agent: it keeps the store alone")?;
        take(peer, stream);
        Ok(())
    }
}

impl Peers {
    /// Calls of other members for files go there. The first one stays.
    pub fn set_files(&self, take: Take) {
        self.files.0.set(take).ok();
    }

    /// Calls of other members' checkers go there. The first one stays.
    pub fn set_probes(&self, take: Take) {
        self.probes.0.set(take).ok();
    }

    /// Calls of other members for people who are connected to them go there. The first one stays.
    pub fn set_calls(&self, take: Take) {
        self.calls.0.set(take).ok();
    }

    /// A stream with another member, proven to be that, for somebody who is connected here.
    pub async fn call(&self, node: &NodeId) -> anyhow::Result<BoxedStream> {
        let net = self.net.get().context("this node does not speak to others yet")?;
        net.call(node).await
    }

    /// A stream with another member, proven to be that, for questions about its instances.
    pub async fn call_probe(&self, node: &NodeId) -> anyhow::Result<BoxedStream> {
        let net = self.net.get().context("this node does not speak to others yet")?;
        net.call_probe(node).await
    }

    /// A stream with another member, proven to be that.
    pub async fn call_files(&self, node: &NodeId) -> anyhow::Result<BoxedStream> {
        let net = self.net.get().context("this node does not speak to others yet")?;
        net.call_files(node).await
    }
}
