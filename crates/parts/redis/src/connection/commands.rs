//! Carries out commands in the order in which they came: checks whether each may be carried out
//! now, and by this user. Writes that follow each other are queued together, and so share their
//! wait for the disk.

use std::io;
use std::sync::atomic::Ordering;

use store_core::resp::Protocol;

use super::{Connection, Problem, TOGETHER_MAX, Wait, Words};
use crate::access::Rights;
use crate::batch::{Answer, Asked, Batch};
use crate::table;
use crate::table::{Spec, Verb};
use store::reply::Reply;
use store::{Submission, Urgency};

/// The number of answers that an idle connection keeps room for.
const ANSWERS_KEPT_MAX: usize = 4;

impl Connection {
    /// Does what the loop over commands waits for, until that is the client.
    pub(super) async fn attend(&mut self, mut wait: Wait) -> io::Result<()> {
        let mut input = std::mem::take(&mut self.input);
        let mut at = 0;
        loop {
            match wait {
                Wait::Bytes => break,
                Wait::Answers => self.settle().await,
                Wait::Replies => self.send().await?,
                Wait::Room { used, write, reply, answer } => {
                    self.submit(write, reply).await;
                    self.owe(answer, 1);
                    self.count();
                    at += used;
                }
                Wait::Command { used } => {
                    let requests = std::mem::take(&mut self.requests);
                    let words = Words { requests: &requests, input: &input[at..] };
                    self.execute(words).await?;
                    self.requests = requests;
                    at += used;
                }
                Wait::Value { used, length, options } => {
                    self.settle().await;
                    let requests = std::mem::take(&mut self.requests);
                    let key = requests.argument(&input[at..], 1).unwrap_or_default().to_vec();
                    input.drain(..at + used);
                    at = 0;
                    Box::pin(self.set_streamed(key, &mut input, length, options)).await?;
                }
                Wait::End(error) => {
                    self.settle().await;
                    self.replies.error(&format!("ERR {error}"));
                    self.closing = true;
                }
            }
            if self.closing {
                break;
            }
            let used;
            (used, wait) = self.advance(&input[at..]);
            at += used;
        }
        input.drain(..at);
        self.input = input;
        Ok(())
    }

    fn count(&self) {
        self.context.clients.commands.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) async fn execute(&mut self, words: Words<'_>) -> io::Result<()> {
        self.count();
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
        if matches!(self.rights, Rights::Application(_)) && !spec.is_for_applications() {
            return Err(Problem(format!("NOPERM {} is not for applications", spec.name)));
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
        answer: Answer,
    ) {
        let mut count = 0;
        for write in writes {
            count += 1;
            let reply = self.batch.gathering.reply();
            if let Some((write, reply)) = self.context.store.submit_at_once(write, reply)
                && !self.submit(write, reply).await
            {
                break;
            }
        }
        self.owe(answer, count);
    }

    /// Queues a write once there is room; returns whether the store takes it.
    async fn submit(&self, write: Submission, reply: Reply) -> bool {
        let queued = self.context.store.submit(write, Urgency::WithOthers, reply).await;
        queued.map_err(|error| self.batch.gathering.refuse(error)).is_ok()
    }

    /// Records that a reply waits for as many more writes.
    fn owe(&mut self, answer: Answer, writes: u32) {
        let Batch { gathering, asked } = &mut self.batch;
        gathering.written(asked.is_empty());
        asked.push(Asked { who: 0, answer, writes });
    }

    /// Waits for the queued writes, and replies to them.
    pub(super) async fn settle(&mut self) {
        if self.batch.asked.is_empty() {
            return;
        }
        self.batch.gathering.complete().await;
        let Connection { batch: Batch { gathering, asked }, replies, .. } = self;
        gathering.empty(ANSWERS_KEPT_MAX, |answers| {
            asked.drain(..).for_each(|asked| asked.reply(answers, replies));
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
