//! Tasks that serve one stream after the other: for one that is over at once, to begin a task and
//! to end it would cost more than all else that is done for it here.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::client::Client;
use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::serve;
use crate::serve::Thread;

/// Of a thread. Each holds some KiB, the room for a request's state.
const IDLE_MAX: usize = 64;

/// A request on a stream of its own.
pub struct Job {
    pub connection: Connection,
    /// Its head.
    pub begun: Buffer,
    pub client: Rc<Client>,
}

impl Job {
    async fn done(self) {
        self.connection.run_once(self.begun).await;
        self.client.h2.borrow_mut().answered();
    }
}

/// Those of a thread that have nothing to do.
#[derive(Default)]
pub struct Workers(RefCell<Vec<Rc<Worker>>>);

#[derive(Default)]
struct Worker {
    job: Cell<Option<Job>>,
    is_dismissed: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Workers {
    pub fn give(thread: &Rc<Thread>, job: Job) {
        let idle = thread.workers.0.borrow_mut().pop();
        match idle {
            Some(worker) => {
                worker.job.set(Some(job));
                worker.wake();
            }
            None => serve::begin(work(thread.clone(), job)),
        }
    }

    /// Now and then: half of those that wait are not needed at present.
    pub fn sweep(&self) {
        let mut idle = self.0.borrow_mut();
        let left = idle.len() / 2;
        for worker in idle.drain(left..) {
            worker.is_dismissed.set(true);
            worker.wake();
        }
    }
}

impl Worker {
    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// None when it is to end.
    async fn next(&self) -> Option<Job> {
        poll_fn(|cx| {
            if let Some(job) = self.job.take() {
                return Poll::Ready(Some(job));
            }
            if self.is_dismissed.get() {
                return Poll::Ready(None);
            }
            let mut waker = self.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

async fn work(thread: Rc<Thread>, first: Job) {
    let worker = Rc::<Worker>::default();
    let mut next = Some(first);
    while let Some(job) = next.take() {
        job.done().await;
        {
            let mut idle = thread.workers.0.borrow_mut();
            if idle.len() >= IDLE_MAX || thread.is_stopping() {
                return;
            }
            idle.push(worker.clone());
        }
        next = worker.next().await;
    }
}
