//! A time limit for many waits one after the other. Most of them end long before it: setting a
//! timer for each and taking it back would cost more than they do.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, Sleep, sleep_until};

/// A timer that is set when somebody first waits, and put off when it rings too early.
#[derive(Default)]
pub struct LazyTimer(RefCell<Option<Pin<Box<Sleep>>>>);

impl LazyTimer {
    /// Ready at `deadline`. All that wait on it are of one task.
    pub fn poll(&self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        let mut sleep = self.0.borrow_mut();
        let sleep = sleep.get_or_insert_with(|| Box::pin(sleep_until(deadline))).as_mut();
        rings(sleep, cx, deadline)
    }
}

fn rings(mut sleep: Pin<&mut Sleep>, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
    if sleep.deadline() > deadline {
        sleep.as_mut().reset(deadline);
    }
    loop {
        ready!(sleep.as_mut().poll(cx));
        if Instant::now() >= deadline {
            return Poll::Ready(());
        }
        sleep.as_mut().reset(deadline);
    }
}

#[cfg(test)]
mod tests;
