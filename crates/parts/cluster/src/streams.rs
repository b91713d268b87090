//! Streams to other members and from them, one kind for each part that speaks with its like. Must
//! not know what is said over them.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use anyhow::Context;
use async_trait::async_trait;
use model::NodeId;
use tokio::sync::watch;

use super::Peers;
use runtime::members::{BoxedStream, Kind, Members, Serve};

/// Where streams of each kind go, once somebody is there to take them.
#[derive(Clone, Default)]
pub struct Doors(Arc<[OnceLock<Serve>; Kind::ALL.len()]>);

impl Doors {
    fn door(&self, kind: Kind) -> &OnceLock<Serve> {
        &self.0[kind as usize]
    }

    pub fn hand_over(&self, kind: Kind, peer: NodeId, stream: BoxedStream) -> anyhow::Result<()> {
        let serve = self.door(kind).get();
        let serve = serve.context("this node has no agent: it keeps the store alone")?;
        serve(peer, stream);
        Ok(())
    }
}

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
        self.side.is_joining()
    }

    fn serve(&self, kind: Kind, serve: Serve) {
        self.doors.door(kind).set(serve).ok();
    }

    async fn open(&self, node: &NodeId, kind: Kind) -> anyhow::Result<BoxedStream> {
        let net = self.net.get().context("this node does not speak to others yet")?;
        net.open(node, kind).await
    }
}
