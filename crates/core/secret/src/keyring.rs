//! The keys that a node has, and which of them seals what is written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::Key;
use model::secrets::SealingKeyId;
use zeroize::Zeroizing;

use crate::sealed::{OpenError, SALT_BYTES, SealingKey, key_of};

/// The most keys of a node: the one that seals, one that follows, and those of clusters and
/// rotations before that still open something.
pub const KEYS_MAX: usize = 16;

#[derive(Clone, Default)]
pub struct KeyRing {
    keys: BTreeMap<SealingKeyId, Arc<SealingKey>>,
    seals: Option<SealingKeyId>,
}

impl KeyRing {
    pub fn add(&mut self, key: SealingKey) {
        self.keys.insert(key.id(), Arc::new(key));
    }

    pub fn remove(&mut self, id: &SealingKeyId) {
        self.keys.remove(id);
        self.seals = self.seals.filter(|seals| seals != id);
    }

    /// Seals with this key from now on, if it is there; otherwise values stay clear.
    pub fn seal_with(&mut self, id: Option<SealingKeyId>) {
        self.seals = id.filter(|id| self.keys.contains_key(id));
    }

    pub fn seals(&self) -> Option<SealingKeyId> {
        self.seals
    }

    pub fn ids(&self) -> BTreeSet<SealingKeyId> {
        self.keys.keys().copied().collect()
    }

    pub fn get(&self, id: &SealingKeyId) -> Option<&Arc<SealingKey>> {
        self.keys.get(id)
    }

    pub fn keys(&self) -> impl Iterator<Item = &Arc<SealingKey>> {
        self.keys.values()
    }

    /// Seals a value; `None` as long as there is no key for that.
    pub fn seal(&self, key: &Key, value: &[u8], salt: [u8; SALT_BYTES]) -> Option<Vec<u8>> {
        Some(self.keys.get(&self.seals?)?.seal(key, value, salt))
    }

    /// Opens a value; `None` if it is not sealed.
    pub fn open(&self, key: &Key, bytes: &[u8]) -> Result<Option<Zeroizing<Vec<u8>>>, OpenError> {
        let Some(id) = key_of(bytes)? else { return Ok(None) };
        let sealing = self.keys.get(&id).ok_or(OpenError::NoKey(id))?;
        sealing.open(key, bytes).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_key_opens_and_a_removed_one_does_not() {
        let key: Key = "app::blog::config".parse().unwrap();
        let made = |byte| SealingKey::new(Zeroizing::new([byte; 32]));
        let mut ring = KeyRing::default();
        assert_eq!(ring.seal(&key, b"x", [0; 32]), None);
        let (old, new) = (made(1), made(2));
        let (old_id, new_id) = (old.id(), new.id());
        ring.add(old);
        ring.seal_with(Some(new_id));
        assert_eq!(ring.seals(), None, "a key that is not there does not seal");
        ring.seal_with(Some(old_id));
        let sealed = ring.seal(&key, b"x", [0; 32]).unwrap();
        ring.add(new);
        ring.seal_with(Some(new_id));
        assert_eq!(ring.open(&key, &sealed).unwrap().unwrap().as_slice(), b"x");
        assert_eq!(ring.open(&key, b"{}"), Ok(None));
        ring.remove(&old_id);
        assert_eq!(ring.open(&key, &sealed), Err(OpenError::NoKey(old_id)));
        assert_eq!(ring.seals(), Some(new_id));
        ring.remove(&new_id);
        assert_eq!(ring.seals(), None);
    }
}
