//! What the committer is told: by writers, by peers and by whoever closes the store.

use bytes::Bytes;
use model::{Key, Timestamp};
use store_core::event::{Change, Event};
use store_core::sync::message::Message;
use store_core::{NodeTag, Position};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::StoreError;
use super::queue::Queued;
use super::reply::Reply;

pub enum Command {
    Write {
        key: Key,
        change: Change,
        only_over: Option<Position>,
        value: Bytes,
        reply: Reply,
        place: Queued,
    },
    Squash {
        before: Timestamp,
        reply: oneshot::Sender<()>,
    },
    /// Answered once all writes that came before can be seen, or were refused.
    Await {
        reply: oneshot::Sender<()>,
    },
    /// From a peer.
    Received(Incoming),
    /// Answered once everything that follows has been done.
    Tell(Event, Option<oneshot::Sender<()>>),
    Close {
        reply: oneshot::Sender<Result<(), StoreError>>,
    },
}

/// A message and the values of its commits, each checked against its commit.
pub struct Incoming {
    pub from: NodeTag,
    pub message: Message,
    /// Of each commit of a `Commits`, in order.
    pub values: Vec<Option<Bytes>>,
    /// Given back once the machine has taken the message in.
    pub room: Option<OwnedSemaphorePermit>,
}
