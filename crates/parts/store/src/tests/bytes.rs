//! Tests with a log of a thousand records that is changed at every byte: each change is refused, or
//! everything that was acknowledged is there. The log is that of a process killed while it wrote.

use std::path::PathBuf;
use std::sync::Arc;

use model::Timestamp;
use store_core::Fingerprint;
use store_core::frame::MARK_LENGTH;
use store_core::history::History;
use store_core::record::Record;

use super::fixture::{StoreDirectory, key, set};
use super::memory::{MemoryDisk, MemoryFile};
use crate::log::{CommitLog, SegmentedLog};
use crate::options::{OpenError, Options};
use crate::recovery::Recovered;
use crate::segment::{HEADER_LENGTH, Segment, log_path, read_value};

const RECORDS: usize = 1000;
/// The size of the segment in bytes: one holds all records.
const SEGMENT: u32 = 256 << 10;
/// The distance in bytes between the places tried by default, apart from all bytes of the first and
/// last records.
const STRIDE: usize = 101;
const WHOLE_RECORDS: usize = 4;

struct Written {
    dir: PathBuf,
    options: Options,
    file: Arc<MemoryFile>,
    whole: Vec<u8>,
    used: usize,
    /// The history's id after each number of records.
    heads: Vec<Fingerprint>,
}

/// Returns the value of a record. Some are empty, some longer than a record's header, and keys
/// repeat.
fn value(n: usize) -> String {
    format!("{n}:{}", "v".repeat(n * 7 % 60))
}

fn name(n: usize) -> String {
    format!("k{}::{n}", n % 10)
}

fn all_bytes() -> bool {
    std::env::var_os("CORTEX_LONG_PROOFS").is_some()
}

async fn written() -> Written {
    let disk = Arc::new(MemoryDisk::default());
    let mut place = StoreDirectory::new();
    place.options.disk = disk.clone();
    place.options.segment_bytes_first = SEGMENT;
    place.options.segment_bytes_max = SEGMENT;
    let store = place.open();
    for n in 0..RECORDS {
        set(&store, &name(n), &value(n)).await;
    }
    let dir = place.layout().store();
    let file = disk.file(&log_path(&dir, 1)).unwrap();
    let whole = file.bytes().clone();
    store.close().await.unwrap();
    assert!(disk.file(&log_path(&dir, 2)).is_none(), "one segment holds them all");
    let used = whole.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    assert!(used > HEADER_LENGTH + RECORDS * 100);
    let options = place.options.clone();
    let mut log = Written { dir, options, file, whole, used, heads: Vec::new() };
    let (recovered, _) = log.open().unwrap();
    let mut history = History::default();
    log.heads.push(history.head());
    for commit in recovered.past.replica.history().iter() {
        history.insert(commit.clone());
        log.heads.push(history.head());
    }
    log.file.bytes().clone_from(&log.whole);
    log
}

impl Written {
    fn open(&self) -> Result<(Recovered, SegmentedLog), OpenError> {
        SegmentedLog::open(&self.dir, &self.options)
    }

    /// Opens the log as `change` leaves it, and restores it afterwards.
    fn opened_after<T>(
        &self,
        change: impl FnOnce(&mut Vec<u8>),
        check: impl FnOnce(Result<(Recovered, SegmentedLog), OpenError>) -> T,
    ) -> T {
        change(&mut self.file.bytes());
        let checked = check(self.open());
        self.file.bytes().clone_from(&self.whole);
        checked
    }

    /// Returns how many of the records are there: the first ones, unchanged, with the last one's
    /// value.
    fn kept(&self, recovered: &Recovered, segment: &Segment) -> usize {
        let replica = &recovered.past.replica;
        let kept = replica.history().len();
        assert_eq!(replica.history().head(), self.heads[kept]);
        if let Some(last) = kept.checked_sub(1) {
            let commit = replica.get(key(&name(last)).as_str(), Timestamp(0)).expect("it is kept");
            assert_eq!(read_value(segment, commit).unwrap(), value(last).as_bytes());
        }
        kept
    }

    /// Returns every offset; by default a selection, with all of some records.
    fn places(&self) -> impl Iterator<Item = usize> {
        let all = all_bytes();
        let some = WHOLE_RECORDS * (self.used / RECORDS);
        let (early, late) = (HEADER_LENGTH + some, self.used - some);
        let chosen =
            move |at: &usize| all || *at < early || *at >= late || (*at).is_multiple_of(STRIDE);
        (0..self.used).filter(chosen)
    }
}

fn only_segment(log: &SegmentedLog) -> Segment {
    log.segments().read().unwrap()[&1].clone()
}

#[tokio::test]
async fn every_byte_flipped_is_refused_or_harms_nothing() {
    let log = written().await;
    let (mut refused, mut harmless) = (0, Vec::new());
    // The bytes behind the log are tried too.
    for at in log.places().chain(log.used..log.used + 2 * MARK_LENGTH) {
        let flip = 1 << (at % 8) | u8::from(at % 3 == 0) << 7;
        log.opened_after(
            |bytes| bytes[at] ^= flip,
            |opened| match opened {
                Err(OpenError::Damaged { .. }) => refused += 1,
                Err(other) => panic!("byte {at}: {other}"),
                Ok((recovered, opened)) => {
                    assert_eq!(log.kept(&recovered, &only_segment(&opened)), RECORDS, "byte {at}");
                    harmless.push(at);
                }
            },
        );
    }
    // The newest mark tells nothing that the record before it does not.
    let mark = log.used - MARK_LENGTH;
    assert_eq!(harmless, (mark..log.used + 2 * MARK_LENGTH).collect::<Vec<_>>());
    assert!(refused > RECORDS);
}

#[tokio::test]
async fn cut_at_every_byte_it_keeps_every_whole_record_before() {
    let log = written().await;
    // The end of each record, and whether it is one of the writes.
    let ends: Vec<(usize, bool)> = {
        let (_, opened) = log.open().unwrap();
        log.file.bytes().clone_from(&log.whole);
        let secret = only_segment(&opened).secret;
        let frames = secret.frames(&log.whole, HEADER_LENGTH, log.used);
        let is_write = |payload| matches!(Record::decode(payload), Ok(Record::Commit { .. }));
        frames.map(|(at, frame)| (at + frame.length, is_write(frame.payload))).collect()
    };
    assert_eq!(ends.iter().filter(|(_, is_write)| *is_write).count(), RECORDS);
    for at in log.places().filter(|at| *at >= HEADER_LENGTH) {
        // A record whose last bytes are zeros anyway is whole before its end.
        let whole = |end: usize| log.whole[at.min(end)..end].iter().all(|byte| *byte == 0);
        let kept = ends.iter().take_while(|(end, _)| whole(*end));
        let expected = kept.filter(|(_, is_write)| *is_write).count();
        log.opened_after(
            |bytes| bytes[at..].fill(0),
            |opened| {
                let (recovered, opened) =
                    opened.unwrap_or_else(|error| panic!("byte {at}: {error}"));
                assert_eq!(log.kept(&recovered, &only_segment(&opened)), expected, "byte {at}");
            },
        );
        // Without the zeros that follow, the file is no whole segment.
        if at % 97 == 0 {
            log.opened_after(
                |bytes| bytes.truncate(at),
                |opened| {
                    let error = opened.err().expect("it is refused");
                    assert!(matches!(error, OpenError::Short { .. }), "byte {at}: {error}");
                },
            );
        }
    }
}
