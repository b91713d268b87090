//! The right to have a request in flight on an endpoint, from the queue that gives it to the end of
//! the request. It goes back when it is dropped, whatever becomes of the request.

use std::sync::Arc;
use std::time::Instant;

use super::endpoint::Endpoint;
use super::queue::{Place, Queue};

/// The right to have one request in flight on an endpoint. Giving it back lets the client enter
/// whose turn it is.
#[derive(Debug)]
pub struct Permit {
    pub endpoint: Arc<Endpoint>,
    queue: Arc<Queue>,
    /// The place that it holds, if the queue counts places.
    held: Option<Box<HeldPlace>>,
}

/// A place as the queue counts it.
#[derive(Debug)]
struct HeldPlace {
    place: Place,
    since: Instant,
    /// Whether it was served to the end of the request.
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

    /// Records that the queue counts it as this client's.
    pub(super) fn hold(&mut self, place: Place) {
        self.held = Some(Box::new(HeldPlace { place, since: Instant::now(), was_served: false }));
    }

    /// Records that the instance has sent all that it was asked for.
    pub(super) fn served(&mut self) {
        if let Some(held) = &mut self.held {
            held.was_served = true;
        }
    }

    /// Gives back the place of the client, if the queue counted one.
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
