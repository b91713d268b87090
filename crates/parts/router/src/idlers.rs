//! The clients of a thread that are connected and ask for nothing. A router that leaves ends their
//! wait at once when it no longer knows who is to be asked: a new request belongs to the next one.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use slab::Slab;

#[derive(Default)]
pub struct Idlers {
    are_over: Cell<bool>,
    waiting: RefCell<Slab<Waker>>,
}

impl Idlers {
    /// Ends all waits, and those that come.
    pub fn end(&self) {
        self.are_over.set(true);
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
    }

    pub fn are_over(&self) -> bool {
        self.are_over.get()
    }

    /// Wakes this task, too, when it is over.
    pub fn tell(&self, waker: &Waker) {
        self.waiting.borrow_mut().insert(waker.clone());
    }

    pub fn wait(&self) -> Idler<'_> {
        Idler { of: self, place: None }
    }
}

/// One wait of a client's task.
pub struct Idler<'a> {
    of: &'a Idlers,
    /// The place of its waker, once it has to wait.
    place: Option<usize>,
}

impl Idler<'_> {
    /// Ready with what is waited for, or with `None` as soon as all waits are over.
    pub fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        wait: Pin<&mut impl Future<Output = T>>,
    ) -> Poll<Option<T>> {
        if self.of.are_over() {
            return Poll::Ready(None);
        }
        let polled = wait.poll(cx);
        if polled.is_pending() && self.place.is_none() {
            self.place = Some(self.of.waiting.borrow_mut().insert(cx.waker().clone()));
        }
        polled.map(Some)
    }
}

impl Drop for Idler<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.of.waiting.borrow_mut().try_remove(place);
        }
    }
}

#[cfg(test)]
mod tests;
