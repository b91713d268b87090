//! The output of a command, numbered from its first byte, of which the end is kept. Both kinds are
//! kept in the order in which they came.

use std::collections::VecDeque;

use bytes::Bytes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    Output,
    Error,
}

#[derive(Debug, Default)]
pub struct OutputLog {
    /// The number of the first byte that is kept.
    base: u64,
    bytes: VecDeque<u8>,
    /// Runs of one kind that follow each other.
    runs: VecDeque<Run>,
}

#[derive(Debug)]
struct Run {
    stream: OutputStream,
    /// The number behind its last byte.
    end: u64,
}

impl OutputLog {
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Returns the number of bytes that there were so far.
    pub fn end(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    pub fn push(&mut self, stream: OutputStream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.bytes.extend(bytes);
        let end = self.end();
        match self.runs.back_mut() {
            Some(run) if run.stream == stream => run.end = end,
            _ => self.runs.push_back(Run { stream, end }),
        }
    }

    /// Drops what lies before `offset`.
    pub fn drop_before(&mut self, offset: u64) {
        let offset = offset.clamp(self.base, self.end());
        let count = usize::try_from(offset - self.base).unwrap_or(usize::MAX);
        self.bytes.drain(..count.min(self.bytes.len()));
        self.base = offset;
        while self.runs.front().is_some_and(|run| run.end <= offset) {
            self.runs.pop_front();
        }
        if self.bytes.is_empty() {
            // A session that is quiet costs no buffer.
            self.bytes = VecDeque::new();
        }
    }

    /// Returns at most `max` bytes of one kind from `offset` on; `None` if there are none.
    pub fn piece(&self, offset: u64, max: usize) -> Option<(OutputStream, Bytes)> {
        let from = usize::try_from(offset.checked_sub(self.base)?).ok()?;
        let run = self.runs.get(self.runs.partition_point(|run| run.end <= offset))?;
        let length = usize::try_from(run.end - offset).unwrap_or(usize::MAX).min(max);
        let (first, second) = self.bytes.as_slices();
        let bytes = match from.checked_sub(first.len()) {
            Some(from) => &second[from..from + length.min(second.len() - from)],
            None => &first[from..from + length.min(first.len() - from)],
        };
        Some((run.stream, Bytes::copy_from_slice(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_kept_is_what_was_pushed(
            pushes in prop::collection::vec((any::<bool>(), 0usize..50), 1..30),
            drops in prop::collection::vec(0u64..400, 0..10),
            max in 1usize..40,
        ) {
            let (mut log, mut all) = (OutputLog::default(), Vec::new());
            let mut drops = drops.into_iter();
            for (number, (is_error, length)) in pushes.into_iter().enumerate() {
                let stream = if is_error { OutputStream::Error } else { OutputStream::Output };
                let bytes = vec![number as u8; length];
                all.extend(bytes.iter().map(|byte| (stream, *byte)));
                log.push(stream, &bytes);
                if let Some(offset) = drops.next() {
                    log.drop_before(offset);
                    prop_assert!(log.base() >= offset.min(log.end()));
                }
                prop_assert_eq!(log.end(), all.len() as u64);
                let (mut at, mut kept) = (log.base(), Vec::new());
                while let Some((stream, bytes)) = log.piece(at, max) {
                    prop_assert!(!bytes.is_empty() && bytes.len() <= max);
                    kept.extend(bytes.iter().map(|byte| (stream, *byte)));
                    at += bytes.len() as u64;
                }
                prop_assert_eq!(&kept[..], &all[log.base() as usize..]);
            }
        }
    }
}
