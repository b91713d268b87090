//! Tests of damage: a torn tail is cut; anything else is refused with an error that says where it
//! is and what to do.

use std::fs;
use std::path::Path;

use model::Prefix;
use store_core::frame::{self, MARK_LENGTH, Secret};
use store_core::record::Record;

use super::fixture::{SEGMENT_SMALL, StoreDirectory, key, lookup, set};
use crate::options::OpenError;
use crate::segment::{HEADER_LENGTH, HEADER_LENGTH_OLD, snapshot_path};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Returns a store that was not closed, as after a kill, with `writes` equal values.
async fn killed(writes: usize, value: &str) -> StoreDirectory {
    let live = StoreDirectory::new();
    let store = live.open();
    for n in 0..writes {
        set(&store, &format!("k::{n}"), value).await;
    }
    let place = StoreDirectory::new();
    fs::create_dir_all(place.layout().root()).unwrap();
    copy(&live.layout().store(), &place.layout().store());
    store.close().await.unwrap();
    place
}

/// Returns a store with enough writes for several segments and a snapshot, closed in order.
async fn several_segments() -> StoreDirectory {
    let place = StoreDirectory::new();
    let store = place.open();
    let mut n = 0;
    while !place.files().iter().any(|name| name.starts_with("index") && !name.ends_with("new")) {
        set(&store, &format!("k::{n}"), &"v".repeat(1000)).await;
        n += 1;
        assert!(n < 1000, "a snapshot was to be written");
    }
    store.close().await.unwrap();
    place
}

fn secret(segment: &[u8]) -> Secret {
    let header = Secret::NONE.frames(segment, HEADER_LENGTH_OLD, HEADER_LENGTH).next();
    let record = header.map(|(_, frame)| Record::decode(frame.payload).unwrap());
    let Some(Record::Secret(secret)) = record else { panic!("no secret: {record:?}") };
    Secret::new(secret)
}

fn used(segment: &[u8]) -> usize {
    segment.iter().rposition(|byte| *byte != 0).unwrap() + 1
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x40;
    fs::write(path, bytes).unwrap();
}

fn refusal(place: &StoreDirectory) -> OpenError {
    place.try_open().err().expect("damage is refused")
}

#[tokio::test]
async fn a_log_torn_at_every_byte_keeps_every_whole_write_before() {
    const WRITES: usize = 3;
    let place = killed(WRITES, "123456789").await;
    let path = place.log(1);
    let whole = fs::read(&path).unwrap();
    let used = used(&whole);
    // Every write is one batch; the first also says whose the log is.
    let ends: Vec<usize> = secret(&whole)
        .frames(&whole, HEADER_LENGTH, whole.len())
        .filter(|(_, frame)| frame.last)
        .map(|(offset, frame)| offset + frame.length)
        .collect();
    assert_eq!(ends.len(), WRITES);
    for cut in HEADER_LENGTH..=used {
        let mut torn = whole.clone();
        torn[cut..].fill(0);
        fs::write(&path, torn).unwrap();
        let store = place.open();
        let kept = store.keys(&Prefix::all()).await.unwrap();
        let lost = |n: &usize| {
            let end = ends[n - 1];
            end > cut && whole[cut..end].iter().any(|byte| *byte != 0)
        };
        let expected = (1..=WRITES).filter(|n| !lost(n)).count();
        assert_eq!(kept.len(), expected, "cut at {cut}");
        for (n, key) in kept.iter().enumerate() {
            assert_eq!(key.as_str(), format!("k::{n}"));
            assert_eq!(lookup(&store, key.as_str()).await.as_deref(), Some("123456789"));
        }
        if cut % 5 != 0 {
            store.close().await.unwrap();
            continue;
        }
        set(&store, "after", "the cut").await;
        store.close().await.unwrap();
        let store = place.open();
        assert_eq!(lookup(&store, "after").await.as_deref(), Some("the cut"));
        assert_eq!(store.keys(&Prefix::all()).await.unwrap().len(), expected + 1);
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_file_that_was_cut_short_is_refused_until_the_loss_is_accepted() {
    let place = killed(5, "123456789").await;
    let whole = fs::read(place.log(1)).unwrap();
    fs::write(place.log(1), &whole[..300]).unwrap();
    let error = refusal(&place);
    assert!(matches!(error, OpenError::Short { found: 300, .. }), "{error}");
    let advice = format!("truncate -s {SEGMENT_SMALL} {}", place.log(1).display());
    assert!(error.to_string().contains(&advice), "{error}");
    let file = fs::OpenOptions::new().write(true).open(place.log(1)).unwrap();
    file.set_len(SEGMENT_SMALL.into()).unwrap();
    let store = place.open();
    assert_eq!(lookup(&store, "k::0").await.as_deref(), Some("123456789"));
    assert_eq!(lookup(&store, "k::4").await, None);
}

#[tokio::test]
async fn a_flipped_byte_before_acknowledged_writes_is_refused() {
    let place = killed(5, "123456789").await;
    let whole = fs::read(place.log(1)).unwrap();
    let used = used(&whole);
    let last = HEADER_LENGTH + (used - HEADER_LENGTH) / 5 * 4;
    for at in (0..last - 8).step_by(3) {
        flip(&place.log(1), at);
        let error = refusal(&place);
        let OpenError::Damaged { file, offset, .. } = &error else { panic!("{at}: {error}") };
        assert!(*file == place.log(1) && *offset as usize <= at, "{at}: {error}");
        let text = error.to_string();
        for part in [&*place.log(1).to_string_lossy(), "--join", "Alone: restore", "move it aside"]
        {
            assert!(text.contains(part), "{at}: {text}");
        }
        fs::write(place.log(1), &whole).unwrap();
    }
    place.open().close().await.unwrap();
}

#[tokio::test]
async fn after_an_orderly_stop_the_last_write_is_protected_too() {
    let place = StoreDirectory::new();
    let store = place.open();
    set(&store, "only", "one").await;
    store.close().await.unwrap();
    flip(&place.log(1), HEADER_LENGTH + 30);
    let error = refusal(&place);
    assert!(error.to_string().contains("it was acknowledged"), "{error}");
}

/// Returns the bytes that follow a durable batch, for some of the next batches and at each
/// alignment.
fn imitation() -> Vec<u8> {
    const BATCHES: u64 = 8;
    let mut bytes = Vec::new();
    for shift in 0..frame::ALIGNMENT {
        bytes.resize(bytes.len().next_multiple_of(frame::ALIGNMENT) + shift, b'.');
        (1..=BATCHES).for_each(|batch| bytes.extend_from_slice(&Secret::NONE.mark(batch)));
        frame::write(&mut bytes, BATCHES + 1, true, b"a later write");
    }
    bytes
}

#[tokio::test]
async fn a_torn_write_of_a_value_that_imitates_marks_and_frames_is_cut_all_the_same() {
    let live = StoreDirectory::new();
    let store = live.open();
    set(&store, "before", "kept").await;
    let before = used(&fs::read(live.log(1)).unwrap());
    store.set(key("imitates"), imitation().into()).await.unwrap();
    let place = StoreDirectory::new();
    fs::create_dir_all(place.layout().root()).unwrap();
    copy(&live.layout().store(), &place.layout().store());
    store.close().await.unwrap();
    let whole = fs::read(place.log(1)).unwrap();
    for at in (before..used(&whole) - 2 * MARK_LENGTH).step_by(frame::ALIGNMENT) {
        let mut torn = whole.clone();
        torn[at..at + frame::ALIGNMENT].fill(0xee);
        fs::write(place.log(1), torn).unwrap();
        // The mark behind it says that this very write was acknowledged: it is refused.
        let error = refusal(&place);
        assert!(error.to_string().contains("it was acknowledged"), "{at}: {error}");
        let mut torn = fs::read(place.log(1)).unwrap();
        torn[used(&whole) - MARK_LENGTH..].fill(0);
        fs::write(place.log(1), torn).unwrap();
        let store = place.open();
        assert_eq!(lookup(&store, "before").await.as_deref(), Some("kept"), "{at}");
        assert_eq!(lookup(&store, "imitates").await, None, "{at}");
        store.close().await.unwrap();
    }
}

/// Returns the segment as builds before the secret wrote it.
fn as_format_3(segment: &[u8]) -> Vec<u8> {
    let mut old = Vec::new();
    let mut payload = Vec::new();
    let capacity = segment.len() as u32;
    Record::Segment { format: 3, number: 1, capacity }.encode(&mut payload);
    frame::write(&mut old, 0, true, &payload);
    assert_eq!(old.len(), HEADER_LENGTH_OLD);
    for (_, frame) in secret(segment).frames(segment, HEADER_LENGTH, used(segment)) {
        frame::write(&mut old, frame.batch, frame.last, frame.payload);
        if frame.last {
            old.extend_from_slice(&Secret::NONE.mark(frame.batch));
        }
    }
    old.resize(segment.len(), 0);
    old
}

#[tokio::test]
async fn a_log_without_a_secret_is_read_and_written_on() {
    const WRITES: usize = 5;
    let place = killed(WRITES, "123456789").await;
    let old = as_format_3(&fs::read(place.log(1)).unwrap());
    fs::write(place.log(1), old).unwrap();
    let store = place.open();
    // Some more writes go to the old segment, and enough for new ones.
    for n in WRITES..200 {
        set(&store, &format!("k::{n}"), &"v".repeat(1000)).await;
    }
    store.close().await.unwrap();
    assert!(place.log(3).exists());
    let store = place.open();
    assert_eq!(store.keys(&Prefix::all()).await.unwrap().len(), 200);
    assert_eq!(lookup(&store, "k::4").await.as_deref(), Some("123456789"));
    assert_eq!(lookup(&store, "k::5").await, Some("v".repeat(1000)));
    store.close().await.unwrap();
}

#[tokio::test]
async fn sealed_segments_are_checked_whether_a_snapshot_covers_them_or_not() {
    let place = several_segments().await;
    let numbers: Vec<u32> = place
        .files()
        .iter()
        .filter_map(|name| name.strip_prefix("log-").and_then(|n| n.parse().ok()))
        .collect();
    let (first, newest) = (numbers[0], *numbers.last().unwrap());
    assert!(newest > first);
    for number in first..newest {
        let whole = fs::read(place.log(number)).unwrap();
        for at in (0..whole.len()).step_by(whole.len() / 40) {
            flip(&place.log(number), at);
            let error = refusal(&place);
            let OpenError::Damaged { file, .. } = &error else { panic!("{at}: {error}") };
            assert_eq!(*file, place.log(number), "{at}");
            fs::write(place.log(number), &whole).unwrap();
        }
        fs::remove_file(place.log(number)).unwrap();
        let error = refusal(&place);
        assert!(
            matches!(&error, OpenError::Missing(file) if *file == place.log(number)),
            "{error}"
        );
        fs::write(place.log(number), &whole).unwrap();
    }
    place.open().close().await.unwrap();
}

#[tokio::test]
async fn a_damaged_snapshot_is_refused() {
    let place = several_segments().await;
    let files = place.files();
    let name = files.iter().find_map(|name| name.strip_prefix("index-")).unwrap();
    let path = snapshot_path(&place.layout().store(), name.parse().unwrap());
    let whole = fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(whole.len() / 60) {
        flip(&path, at);
        let error = refusal(&place);
        assert!(matches!(&error, OpenError::Snapshot { file, .. } if *file == path), "{error}");
        fs::write(&path, &whole[..at]).unwrap();
        let error = refusal(&place);
        assert!(error.to_string().contains("move it aside"), "{error}");
        fs::write(&path, &whole).unwrap();
    }
    place.open().close().await.unwrap();
}
