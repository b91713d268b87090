//! What a part of the machine may use beside its own state while it handles one event: what the
//! node holds, its stamps, the way to its disk, and the list of effects.

use model::Timestamp;

use super::queue::{DiskQueue, QueuedItem};
use super::stamps::Stamps;
use crate::event::{Effect, Ticket};
use crate::replica::{Horizons, Replica};
use crate::sync::message::{Body, Message};
use crate::sync::session::SessionId;

pub(crate) struct Context<'a> {
    pub now: Timestamp,
    pub replica: &'a Replica,
    pub stamps: &'a mut Stamps,
    pub queue: &'a mut DiskQueue,
    pub effects: &'a mut Vec<Effect>,
}

impl Context<'_> {
    pub fn wait(&mut self, waiting: QueuedItem) {
        self.queue.wait(waiting, self.effects);
    }

    /// Queues higher horizons; lower ones are no news.
    pub fn raise_to(&mut self, horizons: Horizons) {
        if horizons.max(self.replica.horizons()) != self.replica.horizons() {
            self.wait(QueuedItem::Horizons(horizons));
        }
    }

    pub fn send(&mut self, to: SessionId, body: Body) {
        let message = Message { session: to.number, body };
        self.effects.push(Effect::Send { to: to.peer, message });
    }

    pub fn release(&mut self, ticket: Ticket) {
        self.effects.push(Effect::Release { ticket });
    }
}
