//! The feed follows a store's keys in etcd and tells the hub, in order and without a gap: after a
//! cut it goes on with the next revision, and if etcd has dropped that one all watchers read again.
//! Also reads the stretch of history that a watcher missed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Event, GetOptions, WatchResponse};
use store_core::watch::ARRIVALS_KEPT_MAX;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::hub::{self, Hub, KeyChange, LocalChange};
use super::keyspace::Keyspace;
use super::link::{EtcdLink, LinkError};
use super::record::StoredRecord;
use runtime::driver::Clock;
use store::{Cursor, Watch, WatchEvent};

const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The time within which a stretch of history must come; otherwise its watcher reads again instead.
const CATCH_UP_MAX: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct Feed {
    pub link: EtcdLink,
    pub space: Keyspace,
    pub hub: Arc<Hub>,
    pub clock: Clock,
}

impl Feed {
    /// Runs until the future is dropped.
    pub async fn run(self) {
        let mut pause = PAUSE_MIN;
        let mut is_cut = false;
        loop {
            let from = self.hub.next_revision();
            let ended = self.follow(from, &mut is_cut).await;
            let ended = match ended {
                LinkError::Compacted => self.begin_anew().await.err(),
                error => Some(error),
            };
            if let Some(error) = ended
                && !std::mem::replace(&mut is_cut, true)
            {
                tracing::warn!(%error, "etcd.feed_cut");
            }
            pause = if self.hub.next_revision() > from { PAUSE_MIN } else { pause };
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn follow(&self, from: i64, is_cut: &mut bool) -> LinkError {
        let mut stream = match self.link.watch(self.space.all(), from).await {
            Ok(stream) => stream,
            Err(error) => return error,
        };
        loop {
            let response = match stream.message().await {
                Ok(Some(response)) => response,
                Ok(None) => return self.link.unavailable("the watch ended".into()),
                Err(error) => return self.link.judge(&error).into_error(&self.link),
            };
            if let Some(error) = self.cancelled(&response) {
                return error;
            }
            if std::mem::take(is_cut) {
                tracing::info!(revision = from, "etcd.feed_resumed");
            }
            for (revision, changes) in self.by_revision(response.events()) {
                self.hub.apply(revision, changes, self.clock.now());
            }
        }
    }

    fn cancelled(&self, response: &WatchResponse) -> Option<LinkError> {
        if response.compact_revision() > 0 {
            return Some(LinkError::Compacted);
        }
        let why = || format!("the watch was cancelled: {}", response.cancel_reason());
        response.canceled().then(|| self.link.unavailable(why()))
    }

    async fn begin_anew(&self) -> Result<(), LinkError> {
        let options = GetOptions::new().with_count_only();
        let answer = self.link.get(self.space.identity().into(), options).await?;
        let revision = answer.header().map_or(0, |header| header.revision());
        tracing::warn!(revision, "etcd.feed_resync: etcd has dropped the history that was missed");
        self.hub.resync(revision);
        Ok(())
    }

    /// Groups events by revision; etcd never splits one between two answers.
    fn by_revision(&self, events: &[Event]) -> BTreeMap<i64, Vec<Option<KeyChange>>> {
        let mut revisions: BTreeMap<i64, Vec<Option<KeyChange>>> = BTreeMap::new();
        for kv in events.iter().filter_map(Event::kv) {
            let key = self.space.key(kv.key());
            let change = key.map(|key| {
                // A delete has no version.
                let is_set = kv.version() > 0;
                let record = is_set.then(|| self.record(&key, kv.value())).flatten();
                KeyChange { key, record }
            });
            revisions.entry(kv.mod_revision()).or_default().push(change);
        }
        revisions
    }

    /// Decodes a record; one that cannot be read counts as absent and is reported.
    pub fn record(&self, key: &model::Key, bytes: &[u8]) -> Option<StoredRecord> {
        let record = StoredRecord::decode(bytes);
        record.inspect_err(|error| tracing::warn!(%key, %error, "etcd.record_unreadable")).ok()
    }

    /// Returns every key that changed in `(from, until]`, once, by its newest arrival; fails with
    /// `Compacted` if etcd no longer knows them or they are too many.
    async fn changes(
        &self,
        from: u64,
        until: Cursor,
        wanted: &model::Prefix,
    ) -> Result<Vec<LocalChange>, LinkError> {
        let mut changes = Vec::new();
        let last = hub::revision(until.arrival);
        if hub::revision(from) == last {
            return Ok(changes);
        }
        let mut stream = self.link.watch(self.space.all(), hub::revision(from)).await?;
        let mut count = 0;
        loop {
            let response = match stream.message().await {
                Ok(Some(response)) => response,
                Ok(None) => return Err(self.link.unavailable("the watch ended".into())),
                Err(error) => return Err(self.link.judge(&error).into_error(&self.link)),
            };
            if let Some(error) = self.cancelled(&response) {
                return Err(error);
            }
            for (revision, revised) in self.by_revision(response.events()) {
                for (counter, change) in (1..).zip(revised) {
                    let arrival = hub::arrival(revision, counter);
                    count += 1;
                    let Some(KeyChange { key, record }) = change else { continue };
                    if arrival > from && arrival <= until.arrival && wanted.matches(&key) {
                        changes.push(self.change(arrival, until.incarnation, key, record));
                    }
                }
                if revision >= last {
                    return Ok(changes);
                }
            }
            if count > ARRIVALS_KEPT_MAX {
                return Err(LinkError::Compacted);
            }
        }
    }

    fn change(
        &self,
        arrival: u64,
        incarnation: u64,
        key: model::Key,
        record: Option<StoredRecord>,
    ) -> LocalChange {
        let now = self.clock.now();
        let expired = record.as_ref().is_some_and(|record| record.has_expired(now));
        let value = record.filter(|_| !expired).map(|record| self.hub.value(&record));
        let cursor = Cursor { incarnation, arrival };
        LocalChange { arrival, event: WatchEvent::Changed { cursor, key, value, expired } }
    }

    /// Gives a watcher what it missed, then new changes.
    pub async fn catch_up(
        self,
        prefix: model::Prefix,
        mut watch: Watch,
        local: Vec<LocalChange>,
        from: u64,
        until: Cursor,
        events: mpsc::Sender<WatchEvent>,
    ) {
        let missed = timeout(CATCH_UP_MAX, self.changes(from, until, &prefix)).await;
        let first = match missed {
            Ok(Ok(mut changes)) => {
                changes.extend(local);
                newest_of_each(changes)
            }
            // The watcher is told of the gap and reads again.
            Ok(Err(_)) | Err(_) => vec![WatchEvent::Resync { cursor: until }],
        };
        for event in first {
            if events.send(event).await.is_err() {
                return;
            }
        }
        loop {
            let event = tokio::select! {
                event = watch.next() => event,
                () = events.closed() => return,
            };
            let Some(event) = event else { return };
            if events.send(event).await.is_err() {
                return;
            }
        }
    }
}

fn newest_of_each(mut changes: Vec<LocalChange>) -> Vec<WatchEvent> {
    changes.sort_by_key(|change| change.arrival);
    let mut newest = BTreeMap::new();
    for (place, change) in changes.iter().enumerate() {
        if let WatchEvent::Changed { key, .. } = &change.event {
            newest.insert(key.clone(), place);
        }
    }
    let places: std::collections::BTreeSet<usize> = newest.into_values().collect();
    let kept = changes.into_iter().enumerate().filter(|(place, _)| places.contains(place));
    kept.map(|(_, change)| change.event).collect()
}
