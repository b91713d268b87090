//! The queue of writes that wait for the committer: the places in it, and which keys they write. A
//! lookup that finds nothing waits for a write that came before it, so that a client that sends
//! writes and waits for no answer still finds what it sent. Owns the bound; must not know what is
//! written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use model::Key;
use tokio::sync::Semaphore;

/// The number of writes queued, some 4 MiB of small values; further writers wait for their turn.
pub const WRITES_QUEUED_MAX: usize = 1024;
/// The number of counters that tell keys apart. With all places taken, one in five of the lookups
/// that find nothing waits for another key's write.
const COUNTERS: usize = 4 * WRITES_QUEUED_MAX;

pub struct WriteQueue {
    places: Semaphore,
    /// The number of queued writes by their keys' counters; no counter exceeds the number of
    /// places.
    writes: Box<[AtomicU16]>,
}

/// The place of one write in the queue, until the write is answered.
pub struct Queued {
    queue: Arc<WriteQueue>,
    counter: u16,
}

fn counter_of(key: &Key) -> u16 {
    (crc32fast::hash(key.as_str().as_bytes()) as usize % COUNTERS) as u16
}

impl WriteQueue {
    pub fn new() -> Arc<WriteQueue> {
        let writes = (0..COUNTERS).map(|_| AtomicU16::new(0)).collect();
        Arc::new(WriteQueue { places: Semaphore::new(WRITES_QUEUED_MAX), writes })
    }

    /// Takes a place; `None` if all are taken.
    pub fn enter_at_once(self: &Arc<Self>, key: &Key) -> Option<Queued> {
        self.places.try_acquire().ok()?.forget();
        Some(self.queued(key))
    }

    pub async fn enter(self: &Arc<Self>, key: &Key) -> Queued {
        self.places.acquire().await.expect("this semaphore is never closed").forget();
        self.queued(key)
    }

    fn queued(self: &Arc<Self>, key: &Key) -> Queued {
        let counter = counter_of(key);
        self.writes[usize::from(counter)].fetch_add(1, Ordering::Relaxed);
        Queued { queue: self.clone(), counter }
    }

    /// Returns `false` only if no write of this key is queued.
    pub fn may_hold(&self, key: &Key) -> bool {
        self.writes[usize::from(counter_of(key))].load(Ordering::Relaxed) > 0
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.queue.writes[usize::from(self.counter)].fetch_sub(1, Ordering::Relaxed);
        self.queue.places.add_permits(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn places_and_keys_are_free_again_when_the_write_is_answered() {
        let queue = WriteQueue::new();
        let one = queue.enter_at_once(&key("a::1")).unwrap();
        assert!(queue.may_hold(&key("a::1")) && !queue.may_hold(&key("a::2")));
        let two = queue.enter(&key("a::1")).await;
        drop(one);
        assert!(queue.may_hold(&key("a::1")), "the other waits still");
        drop(two);
        assert!(!queue.may_hold(&key("a::1")));
        let all: Vec<Queued> =
            (0..WRITES_QUEUED_MAX).map(|_| queue.enter_at_once(&key("b")).unwrap()).collect();
        assert!(queue.enter_at_once(&key("b")).is_none());
        drop(all);
        assert!(queue.enter_at_once(&key("b")).is_some() && !queue.may_hold(&key("b")));
    }
}
