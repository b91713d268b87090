//! What can be carried out without waiting for anything, which is nearly all of what clients ask:
//! no future is made for it. Whatever is out of the ordinary, errors too, is left to `commands`.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use store::resp::request::{Parsed, Requests};

use super::{Awaited, Connection, PENDING_MAX, SEND_BYTES, Words};
use crate::store::face::table::{self, Verb};
use crate::store::reply::Reply;
use crate::store::{Entry, Submission, Value};

/// What is left of the input.
pub(super) enum Rest {
    /// No whole command.
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
        let verb = table::find(words.get(0)).map(|spec| spec.verb);
        let (Some(verb @ (Verb::Set | Verb::Get | Verb::Del)), None) = (verb, self.refused_multi)
        else {
            return Step::Waits;
        };
        if self.admit(words).is_err() {
            return Step::Waits;
        }
        let Ok(key) = self.key(words.get(1), verb != Verb::Get) else { return Step::Waits };
        let step = match (verb, words.len()) {
            (Verb::Set, 3) => {
                let value = Bytes::copy_from_slice(words.get(2));
                self.queue_at_once(Submission::set(key, value), Awaited::Ok(1))
            }
            (Verb::Del, 2) => self.queue_at_once(Submission::delete(key), Awaited::Count(1)),
            (Verb::Get, 2) if self.pending.is_empty() => {
                match self.context.store.lookup_at_once(&key) {
                    Some(None) => self.replies.null(),
                    Some(Some(Entry { value: Value::Inline(value), .. })) => {
                        self.replies.bulk(&value);
                    }
                    _ => return Step::Waits,
                }
                Step::Done
            }
            _ => return Step::Waits,
        };
        self.context.clients.commands.fetch_add(1, Ordering::Relaxed);
        step
    }

    fn queue_at_once(&mut self, write: Submission, awaited: Awaited) -> Step {
        let reply = self.gathering.reply();
        if let Some((write, reply)) = self.context.store.submit_at_once(write, reply) {
            return Step::Queue(write, reply, awaited);
        }
        self.gathering.written();
        self.pending.push(awaited);
        Step::Done
    }

    pub(super) async fn queue_when_possible(
        &mut self,
        write: Submission,
        reply: Reply,
        awaited: Awaited,
    ) {
        let queued = self.context.store.submit_unhurried(write, reply).await;
        self.gathering.written();
        self.pending.push(match queued {
            Ok(()) => awaited,
            Err(error) => Awaited::Failed(error.into(), 1),
        });
    }
}
