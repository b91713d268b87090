//! The reader of a large value, from its start to its end, also while it still arrives from another
//! node.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::Stream;
use tokio::sync::watch;

use super::fetch_board::{FetchBoard, FetchProgress, next, unreadable};
use super::{BUFFER_BYTES, ValueName};
use crate::StoreError;
use crate::values::{blocking, suspect};

pub struct ValueReader {
    value: ValueName,
    file: Arc<File>,
    at: u64,
    /// The number of bytes that can be read so far.
    proven: u64,
    /// The progress of fetching; `None` for a value that is whole.
    progress: Option<watch::Receiver<FetchProgress>>,
    /// The check of a whole file; what comes from another node is proven as it arrives.
    check: Option<Check>,
}

/// The hash of what was read so far and the file's path: a disk may give back other bytes than it
/// was given.
struct Check {
    hasher: Box<blake3::Hasher>,
    path: PathBuf,
}

impl ValueReader {
    pub fn of_file(file: File, value: ValueName, path: PathBuf) -> ValueReader {
        let (file, check) = (Arc::new(file), Check { hasher: Box::default(), path });
        ValueReader { value, file, at: 0, proven: value.size, progress: None, check: Some(check) }
    }

    /// Opens a value that is still arriving. Waits until the first bytes are here, so that a value
    /// that cannot be had is an error before an answer has begun.
    pub(super) async fn of_coming(
        fetch_board: &FetchBoard,
        value: ValueName,
    ) -> Result<Self, StoreError> {
        if let Some(file) = open(fetch_board, value, Desired::Whole).await? {
            return Ok(ValueReader::of_file(file, value, fetch_board.values.path(&value.hash)));
        }
        let mut progress = fetch_board.ask(value)?;
        loop {
            let now = progress.borrow_and_update().clone();
            let (file, proven) = match now {
                FetchProgress::Whole => {
                    (open(fetch_board, value, Desired::Whole).await?, value.size)
                }
                FetchProgress::Proven(bytes) if bytes > 0 => {
                    (open(fetch_board, value, Desired::Part).await?, bytes)
                }
                _ => {
                    next(&mut progress, &value).await?;
                    continue;
                }
            };
            let Some(file) = file else {
                return Err(unreadable(&value, io::ErrorKind::NotFound.into()));
            };
            let (file, progress) = (Arc::new(file), Some(progress));
            return Ok(ValueReader { value, file, at: 0, proven, progress, check: None });
        }
    }

    pub fn size(&self) -> u64 {
        self.value.size
    }

    /// Returns the next bytes, at most 64 KiB; `None` at the end. The last ones come only if all
    /// were right.
    pub async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        if self.at >= self.value.size {
            return Ok(None);
        }
        while self.at >= self.proven {
            let Some(progress) = &mut self.progress else {
                return Err(unreadable(&self.value, io::ErrorKind::UnexpectedEof.into()));
            };
            match next(progress, &self.value).await? {
                FetchProgress::Whole => self.proven = self.value.size,
                FetchProgress::Proven(bytes) => self.proven = bytes,
                FetchProgress::Waiting | FetchProgress::Failed(_) => {}
            }
        }
        let (file, at, value) = (self.file.clone(), self.at, self.value);
        let count = (self.proven - at).min(BUFFER_BYTES as u64) as usize;
        let mut check = self.check.take();
        let read = move || {
            let mut bytes = vec![0; count];
            let read = file.read_exact_at(&mut bytes, at);
            if let Some(check) = &mut check {
                check.hasher.update(&bytes);
                let ends = at + count as u64 == value.size;
                let short = read.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::UnexpectedEof);
                let whole = read.is_ok() && ends;
                if short || whole && *check.hasher.finalize().as_bytes() != value.hash {
                    suspect(&check.path, &value);
                    let what = "its file is damaged; it is fetched from another node: try again";
                    return Err(unreadable(
                        &value,
                        io::Error::new(io::ErrorKind::InvalidData, what),
                    ));
                }
            }
            read.map_err(|source| unreadable(&value, source))?;
            Ok((Bytes::from(bytes), check))
        };
        let (bytes, check) = blocking(read).await?;
        self.check = check;
        self.at += bytes.len() as u64;
        Ok(Some(bytes))
    }

    /// Turns the reader into a stream for the body of an answer; it ends after an error.
    pub fn into_stream(self) -> impl Stream<Item = io::Result<Bytes>> {
        futures_util::stream::unfold(Some(self), |reader| async {
            let mut reader = reader?;
            match reader.next().await {
                Ok(bytes) => Some((Ok(bytes?), Some(reader))),
                Err(error) => Some((Err(io::Error::other(error)), None)),
            }
        })
    }
}

enum Desired {
    Whole,
    Part,
}

async fn open(
    fetch_board: &FetchBoard,
    value: ValueName,
    desired: Desired,
) -> Result<Option<File>, StoreError> {
    let values = fetch_board.values.clone();
    let open = move || {
        let part = match desired {
            Desired::Whole => None,
            Desired::Part => values.read_partial(&value.hash)?,
        };
        // The part may have got its final name just now.
        part.map_or_else(|| values.open_value(&value), |part| Ok(Some(part)))
    };
    blocking(move || open().map_err(|source| unreadable(&value, source))).await
}

impl FetchBoard {
    /// Opens a value that is not known to be here.
    pub async fn read(&self, value: ValueName) -> Result<ValueReader, StoreError> {
        ValueReader::of_coming(self, value).await
    }
}
