//! The mailbox in which commands wait for the committer. A sender with many writers may leave its
//! commands there and call `hurry` once: they then form one batch and wake the committer's thread
//! once.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

struct State<T> {
    waiting: VecDeque<T>,
    /// Whether the commands that wait are due.
    due: bool,
    asleep: bool,
    /// The number of commands below which the sleeping receiver is not woken.
    wanted: usize,
    senders: usize,
    closed: bool,
    /// The number of commands from which they are due in any case.
    unhurried_max: usize,
}

struct Mailbox<T> {
    state: Mutex<State<T>>,
    woken: Condvar,
}

impl<T> Mailbox<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, mut state: MutexGuard<'_, State<T>>) {
        if state.waiting.len() < state.wanted && state.senders > 0 {
            return;
        }
        let asleep = std::mem::take(&mut state.asleep);
        drop(state);
        if asleep {
            self.woken.notify_one();
        }
    }
}

pub struct Sender<T>(Arc<Mailbox<T>>);

/// The receiving end; when it is dropped, sending fails.
pub struct Receiver<T>(Arc<Mailbox<T>>);

#[derive(Debug, PartialEq, Eq)]
pub struct Closed;

/// The error once the last sender is gone and everything was taken out.
#[derive(Debug, PartialEq, Eq)]
pub struct Deserted;

/// Makes a mailbox in which commands that were left are due once there are `unhurried_max`.
pub fn mailbox<T>(unhurried_max: usize) -> (Sender<T>, Receiver<T>) {
    let state = State {
        waiting: VecDeque::new(),
        due: false,
        asleep: false,
        wanted: 0,
        senders: 1,
        closed: false,
        unhurried_max,
    };
    let mailbox = Arc::new(Mailbox { state: Mutex::new(state), woken: Condvar::new() });
    (Sender(mailbox.clone()), Receiver(mailbox))
}

impl<T> Sender<T> {
    pub fn send(&self, command: T) -> Result<(), Closed> {
        self.put(command, |_| true)
    }

    /// Leaves a command, which is due with the next one that is sent, at `hurry`, or with enough
    /// others.
    pub fn leave(&self, command: T) -> Result<(), Closed> {
        self.put(command, |_| false)
    }

    /// Adds a command that is due with those left before it; at once if there are none.
    pub fn join(&self, command: T) -> Result<(), Closed> {
        self.put(command, VecDeque::is_empty)
    }

    pub fn hurry(&self) {
        let mut state = self.0.state();
        state.due = !state.waiting.is_empty();
        if state.due {
            self.0.wake(state);
        }
    }

    fn put(&self, command: T, due: impl Fn(&VecDeque<T>) -> bool) -> Result<(), Closed> {
        let mut state = self.0.state();
        if state.closed {
            return Err(Closed);
        }
        state.due |= due(&state.waiting);
        state.waiting.push_back(command);
        state.due |= state.waiting.len() >= state.unhurried_max;
        if state.due {
            self.0.wake(state);
        }
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.0.state().senders += 1;
        Sender(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.senders -= 1;
        if state.senders == 0 {
            self.0.wake(state);
        }
    }
}

/// The number of commands that are likely to come soon, and how long it pays to wait for them.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    pub count: usize,
    pub patience: Duration,
}

impl<T> Receiver<T> {
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<T>>,
        most: Duration,
        enough: impl Fn(&State<T>) -> bool,
    ) -> MutexGuard<'a, State<T>> {
        let began = Instant::now();
        while !enough(&state) && state.senders > 0 {
            let left = most.saturating_sub(began.elapsed());
            if left.is_zero() {
                break;
            }
            state.asleep = true;
            let woken = self.0.woken.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
            state.asleep = false;
        }
        state
    }

    /// Waits until something is due, and then for more as `expected` says, but no longer than
    /// `wait`.
    pub fn await_due(&self, wait: Duration, expected: Option<Expected>) -> Result<(), Deserted> {
        let mut state = self.wait(self.0.state(), wait, |state| state.due);
        if let Some(Expected { count, patience }) = expected
            && state.due
        {
            state.wanted = count;
            state = self.wait(state, patience, |state| state.waiting.len() >= state.wanted);
            state.wanted = 0;
        }
        if state.waiting.is_empty() && state.senders == 0 { Err(Deserted) } else { Ok(()) }
    }

    /// Takes at most `most` commands, oldest first, due or not.
    pub fn take(&self, most: usize) -> Vec<T> {
        let mut state = self.0.state();
        let most = most.min(state.waiting.len());
        let taken = state.waiting.drain(..most).collect();
        state.due &= !state.waiting.is_empty();
        taken
    }

    /// Wakes the receiver as if something were due.
    pub fn rouse(&self) {
        let mut state = self.0.state();
        state.due = true;
        self.0.wake(state);
    }

    /// Closes the mailbox: sending fails from now on.
    pub fn close(&self) {
        let mut state = self.0.state();
        state.closed = true;
        let unheard = std::mem::take(&mut state.waiting);
        // Dropping the commands tells their senders, which may send again.
        drop(state);
        drop(unheard);
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENOUGH: usize = 100;
    const SOON: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_command_is_due_with_those_that_wait_or_at_once_if_none_does() {
        let (sender, receiver) = mailbox(ENOUGH);
        sender.leave(1).unwrap();
        sender.join(2).unwrap();
        assert!(!receiver.0.state().due);
        assert_eq!(receiver.take(ENOUGH), [1, 2]);
        sender.join(3).unwrap();
        assert!(receiver.0.state().due);
    }

    #[test]
    fn a_command_that_is_left_waits_until_somebody_hurries() {
        let (sender, receiver) = mailbox(ENOUGH);
        sender.leave(1).unwrap();
        sender.leave(2).unwrap();
        let waiting = std::thread::spawn(move || (receiver.await_due(LONG, None), receiver));
        sender.hurry();
        let (due, receiver) = waiting.join().unwrap();
        assert_eq!(due, Ok(()));
        assert_eq!(receiver.take(1), [1]);
        assert_eq!(receiver.await_due(LONG, None), Ok(()), "the rest is due still");
        assert_eq!(receiver.take(9), [2]);
        assert_eq!(receiver.await_due(SOON, None), Ok(()));
        assert_eq!(receiver.take(9), [0; 0]);
        sender.leave(3).unwrap();
        assert_eq!(receiver.await_due(SOON, None), Ok(()));
        assert_eq!(receiver.take(9), [3], "a wait that ends takes what there is");
    }

    #[test]
    fn a_full_batch_needs_no_hurry() {
        let (sender, receiver) = mailbox(ENOUGH);
        (0..ENOUGH).for_each(|n| sender.leave(n).unwrap());
        assert_eq!(receiver.await_due(LONG, None), Ok(()));
        assert_eq!(receiver.take(ENOUGH).len(), ENOUGH);
    }

    #[test]
    fn a_receiver_that_is_roused_returns_even_if_nothing_waits() {
        let (sender, receiver) = mailbox::<u8>(ENOUGH);
        receiver.rouse();
        assert_eq!(receiver.await_due(LONG, None), Ok(()));
        assert!(receiver.take(9).is_empty());
        drop(sender);
    }

    #[test]
    fn each_end_hears_that_the_other_is_gone() {
        let (sender, receiver) = mailbox(ENOUGH);
        let other = sender.clone();
        other.leave(1).unwrap();
        drop(other);
        let waiting = std::thread::spawn(move || {
            assert_eq!(receiver.take(9), [1]);
            assert_eq!(receiver.await_due(LONG, None), Err(Deserted));
        });
        drop(sender);
        waiting.join().unwrap();

        let (sender, receiver) = mailbox(ENOUGH);
        let unheard = Arc::new(());
        sender.send(unheard.clone()).unwrap();
        drop(receiver);
        assert_eq!(Arc::strong_count(&unheard), 1);
        assert_eq!(sender.send(unheard), Err(Closed));
    }
}
