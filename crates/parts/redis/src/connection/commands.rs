//! Carries out commands in the order in which they came: checks whether each may be carried out
//! now, and by this user. Writes that follow each other are queued together, and so share their
//! wait for the disk.

use std::io;

use store_core::resp::Protocol;
use store_core::resp::request::{Parsed, Requests};

use super::{Awaited, Connection, PENDING_MAX, Problem, SEND_BYTES, TOGETHER_MAX, Words};
use crate::access::Rights;
use crate::table;
use crate::table::{Spec, Verb};
use store::{StoreError, Submission, Urgency, Written};

impl Connection {
    /// Carries out every whole command that has come.
    pub(super) async fn consume(&mut self) -> io::Result<()> {
        let mut input = std::mem::take(&mut self.input);
        let mut requests = std::mem::take(&mut self.requests);
        let mut at = 0;
        while !self.closing {
            match requests.parse(&input[at..]) {
                Ok(Parsed::Incomplete) => break,
                Ok(Parsed::Command { used }) => {
                    let words = Words { requests: &requests, input: &input[at..] };
                    if words.len() > 0 {
                        self.execute(words).await?;
                    }
                    at += used;
                }
                Ok(Parsed::Streamed { used, length, options }) => {
                    self.settle().await;
                    let key = requests.argument(&input[at..], 1).unwrap_or_default().to_vec();
                    input.drain(..at + used);
                    at = 0;
                    let set = self.set_streamed(key, &mut input, length, options);
                    Box::pin(set).await?;
                    requests = Requests::default();
                }
                Err(error) => {
                    self.settle().await;
                    self.replies.error(&format!("ERR {error}"));
                    self.closing = true;
                }
            }
            if self.pending.len() >= PENDING_MAX {
                self.settle().await;
            }
            if self.replies.bytes.len() >= SEND_BYTES {
                self.send().await?;
            }
        }
        input.drain(..at);
        self.input = input;
        self.requests = requests;
        Ok(())
    }

    pub(super) async fn execute(&mut self, words: Words<'_>) -> io::Result<()> {
        self.context.clients.commands.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut written = None;
        let done = match self.admit(words) {
            Ok(spec) => {
                let queued = matches!(spec.verb, Verb::Set | Verb::Del | Verb::Mset);
                if !queued {
                    self.settle().await;
                    written = Some(self.replies.bytes.len());
                }
                match spec.verb {
                    Verb::Set => self.set(words).await,
                    Verb::Get => self.get(words).await?,
                    Verb::Del => self.del(words).await,
                    Verb::Mset => self.mset(words).await,
                    Verb::Ping => self.ping(words),
                    // The rest is boxed: the frequent ones above keep a connection's task small.
                    verb => Box::pin(self.carry_out(verb, words)).await?,
                }
            }
            Err(problem) => Err(problem),
        };
        if let Err(Problem(text)) = done {
            self.settle().await;
            // Half a reply must not stand before the error.
            self.replies.bytes.truncate(written.unwrap_or(usize::MAX));
            self.replies.error(&text);
        }
        Ok(())
    }

    /// Returns the command's specification if it exists, is whole, and may be used now.
    pub(super) fn admit(&mut self, words: Words<'_>) -> Result<&'static Spec, Problem> {
        if let Some(since) = self.refused_multi
            && !words.is(0, "EXEC")
            && !words.is(0, "DISCARD")
        {
            if self.context.clock.now().since(since) < TOGETHER_MAX {
                return Err(Problem("EXECABORT refused, as the MULTI before it was".into()));
            }
            self.refused_multi = None;
        }
        let Some(spec) = table::find(words.get(0)) else {
            let name = String::from_utf8_lossy(words.get(0)).to_ascii_uppercase();
            let name: String = name.chars().take(64).collect();
            self.refused_multi = (name == "MULTI").then(|| self.context.clock.now());
            return Err(match table::refusal(&name) {
                Some(reason) => Problem::error(format!("{name} is refused: {reason}")),
                None => Problem::error(format!("unknown command '{name}'; see COMMAND")),
            });
        };
        let count = i32::try_from(words.len()).unwrap_or(i32::MAX);
        if count < spec.arity.abs() || spec.arity > 0 && count != spec.arity {
            let name = spec.name.to_ascii_lowercase();
            return Err(Problem::error(format!("wrong number of arguments for '{name}' command")));
        }
        let open = matches!(spec.verb, Verb::Auth | Verb::Hello | Verb::Quit | Verb::Reset);
        if matches!(self.rights, Rights::None) && !open {
            return Err(Problem("NOAUTH Authentication required: AUTH user token".into()));
        }
        let listening = self.subscriber.as_ref().is_some_and(|s| s.count() > 0);
        if listening && self.replies.protocol == Protocol::Resp2 && !while_subscribed(spec.verb) {
            return Err(Problem::error(format!(
                "Can't execute '{}': only (P)SUBSCRIBE / (P)UNSUBSCRIBE / PING / QUIT / RESET are \
                 allowed in this context; HELLO 3 lifts that",
                spec.name.to_ascii_lowercase()
            )));
        }
        Ok(spec)
    }

    /// Queues writes; there is one reply for all of them, after those before it.
    pub(super) async fn queue(
        &mut self,
        writes: impl IntoIterator<Item = Submission>,
        reply: impl FnOnce(usize) -> Awaited,
    ) {
        let mut count = 0;
        for write in writes {
            count += 1;
            let place = self.gathering.reply();
            let Some((write, place)) = self.context.store.submit_at_once(write, place) else {
                continue;
            };
            if let Err(error) = self.context.store.submit(write, Urgency::WithOthers, place).await {
                self.wrote();
                return self.pending.push(Awaited::Failed(error.into(), count));
            }
        }
        self.wrote();
        self.pending.push(reply(count));
    }

    /// Records that writes were queued; called before their reply joins `pending`.
    pub(super) fn wrote(&self) {
        self.gathering.written(self.pending.is_empty());
    }

    /// Waits for the queued writes, and replies to them.
    pub(super) async fn settle(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        self.gathering.complete().await;
        let Connection { gathering, pending, replies, .. } = self;
        gathering.empty(|answers| {
            for awaited in pending.drain(..) {
                let (count, counts) = match awaited {
                    Awaited::Ok(count) => (count, false),
                    Awaited::Count(count) => (count, true),
                    Awaited::Failed(Problem(text), count) => {
                        answers.take(count).for_each(drop);
                        replies.error(&text);
                        continue;
                    }
                };
                match first_error(answers.take(count)) {
                    Ok(made) if counts => replies.integer(made),
                    Ok(_) => replies.ok(),
                    Err(error) => replies.error(&format!("ERR {error}")),
                }
            }
        });
        gathering.answered();
    }
}

fn while_subscribed(verb: Verb) -> bool {
    matches!(
        verb,
        Verb::Subscribe
            | Verb::Psubscribe
            | Verb::Unsubscribe
            | Verb::Punsubscribe
            | Verb::Ping
            | Verb::Quit
            | Verb::Reset
    )
}

/// Returns how many writes were made, or the first error if one was refused.
fn first_error(answers: impl Iterator<Item = Written>) -> Result<i64, StoreError> {
    let mut made = Ok(0);
    for answer in answers {
        match (&mut made, answer) {
            (Ok(made), Ok(id)) => *made += i64::from(id.is_some()),
            (Ok(_), Err(error)) => made = Err(error),
            (Err(_), _) => {}
        }
    }
    made
}
