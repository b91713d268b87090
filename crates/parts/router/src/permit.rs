//! The right to have a request in flight on an endpoint, from the queue that gives it to the end of
//! the request. Whatever becomes of that, it goes back when it is dropped.

use std::sync::Arc;
use std::time::Instant;

use super::endpoint::Endpoint;
use super::queue::{Place, Queue};

/// The right to have one request in flight on an endpoint. Giving it back hands it to whoever
/// waits longest.
#[derive(Debug)]
pub struct Permit {
    pub endpoint: Arc<Endpoint>,
    queue: Arc<Queue>,
    /// Where the queue counts places.
    held: Option<Box<Held>>,
}

/// What the queue counts.
#[derive(Debug)]
struct Held {
    place: Place,
    since: Instant,
    /// To the end of the request.
    was_served: bool,
}

impl Permit {
    pub fn enter(endpoint: &Arc<Endpoint>, queue: &Arc<Queue>) -> Option<Permit> {
        endpoint.enter().then(|| Permit {
            endpoint: endpoint.clone(),
            queue: queue.clone(),
            held: None,
        })
    }

    /// The queue counts it as this one's.
    pub(super) fn hold(&mut self, place: Place) {
        self.held = Some(Box::new(Held { place, since: Instant::now(), was_served: false }));
    }

    /// The instance has said all that it was asked for.
    pub(super) fn served(&mut self) {
        if let Some(held) = &mut self.held {
            held.was_served = true;
        }
    }

    /// It is nobody's any more.
    pub(super) fn let_go(&mut self) {
        if let Some(held) = self.held.take() {
            self.queue.let_go(held.place, held.since.elapsed(), held.was_served);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.let_go();
        if self.endpoint.leave() {
            self.queue.control.notify_one();
        }
        self.queue.permit_freed();
    }
}
