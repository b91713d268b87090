//! Writes that are answered together, and the replies that their answers become.

use std::sync::Arc;

use store_core::resp::reply::Replies;

use super::gathering::{Bell, Gathering};
use store::Written;

pub struct Batch {
    pub gathering: Arc<Gathering>,
    /// The replies, in the order of their writes.
    pub asked: Vec<Asked>,
}

impl Batch {
    pub fn new(bell: Arc<Bell>) -> Batch {
        Batch { gathering: Gathering::new(bell), asked: Vec::new() }
    }
}

/// One reply, to as many of a connection's writes.
#[derive(Clone, Copy)]
pub struct Asked {
    pub who: u32,
    pub answer: Answer,
    pub writes: u32,
}

#[derive(Clone, Copy)]
pub enum Answer {
    /// `OK` once the writes are durable.
    Ok,
    /// The number of writes that had something to delete.
    Count,
}

impl Asked {
    /// Replies, once every write is answered: with the first error, if there is one.
    pub fn reply(self, answers: &mut dyn Iterator<Item = Written>, replies: &mut Replies) {
        let mut made = Ok(0);
        for answer in answers.take(self.writes as usize) {
            match (&mut made, answer) {
                (Ok(made), Ok(commit)) => *made += i64::from(commit.is_some()),
                (Ok(_), Err(error)) => made = Err(error),
                (Err(_), _) => {}
            }
        }
        match (self.answer, made) {
            (Answer::Ok, Ok(_)) => replies.ok(),
            (Answer::Count, Ok(made)) => replies.integer(made),
            (_, Err(error)) => replies.error(&format!("ERR {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::{CommitId, StoreError};

    #[test]
    fn a_reply_takes_the_answers_to_its_own_writes_and_tells_the_first_error() {
        let made = |made: bool| Ok(made.then_some(CommitId([0; 32])));
        let failed = |text: &str| Err(StoreError::Refused(text.into()));
        let mut answers = vec![
            made(true),
            made(false),
            made(true),
            made(true),
            failed("one"),
            failed("two"),
            made(true),
        ]
        .into_iter();
        let mut replies = Replies::default();
        for (answer, writes) in [(Answer::Count, 3), (Answer::Ok, 3), (Answer::Ok, 1)] {
            Asked { who: 0, answer, writes }.reply(&mut answers, &mut replies);
        }
        assert_eq!(replies.bytes.escape_ascii().to_string(), r":2\r\n-ERR one\r\n+OK\r\n");
    }
}
