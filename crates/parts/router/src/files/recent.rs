//! What one thread was asked for just now, by the very bytes that asked: a file that many want is
//! found again without its path being put together and looked up each time.

use std::cell::RefCell;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use model::hash;

use super::answer::{Answer, Kind};
use super::found::{Content, Found};
use crate::table::RoutedApplication;

/// Those that are asked for the most; each has its place, and whoever else belongs there takes it.
const PLACES: usize = 256;
/// Longer ones are rare, and would be most of what this holds.
const TARGET_BYTES_MAX: usize = 256;
/// In persistent directories files change: they are seen that much later.
const TIME_MAX: Duration = Duration::from_millis(250);

#[derive(Default)]
pub struct Recent {
    places: RefCell<Vec<Option<Asked>>>,
}

struct Asked {
    /// As it was then: another release is another one.
    application: Weak<RoutedApplication>,
    target: Box<[u8]>,
    /// None where there is no such file, and the application is asked.
    found: Option<Arc<Found>>,
    until: Instant,
}

impl Recent {
    /// Whether there is a file; the answer to a client without conditions. None: not known.
    pub fn find(
        &self,
        application: &Arc<RoutedApplication>,
        target: &[u8],
        now: Instant,
    ) -> Option<Option<Answer>> {
        self.with(application, target, now, |found| found.cloned().map(Answer::whole))
    }

    /// It is known that there is none.
    pub fn is_none(
        &self,
        application: &Arc<RoutedApplication>,
        target: &[u8],
        now: Instant,
    ) -> bool {
        self.with(application, target, now, |found| found.is_none()) == Some(true)
    }

    /// What whoever goes on asking is sent of such a file, and how much of it is content. None
    /// where that is not known, or no file from memory.
    pub fn prepared<R>(
        &self,
        application: &Arc<RoutedApplication>,
        target: &[u8],
        now: Instant,
        send: impl FnOnce(&Bytes, u64) -> R,
    ) -> Option<R> {
        let prepared = |found: &&Arc<Found>| !found.answer.is_empty();
        let send = |found: &Arc<Found>| send(&found.answer, found.size);
        self.with(application, target, now, |found| found.filter(prepared).map(send))?
    }

    fn with<R>(
        &self,
        application: &Arc<RoutedApplication>,
        target: &[u8],
        now: Instant,
        answer: impl FnOnce(Option<&Arc<Found>>) -> R,
    ) -> Option<R> {
        let places = self.places.borrow();
        let asked = places.get(place(target))?.as_ref()?;
        let is_it = std::ptr::eq(asked.application.as_ptr(), Arc::as_ptr(application))
            && *asked.target == *target
            && now < asked.until;
        is_it.then(|| answer(asked.found.as_ref()))
    }

    /// Where everybody without conditions gets the same: of one form, whichever they take.
    pub fn learn(
        &self,
        application: &Arc<RoutedApplication>,
        target: &[u8],
        answer: Option<&Answer>,
        now: Instant,
    ) {
        let is_same = |answer: &Answer| {
            let found = &answer.found;
            let is_small = matches!(found.content, Content::Small(_));
            is_small
                && answer.kind == Kind::Content
                && answer.coding.is_none()
                && found.codings.is_empty()
        };
        if target.len() > TARGET_BYTES_MAX || !answer.is_none_or(is_same) {
            return;
        }
        let mut places = self.places.borrow_mut();
        if places.is_empty() {
            places.resize_with(PLACES, || None);
        }
        places[place(target)] = Some(Asked {
            application: Arc::downgrade(application),
            target: target.into(),
            found: answer.map(|answer| answer.found.clone()),
            until: now + TIME_MAX,
        });
    }

    /// What nobody asked for again is not held any longer.
    pub fn sweep(&self) {
        let now = Instant::now();
        for place in self.places.borrow_mut().iter_mut() {
            if place.as_ref().is_some_and(|asked| asked.until < now) {
                *place = None;
            }
        }
    }
}

fn place(target: &[u8]) -> usize {
    usize::try_from(hash::bytes(target) % PLACES as u64).unwrap_or(0)
}
