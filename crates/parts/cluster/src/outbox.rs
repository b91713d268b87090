//! The way out for the machine's messages: a thread of its own reads their commits' values from the
//! log and puts the frames into the peers' queues, so that the committing thread never waits.

use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use store_core::NodeTag;
use store_core::sync::message::Message;

use super::frame;
use super::links::Links;
use store::replication::{Outlet, Replication};

/// The number of messages between the two threads; the store has a few sessions at a time, each
/// with few.
const MESSAGES_MAX: usize = 4096;

pub struct Outbox {
    sender: Mutex<Option<SyncSender<(NodeTag, Message)>>>,
    replication: Replication,
}

impl Outbox {
    pub fn start(replication: Replication, links: Arc<Links>) -> io::Result<Arc<Outbox>> {
        let (sender, messages) = sync_channel::<(NodeTag, Message)>(MESSAGES_MAX);
        let reading = replication.clone();
        std::thread::Builder::new().name("store-send".into()).spawn(move || {
            for (to, message) in messages {
                send(&reading, &links, to, &message);
            }
        })?;
        Ok(Arc::new(Outbox { sender: Mutex::new(Some(sender)), replication }))
    }

    /// Lets the thread end.
    pub fn close(&self) {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn send(replication: &Replication, links: &Links, to: NodeTag, message: &Message) {
    let values = match replication.values_of(message) {
        Ok(values) => values,
        Err(error) => {
            tracing::warn!(peer = ?to, %error, "peer.value_not_sent");
            return replication.lost(to);
        }
    };
    match frame::sync(message, &values) {
        Some(frame) => links.send(to, frame),
        None => {
            tracing::error!(peer = ?to, "peer.message_too_large");
            replication.lost(to);
        }
    }
}

impl Outlet for Outbox {
    fn send(&self, to: NodeTag, message: Message) {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = sender.as_ref().is_some_and(|sender| sender.try_send((to, message)).is_ok());
        drop(sender);
        if !sent {
            self.replication.lost(to);
        }
    }
}
