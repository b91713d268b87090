//! The requests that one thread got just now, by the very bytes of their targets: a file that many
//! want is found again without its path being put together and looked up each time.

use std::cell::RefCell;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use model::hash;

use super::answer::{FileAnswer, FileAnswerKind};
use super::found::{Content, Found};
use crate::table::RoutedApplication;

/// Targets that are remembered: those asked for the most. Each has its place by hash; another
/// target with the same place replaces it.
const PLACES: usize = 256;
/// The longest target that is remembered, in bytes: longer ones are rare, and would be most of what
/// this holds.
const TARGET_BYTES_MAX: usize = 256;
/// The time that an answer is remembered: files in persistent directories change, and a change is
/// seen that much later.
const TIME_MAX: Duration = Duration::from_millis(250);

#[derive(Default)]
pub struct RecentTargets {
    places: RefCell<Vec<Option<Asked>>>,
}

struct Asked {
    /// The application as it was then; another release is another one.
    application: Weak<RoutedApplication>,
    target: Box<[u8]>,
    /// The file; `None` if there is none and the application is asked.
    found: Option<Arc<Found>>,
    until: Instant,
}

impl RecentTargets {
    /// Returns the answer to a client without conditions, `Some(None)` if there is no such file;
    /// `None` if that is not known.
    pub fn find(
        &self,
        application: &Arc<RoutedApplication>,
        target: &[u8],
        now: Instant,
    ) -> Option<Option<FileAnswer>> {
        self.with(application, target, now, |found| found.cloned().map(FileAnswer::whole))
    }

    /// Returns whether it is known that there is no file.
    pub fn is_none(
        &self,
        application: &Arc<RoutedApplication>,
        target: &[u8],
        now: Instant,
    ) -> bool {
        self.with(application, target, now, |found| found.is_none()) == Some(true)
    }

    /// Calls `send` with the prepared answer for a client that goes on asking, and how much of it
    /// is content. Returns `None` if the file is not known, or none is in memory.
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

    /// Remembers an answer if everybody without conditions gets the same: the file has a single
    /// form, whatever codings clients take.
    pub fn learn(
        &self,
        application: &Arc<RoutedApplication>,
        target: &[u8],
        answer: Option<&FileAnswer>,
        now: Instant,
    ) {
        let is_same = |answer: &FileAnswer| {
            let found = &answer.found;
            let is_small = matches!(found.content, Content::Small(_));
            is_small
                && answer.kind == FileAnswerKind::Content
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

    /// Drops what nobody asked for again.
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
