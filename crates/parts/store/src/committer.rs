//! The committer: feeds queued writes to the machine, makes its batches durable with one fdatasync
//! each, and answers. `commit_thread` decides on which thread. A failed write or fdatasync stops
//! the store for good: what the disk holds is unknown then, and trying again could acknowledge what
//! was lost.

mod cleaning;
mod performing;
mod sessions;
mod unkept;

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use model::{Machine, Timestamp};
use store_core::Position;
use store_core::event::{Effect, Event, Ticket, Write};
use tokio::sync::oneshot;

use self::sessions::Aside;
use self::unkept::Unkept;
use super::cache::NumberHasher;
use super::command::Command;
use super::log::{Batch, CommitLog, LogError};
use super::mailbox::Expected;
use super::options::Options;
use super::queue::Queued;
use super::reply::Reply;
use super::shared::Shared;
use super::{StoreError, snapshot};
use os::lockfile::FileLock;
use runtime::driver::Clock;

/// The time between two collections of value files. They age by the hour, so looking more often
/// finds nothing more.
const COLLECT_INTERVAL: Duration = Duration::from_secs(3600);
/// The time within which a finished snapshot is noticed when nobody writes.
const BACKGROUND_POLL: Duration = Duration::from_secs(1);

/// The number of writers in a batch from which the next batch waits for as many.
const TOGETHER_MIN: usize = 16;
/// The longest time to wait for other writers; a slower disk is no reason to wait longer.
const PATIENCE_MAX: Duration = Duration::from_millis(2);

struct Pending {
    value: Bytes,
    /// The writer to answer; `None` for a move, for what a peer sent and for what is issued anew.
    reply: Option<(Reply, Queued)>,
}

/// The disk's error, kept for each of the batch's writers.
struct DiskRefusal {
    what: String,
    source: io::Error,
}

impl DiskRefusal {
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
    clock: Clock,
    dir: PathBuf,
    options: Options,
    pending: HashMap<Ticket, Pending, BuildHasherDefault<NumberHasher>>,
    next_ticket: u64,
    /// Empty buffers that are reused for the next effects.
    effects: [Vec<Effect>; 2],
    /// The number of entries in the last batch, and the time the disk took for it.
    last_batch: (usize, Duration),
    /// The reason why the batch whose writers are being answered was refused.
    refusal: Option<DiskRefusal>,
    /// The segment before which the newest snapshot ends, and its length.
    snapshot: Option<(u32, u64)>,
    snapshotting: Option<Snapshotting>,
    /// The values to be moved out of segments that are to be freed.
    moves: VecDeque<Position>,
    collect_at: Timestamp,
    collecting: Option<JoinHandle<()>>,
    /// The commits that the disk had no room for.
    aside: Option<Aside>,
    unkept: Unkept,
    ended: Option<Result<Closing, LogError>>,
    /// Released when everything has ended.
    _lock: FileLock,
}

type Closing = Vec<oneshot::Sender<Result<(), StoreError>>>;

impl Committer {
    #[allow(clippy::too_many_arguments, reason = "made in one place, from what opening found")]
    pub fn new(
        shared: Arc<Shared>,
        log: Box<dyn CommitLog>,
        clock: Clock,
        dir: PathBuf,
        options: Options,
        snapshot: Option<(u32, u64)>,
        lock: FileLock,
    ) -> Committer {
        let unkept = Unkept::new(options.unkept);
        Committer {
            shared,
            log,
            clock,
            dir,
            options,
            pending: HashMap::default(),
            next_ticket: 0,
            effects: Default::default(),
            last_batch: (0, Duration::ZERO),
            refusal: None,
            snapshot,
            snapshotting: None,
            moves: VecDeque::new(),
            collect_at: Timestamp(0),
            collecting: None,
            aside: None,
            unkept,
            ended: None,
            _lock: lock,
        }
    }

    /// Handles the commands that have come, and what is due by now. Does nothing once the store has
    /// ended.
    pub fn work(&mut self, commands: Vec<Command>, deserted: bool) {
        if self.has_ended() {
            return;
        }
        match self.turn(commands, deserted) {
            Ok(None) => {}
            Ok(Some(closing)) => self.ended = Some(Ok(closing)),
            Err(error) => self.ended = Some(Err(error)),
        }
    }

    /// Returns whether the store was closed or its disk failed; `finish` is due then.
    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    pub fn finish(mut self) {
        let (result, replies) = match self.ended.take() {
            Some(Err(error)) => {
                tracing::error!(%error, "store.stopped: no write is accepted any more");
                self.shared.stop(error.to_string());
                (Err(()), Vec::new())
            }
            closed => {
                self.shared.stop("it was closed".into());
                (Ok(()), closed.into_iter().flatten().flatten().collect())
            }
        };
        let shared = self.shared.clone();
        for pending in std::mem::take(&mut self.pending).into_values() {
            if let Some((reply, _)) = pending.reply {
                reply.say(Err(shared.stopped()));
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

    /// Does one turn of work. Returns the callers that wait for the store to close, once it is
    /// closed.
    fn turn(
        &mut self,
        commands: Vec<Command>,
        deserted: bool,
    ) -> Result<Option<Closing>, LogError> {
        let mut writes = Vec::with_capacity(commands.len());
        let mut closing = Vec::new();
        let mut squashes = Vec::new();
        let mut told = Vec::new();
        let mut awaiting = Vec::new();
        for command in commands {
            match command {
                Command::Write { key, change, only_over, value, reply, place } => {
                    let ticket = self.expect(value, Some((reply, place)));
                    writes.push(Write { ticket, key, change, only_over });
                }
                Command::Await { reply } => awaiting.push(reply),
                Command::Squash { before, reply } => squashes.push((before, reply)),
                Command::Received(_) | Command::Tell(..) => told.push(command),
                Command::Close { reply } => closing.push(reply),
            }
        }
        if !writes.is_empty() {
            self.feed(Some(Event::Write(writes)))?;
        }
        awaiting.into_iter().for_each(|reply| _ = reply.send(()));
        for (before, reply) in squashes {
            self.feed(Some(Event::Squash { before }))?;
            let _ = reply.send(());
        }
        for command in told {
            self.hear(command)?;
        }
        if deserted || !closing.is_empty() {
            let batch = self.shared.machine().next_batch();
            return match self.log.append(&Batch::closing(batch)) {
                // If there is no room for its last record, the log is whole all the same.
                Ok(_) | Err(LogError::Refused(_)) => Ok(Some(closing)),
                Err(error) => Err(error),
            };
        }
        self.housekeep()?;
        Ok(None)
    }

    /// Returns how many writers to wait for and how long. Writers that were answered together write
    /// again together: waiting for them no longer than the disk takes costs each of them little,
    /// and saves a second write to the disk.
    pub fn expected(&self) -> Option<Expected> {
        let (count, took) = self.last_batch;
        let patience = took.min(PATIENCE_MAX);
        (count >= TOGETHER_MIN).then_some(Expected { count, patience })
    }

    /// Returns how long the disk took for the last batch.
    pub fn disk_took(&self) -> Duration {
        self.last_batch.1
    }

    /// Returns the time until something is due, if nothing comes before.
    pub fn wait(&self) -> Duration {
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

    fn expect(&mut self, value: Bytes, reply: Option<(Reply, Queued)>) -> Ticket {
        let ticket = self.ticket();
        self.pending.insert(ticket, Pending { value, reply });
        ticket
    }

    /// Starts a snapshot in the background, unless one is being written or the log has grown by
    /// less than the last one's length: snapshots then write no more than the log does.
    fn start_snapshot(&mut self, batch: u64, frozen: store_core::Frozen) {
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
            self.feed(None)?;
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
