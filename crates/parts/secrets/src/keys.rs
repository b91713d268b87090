//! This node's keys, in memory and in their file, and the news that another one came.

use std::sync::{Arc, RwLock};

use model::secrets::SealingKeyId;
use os::unswapped::keep_unswapped;
use secret_core::KeyRing;
use secret_core::sealed::SealingKey;
use tokio::sync::watch;

use crate::file::KeyFile;

pub struct Keys {
    ring: RwLock<Arc<KeyRing>>,
    file: KeyFile,
    renewed: watch::Sender<u64>,
}

impl Keys {
    /// Reads the keys of a start.
    pub fn open(file: KeyFile) -> anyhow::Result<Keys> {
        let ring = file.read()?.unwrap_or_default();
        ring.keys().for_each(|key| lock(key));
        Ok(Keys { ring: RwLock::new(Arc::new(ring)), file, renewed: watch::Sender::new(0) })
    }

    pub fn ring(&self) -> Arc<KeyRing> {
        self.ring.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    pub fn file(&self) -> &KeyFile {
        &self.file
    }

    /// Returns the news of keys that came.
    pub fn renewed(&self) -> watch::Receiver<u64> {
        self.renewed.subscribe()
    }

    /// Keeps a key; durable when it returns.
    pub fn keep(&self, key: SealingKey) -> anyhow::Result<()> {
        let id = key.id();
        self.change(|ring| ring.add(key))?;
        if let Some(key) = self.ring().get(&id) {
            lock(key);
        }
        self.renewed.send_modify(|number| *number += 1);
        Ok(())
    }

    /// Forgets a key, on the disk first.
    pub fn forget(&self, id: &SealingKeyId) -> anyhow::Result<()> {
        self.change(|ring| ring.remove(id))
    }

    pub fn seal_with(&self, id: Option<SealingKeyId>) {
        if self.ring().seals() != id {
            let mut ring = KeyRing::clone(&self.ring());
            ring.seal_with(id);
            self.put(ring);
        }
    }

    fn change(&self, change: impl FnOnce(&mut KeyRing)) -> anyhow::Result<()> {
        let mut ring = KeyRing::clone(&self.ring());
        change(&mut ring);
        self.file.write(&ring)?;
        self.put(ring);
        Ok(())
    }

    fn put(&self, ring: KeyRing) {
        *self.ring.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::new(ring);
    }
}

/// Keeps a key in memory; where the kernel does not allow that, it is used all the same.
fn lock(key: &SealingKey) {
    if let Err(error) = keep_unswapped(key.bytes()) {
        tracing::warn!(key = %key.id(), %error, "secrets.key_may_be_swapped");
    }
}
