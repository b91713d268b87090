//! The way back of the answers to a connection's writes from the committer's thread: they are kept
//! until all of them are there, and then there is one wake-up for as many connections as are ready.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::ThreadId;

use tokio::sync::Notify;

use super::returning::Returning;
use store::reply::{Reply, ReplyListener};
use store::{StoreError, Written};

/// Wakes connections of one thread. To wake a task of another thread costs a system call; the bell
/// does so once for all that are ready by the time that thread looks.
pub struct Bell {
    thread: ThreadId,
    state: Mutex<BellState>,
    written: Notify,
    returning: Mutex<Returning>,
}

#[derive(Default)]
struct BellState {
    ready: Vec<Waker>,
    ringer: Option<Waker>,
}

impl Bell {
    /// Makes a bell for the connections of the calling thread.
    pub fn new() -> Bell {
        let thread = std::thread::current().id();
        let (state, written, returning) = (Mutex::default(), Notify::new(), Mutex::default());
        Bell { thread, state, written, returning }
    }

    /// Returns the `Returning` of the connections that have tasks. Only this thread asks for it.
    pub fn returning(&self) -> MutexGuard<'_, Returning> {
        self.returning.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, BellState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, waker: Waker) {
        if std::thread::current().id() == self.thread {
            return waker.wake();
        }
        let mut state = self.state();
        state.ready.push(waker);
        let ringer = state.ringer.take();
        drop(state);
        if let Some(ringer) = ringer {
            ringer.wake();
        }
    }

    /// Waits until connections have submitted writes. The caller runs after all connections that
    /// are ready by now, so that what they write is one batch.
    pub async fn written(&self) {
        self.written.notified().await;
    }

    /// Wakes connections for ever; runs on their thread.
    pub async fn ring(&self) {
        let mut ready = Vec::new();
        poll_fn(|context| {
            std::mem::swap(&mut ready, &mut self.state().ready);
            ready.drain(..).for_each(Waker::wake);
            let mut state = self.state();
            state.ringer = Some(context.waker().clone());
            if !state.ready.is_empty() {
                context.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        })
        .await
    }
}

/// The answers to the writes of one batch.
pub struct Gathering {
    state: Mutex<GatheringState>,
    bell: Arc<Bell>,
}

#[derive(Default)]
struct GatheringState {
    answers: Vec<Option<Written>>,
    missing: usize,
    waker: Option<Waker>,
}

impl Gathering {
    pub fn new(bell: Arc<Bell>) -> Arc<Gathering> {
        Arc::new(Gathering { state: Mutex::default(), bell })
    }

    fn state(&self) -> MutexGuard<'_, GatheringState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reply for the answer to the next write.
    pub fn reply(self: &Arc<Self>) -> Reply {
        let mut state = self.state();
        let place = state.answers.len();
        state.answers.push(None);
        state.missing += 1;
        drop(state);
        Reply::new(self.clone(), place)
    }

    /// Records that all that its client wrote is answered.
    pub fn answered(&self) {
        self.bell.returning().answered();
    }

    /// Records that writes were submitted, `first` if all before them were answered; they may
    /// wait for those of other connections.
    pub fn written(&self, first: bool) {
        if first {
            self.bell.returning().wrote();
        }
        self.bell.written.notify_one();
    }

    /// Waits until every answer is there.
    pub async fn complete(&self) {
        poll_fn(|context| self.poll_complete(context)).await
    }

    pub fn poll_complete(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.missing == 0 {
            return Poll::Ready(());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }

    pub fn is_complete(&self) -> bool {
        self.state().missing == 0
    }

    /// Replaces the answer of the last write, which was not even queued.
    pub fn refuse(&self, error: StoreError) {
        if let Some(last) = self.state().answers.last_mut() {
            *last = Some(Err(error));
        }
    }

    /// Passes on the answers, in the order of the writes, and empties the gathering. It keeps room
    /// for `kept` more.
    pub fn empty(&self, kept: usize, into: impl FnOnce(&mut dyn Iterator<Item = Written>)) {
        let mut state = self.state();
        into(&mut state.answers.drain(..).flatten());
        if state.answers.capacity() > kept {
            state.answers = Vec::new();
        }
    }
}

impl ReplyListener for Gathering {
    fn hear(&self, place: usize, written: Written) {
        let mut state = self.state();
        state.answers[place] = Some(written);
        state.missing -= 1;
        let waker = if state.missing == 0 { state.waker.take() } else { None };
        drop(state);
        if let Some(waker) = waker {
            self.bell.wake(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_answers_come_in_order_also_from_another_thread() {
        let bell = Arc::new(Bell::new());
        let ringing = bell.clone();
        tokio::spawn(async move { ringing.ring().await });
        let gathering = Gathering::new(bell);
        for _ in 0..3 {
            let replies: Vec<Reply> = (0..50).map(|_| gathering.reply()).collect();
            let thread = std::thread::spawn(move || {
                for (i, reply) in replies.into_iter().enumerate().rev() {
                    match i {
                        7 => drop(reply),
                        _ => {
                            let id = store::CommitId([i as u8; 32]);
                            reply.say(Ok((i % 2 == 0).then_some(id)))
                        }
                    }
                }
            });
            gathering.complete().await;
            let mut answers = Vec::new();
            gathering.empty(0, |all| answers.extend(all));
            assert_eq!(answers.len(), 50);
            for (i, answer) in answers.into_iter().enumerate() {
                match answer {
                    Ok(id) => assert_eq!(id.map(|id| id.0[0]), (i % 2 == 0).then_some(i as u8)),
                    Err(error) => {
                        assert!(i == 7 && matches!(error, store::StoreError::Stopped(_)))
                    }
                }
            }
            thread.join().unwrap();
        }
    }
}
