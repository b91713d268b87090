//! The one line of waiting requests of an application, across all threads. Its lock is touched
//! only when no endpoint has room. A permit that comes free goes to the front of the line.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use router::far;
use tokio::sync::{Notify, oneshot};

use super::endpoint::{Endpoint, Permit};
use super::table::Application;
use crate::driver::Clock;

/// Seconds of work for a fast application; who comes later is better told at once.
const QUEUE_LENGTH_MAX: usize = 1_000;
/// People have left by then.
const QUEUE_TIME_MAX: Duration = Duration::from_secs(30);
/// An endpoint that was left alone is tried again by time, which wakes nobody.
const RECHECK: Duration = Duration::from_millis(50);
/// Another thread may be quicker; then the line is the place to be.
const ENTER_TRIES: usize = 4;

/// Of every application's queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    pub length_max: usize,
    /// From the request's arrival to its last attempt.
    pub time_max: Duration,
}

impl Default for QueueLimits {
    fn default() -> QueueLimits {
        QueueLimits { length_max: QUEUE_LENGTH_MAX, time_max: QUEUE_TIME_MAX }
    }
}

#[derive(Debug)]
pub struct Queue {
    /// What the control task published last; none once the application is gone.
    pub current: ArcSwapOption<Application>,
    /// Told when a draining endpoint is empty.
    pub control: Arc<Notify>,
    pub limits: QueueLimits,
    clock: Clock,
    turn: AtomicUsize,
    waiting: AtomicUsize,
    line: Mutex<VecDeque<Waiter>>,
}

/// How far a request may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaches {
    /// It came from another router: it goes no further.
    Near,
    Anywhere,
}

#[derive(Debug)]
struct Waiter {
    reaches: Reaches,
    sender: oneshot::Sender<Permit>,
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
            line: Mutex::new(VecDeque::new()),
        }
    }

    pub fn now_ms(&self) -> u64 {
        self.clock.now().0
    }

    pub fn length(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Without waiting; nobody overtakes the line.
    pub fn try_enter(
        self: &Arc<Queue>,
        application: &Application,
        reaches: Reaches,
    ) -> Option<Permit> {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            return None;
        }
        self.pick(application, reaches)
    }

    fn pick(self: &Arc<Queue>, application: &Application, reaches: Reaches) -> Option<Permit> {
        let endpoints = &application.endpoints;
        let now_ms = self.now_ms();
        for _ in 0..ENTER_TRIES {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let at = |index: usize| endpoints[index].candidate(now_ms);
            let near = application.balance.pick(turn, endpoints.len(), &at);
            let near = near.map(|index| &endpoints[index]);
            let chosen = if application.far.is_empty() || reaches == Reaches::Near {
                near?
            } else {
                nearest(application, near, turn, now_ms)?
            };
            if let Some(permit) = Permit::enter(chosen, self) {
                return Some(permit);
            }
        }
        None
    }

    /// Stands in line until an endpoint has room.
    pub async fn enter(
        self: &Arc<Queue>,
        reaches: Reaches,
        limit: Duration,
    ) -> Result<Permit, NoPermit> {
        let mut place = {
            let mut line = self.lock();
            if line.len() >= self.limits.length_max {
                return Err(NoPermit::Full);
            }
            let (sender, receiver) = oneshot::channel();
            line.push_back(Waiter { reaches, sender });
            self.waiting.store(line.len(), Ordering::SeqCst);
            Place { queue: self, receiver }
        };
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            self.advance();
            let slice = deadline.min(tokio::time::Instant::now() + RECHECK);
            match tokio::time::timeout_at(slice, &mut place.receiver).await {
                Ok(Ok(permit)) => return Ok(permit),
                // The application is gone, and with it the line.
                Ok(Err(_)) => return Err(NoPermit::TimedOut),
                Err(_) if tokio::time::Instant::now() >= deadline => {
                    return Err(NoPermit::TimedOut);
                }
                Err(_) => {}
            }
        }
    }

    pub fn permit_freed(self: &Arc<Queue>) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.advance();
        }
    }

    /// Gives what room there is to the front of the line.
    pub fn advance(self: &Arc<Queue>) {
        let Some(application) = self.current.load_full() else { return };
        let mut spare: Option<Permit> = None;
        loop {
            let waiter = {
                let mut line = self.lock();
                while line.front().is_some_and(|waiter| waiter.sender.is_closed()) {
                    line.pop_front();
                }
                if spare.is_none() {
                    spare = match line.front() {
                        None => None,
                        Some(first) => self.pick(&application, widest(&line, first)),
                    };
                }
                let next = spare.as_ref().and_then(|permit| first_for(&mut line, permit));
                self.waiting.store(line.len(), Ordering::SeqCst);
                next
            };
            match (waiter, spare.take()) {
                (Some(waiter), Some(permit)) => spare = waiter.sender.send(permit).err(),
                // A permit that nobody took is given back here, outside the lock.
                _ => return,
            }
        }
    }

    /// The application is gone: nobody waits for it any longer.
    pub fn close(&self) {
        self.current.store(None);
        let mut line = self.lock();
        line.clear();
        self.waiting.store(0, Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiter>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A near endpoint if there is one with room, unless another node is much less busy.
fn nearest<'a>(
    application: &'a Application,
    near: Option<&'a Arc<Endpoint>>,
    turn: usize,
    now_ms: u64,
) -> Option<&'a Arc<Endpoint>> {
    if let Some(only) = application.only_far() {
        // Its own queue knows best when there is room.
        return only.candidate(now_ms).has_room().then_some(only);
    }
    let near_in_flight = near.map(|endpoint| endpoint.candidate(now_ms).in_flight);
    if near_in_flight.is_some_and(|in_flight| in_flight < far::NEAR_ENOUGH) {
        return near;
    }
    let at = |index: usize| application.far[index].far_candidate(now_ms);
    let Some(index) = far::pick(turn, application.far.len(), &at) else { return near };
    let better = near_in_flight.is_none_or(|in_flight| far::is_better(in_flight, at(index)));
    if better { Some(&application.far[index]) } else { near }
}

/// One that may go far is worth a look at other nodes, even behind one that may not.
fn widest(line: &VecDeque<Waiter>, first: &Waiter) -> Reaches {
    let anywhere = |waiter: &Waiter| waiter.reaches == Reaches::Anywhere;
    if anywhere(first) || line.iter().any(anywhere) { Reaches::Anywhere } else { Reaches::Near }
}

/// The longest waiting that may go where this permit leads.
fn first_for(line: &mut VecDeque<Waiter>, permit: &Permit) -> Option<Waiter> {
    let is_far = permit.endpoint.site().is_some();
    let fits = |waiter: &Waiter| !is_far || waiter.reaches == Reaches::Anywhere;
    let at = line.iter().position(fits)?;
    line.remove(at)
}

/// Leaves the line when it is dropped.
struct Place<'a> {
    queue: &'a Arc<Queue>,
    receiver: oneshot::Receiver<Permit>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.receiver.close();
        // A permit that arrived meanwhile goes back once the lock is free.
        let unused = self.receiver.try_recv().ok();
        {
            let mut line = self.queue.lock();
            line.retain(|waiter| !waiter.sender.is_closed());
            self.queue.waiting.store(line.len(), Ordering::SeqCst);
        }
        drop(unused);
    }
}
