//! Moves whole stores, between back ends and between clusters, through the API of a node: the
//! client's side of export and import. A file is read through before any of it is imported.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Method;
use tokio::sync::mpsc;

use crate::{Client, encode};
use api_types::Imported;
use api_types::export::{ExportDecoder, ExportPiece, FormatError, Totals};

const READ_BYTES: usize = 64 * 1024;
/// Chunks that wait between the file and the socket.
const CHUNKS_WAITING_MAX: usize = 16;

/// Writes what is under `prefix` to `out`, and makes sure that it is whole; on an error `out` has a
/// part of it.
pub async fn export(client: &Client, prefix: &str, out: &mut impl Write) -> anyhow::Result<Totals> {
    let path = format!("/v1/store/export?prefix={}", encode(prefix));
    let mut body = client.download(&path).await?;
    let mut decoder = ExportDecoder::default();
    while let Some(frame) = body.frame().await {
        let frame = frame.context("the node went away")?;
        if let Some(bytes) = frame.data_ref() {
            decoder.push(bytes, |_| Ok::<(), FormatError>(()))?;
            out.write_all(bytes)?;
        }
    }
    match decoder.finish() {
        Ok(totals) => Ok(totals),
        Err(FormatError::Cut(keys)) => {
            anyhow::bail!(
                "the export ended after {keys} keys: the node went away or could not read on (its \
                 log says why); try again"
            )
        }
        Err(error) => Err(error.into()),
    }
}

/// An export that has been read through: nothing is missing and nothing was changed.
#[derive(Debug)]
pub struct Verified {
    pub file: File,
    pub totals: Totals,
    pub file_bytes: u64,
}

/// Reads an export through and checks it. It blocks while it reads all of the file.
pub fn verify(mut file: File) -> anyhow::Result<Verified> {
    let mut decoder = ExportDecoder::default();
    let mut chunk = vec![0; READ_BYTES];
    let mut file_bytes = 0;
    loop {
        let count = file.read(&mut chunk)?;
        if count == 0 {
            break;
        }
        file_bytes += count as u64;
        decoder.push(&chunk[..count], |_: ExportPiece| Ok::<(), FormatError>(()))?;
    }
    let totals = decoder.finish()?;
    file.seek(SeekFrom::Start(0))?;
    Ok(Verified { file, totals, file_bytes })
}

/// Sets every key of the file; `progress` is called with the number of bytes that are on their way.
pub async fn import(
    client: &Client,
    verified: Verified,
    mut progress: impl FnMut(u64),
) -> anyhow::Result<Imported> {
    let (sender, receiver) = mpsc::channel::<std::io::Result<Bytes>>(CHUNKS_WAITING_MAX);
    let sent = Arc::new(AtomicU64::new(0));
    let (counted, mut file) = (sent.clone(), verified.file);
    runtime::task::spawn_blocking(move || {
        loop {
            let mut chunk = vec![0; READ_BYTES];
            let read = file.read(&mut chunk).map(|count| {
                chunk.truncate(count);
                Bytes::from(chunk)
            });
            if matches!(&read, Ok(chunk) if chunk.is_empty()) {
                return;
            }
            let (count, is_error) = (read.as_ref().map_or(0, Bytes::len), read.is_err());
            if sender.blocking_send(read).is_err() || is_error {
                return;
            }
            counted.fetch_add(count as u64, Ordering::Relaxed);
        }
    });
    let chunks = futures_util::stream::unfold(receiver, |mut receiver| async {
        Some((receiver.recv().await?, receiver))
    });
    let mut importing = std::pin::pin!(client.upload(Method::POST, "/v1/store/import", chunks));
    let mut ticks = tokio::time::interval(std::time::Duration::from_millis(100));
    loop {
        tokio::select! {
            imported = &mut importing => return imported,
            _ = ticks.tick() => progress(sent.load(Ordering::Relaxed)),
        }
    }
}
