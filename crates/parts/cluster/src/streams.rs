//! Streams to and from other members, one kind for each part that speaks with its counterpart. Must
//! not know what is said over them.

use std::collections::BTreeSet;

use anyhow::Context;
use async_trait::async_trait;
use model::NodeId;
use tokio::sync::watch;

use super::peers::Peers;
use runtime::members::{BoxedStream, Members, ServeStream, StreamKind};

#[async_trait]
impl Members for Peers {
    fn alive(&self) -> watch::Receiver<BTreeSet<NodeId>> {
        self.alive.subscribe()
    }

    fn in_touch(&self) -> watch::Receiver<BTreeSet<NodeId>> {
        self.in_touch.subscribe()
    }

    fn removed(&self) -> watch::Receiver<bool> {
        self.removed.subscribe()
    }

    fn is_joining(&self) -> bool {
        self.store_role.is_joining()
    }

    fn serve(&self, kind: StreamKind, serve: ServeStream) {
        self.doors.set(kind, serve);
    }

    async fn open(&self, node: &NodeId, kind: StreamKind) -> anyhow::Result<BoxedStream> {
        let net = self.net.get().context("this node does not speak to others yet")?;
        net.open(node, kind).await
    }
}
