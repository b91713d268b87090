//! The commands of the committer, which come from writers, from peers and from the caller that
//! closes the store.

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
    /// Answered once all writes that came before are visible or were refused.
    Await {
        reply: oneshot::Sender<()>,
    },
    /// A message from a peer.
    Received(IncomingMessage),
    /// An event for the machine; answered once everything that follows from it has been done.
    Tell(Event, Option<oneshot::Sender<()>>),
    Close {
        reply: oneshot::Sender<Result<(), StoreError>>,
    },
}

/// A message and the values of its commits, each checked against its commit.
pub struct IncomingMessage {
    pub from: NodeTag,
    pub message: Message,
    /// The value of each commit of a `Commits`, in order.
    pub values: Vec<Option<Bytes>>,
    /// A permit that is given back once the machine has taken the message in.
    pub room: Option<OwnedSemaphorePermit>,
}
