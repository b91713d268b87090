//! How the answers to a connection's writes come back from the committer's thread: kept until all
//! of them are there, and then one wake-up for as many connections as are ready.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use tokio::sync::Notify;

use crate::store::{Reply, StoreError, Written};

/// Wakes connections of one thread. To wake a task of another thread costs a system call; this
/// does so once for all that are ready by the time that thread looks.
#[derive(Default)]
pub struct Bell {
    state: Mutex<BellState>,
    written: Notify,
}

#[derive(Default)]
struct BellState {
    ready: Vec<Waker>,
    ringer: Option<Waker>,
}

impl Bell {
    fn state(&self) -> MutexGuard<'_, BellState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, waker: Waker) {
        let mut state = self.state();
        state.ready.push(waker);
        let ringer = state.ringer.take();
        drop(state);
        if let Some(ringer) = ringer {
            ringer.wake();
        }
    }

    /// Some of the connections have submitted writes. Who waits here runs behind all connections
    /// that are ready by now: one batch for what they write.
    pub async fn written(&self) {
        self.written.notified().await;
    }

    /// Runs for ever, on the thread whose connections it wakes.
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

/// The answers to the writes of one connection.
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

    /// A place for the answer to the next write.
    pub fn reply(self: &Arc<Self>) -> Reply {
        let mut state = self.state();
        let mut place = Place { gathering: self.clone(), index: state.answers.len(), open: true };
        state.answers.push(None);
        state.missing += 1;
        Box::new(move |answer| place.put(answer))
    }

    /// Writes were submitted, and may wait for those of other connections.
    pub fn written(&self) {
        self.bell.written.notify_one();
    }

    /// Every answer, in the order of the writes; empties the gathering.
    pub async fn all(&self) -> Vec<Written> {
        poll_fn(|context| {
            let mut state = self.state();
            if state.missing > 0 {
                state.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(std::mem::take(&mut state.answers).into_iter().flatten().collect())
        })
        .await
    }
}

struct Place {
    gathering: Arc<Gathering>,
    index: usize,
    open: bool,
}

impl Place {
    fn put(&mut self, answer: Written) {
        self.open = false;
        let mut state = self.gathering.state();
        state.answers[self.index] = Some(answer);
        state.missing -= 1;
        let waker = if state.missing == 0 { state.waker.take() } else { None };
        drop(state);
        if let Some(waker) = waker {
            self.gathering.bell.wake(waker);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.open {
            self.put(Err(StoreError::Stopped("it ended before the write was durable".into())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_answers_come_in_order_also_from_another_thread() {
        let bell = Arc::new(Bell::default());
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
                            reply(Ok((i % 2 == 0).then_some(crate::store::CommitId([i as u8; 32]))))
                        }
                    }
                }
            });
            let answers = gathering.all().await;
            assert_eq!(answers.len(), 50);
            for (i, answer) in answers.into_iter().enumerate() {
                match answer {
                    Ok(id) => assert_eq!(id.map(|id| id.0[0]), (i % 2 == 0).then_some(i as u8)),
                    Err(error) => assert!(i == 7 && matches!(error, StoreError::Stopped(_))),
                }
            }
            thread.join().unwrap();
        }
    }
}
