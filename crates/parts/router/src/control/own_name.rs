//! The part of the control task that knows the platform's own name, under which no application is.

use std::sync::Arc;

use model::{Key, PlatformAddress, TypedKey, record};

use super::Control;

/// Returns whether a record says what the platform's own name is.
pub fn is_own_name(key: &Key) -> bool {
    key.tokens().next() == Some("cluster")
        && matches!(TypedKey::parse(key), Some(TypedKey::PlatformAddress))
}

impl Control {
    /// Takes note of the platform's name; returns whether the record is that.
    pub(super) fn note_own_name(&mut self, key: &Key, record: Option<&[u8]>) -> bool {
        if !is_own_name(key) {
            return false;
        }
        match record.map(record::decode::<PlatformAddress>).transpose() {
            Ok(address) => self.own_name = address.map(Arc::new),
            Err(error) => tracing::warn!(%key, %error, "router.record_unreadable"),
        }
        true
    }
}
