//! One instance that takes requests, or all that another node has, shared by all threads. A single
//! word counts the requests in flight, says whether the endpoint drains, and between the two holds
//! the number of places lent to another process. Draining with a count of zero is final, because
//! nothing can enter.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::application::InstanceProtocol;
use model::{Generation, InstanceId, hash};
use router_core::balance::{Balance, Candidate};
use router_core::book::EndpointDescription;
use router_core::book::far::FarDescription;
use router_core::breaker::{Admission, Breaker};
use router_core::far::{FarCandidate, FarOutcome, FarReply, Room};
use router_core::ramp;
use tokio::sync::Notify;

use super::far::peer::FarPeer;
use metrics::Labels;

const DRAINING: u64 = 1 << 63;
const IN_FLIGHT: u64 = 0xffff_ffff;
/// One place lent to another process, in the units of the word.
const LENT: u64 = 1 << 32;
const LENT_MAX: u32 = 0x7fff_ffff;

fn in_flight(word: u64) -> u32 {
    u32::try_from(word & IN_FLIGHT).unwrap_or(u32::MAX)
}

fn lent(word: u64) -> u32 {
    u32::try_from((word & !DRAINING) / LENT).unwrap_or(u32::MAX)
}

/// Returns how many places are taken, here or by another process.
fn taken(word: u64) -> u64 {
    u64::from(in_flight(word)) + u64::from(lent(word))
}

/// Returns the word with this many places lent.
fn lending(word: u64, count: u64) -> u64 {
    (word & (DRAINING | IN_FLIGHT)) + count.min(u64::from(LENT_MAX)) * LENT
}

#[derive(Debug)]
pub struct Endpoint {
    /// A number that is unique in this process: the key of the threads' pools.
    pub serial: u64,
    pub instance: InstanceId,
    pub generation: Generation,
    pub reach: Reach,
    pub concurrency: u32,
    pub protocol: InstanceProtocol,
    /// The identity of its slot: the same on every node and after every restart.
    pub identity: u64,
    pub labels: Arc<Labels>,
    slow_start: SlowStart,
    word: AtomicU64,
    /// Wakes those who wait for it to drain.
    drains: Notify,
    breaker: AtomicU64,
    /// The state that the application's strategy has learnt about this endpoint.
    learnt: AtomicU64,
}

fn labels(instance: &InstanceId, address: Option<SocketAddr>) -> Arc<Labels> {
    Arc::new(Labels::Instance { instance: instance.clone(), address })
}

/// The slow start of an instance: while it is new it takes less than its part.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlowStart {
    pub since_ms: u64,
    /// The length of that time; `None` if there is none.
    pub window_ms: Option<u64>,
}

/// The way in which requests reach an endpoint.
#[derive(Debug)]
pub enum Reach {
    Near(SocketAddr),
    /// All instances of a process on another node, counted as one endpoint.
    Far(FarSite),
}

#[derive(Debug)]
pub struct FarSite {
    pub peer: Arc<FarPeer>,
    instances: u32,
    /// The last word of the other router: when it came, how many are in flight and how many more it
    /// takes.
    heard: AtomicU64,
}

/// The time, in milliseconds, for which a node's word on how busy others make it is trusted: as
/// long as a request takes to come and go; after that one more request finds out.
const HEARD_TIME_MAX_MS: u64 = 50;

impl Endpoint {
    pub fn far(
        serial: u64,
        instance: InstanceId,
        far: &FarDescription,
        peer: Arc<FarPeer>,
    ) -> Endpoint {
        let site = FarSite { peer, instances: far.instances(), heard: AtomicU64::new(0) };
        Endpoint {
            serial,
            labels: labels(&instance, None),
            instance,
            generation: 0,
            reach: Reach::Far(site),
            concurrency: far.concurrency.unwrap_or(u32::MAX).max(1),
            // This is what its router speaks.
            protocol: InstanceProtocol::Http1,
            identity: hash::bytes(far.node.as_str().as_bytes()),
            slow_start: SlowStart::default(),
            word: AtomicU64::new(0),
            drains: Notify::new(),
            breaker: AtomicU64::new(0),
            learnt: AtomicU64::new(0),
        }
    }

    pub fn site(&self) -> Option<&FarSite> {
        match &self.reach {
            Reach::Near(_) => None,
            Reach::Far(site) => Some(site),
        }
    }

    /// Returns the key under which connections to it are kept.
    pub fn pool_key(&self) -> u64 {
        self.site().map_or(self.serial, |site| site.peer.serial)
    }

    pub fn keeps_connections(&self) -> bool {
        match &self.reach {
            Reach::Near(_) => !self.is_draining(),
            Reach::Far(site) => !site.peer.is_down(),
        }
    }

    /// Returns whether it closes after each answer: a serial server does, so that nobody waits on
    /// it for another request.
    pub fn closes(&self) -> bool {
        self.concurrency == 1 && self.site().is_none()
    }

    /// Records what the other router says about how busy its instances are.
    pub fn heard_from(&self, reply: FarReply, now_ms: u64) {
        let room = match reply.outcome {
            FarOutcome::Taken => reply.room,
            // Other requests stand in line for what may be free.
            FarOutcome::Busy => Room { free: 0, ..reply.room },
            FarOutcome::Absent => return,
        };
        if let Reach::Far(site) = &self.reach {
            let room = (u64::from(room.in_flight) << 16) | u64::from(room.free);
            site.heard.store((now_ms << 32) | room, Ordering::Relaxed);
        }
    }

    /// Returns it as a candidate among nodes, with what is known of that node.
    pub fn far_candidate(&self, now_ms: u64) -> FarCandidate {
        let near = self.candidate(now_ms);
        let Reach::Far(site) = &self.reach else {
            return FarCandidate { in_flight: near.in_flight, instances: 1, has_room: false };
        };
        let heard = site.heard.load(Ordering::Relaxed);
        // This is the lower half of the clock: it takes seven weeks to come round.
        let age = (now_ms & 0xffff_ffff).wrapping_sub(heard >> 32);
        let is_fresh = heard != 0 && age <= HEARD_TIME_MAX_MS;
        let in_flight = if is_fresh { (heard >> 16) & 0xffff } else { 0 };
        FarCandidate {
            in_flight: near.in_flight.max(u32::try_from(in_flight).unwrap_or(0)),
            instances: site.instances,
            has_room: near.has_room() && !(is_fresh && heard & 0xffff == 0),
        }
    }

    pub fn new(serial: u64, description: &EndpointDescription, slow_start: SlowStart) -> Endpoint {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, description.port));
        Endpoint {
            serial,
            labels: labels(&description.instance, Some(address)),
            instance: description.instance.clone(),
            generation: description.generation,
            reach: Reach::Near(address),
            concurrency: description.concurrency.unwrap_or(u32::MAX).max(1),
            protocol: description.protocol,
            identity: hash::mix(u64::from(description.instance.slot)),
            slow_start,
            word: AtomicU64::new(0),
            drains: Notify::new(),
            breaker: AtomicU64::new(0),
            learnt: AtomicU64::new(0),
        }
    }

    /// Creates an endpoint that is no instance of this node.
    pub fn at(
        serial: u64,
        instance: InstanceId,
        address: SocketAddr,
        concurrency: Option<u32>,
    ) -> Endpoint {
        Endpoint {
            serial,
            labels: labels(&instance, Some(address)),
            instance,
            generation: 0,
            reach: Reach::Near(address),
            concurrency: concurrency.map_or(u32::MAX, |count| count.clamp(1, LENT_MAX)),
            protocol: InstanceProtocol::Http1,
            identity: hash::bytes(address.to_string().as_bytes()),
            slow_start: SlowStart::default(),
            word: AtomicU64::new(0),
            drains: Notify::new(),
            breaker: AtomicU64::new(0),
            learnt: AtomicU64::new(0),
        }
    }

    /// Returns its address if this process connects to it.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.reach {
            Reach::Near(address) => Some(*address),
            Reach::Far(_) => None,
        }
    }

    pub fn in_flight(&self) -> u32 {
        in_flight(self.word.load(Ordering::Relaxed))
    }

    /// Returns whether it failed a moment ago and is left alone.
    pub fn is_ejected(&self, now_ms: u64) -> bool {
        let breaker = Breaker::from_bits(self.breaker.load(Ordering::Relaxed));
        matches!(breaker.verdict(now_ms), Admission::RejectsUntil(_))
    }

    pub fn candidate(&self, now_ms: u64) -> Candidate {
        self.judged(|breaker| breaker.verdict(now_ms))
    }

    /// Returns the candidate as judged when no other endpoint admits anything.
    pub fn candidate_as_last(&self, now_ms: u64) -> Candidate {
        self.judged(|breaker| breaker.verdict_as_last(now_ms))
    }

    fn judged(&self, verdict: impl FnOnce(Breaker) -> Admission) -> Candidate {
        let word = self.word.load(Ordering::Relaxed);
        let in_flight = in_flight(word);
        let breaker = Breaker::from_bits(self.breaker.load(Ordering::Relaxed));
        let admits = word & DRAINING == 0
            && match verdict(breaker) {
                Admission::Admits => true,
                Admission::AdmitsOne => in_flight == 0,
                Admission::RejectsUntil(_) => false,
            };
        let concurrency = self.concurrency.saturating_sub(lent(word));
        Candidate { in_flight, concurrency, admits }
    }

    /// Returns how much of its part it takes, in units of `ramp::WHOLE`: less while it is new or
    /// back after failures.
    pub fn share(&self, now_ms: u64) -> u32 {
        let fresh = self.slow_start.window_ms.map_or(ramp::WHOLE, |window_ms| {
            ramp::share(now_ms.saturating_sub(self.slow_start.since_ms), window_ms)
        });
        match self.breaker.load(Ordering::Relaxed) {
            0 => fresh,
            bits => fresh.min(Breaker::from_bits(bits).share(now_ms)),
        }
    }

    pub fn learnt(&self) -> u64 {
        self.learnt.load(Ordering::Relaxed)
    }

    /// Learns from a latency. If two threads learn at once, one may be forgotten: it is an average.
    pub fn learn(&self, balance: &dyn Balance, latency: Duration, now_ms: u64) {
        let latency_us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        let learnt = balance.learn(self.learnt(), latency_us, now_ms);
        self.learnt.store(learnt, Ordering::Relaxed);
    }

    pub fn is_limited(&self) -> bool {
        self.concurrency != u32::MAX
    }

    /// Takes a place; returns false if the endpoint drains or has no room.
    pub fn enter(&self) -> bool {
        self.word
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| {
                let room = word & DRAINING == 0 && taken(word) < u64::from(self.concurrency);
                room.then_some(word + 1)
            })
            .is_ok()
    }

    /// Gives a place back; returns true if nothing is in flight any more, for good.
    pub fn leave(&self) -> bool {
        self.word.fetch_sub(1, Ordering::SeqCst) & (DRAINING | IN_FLIGHT) == (DRAINING | 1)
    }

    /// Lets nothing enter from now on.
    pub fn drain(&self) {
        self.word.fetch_or(DRAINING, Ordering::SeqCst);
        self.drains.notify_waiters();
    }

    /// Waits until it drains.
    pub async fn until_draining(&self) {
        // What waits is woken by a drain from here on, so that none comes between.
        let drains = self.drains.notified();
        if !self.is_draining() {
            drains.await;
        }
    }

    pub fn is_draining(&self) -> bool {
        self.word.load(Ordering::Relaxed) & DRAINING != 0
    }

    pub fn is_drained(&self) -> bool {
        self.word.load(Ordering::SeqCst) & (DRAINING | IN_FLIGHT) == DRAINING
    }

    /// Gives places to another process, free or not; nothing enters until enough of them are free.
    pub fn lend(&self, count: u32) {
        let change = |word| Some(lending(word, u64::from(lent(word)) + u64::from(count)));
        self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change).ok();
    }

    /// Gives free places to another process, at most `most`; returns how many.
    pub fn lend_free(&self, most: u32) -> u32 {
        let free = |word| u64::from(self.concurrency).saturating_sub(taken(word));
        let count = |word| free(word).min(u64::from(most));
        let change = |word| Some(lending(word, u64::from(lent(word)) + count(word)));
        let before = self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
        before.map_or(0, |word| u32::try_from(count(word)).unwrap_or(u32::MAX))
    }

    pub fn get_back(&self, count: u32) {
        let change = |word| Some(lending(word, u64::from(lent(word).saturating_sub(count))));
        self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change).ok();
    }

    pub fn lent(&self) -> u32 {
        lent(self.word.load(Ordering::SeqCst))
    }

    /// Returns whether some of the places that others have are still in use here.
    pub fn has_lent_too_much(&self) -> bool {
        taken(self.word.load(Ordering::SeqCst)) > u64::from(self.concurrency)
    }

    /// Records that it refused or cut a connection; returns true if this took it out.
    pub fn failed(&self, now_ms: u64) -> bool {
        let change = |bits| {
            let breaker = Breaker::from_bits(bits);
            let next = breaker.failed(now_ms);
            (next != breaker).then(|| next.to_bits())
        };
        self.breaker.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_ok()
    }

    /// Records that the checker found it healthy since then; a later failure counts more.
    pub fn healthy_since(&self, since_ms: u64) {
        let change = |bits| {
            let breaker = Breaker::from_bits(bits);
            let next = breaker.healthy_since(since_ms);
            (next != breaker).then(|| next.to_bits())
        };
        // An update that changes nothing is no failure.
        self.breaker.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).ok();
    }

    /// Records an answer. The clock is read only for an endpoint that has failed before.
    pub fn succeeded(&self, now_ms: impl Fn() -> u64) {
        let bits = self.breaker.load(Ordering::Relaxed);
        if bits != 0 {
            let next = Breaker::from_bits(bits).succeeded(now_ms()).to_bits();
            // A failure recorded meanwhile is newer and stays.
            let (set, seen) = (Ordering::Relaxed, Ordering::Relaxed);
            self.breaker.compare_exchange(bits, next, set, seen).ok();
        }
    }
}
