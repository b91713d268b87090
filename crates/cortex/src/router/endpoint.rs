//! One instance that takes requests, shared by all threads: one word counts what is in flight and
//! says whether it drains. Draining set and a count of zero is final, because nothing can enter.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model::{Generation, InstanceId};
use router::balance::Candidate;
use router::book::EndpointDescription;
use router::breaker::{Breaker, Verdict};

use super::queue::Queue;

const DRAINING: u64 = 1 << 63;

#[derive(Debug)]
pub struct Endpoint {
    /// Unique in this process: the key of the threads' pools.
    pub serial: u64,
    pub instance: InstanceId,
    pub generation: Generation,
    pub address: SocketAddr,
    pub concurrency: u32,
    word: AtomicU64,
    breaker: AtomicU64,
}

impl Endpoint {
    pub fn new(serial: u64, description: &EndpointDescription) -> Endpoint {
        Endpoint {
            serial,
            instance: description.instance.clone(),
            generation: description.generation,
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, description.port)),
            concurrency: description.concurrency.unwrap_or(u32::MAX).max(1),
            word: AtomicU64::new(0),
            breaker: AtomicU64::new(0),
        }
    }

    pub fn candidate(&self, now_ms: u64) -> Candidate {
        let word = self.word.load(Ordering::Relaxed);
        let in_flight = u32::try_from(word & !DRAINING).unwrap_or(u32::MAX);
        let breaker = Breaker::from_bits(self.breaker.load(Ordering::Relaxed));
        let admits = word & DRAINING == 0
            && match breaker.verdict(now_ms) {
                Verdict::Admits => true,
                Verdict::AdmitsOne => in_flight == 0,
                Verdict::RejectsUntil(_) => false,
            };
        Candidate { in_flight, concurrency: self.concurrency, admits }
    }

    /// False when it drains or has no room.
    fn enter(&self) -> bool {
        self.word
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| {
                let room = word & DRAINING == 0 && word < u64::from(self.concurrency);
                room.then_some(word + 1)
            })
            .is_ok()
    }

    /// True when nothing is in flight for good.
    fn leave(&self) -> bool {
        self.word.fetch_sub(1, Ordering::SeqCst) == (DRAINING | 1)
    }

    /// Nothing enters from now on.
    pub fn drain(&self) {
        self.word.fetch_or(DRAINING, Ordering::SeqCst);
    }

    pub fn is_draining(&self) -> bool {
        self.word.load(Ordering::Relaxed) & DRAINING != 0
    }

    pub fn is_drained(&self) -> bool {
        self.word.load(Ordering::SeqCst) == DRAINING
    }

    /// It refused or cut a connection. True when this took it out.
    pub fn failed(&self, now_ms: u64) -> bool {
        let change = |bits| {
            let breaker = Breaker::from_bits(bits);
            let next = breaker.failed(now_ms);
            (next != breaker).then(|| next.to_bits())
        };
        self.breaker.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_ok()
    }

    /// Says the checker; what failed later counts more.
    pub fn healthy_since(&self, since_ms: u64) {
        let change = |bits| {
            let breaker = Breaker::from_bits(bits);
            let next = breaker.healthy_since(since_ms);
            (next != breaker).then(|| next.to_bits())
        };
        // Nothing to change is no failure.
        self.breaker.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).ok();
    }

    pub fn succeeded(&self) {
        if self.breaker.load(Ordering::Relaxed) != 0 {
            self.breaker.store(0, Ordering::Relaxed);
        }
    }
}

/// The right to have one request in flight on an endpoint. Giving it back hands it to whoever
/// waits longest.
#[derive(Debug)]
pub struct Permit {
    pub endpoint: Arc<Endpoint>,
    queue: Arc<Queue>,
}

impl Permit {
    pub fn enter(endpoint: &Arc<Endpoint>, queue: &Arc<Queue>) -> Option<Permit> {
        endpoint.enter().then(|| Permit { endpoint: endpoint.clone(), queue: queue.clone() })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.endpoint.leave() {
            self.queue.control.notify_one();
        }
        self.queue.permit_freed();
    }
}
