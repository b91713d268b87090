//! The loop over a connection's commands: it parses what came, answers what can be answered at
//! once, and gathers writes, until something has to be waited for. It must not know who waits: the
//! task of a connection does what the loop waits for, the lane comes back later, or gives the
//! connection a task.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use model::{Key, Prefix};
use store_core::resp::ProtocolError;
use store_core::resp::reply::Replies;
use store_core::resp::request::{Parsed, Requests};

use super::access::Rights;
use super::batch::{Answer, Asked, Batch};
use super::context::ServerContext;
use super::limits::{PENDING_MAX, SEND_BYTES};
use super::table::{self, Verb};
use super::words::Words;
use store::reply::Reply;
use store::{Entry, Submission, Value};

/// What the loop waits for; all before it is carried out, and `used` bytes of input belong to it.
pub enum Wait {
    /// The rest of a command, or the next one.
    Bytes,
    /// The answers to the connection's writes.
    Answers,
    /// The client, which is to take its replies first.
    Replies,
    /// Room in the store for the write of the next command.
    Room { used: usize, write: Submission, reply: Reply, answer: Answer },
    /// A task that carries out the next command, which is as parsed and may have to wait itself.
    Command { used: usize },
    /// A task that receives a large value, as `Parsed::Streamed` describes it.
    Value { used: usize, length: u64, options: usize },
    /// The end of the connection, as what came is no command.
    End(ProtocolError),
}

/// A connection for one run of the loop, with the buffers that it uses meanwhile.
pub struct CommandLoop<'a> {
    pub context: &'a ServerContext,
    /// The rights, if they alone decide what the connection may ask.
    pub rights: Option<&'a Rights>,
    pub requests: &'a mut Requests,
    pub replies: &'a mut Replies,
    pub batch: &'a mut Batch,
    /// The connection's name in the batch.
    pub who: u32,
    /// The number of replies that wait for writes. Nothing else is answered before them.
    pub asked: usize,
}

impl CommandLoop<'_> {
    /// Carries out the commands of `input`, which begins where one of them begins. Returns how many
    /// bytes were used, and what it waits for.
    pub fn run(&mut self, input: &[u8]) -> (usize, Wait) {
        let (mut at, mut done) = (0, 0);
        let wait = loop {
            if self.asked >= PENDING_MAX {
                break Wait::Answers;
            }
            if self.replies.bytes.len() >= SEND_BYTES {
                break Wait::Replies;
            }
            match self.requests.parse(&input[at..]) {
                Ok(Parsed::Incomplete) => break Wait::Bytes,
                Ok(Parsed::Command { used }) if self.requests.is_empty() => at += used,
                Ok(Parsed::Command { used }) => match self.carry_out(&input[at..], used) {
                    None => (at, done) = (at + used, done + 1),
                    Some(wait) => break wait,
                },
                Ok(Parsed::Streamed { used, length, options }) => {
                    break Wait::Value { used, length, options };
                }
                Err(error) => break Wait::End(error),
            }
        };
        self.context.clients.commands.fetch_add(done, Ordering::Relaxed);
        (at, wait)
    }

    /// Carries out a command; returns what it waits for if it is not done.
    fn carry_out(&mut self, input: &[u8], used: usize) -> Option<Wait> {
        let words = Words { requests: self.requests, input };
        let Some((verb, key)) = self.ordinary(words) else { return Some(Wait::Command { used }) };
        let (write, answer) = match verb {
            Verb::Set => {
                let value = Bytes::copy_from_slice(words.get(2));
                (Submission::set(key, value), Answer::Ok)
            }
            Verb::Del => (Submission::delete(key), Answer::Count),
            _ if self.asked > 0 => return Some(Wait::Answers),
            _ if self.reply_at_once(&key) => return None,
            _ => return Some(Wait::Command { used }),
        };
        let reply = self.batch.gathering.reply();
        if let Some((write, reply)) = self.context.store.submit_at_once(write, reply) {
            return Some(Wait::Room { used, write, reply, answer });
        }
        self.batch.asked.push(Asked { who: self.who, answer, writes: 1 });
        self.asked += 1;
        None
    }

    /// Reads an ordinary command: one that nearly all clients use nearly always, and that a store
    /// can nearly always carry out at once. Returns `None` for any other, also for errors, and for
    /// one that is not allowed.
    fn ordinary(&self, words: Words<'_>) -> Option<(Verb, Key)> {
        let rights = self.rights?;
        let verb = table::find(words.get(0))?.verb;
        let length = match verb {
            Verb::Set => 3,
            Verb::Get | Verb::Del => 2,
            _ => return None,
        };
        if words.len() != length {
            return None;
        }
        let key: Key = words.text(1).ok()?.parse().ok()?;
        let may = match rights {
            Rights::All => self.context.access.are_owners(),
            rights => {
                let prefix = Prefix::from(key.clone());
                self.context.access.covers(rights, &prefix, verb != Verb::Get)
            }
        };
        may.then_some((verb, key))
    }

    /// Replies with a value; returns `false` if that is not in memory.
    fn reply_at_once(&mut self, key: &Key) -> bool {
        match self.context.store.lookup_at_once(key) {
            Some(None) => self.replies.null(),
            Some(Some(Entry { value: Value::Inline(value), .. })) => self.replies.bulk(&value),
            _ => return false,
        }
        true
    }
}
