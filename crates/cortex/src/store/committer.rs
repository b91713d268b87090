//! The committer thread: feeds the machine with what waits, makes its batches durable with one
//! fdatasync each, and answers. A failed write or fdatasync stops the store for good: what the
//! disk holds is unknown then, and trying again could acknowledge what was lost.

mod cleaning;
mod sessions;

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use model::{Key, Machine, Timestamp};
use store::event::{Change, Effect, Entry, Event, Ticket, Unwritten, Write};
use store::machine::BATCH_WRITES_MAX;
use store::{Commit, Location, Position};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use self::sessions::Aside;
use super::cache::NumberHasher;
use super::local::Shared;
use super::log::{Batch, CommitLog, LogError};
use super::mailbox::{Expected, Receiver};
use super::open::Options;
use super::replication::Incoming;
use super::{CommitId, Cursor, Reply, StoreError, Value, Written, snapshot};
use crate::driver::Clock;
use crate::lockfile::FileLock;

/// Value files age by the hour, so looking more often finds nothing more.
const COLLECT_INTERVAL: Duration = Duration::from_secs(3600);
/// How soon a finished snapshot is noticed when nobody writes.
const BACKGROUND_POLL: Duration = Duration::from_secs(1);

/// Fewer writers are not waited for.
const TOGETHER_MIN: usize = 16;
/// A disk that is slower than this is no reason to wait for others as long.
const PATIENCE_MAX: Duration = Duration::from_millis(2);

pub enum Command {
    Write {
        key: Key,
        change: Change,
        only_over: Option<Position>,
        value: Bytes,
        reply: Reply,
        permit: OwnedSemaphorePermit,
    },
    Squash {
        before: Timestamp,
        reply: oneshot::Sender<()>,
    },
    /// From a peer.
    Received(Incoming),
    /// Answered once everything that follows has been done.
    Tell(Event, Option<oneshot::Sender<()>>),
    Close {
        reply: oneshot::Sender<Result<(), StoreError>>,
    },
}

struct Pending {
    value: Bytes,
    /// None for a move, for what a peer sent and for what is issued anew.
    reply: Option<(Reply, OwnedSemaphorePermit)>,
}

/// The disk's error, for each of the batch's writers.
struct Refusal {
    what: String,
    source: io::Error,
}

impl Refusal {
    fn error(&self) -> StoreError {
        StoreError::Io { what: self.what.clone(), source: copy_of(&self.source) }
    }
}

fn copy_of(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

struct Snapshotting {
    next: u32,
    thread: JoinHandle<io::Result<u64>>,
}

pub struct Committer {
    shared: Arc<Shared>,
    log: Box<dyn CommitLog>,
    commands: Receiver<Command>,
    clock: Clock,
    dir: PathBuf,
    options: Options,
    pending: HashMap<Ticket, Pending, BuildHasherDefault<NumberHasher>>,
    next_ticket: u64,
    /// How many entries it had, and how long the disk took.
    last_batch: (usize, Duration),
    /// Why the batch whose writers are being answered was refused.
    refusal: Option<Refusal>,
    /// Where the newest snapshot ends, and its length.
    snapshot: Option<(u32, u64)>,
    snapshotting: Option<Snapshotting>,
    /// Values to be moved out of segments that are to be freed.
    moves: VecDeque<Position>,
    collect_at: Timestamp,
    collecting: Option<JoinHandle<()>>,
    /// What the disk had no room for.
    aside: Option<Aside>,
    /// Released when the thread ends.
    _lock: FileLock,
}

/// Ends the watches however the thread ends.
struct AtEnd(Arc<Shared>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        let mut watchers = self.0.watchers();
        self.0.stop("its writing thread ended".into());
        self.0.desk.stop();
        watchers.clear();
    }
}

impl Committer {
    #[allow(clippy::too_many_arguments, reason = "made in one place, from what opening found")]
    pub fn new(
        shared: Arc<Shared>,
        log: Box<dyn CommitLog>,
        commands: Receiver<Command>,
        clock: Clock,
        dir: PathBuf,
        options: Options,
        snapshot: Option<(u32, u64)>,
        lock: FileLock,
    ) -> Committer {
        Committer {
            shared,
            log,
            commands,
            clock,
            dir,
            options,
            pending: HashMap::default(),
            next_ticket: 0,
            last_batch: (0, Duration::ZERO),
            refusal: None,
            snapshot,
            snapshotting: None,
            moves: VecDeque::new(),
            collect_at: Timestamp(0),
            collecting: None,
            aside: None,
            _lock: lock,
        }
    }

    pub fn run(mut self) {
        let _at_end = AtEnd(self.shared.clone());
        let closed = self.work();
        let (result, replies) = match closed {
            Ok(replies) => {
                self.shared.stop("it was closed".into());
                (Ok(()), replies)
            }
            Err(error) => {
                tracing::error!(%error, "store.stopped: no write is accepted any more");
                self.shared.stop(error.to_string());
                (Err(()), Vec::new())
            }
        };
        let shared = self.shared.clone();
        for pending in std::mem::take(&mut self.pending).into_values() {
            if let Some((reply, _)) = pending.reply {
                reply(Err(shared.stopped()));
            }
        }
        if let Some(snapshotting) = self.snapshotting.take() {
            let _ = snapshotting.thread.join();
        }
        if let Some(collecting) = self.collecting.take() {
            let _ = collecting.join();
        }
        // The lock is free before a waiting `close` returns; queued writes fail with the queue.
        drop(self);
        for reply in replies {
            let _ = reply.send(result.map_err(|()| shared.stopped()));
        }
    }

    /// Until the store is closed: returns those who wait for that.
    fn work(&mut self) -> Result<Vec<oneshot::Sender<Result<(), StoreError>>>, LogError> {
        loop {
            let gathered = self.commands.take(BATCH_WRITES_MAX, self.wait(), self.expected());
            let deserted = gathered.is_err();
            let mut writes = Vec::new();
            let mut closing = Vec::new();
            let mut squashes = Vec::new();
            let mut told = Vec::new();
            for command in gathered.into_iter().flatten() {
                match command {
                    Command::Write { key, change, only_over, value, reply, permit } => {
                        let ticket = self.expect(value, Some((reply, permit)));
                        writes.push(Write { ticket, key, change, only_over });
                    }
                    Command::Squash { before, reply } => squashes.push((before, reply)),
                    Command::Received(_) | Command::Tell(..) => told.push(command),
                    Command::Close { reply } => closing.push(reply),
                }
            }
            if !writes.is_empty() {
                self.feed(Event::Write(writes))?;
            }
            for (before, reply) in squashes {
                self.feed(Event::Squash { before })?;
                let _ = reply.send(());
            }
            for command in told {
                self.hear(command)?;
            }
            if deserted || !closing.is_empty() {
                let batch = self.shared.machine().next_batch();
                match self.log.append(&Batch::closing(batch)) {
                    // Without room for its last record the log is whole all the same.
                    Ok(_) | Err(LogError::Refused(_)) => return Ok(closing),
                    Err(error) => return Err(error),
                }
            }
            self.housekeep()?;
        }
    }

    /// Many who were answered together write again together: to wait for them no longer than the
    /// disk takes costs each of them little, and saves writing it twice.
    fn expected(&self) -> Option<Expected> {
        let (count, took) = self.last_batch;
        let patience = took.min(PATIENCE_MAX);
        (count >= TOGETHER_MIN).then_some(Expected { count, patience })
    }

    fn wait(&self) -> Duration {
        if !self.moves.is_empty() {
            return Duration::ZERO;
        }
        let now = self.clock.now();
        let deadline = self.shared.machine().deadline().unwrap_or(self.collect_at);
        let wait = deadline.min(self.collect_at).since(now);
        let polls = self.snapshotting.is_some() || self.aside.is_some();
        if polls { wait.min(BACKGROUND_POLL) } else { wait }
    }

    fn ticket(&mut self) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        ticket
    }

    fn expect(&mut self, value: Bytes, reply: Option<(Reply, OwnedSemaphorePermit)>) -> Ticket {
        let ticket = self.ticket();
        self.pending.insert(ticket, Pending { value, reply });
        ticket
    }

    /// Hands the machine an event and performs what follows, until nothing does.
    fn feed(&mut self, event: Event) -> Result<(), LogError> {
        let effects = self.handle(Some(event));
        self.perform_all(effects)
    }

    fn perform_all(&mut self, effects: Vec<Effect>) -> Result<(), LogError> {
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Persist { batch, entries } => {
                    let event = self.persist(batch, &entries)?;
                    drop(entries);
                    effects.extend(self.handle(Some(event)));
                }
                Effect::Acknowledge { ticket, cid } => self.answer(ticket, Ok(cid.map(CommitId))),
                Effect::Refuse { ticket, reason } => {
                    let disk = self.refusal.as_ref().filter(|_| reason == Unwritten::NoRoom);
                    let refused = || StoreError::Refused(reason.to_string());
                    let error = disk.map_or_else(refused, Refusal::error);
                    self.answer(ticket, Err(error));
                }
                Effect::Alarm(alarm) => tracing::error!(%alarm, "store.alarm"),
                Effect::Release { ticket } => {
                    self.pending.remove(&ticket);
                }
                Effect::Send { to, message } => self.send(to, message),
                Effect::SetAside { commits, anew } => {
                    if let Some(event) = self.set_aside(commits, anew) {
                        effects.extend(self.handle(Some(event)));
                    }
                }
                Effect::Resync => self.resync(),
                // The transport watches the keys of the roster.
                Effect::Roster(_) => {}
                // Delivered under the machine's lock.
                Effect::Notify { .. } | Effect::Arrived { .. } | Effect::Expired { .. } => {}
            }
        }
        Ok(())
    }

    /// An event, or a tick for none. Watchers hear of changes before anybody can see later ones.
    fn handle(&mut self, event: Option<Event>) -> Vec<Effect> {
        let now = self.clock.now();
        // Each commit is announced and acknowledged.
        let mut effects = match &event {
            Some(Event::Persisted { locations, .. }) => Vec::with_capacity(2 * locations.len()),
            _ => Vec::new(),
        };
        let mut machine = self.shared.machine_mut();
        match event {
            Some(event) => machine.handle(now, event, &mut effects),
            None => machine.tick(now, &mut effects),
        }
        let incarnation = machine.arrivals().incarnation();
        for effect in &effects {
            match effect {
                Effect::Notify { arrival, ticket, commit } => {
                    let cursor = Cursor { incarnation, arrival: *arrival };
                    self.announce(cursor, *ticket, commit);
                }
                Effect::Arrived { arrival, commit } => {
                    let cursor = Cursor { incarnation, arrival: *arrival };
                    let value = self.shared.value(commit, None);
                    self.shared.announce(cursor, &commit.key, value, false);
                }
                Effect::Expired { arrival, commit } => {
                    let cursor = Cursor { incarnation, arrival: *arrival };
                    self.shared.announce(cursor, &commit.key, None, true);
                }
                _ => {}
            }
        }
        effects
    }

    fn announce(&self, cursor: Cursor, ticket: Ticket, commit: &Commit) {
        let inline = self.pending.get(&ticket).map(|pending| pending.value.clone());
        if let (Location::Log { .. }, Some(value)) = (commit.location, &inline) {
            self.shared.cache().put(commit.location, value.clone());
        }
        let value = self.shared.value(commit, inline);
        if let Some(Value::Away { desk, .. }) = &value {
            desk.look_again();
        }
        self.shared.announce(cursor, &commit.key, value, false);
    }

    fn answer(&mut self, ticket: Ticket, answer: Written) {
        if let Some(Pending { reply: Some((reply, _permit)), .. }) = self.pending.remove(&ticket) {
            reply(answer);
        }
    }

    fn persist(&mut self, number: u64, entries: &[Entry]) -> Result<Event, LogError> {
        let batch = Batch::encode(number, entries, |entry| {
            let pending = entry.ticket().and_then(|ticket| self.pending.get(&ticket));
            pending.map(|pending| pending.value.clone()).unwrap_or_default()
        });
        // Every batch before this one is in the index, so it covers all full segments.
        let begins = self.log.begins_segment(batch.frames.len());
        let frozen = begins.then(|| self.shared.machine().freeze());
        let began = Instant::now();
        match self.log.append(&batch) {
            Ok(appended) => {
                self.refusal = None;
                self.last_batch = (entries.len(), began.elapsed());
                if let Some(frozen) = frozen {
                    self.start_snapshot(number - 1, frozen);
                }
                let locations = batch.locations(entries, appended);
                Ok(Event::Persisted { batch: number, locations })
            }
            Err(LogError::Refused(source)) => {
                let what = LogError::Refused(copy_of(&source)).to_string();
                tracing::warn!(error = what, "store.refused");
                self.refusal = Some(Refusal { what, source });
                Ok(Event::Refused { batch: number })
            }
            Err(error) => Err(error),
        }
    }

    /// In the background, unless one is being written or the log has grown by less than the
    /// last one's length: snapshots then write no more than the log does.
    fn start_snapshot(&mut self, batch: u64, frozen: store::Frozen) {
        let next = self.log.number();
        let segments = self.log.segments().read().unwrap_or_else(PoisonError::into_inner);
        let (since, length) = self.snapshot.unwrap_or((0, 0));
        let grown: u64 =
            segments.range(since..next).map(|(_, segment)| u64::from(segment.capacity)).sum();
        if self.snapshotting.is_some() || grown < length {
            return;
        }
        let (dir, options) = (self.dir.clone(), self.options.clone());
        let spawned = std::thread::Builder::new()
            .name("store-snapshot".into())
            .spawn(move || snapshot::write(&dir, next, batch, &frozen, &options));
        match spawned {
            Ok(thread) => self.snapshotting = Some(Snapshotting { next, thread }),
            Err(error) => tracing::warn!(%error, "store.snapshot_failed"),
        }
    }

    fn housekeep(&mut self) -> Result<(), LogError> {
        let now = self.clock.now();
        if self.shared.machine().deadline().is_some_and(|deadline| deadline <= now) {
            let effects = self.handle(None);
            self.perform_all(effects)?;
        }
        self.set_aside_again()?;
        if now >= self.collect_at {
            self.collect_at = now.after(COLLECT_INTERVAL);
            self.collect_values();
        }
        if self.snapshotting.as_ref().is_some_and(|s| s.thread.is_finished())
            && let Some(Snapshotting { next, thread }) = self.snapshotting.take()
        {
            match thread.join() {
                Ok(Ok(length)) => {
                    self.snapshot = Some((next, length));
                    self.free_covered(next);
                    self.plan_moves(next);
                }
                Ok(Err(error)) => tracing::warn!(%error, "store.snapshot_failed"),
                Err(_) => tracing::error!("store.snapshot_failed: its thread panicked"),
            }
        }
        self.move_some()
    }
}
