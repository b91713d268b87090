//! The role that this node has for the store: it keeps a copy, which the transport replicates, or
//! it uses another node's, and the transport carries all the rest.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use anyhow::Context;
use store_core::NodeTag;

use crate::remote::{GuestHandle, Nothing};
use store::bulk::BulkPeers;
use store::bulk::fetch_board::FetchBoard;
use store::replication::Replication;

#[derive(Clone)]
pub enum StoreRole {
    Keeper(Replication),
    Guest(GuestHandle),
}

impl StoreRole {
    pub fn replication(&self) -> Option<&Replication> {
        match self {
            StoreRole::Keeper(replication) => Some(replication),
            StoreRole::Guest(_) => None,
        }
    }

    /// Returns the replication for what only a keeper's machine can do; fails on a guest.
    pub fn keeper(&self) -> anyhow::Result<&Replication> {
        self.replication()
            .context("this node keeps no store: give the command on one that does (`cortex nodes`)")
    }

    pub fn guest(&self) -> Option<&GuestHandle> {
        match self {
            StoreRole::Keeper(_) => None,
            StoreRole::Guest(guest) => Some(guest),
        }
    }

    /// Returns whether writes wait until this node has what its cluster has.
    pub fn is_joining(&self) -> bool {
        self.replication().is_some_and(Replication::is_joining)
    }

    pub fn reachable(&self, peers: BTreeSet<NodeTag>) {
        if let StoreRole::Keeper(replication) = self {
            replication.reachable(peers);
        }
    }

    pub fn lost(&self, peer: NodeTag) {
        if let StoreRole::Keeper(replication) = self {
            replication.lost(peer);
        }
    }

    pub fn fetch_board(&self) -> Arc<FetchBoard> {
        match self {
            StoreRole::Keeper(replication) => replication.fetch_board(),
            StoreRole::Guest(guest) => guest.large.clone(),
        }
    }

    /// Starts fetching large values from these peers, once.
    pub fn fetch_from(&self, peers: Arc<dyn BulkPeers>) -> io::Result<()> {
        match self {
            StoreRole::Keeper(replication) => replication.fetch_from(peers),
            StoreRole::Guest(guest) => guest.large.start(peers, Arc::new(Nothing)),
        }
    }
}
