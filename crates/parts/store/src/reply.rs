//! Replies to writes: the writer is told once what became of its write, on the thread that commits,
//! which must not be made to wait.

use std::sync::{Arc, Mutex, PoisonError};

use super::{StoreError, Written};

/// A receiver of the results of several writes, told apart by their places.
pub trait ReplyListener: Send + Sync {
    /// Takes the result of one write; must not block.
    fn hear(&self, place: usize, written: Written);
}

type Told = Box<dyn FnOnce(Written) + Send>;

impl ReplyListener for Mutex<Option<Told>> {
    fn hear(&self, _place: usize, written: Written) {
        let told = self.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(told) = told {
            told(written);
        }
    }
}

/// The reply to one write. If it is dropped unsaid, the store has ended before the write was
/// durable.
pub struct Reply {
    listener: Option<Arc<dyn ReplyListener>>,
    place: usize,
}

impl Reply {
    pub fn new(listener: Arc<dyn ReplyListener>, place: usize) -> Reply {
        Reply { listener: Some(listener), place }
    }

    pub fn to(told: impl FnOnce(Written) + Send + 'static) -> Reply {
        let told: Told = Box::new(told);
        Reply::new(Arc::new(Mutex::new(Some(told))), 0)
    }

    pub fn say(mut self, written: Written) {
        if let Some(listener) = self.listener.take() {
            listener.hear(self.place, written);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.take() {
            let unsaid = StoreError::Stopped("it ended before the write was durable".into());
            listener.hear(self.place, Err(unsaid));
        }
    }
}
