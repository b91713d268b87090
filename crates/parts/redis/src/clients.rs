//! The connections of this node's Redis clients, as `CLIENT LIST` shows them, and the counters of
//! all of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use model::Timestamp;

/// The length in bytes of a name that a client gives itself.
pub const NAME_BYTES_MAX: usize = 256;

#[derive(Clone, Debug, Default)]
pub struct ClientRow {
    pub address: String,
    pub name: String,
    pub library: String,
    pub library_version: String,
    pub user: String,
    pub since: Timestamp,
    pub resp: u8,
}

/// The table of connections, bounded by the number of descriptors.
#[derive(Default)]
pub struct ClientTable {
    rows: Mutex<BTreeMap<u64, ClientRow>>,
    next: AtomicU64,
    pub commands: AtomicU64,
    /// The number of connections without a task of their own.
    pub in_lanes: AtomicU64,
}

impl ClientTable {
    fn rows(&self) -> MutexGuard<'_, BTreeMap<u64, ClientRow>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn enter(&self, row: ClientRow) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.rows().insert(id, row);
        id
    }

    pub fn leave(&self, id: u64) {
        self.rows().remove(&id);
    }

    pub fn change(&self, id: u64, change: impl FnOnce(&mut ClientRow)) {
        if let Some(row) = self.rows().get_mut(&id) {
            change(row);
        }
    }

    pub fn row(&self, id: u64) -> ClientRow {
        self.rows().get(&id).cloned().unwrap_or_default()
    }

    pub fn connected(&self) -> usize {
        self.rows().len()
    }

    pub fn accepted(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Returns the list of connections, with one line each: of one user, or of all.
    pub fn list(&self, now: Timestamp, user: Option<&str>) -> String {
        let rows = self.rows();
        let shown = rows.iter().filter(|(_, row)| user.is_none_or(|user| row.user == user));
        shown.map(|(id, row)| line(*id, row, now) + "\n").collect()
    }
}

pub fn line(id: u64, row: &ClientRow, now: Timestamp) -> String {
    let age = now.since(row.since).as_secs();
    let ClientRow { address, name, library, library_version, user, resp, .. } = row;
    format!(
        "id={id} addr={address} name={name} age={age} db=0 user={user} resp={resp} \
         lib-name={library} lib-ver={library_version}"
    )
}
