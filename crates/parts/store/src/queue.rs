//! Places for writes that wait for the committer, and which keys they write: a lookup that finds
//! nothing waits for a write that came before it. Who only sends writes, and asks for the answer to
//! none, then finds what was sent. Owns the bound; must not know what is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use model::Key;
use tokio::sync::Semaphore;

/// Writers beyond this wait for their turn: some 4 MiB of small values.
pub const WRITES_QUEUED_MAX: usize = 1024;
/// Keys are told apart by so many counters. With all places taken, one lookup in five of those that
/// find nothing waits for another key's write.
const COUNTERS: usize = 4 * WRITES_QUEUED_MAX;

pub struct Queue {
    places: Semaphore,
    /// Writes that wait, by their keys. None counts more than there are places.
    writes: Box<[AtomicU16]>,
}

/// Of one write, until that is answered.
pub struct Queued {
    queue: Arc<Queue>,
    counter: u16,
}

fn counter_of(key: &Key) -> u16 {
    (crc32fast::hash(key.as_str().as_bytes()) as usize % COUNTERS) as u16
}

impl Queue {
    pub fn new() -> Arc<Queue> {
        let writes = (0..COUNTERS).map(|_| AtomicU16::new(0)).collect();
        Arc::new(Queue { places: Semaphore::new(WRITES_QUEUED_MAX), writes })
    }

    /// None when all places are taken.
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

    /// False only when no write of this key waits.
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
        let queue = Queue::new();
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
