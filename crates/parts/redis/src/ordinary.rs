//! The ordinary commands: those that nearly all clients use nearly always, and that a store can
//! nearly always carry out at once.

use bytes::Bytes;
use model::{Key, Prefix};
use store_core::resp::reply::Replies;

use super::access::Rights;
use super::context::FaceContext;
use super::table::{self, Verb};
use super::words::Words;
use store::{Entry, Submission, Value, Written};

pub enum Ordinary {
    Get(Key),
    Write(Submission, Answer),
}

/// The reply to an ordinary write.
#[derive(Clone, Copy)]
pub enum Answer {
    Ok,
    Count,
}

impl Ordinary {
    /// Reads an ordinary command; `None` for any other, and for one that is not allowed.
    pub fn read(words: Words<'_>, rights: &Rights, context: &FaceContext) -> Option<Ordinary> {
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
            Rights::All => true,
            Rights::None => false,
            rights => {
                let prefix = Prefix::from(key.clone());
                context.access.covers(rights, &prefix, verb != Verb::Get)
            }
        };
        may.then(|| match verb {
            Verb::Set => {
                let value = Bytes::copy_from_slice(words.get(2));
                Ordinary::Write(Submission::set(key, value), Answer::Ok)
            }
            Verb::Del => Ordinary::Write(Submission::delete(key), Answer::Count),
            _ => Ordinary::Get(key),
        })
    }
}

/// Replies with a value; returns `false` if that is not in memory.
pub fn reply_at_once(key: &Key, context: &FaceContext, replies: &mut Replies) -> bool {
    match context.store.lookup_at_once(key) {
        Some(None) => replies.null(),
        Some(Some(Entry { value: Value::Inline(value), .. })) => replies.bulk(&value),
        _ => return false,
    }
    true
}

impl Answer {
    pub fn reply(self, written: Written, replies: &mut Replies) {
        match (self, written) {
            (Answer::Ok, Ok(_)) => replies.ok(),
            (Answer::Count, Ok(commit)) => replies.integer(commit.is_some().into()),
            (_, Err(error)) => replies.error(&format!("ERR {error}")),
        }
    }
}
