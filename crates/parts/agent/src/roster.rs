//! The cluster's roster, as far as the agent asks for it.

use model::{NodeId, TypedKey};

use store::{Store, StoreError};

/// Whether a node belongs to the cluster, with a store or without.
pub async fn is_listed(store: &dyn Store, node: &NodeId) -> Result<bool, StoreError> {
    for entry in [TypedKey::Member(node.clone()), TypedKey::Guest(node.clone())] {
        if store.lookup(&entry.key()).await?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}
