//! The claims of other nodes as this one knows them: what is on its board is newer than what its
//! store had room for. Asked by placement and by the applications' actors.

use model::key::BoardKey;
use model::{InstanceId, Key, NodeId, TypedKey};

use store::{Store, StoreError, Value};

/// Returns the claim of which another version may be the newest once this key has changed.
pub fn changed_by(key: &TypedKey) -> Option<(&InstanceId, &NodeId)> {
    match key {
        TypedKey::Claim(instance, node) | TypedKey::Board(BoardKey::Unkept(instance, node)) => {
            Some((instance, node))
        }
        _ => None,
    }
}

/// Returns the newest version of a claim that is known, and the key under which it lies.
pub async fn newest(
    store: &dyn Store,
    instance: &InstanceId,
    node: &NodeId,
) -> Result<(Key, Option<Value>), StoreError> {
    let unkept = TypedKey::Board(BoardKey::Unkept(instance.clone(), node.clone())).key();
    if let Some(note) = store.lookup(&unkept).await? {
        let deleted = note.value.inline().is_some_and(|text| text.is_empty());
        return Ok((unkept, Some(note.value).filter(|_| !deleted)));
    }
    let key = TypedKey::Claim(instance.clone(), node.clone()).key();
    let entry = store.lookup(&key).await?;
    Ok((key, entry.map(|entry| entry.value)))
}
