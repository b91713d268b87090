//! Commands that can be carried out without waiting, which is nearly all of what clients ask: no
//! future is made for them. Anything out of the ordinary, also errors, is left to `commands`.

use std::sync::atomic::Ordering;

use store_core::resp::request::{Parsed, Requests};

use super::{Awaited, Connection, PENDING_MAX, SEND_BYTES};
use crate::ordinary::{Ordinary, reply_at_once};
use crate::words::Words;
use store::reply::Reply;
use store::{Submission, Urgency};

/// The reason why consuming the input at once has stopped.
pub(super) enum Rest {
    /// There is no whole command left.
    Nothing,
    /// The next command may have to wait for something.
    Commands,
    /// The next command's write has to wait for room.
    Queue(Submission, Reply, Awaited),
}

enum Step {
    Done,
    Waits,
    Queue(Submission, Reply, Awaited),
}

impl Connection {
    pub(super) fn consume_at_once(&mut self) -> Rest {
        let input = std::mem::take(&mut self.input);
        let mut requests = std::mem::take(&mut self.requests);
        let mut at = 0;
        let rest = loop {
            if self.pending.len() >= PENDING_MAX || self.replies.bytes.len() >= SEND_BYTES {
                break Rest::Commands;
            }
            match requests.parse(&input[at..]) {
                Ok(Parsed::Incomplete) => break Rest::Nothing,
                Ok(Parsed::Command { used }) => {
                    let words = Words { requests: &requests, input: &input[at..] };
                    match self.carry_out_at_once(words) {
                        Step::Done => at += used,
                        Step::Queue(write, reply, awaited) => {
                            at += used;
                            break Rest::Queue(write, reply, awaited);
                        }
                        Step::Waits => {
                            requests = Requests::default();
                            break Rest::Commands;
                        }
                    }
                }
                Ok(Parsed::Streamed { .. }) | Err(_) => {
                    requests = Requests::default();
                    break Rest::Commands;
                }
            }
        };
        self.input = input;
        self.input.drain(..at);
        self.requests = requests;
        rest
    }

    fn carry_out_at_once(&mut self, words: Words<'_>) -> Step {
        if !self.is_plain() {
            return Step::Waits;
        }
        let step = match Ordinary::read(words, &self.rights, &self.context) {
            Some(Ordinary::Write(write, answer)) => self.queue_at_once(write, answer.into()),
            Some(Ordinary::Get(key))
                if self.pending.is_empty()
                    && reply_at_once(&key, &self.context, &mut self.replies) =>
            {
                Step::Done
            }
            _ => return Step::Waits,
        };
        self.context.clients.commands.fetch_add(1, Ordering::Relaxed);
        step
    }

    /// Returns whether only the connection's rights decide what it may ask.
    pub(super) fn is_plain(&self) -> bool {
        self.refused_multi.is_none() && self.subscriber.is_none()
    }

    fn queue_at_once(&mut self, write: Submission, awaited: Awaited) -> Step {
        let reply = self.gathering.reply();
        if let Some((write, reply)) = self.context.store.submit_at_once(write, reply) {
            return Step::Queue(write, reply, awaited);
        }
        self.wrote();
        self.pending.push(awaited);
        Step::Done
    }

    pub(super) async fn queue_when_possible(
        &mut self,
        write: Submission,
        reply: Reply,
        awaited: Awaited,
    ) {
        let queued = self.context.store.submit(write, Urgency::WithOthers, reply).await;
        self.wrote();
        self.pending.push(match queued {
            Ok(()) => awaited,
            Err(error) => Awaited::Failed(error.into(), 1),
        });
    }
}
