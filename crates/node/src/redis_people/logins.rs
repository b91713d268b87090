//! What is recorded of people who open the store by Redis: an entry in the audit before the
//! connection may do anything, and that the token is in use. What is written then is in the
//! store's history, with its time and node.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use access_core::is_use_due;
use model::audit::{AuditEntry, AuditId, AuditOutcome};
use model::people::{Token, TokenUse};
use model::record::{self, RECORD_VERSION, Unknown};
use model::value::ContentHash;
use model::{NodeId, Timestamp, TypedKey};
use runtime::lock::locked;
use serde::Serialize;
use store::Store;

/// The number of the first entry: the API of the same node counts from 0.
const NUMBERS_FROM: u32 = 1 << 31;
/// The status of an outcome, as that of a request.
const DONE: u16 = 200;

pub struct Logins {
    node: NodeId,
    number: AtomicU32,
    /// The time of the last entry of each token. A program that connects for each question would
    /// push the changes of others out of the audit: one entry an hour says that it does.
    recorded: Mutex<BTreeMap<ContentHash, Timestamp>>,
}

impl Logins {
    pub fn of(node: NodeId) -> Logins {
        Logins { node, number: AtomicU32::new(NUMBERS_FROM), recorded: Mutex::default() }
    }

    /// Writes down that somebody logs in, unless that was done lately; durable when it returns.
    pub async fn record(
        &self,
        store: &dyn Store,
        (hash, token): (ContentHash, &Token),
        address: &str,
        now: Timestamp,
    ) -> anyhow::Result<()> {
        let last = locked(&self.recorded).get(&hash).copied();
        if !is_use_due(last, now) {
            return Ok(());
        }
        let id = AuditId::new(now, self.number.fetch_add(1, Ordering::Relaxed));
        let entry = AuditEntry {
            v: RECORD_VERSION,
            at: now,
            who: token.user.to_string(),
            token: Some(token.name.clone()),
            from: address.to_owned(),
            method: "AUTH".into(),
            path: "redis".into(),
            application: None,
            before: None,
            note: None,
            change: None,
            unknown: Unknown::new(),
        };
        let (v, after, unknown) = (RECORD_VERSION, None, Unknown::new());
        let outcome = AuditOutcome { v, at: now, status: DONE, after, unknown };
        write(store, TypedKey::Audit(self.node.clone(), id), &entry).await?;
        write(store, TypedKey::AuditOutcome(self.node.clone(), id), &outcome).await?;
        let noted = TokenUse { v: RECORD_VERSION, at: now };
        write(store, TypedKey::TokenUse(hash, self.node.clone()), &noted).await?;
        let mut recorded = locked(&self.recorded);
        recorded.retain(|_, last| !is_use_due(Some(*last), now));
        recorded.insert(hash, now);
        Ok(())
    }
}

async fn write(store: &dyn Store, key: TypedKey, record: &impl Serialize) -> anyhow::Result<()> {
    store.set(key.key(), record::encode(record).into()).await?;
    Ok(())
}
