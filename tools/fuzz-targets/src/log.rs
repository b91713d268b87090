//! The log: no segment panics; frames that `check` accepts are all read; a record means the same
//! when written and read again. The first byte chooses what the rest is taken for.

use std::hash::{DefaultHasher, Hasher};

use store_core::frame::{self, ALIGNMENT, Ending, NextFrame, Secret};
use store_core::record::Record;
use store_core::{Location, Past};

pub fn check(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    match choice % 4 {
        0 => record(rest),
        1 => segment(rest, Ending::MayBeTorn),
        2 => segment(rest, Ending::Sealed),
        _ => written(rest),
    }
}

fn record(payload: &[u8]) {
    let Ok(record) = Record::decode(payload) else { return };
    let mut again = Vec::new();
    record.encode(&mut again);
    assert_eq!(Record::decode(&again).as_ref(), Ok(&record));
    let mut past = Past::default();
    past.replay(record, Location::Log { segment: 1, offset: 8 });
    past.replica.check_invariants();
}

fn segment(bytes: &[u8], ending: Ending) {
    for first in [None, Some(1)] {
        let Ok(extent) = Secret::NONE.check(bytes, 0, first, ending) else { continue };
        assert!(extent.end <= bytes.len() && extent.newest_start <= extent.end);
        assert!(extent.end.is_multiple_of(ALIGNMENT));
        assert!(!(extent.torn && ending == Ending::Sealed));
        let mut read = 0;
        let mut batches = None;
        for (at, frame) in Secret::NONE.frames(bytes, 0, extent.end) {
            assert_eq!(at, read, "frames leave no gap but marks");
            read = at + frame.length;
            if frame.last {
                let mark = Secret::NONE.mark(frame.batch);
                let marked = bytes[read..extent.end].starts_with(&mark);
                read += if marked { mark.len() } else { 0 };
            }
            let oldest = batches.map_or(frame.batch, |(oldest, _)| oldest);
            batches = Some((oldest, frame.batch));
            record(frame.payload);
        }
        assert_eq!(read, extent.end);
        assert_eq!(batches, extent.batches);
        // Cut there and wiped, the segment reads the same and is whole.
        let mut mended = bytes.to_vec();
        mended[extent.end..].fill(0);
        let whole = Secret::NONE.check(&mended, 0, first, ending).expect("it was mended");
        assert_eq!((whole.end, whole.torn, whole.batches), (extent.end, false, extent.batches));
    }
}

/// Writes batches of the given payloads and cuts them anywhere: nothing before the cut is lost, and
/// nothing is taken for damage. Each batch is a length byte and as many bytes; the first byte is
/// the cut.
fn written(bytes: &[u8]) {
    let Some((cut, mut rest)) = bytes.split_first() else { return };
    // Values that imitate a mark or a later batch do not know the secret.
    let mut hasher = DefaultHasher::new();
    let secret = Secret::new(std::array::from_fn(|i| {
        hasher.write_usize(i);
        hasher.write(bytes);
        hasher.finish() as u8
    }));
    let mut segment = Vec::new();
    let mut ends = vec![(0, 0)];
    let mut batch = 0;
    while let Some((length, more)) = rest.split_first() {
        let (payload, more) = more.split_at(usize::from(*length).min(more.len()));
        batch += 1;
        let start = segment.len();
        frame::write(&mut segment, batch, true, payload);
        secret.seal(&mut segment[start..], &[0]);
        // A batch is durable before it is marked: it may lack its mark when the power goes.
        ends.push((segment.len(), batch));
        segment.extend_from_slice(&secret.mark(batch));
        rest = more;
    }
    let kept = segment.len() * usize::from(*cut) / 255;
    // This is what a torn write leaves of it, in a file of zeros.
    segment[kept..].fill(0);
    segment.resize(segment.len() + 64, 0);
    let extent = secret.check(&segment, 0, Some(1), Ending::MayBeTorn).expect("only torn");
    let durable = ends.iter().rev().find(|(end, _)| *end <= kept).map_or(0, |(_, batch)| *batch);
    assert!(extent.batches.map_or(0, |(_, newest)| newest) >= durable, "a durable batch is lost");
    assert!(!matches!(secret.read(&segment[extent.end..]), NextFrame::Frame(_)));
}
