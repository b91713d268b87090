//! The one queue of waiting requests of an application, across all threads. Its lock is taken only
//! when no endpoint has room, and where all endpoints are limited, so that it is known who has how
//! many places. A permit that comes free goes to the client whose turn it is.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use router_core::balance::Turn;
use router_core::fair::{self, Fair, Moment, Pushed};
use router_core::request_key;
use router_core::service_times::{RequestKind, ServiceTimes};
use tokio::sync::{Notify, oneshot};

use super::choice::{Demands, Reaches, choose};
use super::endpoint::Endpoint;
use super::permit::Permit;
use super::table::RoutedApplication;
use runtime::driver::Clock;

/// Requests that wait for one application: seconds of work for a fast one; a later request is
/// better refused at once.
const QUEUE_LENGTH_MAX: usize = 1_000;
/// The time that a request may wait; people have left by then.
const QUEUE_TIME_MAX: Duration = Duration::from_secs(30);
/// The time between two looks of a waiting request: an endpoint that was left alone is tried again
/// by time, which wakes nobody.
const RECHECK: Duration = Duration::from_millis(50);
/// Waiting requests for which the time between two looks grows by one `RECHECK`: one look serves
/// them all, so where many wait, each looks less often.
const LOOKS_PER_RECHECK: u32 = 32;
/// Attempts to enter a chosen endpoint, as another thread may be quicker; after them the request
/// stands in line.
const ENTER_TRIES: usize = 4;
/// The time that a request waits for the endpoint that its key belongs to, if that is only busy.
const PATIENCE: Duration = Duration::from_millis(500);
/// Waiting requests whose own endpoints are looked at when something comes free.
const LOOK_AHEAD: usize = 64;

/// The multiple of a slow request's expected time for which it lets quick ones go first.
const SLOW_PATIENCE: u32 = 2;
/// The divisor of a slow request's time limit: it gives way no longer than that part, so that it is
/// served before the limit is over.
const SLOW_PART: u32 = 2;

/// The limits of every application's queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    pub length_max: usize,
    /// The time from the request's arrival to its last attempt.
    pub time_max: Duration,
}

impl Default for QueueLimits {
    fn default() -> QueueLimits {
        QueueLimits { length_max: QUEUE_LENGTH_MAX, time_max: QUEUE_TIME_MAX }
    }
}

#[derive(Debug)]
pub struct Queue {
    /// The state that the control task published last; `None` once the application is gone.
    pub current: ArcSwapOption<RoutedApplication>,
    /// Notified when a draining endpoint is empty.
    pub control: Arc<Notify>,
    pub limits: QueueLimits,
    clock: Clock,
    turn: AtomicUsize,
    waiting: AtomicUsize,
    line: Mutex<QueueState>,
}

#[derive(Debug)]
struct QueueState {
    fair: Fair<Waiter>,
    /// The service times of requests whose places are counted.
    times: ServiceTimes,
}

/// The client of a waiting request, and what the request costs: see `router_core::fair`.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub class: u64,
    pub cost: u32,
    /// The kind of the request; `None` for what may take any time, which is a connection.
    pub kind: Option<RequestKind>,
}

impl Place {
    /// Returns the place of a client of which nothing but its address is known.
    pub fn of(client: IpAddr) -> Place {
        Place { class: request_key::of_address(client), cost: fair::cost(None), kind: None }
    }
}

#[derive(Debug)]
struct Waiter {
    wants: Demands,
    place: Place,
    since: Instant,
    sender: oneshot::Sender<Result<Permit, NoPermit>>,
}

impl Waiter {
    fn is_patient(&self) -> bool {
        self.wants.key.is_some() && self.since.elapsed() < PATIENCE
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPermit {
    Full,
    TimedOut,
}

impl Queue {
    pub fn new(clock: Clock, control: Arc<Notify>, limits: QueueLimits) -> Queue {
        Queue {
            current: ArcSwapOption::empty(),
            control,
            limits,
            clock,
            turn: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            line: Mutex::new(QueueState {
                fair: Fair::new(limits.length_max),
                times: ServiceTimes::default(),
            }),
        }
    }

    pub fn now_ms(&self) -> u64 {
        self.clock.now().0
    }

    pub fn length(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Enters an endpoint without waiting; nobody overtakes the line. With `whose`, the place is
    /// counted for that client.
    pub fn try_enter(
        self: &Arc<Queue>,
        application: &RoutedApplication,
        wants: Demands,
        whose: Option<Place>,
    ) -> Option<Permit> {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            return None;
        }
        let Some(place) = whose else {
            return self.pick(application, wants, wants.key.is_some());
        };
        if self.gives_way(application, wants, place) {
            return None;
        }
        let mut permit = self.pick(application, wants, wants.key.is_some())?;
        self.lock().fair.hold(place.class);
        permit.hold(place);
        Some(permit)
    }

    /// Returns whether a slow request must wait because what is free is kept for quicker ones.
    fn gives_way(&self, application: &RoutedApplication, wants: Demands, place: Place) -> bool {
        let mut line = self.lock();
        line.slow(wants, place).is_some() && {
            let moment = self.moment(application, &mut line);
            !line.fair.has_room_for_slow(moment.free)
        }
    }

    /// Records that the client has given its place back after `time`; it kept it to the end of its
    /// request if that `was_served`.
    pub fn let_go(&self, place: Place, time: Duration, was_served: bool) {
        let mut line = self.lock();
        line.fair.let_go(place.class);
        match place.kind {
            Some(kind) if was_served => line.times.learn(kind, time),
            Some(kind) => line.times.learn_at_least(kind, time),
            None => {}
        }
    }

    fn pick(
        self: &Arc<Queue>,
        application: &RoutedApplication,
        wants: Demands,
        patient: bool,
    ) -> Option<Permit> {
        let now_ms = self.now_ms();
        for _ in 0..ENTER_TRIES {
            let number = self.turn.fetch_add(1, Ordering::Relaxed);
            let turn = Turn { number, key: wants.key, patient };
            let chosen = choose(application, turn, wants, now_ms)?;
            if let Some(permit) = Permit::enter(chosen, self) {
                return Some(permit);
            }
        }
        None
    }

    /// Waits until an endpoint has room and it is this client's turn.
    pub async fn enter(
        self: &Arc<Queue>,
        wants: Demands,
        place: Place,
        limit: Duration,
    ) -> Result<Permit, NoPermit> {
        let mut waiting = {
            let (sender, receiver) = oneshot::channel();
            let waiter = Waiter { wants, place, since: Instant::now(), sender };
            let mut line = self.lock();
            let slow = line.slow(wants, place).unwrap_or_default();
            let patience = (slow * SLOW_PATIENCE).min(limit / SLOW_PART);
            let due_ms = self.now_ms() + u64::try_from(patience.as_millis()).unwrap_or(0);
            let turned_away = match line.fair.push(place.class, place.cost, due_ms, waiter) {
                Pushed::Waits => None,
                Pushed::InsteadOf(last) => Some(last),
                Pushed::Refused(_) => return Err(NoPermit::Full),
            };
            self.waiting.store(line.fair.len(), Ordering::SeqCst);
            drop(line);
            // A waiter that has left already need not hear it.
            turned_away.map(|last| last.sender.send(Err(NoPermit::Full)).ok());
            WaitingRequest { queue: self, receiver, stands: true }
        };
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            self.advance();
            let length = u32::try_from(self.length()).unwrap_or(u32::MAX);
            let recheck = RECHECK * (1 + length / LOOKS_PER_RECHECK);
            let slice = deadline.min(tokio::time::Instant::now() + recheck);
            match tokio::time::timeout_at(slice, &mut waiting.receiver).await {
                Ok(Ok(outcome)) => {
                    waiting.stands = false;
                    return outcome;
                }
                // The application is gone, and with it the line.
                Ok(Err(_)) => return Err(NoPermit::TimedOut),
                Err(_) if tokio::time::Instant::now() >= deadline => {
                    return Err(NoPermit::TimedOut);
                }
                Err(_) => {}
            }
        }
    }

    /// Enters an endpoint other than the one that is busy with the same request already.
    pub fn try_enter_beside(
        self: &Arc<Queue>,
        application: &RoutedApplication,
        busy: &Endpoint,
        whose: Option<Place>,
    ) -> Option<Permit> {
        let wants = Demands { beside: Some(busy.serial), ..Demands::anything(Reaches::Near) };
        self.try_enter(application, wants, whose)
    }

    pub fn permit_freed(self: &Arc<Queue>) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.advance();
        }
    }

    /// Gives what room there is to those whose turn it is.
    pub fn advance(self: &Arc<Queue>) {
        let Some(application) = self.current.load_full() else { return };
        let is_scarce = application.is_scarce;
        let mut spare: Option<Permit> = None;
        loop {
            let waiter = {
                let mut line = self.lock();
                let moment = self.moment(&application, &mut line);
                let next = match application.balance.wants_key() {
                    true => self.next_by_key(&application, &mut line.fair, moment, &mut spare),
                    false => self.next(&application, &mut line.fair, moment, &mut spare),
                };
                self.waiting.store(line.fair.len(), Ordering::SeqCst);
                if let Some(next) = next.as_ref().filter(|_| is_scarce) {
                    line.fair.hold(next.place.class);
                }
                next
            };
            match (waiter, spare.take()) {
                // A waiter that has left hands the permit back.
                (Some(waiter), Some(mut permit)) => {
                    if is_scarce {
                        permit.hold(waiter.place);
                    }
                    spare = waiter.sender.send(Ok(permit)).err().and_then(Result::ok);
                    if let Some(spare) = &mut spare {
                        spare.let_go();
                    }
                }
                // A permit that nobody took is given back here, outside the lock.
                _ => return,
            }
        }
    }

    /// Returns the time and the number of free places, and shares out the places there are; both
    /// only where places are counted.
    fn moment(&self, application: &RoutedApplication, line: &mut QueueState) -> Moment {
        let now_ms = self.now_ms();
        let (places, free) = match application.is_scarce {
            true => (application.places(now_ms), application.free(now_ms)),
            false => (usize::MAX, usize::MAX),
        };
        line.fair.share_out(places);
        Moment { now_ms, free }
    }

    /// Takes the next waiter: the strategy says where there is room, and then the line says whose
    /// turn it is.
    fn next(
        self: &Arc<Queue>,
        application: &RoutedApplication,
        line: &mut Fair<Waiter>,
        moment: Moment,
        spare: &mut Option<Permit>,
    ) -> Option<Waiter> {
        let there = |waiter: &Waiter| !waiter.sender.is_closed();
        let anywhere = |waiter: &Waiter| waiter.wants.reaches == Reaches::Anywhere;
        // A permit that nobody is left to take would only come back.
        if spare.is_none() && line.may_take(moment, there) {
            // A request that may go far is worth a look at other nodes, even behind one that may
            // not.
            let any = !application.far.is_empty()
                && line.may_take(moment, |waiter| there(waiter) && anywhere(waiter));
            let reaches = if any { Reaches::Anywhere } else { Reaches::Near };
            *spare = self.pick(application, Demands::anything(reaches), false);
        }
        let permit = spare.as_ref()?;
        let is_far = permit.endpoint.site().is_some();
        line.take(moment, |waiter| there(waiter) && (!is_far || anywhere(waiter)))
    }

    /// Takes the next waiter where each has an endpoint of its own: the first in turn that may go
    /// there or has lost patience.
    fn next_by_key(
        self: &Arc<Queue>,
        application: &RoutedApplication,
        line: &mut Fair<Waiter>,
        moment: Moment,
        spare: &mut Option<Permit>,
    ) -> Option<Waiter> {
        if spare.is_some() {
            // The permit was for another waiter. It goes back, and with it the turn to the next one
            // that waits for it.
            return None;
        }
        let mut looks = 0;
        line.take(moment, |waiter| {
            looks += 1;
            if looks > LOOK_AHEAD || waiter.sender.is_closed() {
                return false;
            }
            *spare = self.pick(application, waiter.wants, waiter.is_patient());
            spare.is_some()
        })
    }

    /// Closes the queue: the application is gone, and nobody waits for it any longer.
    pub fn close(&self) {
        self.current.store(None);
        let mut line = self.lock();
        line.fair.clear();
        self.waiting.store(0, Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    /// Returns the time that this request is expected to take, if that is long and the request may
    /// wait. A request from another router has stood in line there, and one with an endpoint of its
    /// own has no other place to go.
    fn slow(&self, wants: Demands, place: Place) -> Option<Duration> {
        let may_wait = wants.reaches == Reaches::Anywhere && wants.key.is_none();
        place.kind.filter(|_| may_wait).and_then(|kind| self.times.slow(kind))
    }
}

/// A request in the line, which it leaves when this is dropped.
struct WaitingRequest<'a> {
    queue: &'a Arc<Queue>,
    receiver: oneshot::Receiver<Result<Permit, NoPermit>>,
    /// Whether it still stands in the line.
    stands: bool,
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        if !self.stands {
            return;
        }
        self.receiver.close();
        // A permit that arrived meanwhile goes back once the lock is free.
        let unused = self.receiver.try_recv().ok();
        {
            let mut line = self.queue.lock();
            line.fair.retain(|waiter| !waiter.sender.is_closed());
            self.queue.waiting.store(line.fair.len(), Ordering::SeqCst);
        }
        drop(unused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_queued_requests_for_any_endpoint_may_wait_for_quick_ones() {
        let mut line = QueueState { fair: Fair::new(1), times: ServiceTimes::default() };
        let [slow, quick] = [&b"GET /report"[..], b"GET /"].map(RequestKind::of);
        (0..3).for_each(|_| line.times.learn(slow, PATIENCE));
        (0..100).for_each(|_| line.times.learn(quick, Duration::ZERO));
        let of = |kind| Place { kind, ..Place::of([127, 0, 0, 1].into()) };
        let anywhere = Demands::anything(Reaches::Anywhere);
        assert_eq!(line.slow(anywhere, of(Some(slow))), Some(PATIENCE));
        assert_eq!(line.slow(anywhere, of(Some(quick))), None);
        assert_eq!(line.slow(anywhere, of(None)), None);
        assert_eq!(line.slow(Demands::anything(Reaches::Near), of(Some(slow))), None);
        assert_eq!(line.slow(Demands { key: Some(1), ..anywhere }, of(Some(slow))), None);
    }
}
