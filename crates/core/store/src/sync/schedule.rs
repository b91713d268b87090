//! The times to talk to others, and to write down what this node holds of them: sessions come every
//! second and soon after a change.

use std::time::Duration;

use model::Timestamp;

/// The time within which changes go in one session.
pub const PUSH_DELAY: Duration = Duration::from_millis(20);
pub const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two vectors in the log, by which garbage lags. Each is one write of the log, in
/// a cluster only.
pub const VECTOR_INTERVAL: Duration = Duration::from_secs(30);
/// Sessions in a row that told nobody anything new before a node stops spreading.
const FUTILE_MAX: u8 = 2;

pub(crate) struct Timetable {
    push_at: Option<Timestamp>,
    /// The number of sessions in a row that told nobody anything new.
    futile: u8,
    sync_at: Timestamp,
    vector_at: Timestamp,
}

/// The reason to talk to somebody now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Something is new here.
    Push,
    /// The second is over.
    Sync,
    Both,
}

impl Timetable {
    pub fn new(now: Timestamp) -> Timetable {
        Timetable {
            push_at: None,
            futile: FUTILE_MAX,
            sync_at: now.after(SYNC_INTERVAL),
            vector_at: now.after(VECTOR_INTERVAL),
        }
    }

    /// Notes that something is new here, which others are to have soon.
    pub fn changed(&mut self, now: Timestamp) {
        self.futile = 0;
        self.push_soon(now);
    }

    fn push_soon(&mut self, now: Timestamp) {
        let soon = now.after(PUSH_DELAY);
        self.push_at = Some(self.push_at.map_or(soon, |at| at.min(soon)));
    }

    /// Has a node with news tell one peer after the other until it is news to nobody: rumor
    /// mongering with feedback (Demers and others, "Epidemic algorithms for replicated database
    /// maintenance", 1987). The rest hears of it in the sessions of every second.
    pub fn spread_on(&mut self, now: Timestamp, was_news: bool) {
        self.futile = if was_news { 0 } else { self.futile.saturating_add(1) };
        if self.futile < FUTILE_MAX {
            self.push_soon(now);
        }
    }

    /// Makes all talk due now.
    pub fn sync_now(&mut self, now: Timestamp) {
        self.push_at = Some(now);
        self.sync_at = now;
    }

    /// Returns why to talk now, if it is time; the next second begins.
    pub fn due(&mut self, now: Timestamp) -> Option<Due> {
        let pushes = self.push_at.is_some_and(|at| now >= at);
        let syncs = now >= self.sync_at;
        if syncs {
            self.sync_at = now.after(SYNC_INTERVAL);
        }
        match (pushes, syncs) {
            (true, true) => Some(Due::Both),
            (true, false) => Some(Due::Push),
            (false, true) => Some(Due::Sync),
            (false, false) => None,
        }
    }

    /// Puts news off, as a session is under way: its end looks again.
    pub fn put_off(&mut self, now: Timestamp, due: Due) {
        if due != Due::Sync {
            self.push_at = Some(now.after(PUSH_DELAY));
        }
    }

    /// Notes that somebody is told now what is new.
    pub fn pushed(&mut self) {
        self.push_at = None;
    }

    pub fn is_vector_due(&self, now: Timestamp) -> bool {
        now >= self.vector_at
    }

    /// Notes that the vector is being written down.
    pub fn vector_kept(&mut self, now: Timestamp) {
        self.vector_at = now.after(VECTOR_INTERVAL);
    }

    pub fn vector_deadline(&self) -> Timestamp {
        self.vector_at
    }

    /// Returns when to talk next.
    pub fn talk_deadline(&self) -> Timestamp {
        self.push_at.map_or(self.sync_at, |at| at.min(self.sync_at))
    }
}
