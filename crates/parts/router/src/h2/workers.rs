//! Tasks that serve one stream after the other: for a stream that is over at once, beginning and
//! ending a task would cost more than all else that is done for it here.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::task;
use crate::thread::Thread;

/// Idle workers that a thread keeps. Each holds some KiB, the room for a request's state.
const IDLE_MAX: usize = 64;

/// The job that a worker does.
pub trait Work: Sized + 'static {
    /// Resolves when it is done.
    fn done(self) -> impl Future<Output = ()>;
}

/// The workers of a thread that have nothing to do.
pub struct Workers<J>(RefCell<Vec<Rc<Worker<J>>>>);

struct Worker<J> {
    job: Cell<Option<J>>,
    is_dismissed: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl<J> Default for Workers<J> {
    fn default() -> Workers<J> {
        Workers(RefCell::default())
    }
}

impl<J: Work> Workers<J> {
    pub fn give(self: &Rc<Workers<J>>, thread: &Rc<Thread>, job: J) {
        let idle = self.0.borrow_mut().pop();
        match idle {
            Some(worker) => {
                worker.job.set(Some(job));
                worker.wake();
            }
            None => task::begin(work(thread.clone(), self.clone(), job)),
        }
    }

    /// Dismisses half of the idle workers, which are not needed at present; called now and then.
    pub fn sweep(&self) {
        let mut idle = self.0.borrow_mut();
        let left = idle.len() / 2;
        for worker in idle.drain(left..) {
            worker.is_dismissed.set(true);
            worker.wake();
        }
    }
}

impl<J> Worker<J> {
    fn new() -> Worker<J> {
        Worker { job: Cell::new(None), is_dismissed: Cell::new(false), waker: RefCell::new(None) }
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Waits for the next job; `None` if the worker is to end.
    async fn next(&self) -> Option<J> {
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

async fn work<J: Work>(thread: Rc<Thread>, workers: Rc<Workers<J>>, first: J) {
    let worker = Rc::new(Worker::new());
    let mut next = Some(first);
    while let Some(job) = next.take() {
        job.done().await;
        {
            let mut idle = workers.0.borrow_mut();
            if idle.len() >= IDLE_MAX || thread.is_stopping() {
                return;
            }
            idle.push(worker.clone());
        }
        next = worker.next().await;
    }
}
