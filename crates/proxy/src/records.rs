//! The records: one line of JSON for every request or connection that has ended, and the figures of
//! the run. A thread of its own writes; the threads that serve never wait for it, and what does not
//! fit is counted.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use router_core::tally::{EndedRequest, RunSummary, Tally};
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use metrics::{Labels, Metrics, RequestRecord};
use router::streams;
use runtime::lock::locked;

/// The maximum number of entries that wait: connections that end while the disk stalls for a
/// moment.
const ENTRIES_MAX: usize = 8 * 1024;
const WRITE_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum size of a file in bytes: some 500,000 lines; with the file before it, at most twice
/// that.
pub const FILE_BYTES_MAX: u64 = 128 * 1024 * 1024;
/// The maximum number of back ends that are counted: more than a proxy has at once, as they come
/// and go; further ones count in the sum alone.
const TALLIES_MAX: usize = 4_096;

/// The outcome of a request or a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Status {
    /// The status of an HTTP answer.
    Code(u16),
    Word(&'static str),
}

impl Status {
    /// Both sides ended it; `IDLE` if nothing was said for long.
    pub const CLOSED: Status = Status::Word("closed");
    pub const IDLE: Status = Status::Word("idle");
    pub const CLIENT_RESET: Status = Status::Word("client-reset");
    pub const BACK_END_RESET: Status = Status::Word("back-end-reset");
    pub const NO_BACK_END: Status = Status::Word("no-back-end");
    /// The first bytes match no service.
    pub const NO_SERVICE: Status = Status::Word("no-service");
    /// The header of the PROXY protocol is missing or wrong.
    pub const BAD_HEADER: Status = Status::Word("bad-header");
    /// The client left before it was served.
    pub const LEFT: Status = Status::Word("client-left");

    fn failed(self) -> bool {
        match self {
            Status::Code(code) => code >= 500,
            Status::Word(_) => matches!(self, Status::BACK_END_RESET | Status::NO_BACK_END),
        }
    }
}

impl From<streams::TransferEnd> for Status {
    fn from(ended: streams::TransferEnd) -> Status {
        match ended {
            streams::TransferEnd::Closed => Status::CLOSED,
            streams::TransferEnd::Idle => Status::IDLE,
            streams::TransferEnd::ClientReset => Status::CLIENT_RESET,
            streams::TransferEnd::BackEndReset => Status::BACK_END_RESET,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct RecordEntry {
    pub started: Instant,
    pub total: Duration,
    pub queue: Duration,
    pub client: SocketAddr,
    pub back_end: Option<SocketAddr>,
    pub method: Option<&'static str>,
    pub status: Status,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

impl RecordEntry {
    fn of(record: &RequestRecord) -> RecordEntry {
        let micros = |count: u32| Duration::from_micros(count.into());
        RecordEntry {
            started: record.started,
            total: micros(record.total_us),
            queue: micros(record.queue_us),
            client: record.client,
            back_end: match *record.labels {
                Labels::Instance { address, .. } => address,
                Labels::Router(_) => None,
            },
            method: Some(record.method),
            status: Status::Code(record.status),
            bytes_in: record.bytes_in,
            bytes_out: record.bytes_out,
        }
    }
}

/// An entry as it is written. Fields are only ever added.
#[derive(Serialize)]
struct RecordLine {
    start: String,
    end: String,
    client: SocketAddr,
    back_end: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'static str>,
    status: Status,
    bytes_in: u64,
    bytes_out: u64,
    queue_us: u64,
    total_us: u64,
}

/// The handle with which threads that serve whole connections record.
#[derive(Clone)]
pub struct Recorder {
    entries: SyncSender<RecordEntry>,
    dropped: Arc<AtomicU64>,
}

impl Recorder {
    pub fn record(&self, entry: RecordEntry) {
        if self.entries.try_send(entry).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The sums of the run so far.
#[derive(Debug, Default)]
pub struct RunSums {
    /// The sums by back end; `None` for what no back end had.
    tallies: BTreeMap<Option<SocketAddr>, Tally>,
    all: Tally,
    pub dropped: u64,
}

#[derive(Clone, Debug)]
pub struct Figures {
    pub back_ends: Vec<(Option<SocketAddr>, RunSummary)>,
    pub all: Option<RunSummary>,
    pub dropped: u64,
}

impl RunSums {
    fn add(&mut self, entry: &RecordEntry, second: u64) {
        let ended = EndedRequest {
            second,
            latency_us: u64::try_from(entry.total.as_micros()).unwrap_or(u64::MAX),
            bytes_in: entry.bytes_in,
            bytes_out: entry.bytes_out,
            failed: entry.status.failed(),
        };
        self.all.add(ended);
        let known = self.tallies.contains_key(&entry.back_end);
        if known || self.tallies.len() < TALLIES_MAX {
            self.tallies.entry(entry.back_end).or_default().add(ended);
        }
    }

    fn figures(&self, second: u64) -> Figures {
        let tallies = self.tallies.iter();
        Figures {
            back_ends: tallies
                .filter_map(|(address, tally)| Some((*address, tally.summary(second)?)))
                .collect(),
            all: self.all.summary(second),
            dropped: self.dropped,
        }
    }
}

pub struct RecordsWriter {
    run: Arc<Mutex<RunSums>>,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    anchor: Anchor,
}

/// Both clocks at one moment.
#[derive(Clone, Copy)]
struct Anchor {
    wall: SystemTime,
    instant: Instant,
}

impl Anchor {
    fn second(self, at: Instant) -> u64 {
        at.saturating_duration_since(self.instant).as_secs()
    }

    fn text(self, at: Instant) -> String {
        let since = at.saturating_duration_since(self.instant);
        let micros = Duration::from_micros(u64::try_from(since.as_micros()).unwrap_or(0));
        let wall = OffsetDateTime::from(self.wall + micros);
        let wall = wall.replace_nanosecond(wall.nanosecond() / 1000 * 1000).unwrap_or(wall);
        wall.format(&Rfc3339).unwrap_or_default()
    }
}

impl RecordsWriter {
    /// Starts the thread. The router's threads record in `metrics`.
    pub fn start(
        file: Option<&Path>,
        metrics: Metrics,
    ) -> anyhow::Result<(RecordsWriter, Recorder)> {
        let file = file.map(RecordFile::open).transpose()?;
        let (entries, receiver) = sync_channel(ENTRIES_MAX);
        let recorder = Recorder { entries, dropped: Arc::default() };
        let anchor = Anchor { wall: SystemTime::now(), instant: Instant::now() };
        let records = RecordsWriter {
            run: Arc::default(),
            stop: Arc::default(),
            thread: Mutex::default(),
            anchor,
        };
        let mut writer = Writer {
            metrics,
            receiver,
            dropped: recorder.dropped.clone(),
            run: records.run.clone(),
            anchor,
            file,
        };
        let stop = records.stop.clone();
        let body = move || {
            writer.metrics.taken_by(std::thread::current());
            while !stop.load(Ordering::Acquire) {
                writer.turn();
                std::thread::park_timeout(WRITE_INTERVAL);
            }
            // These are the entries that came until the threads that serve had ended.
            writer.turn();
        };
        let thread = std::thread::Builder::new().name("records".into()).spawn(body);
        let thread = thread.context("the thread that writes records cannot be started")?;
        *records.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok((records, recorder))
    }

    pub fn figures(&self) -> Figures {
        locked(&self.run).figures(self.anchor.second(Instant::now()))
    }

    /// Writes and counts everything that was recorded. Blocks.
    pub fn finish(&self) {
        self.stop.store(true, Ordering::Release);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            thread.thread().unpark();
            thread.join().ok();
        }
    }
}

struct Writer {
    metrics: Metrics,
    receiver: Receiver<RecordEntry>,
    dropped: Arc<AtomicU64>,
    run: Arc<Mutex<RunSums>>,
    anchor: Anchor,
    file: Option<RecordFile>,
}

impl Writer {
    fn turn(&mut self) {
        let mut entries: Vec<RecordEntry> = self.receiver.try_iter().take(ENTRIES_MAX).collect();
        let lost = self.metrics.take(&mut |record| entries.push(RecordEntry::of(&record)));
        {
            let mut run = locked(&self.run);
            for entry in &entries {
                run.add(entry, self.anchor.second(entry.started + entry.total));
            }
            let unwritten = self.file.as_ref().map_or(0, |file| file.lost);
            run.dropped = lost + self.dropped.load(Ordering::Relaxed) + unwritten;
        }
        let Some(file) = &mut self.file else { return };
        for entry in &entries {
            file.write(&line(self.anchor, entry));
        }
        file.flush();
    }
}

fn line(anchor: Anchor, entry: &RecordEntry) -> RecordLine {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    RecordLine {
        start: anchor.text(entry.started),
        end: anchor.text(entry.started + entry.total),
        client: entry.client,
        back_end: entry.back_end,
        method: entry.method,
        status: entry.status,
        bytes_in: entry.bytes_in,
        bytes_out: entry.bytes_out,
        queue_us: micros(entry.queue),
        total_us: micros(entry.total),
    }
}

/// The file of records, moved aside to `FILE.1` when it is full.
struct RecordFile {
    path: PathBuf,
    file: Option<BufWriter<File>>,
    bytes: u64,
    bytes_max: u64,
    /// The number of lines that could not be written.
    lost: u64,
}

impl RecordFile {
    fn open(path: &Path) -> anyhow::Result<RecordFile> {
        let (file, bytes) = append_to(path).with_context(|| {
            format!("--records: {} cannot be written; choose another file", path.display())
        })?;
        let path = path.to_path_buf();
        Ok(RecordFile { path, file: Some(file), bytes, bytes_max: FILE_BYTES_MAX, lost: 0 })
    }

    fn write(&mut self, line: &RecordLine) {
        let Ok(mut text) = serde_json::to_vec(line) else { return };
        text.push(b'\n');
        if self.bytes > 0 && self.bytes + text.len() as u64 > self.bytes_max {
            self.rotate();
        }
        let written = match &mut self.file {
            Some(file) => file.write_all(&text).is_ok(),
            None => false,
        };
        match written {
            true => self.bytes += text.len() as u64,
            false => self.lost += 1,
        }
    }

    fn rotate(&mut self) {
        self.flush();
        let mut aside = self.path.clone().into_os_string();
        aside.push(".1");
        let moved = std::fs::rename(&self.path, aside).and_then(|()| append_to(&self.path));
        match moved {
            Ok((file, bytes)) => (self.file, self.bytes) = (Some(file), bytes),
            Err(error) => {
                let path = self.path.display();
                tracing::error!(%path, %error, "proxy.records_not_rotated");
                // It would grow without end.
                self.file = None;
            }
        }
    }

    fn flush(&mut self) {
        let Some(file) = &mut self.file else { return };
        if let Err(error) = file.flush() {
            let path = self.path.display();
            tracing::error!(%path, %error, "proxy.records_unwritten");
        }
    }
}

fn append_to(path: &Path) -> std::io::Result<(BufWriter<File>, u64)> {
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    let bytes = file.metadata()?.len();
    Ok((BufWriter::new(file), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(port: u16, status: Status) -> RecordEntry {
        RecordEntry {
            started: Instant::now(),
            total: Duration::from_micros(1500),
            queue: Duration::from_micros(500),
            client: SocketAddr::from(([192, 0, 2, 7], 4)),
            back_end: (port > 0).then(|| SocketAddr::from(([127, 0, 0, 1], port))),
            method: None,
            status,
            bytes_in: 3,
            bytes_out: 4,
        }
    }

    #[test]
    fn every_line_says_who_had_what_and_when() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("records");
        let (records, recorder) = RecordsWriter::start(Some(&path), Metrics::default()).unwrap();
        recorder.record(entry(80, Status::Code(503)));
        recorder.record(entry(0, Status::NO_BACK_END));
        records.finish();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["back_end"], "127.0.0.1:80");
        assert_eq!(
            (&lines[0]["status"], &lines[1]["status"]),
            (&503.into(), &"no-back-end".into())
        );
        assert_eq!((&lines[0]["queue_us"], &lines[0]["total_us"]), (&500.into(), &1500.into()));
        let time = |name: &str| {
            let text = lines[0][name].as_str().unwrap();
            OffsetDateTime::parse(text, &Rfc3339).unwrap()
        };
        assert_eq!(time("end") - time("start"), Duration::from_micros(1500));
        let figures = records.figures();
        assert_eq!((figures.back_ends.len(), figures.dropped), (2, 0));
        let all = figures.all.unwrap();
        assert_eq!((all.requests, all.failed, all.bytes_out), (2, 2, 8));
    }

    #[test]
    fn a_full_file_is_moved_aside_and_one_old_one_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("records");
        let mut file = RecordFile { bytes_max: 600, ..RecordFile::open(&path).unwrap() };
        let anchor = Anchor { wall: SystemTime::now(), instant: Instant::now() };
        for port in 1..50 {
            file.write(&line(anchor, &entry(port, Status::CLOSED)));
        }
        file.flush();
        let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
        let (now, before) = (read("records"), read("records.1"));
        assert!(now.len() <= 600 && before.len() <= 600);
        assert!(now.contains("127.0.0.1:49") && before.ends_with("}\n"));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_thread_that_does_not_keep_up_holds_up_nobody() {
        let (sender, _receiver) = sync_channel(1);
        let recorder = Recorder { entries: sender, dropped: Arc::default() };
        (0..3).for_each(|_| recorder.record(entry(1, Status::CLOSED)));
        assert_eq!(recorder.dropped.load(Ordering::Relaxed), 2);
    }
}
