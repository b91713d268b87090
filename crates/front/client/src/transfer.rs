//! Moves whole stores, between back ends, and whole clusters, through the API of a node: the
//! client's side of export and import. A file is read through before any of it is imported.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Method;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::{Client, encode};
use api_types::Imported;
use api_types::backup::{ClusterImported, Contents};
use api_types::export::{ExportDecoder, ExportPiece, FormatError, Totals};

const READ_BYTES: usize = 64 * 1024;
/// Chunks that wait between the file and the socket.
const CHUNKS_WAITING_MAX: usize = 16;
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

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
    let mut file = verified.file;
    let read = move |pass: Pass<'_>| {
        let (mut chunk, mut at) = (vec![0; READ_BYTES], 0);
        loop {
            let count = file.read(&mut chunk)?;
            if count == 0 {
                return Ok(());
            }
            at += count as u64;
            pass(&chunk[..count], at)?;
        }
    };
    send(client, "/v1/store/import", read, &mut progress).await
}

/// What came of the export of a cluster.
#[derive(Debug, Default)]
pub struct ClusterExported {
    pub totals: Totals,
    pub contents: Contents,
    /// Applications whose files are left out, as their node could not be read, and the reasons.
    pub left_out: Vec<(String, String)>,
}

/// Writes the whole cluster to `out`, and makes sure that it is whole; on an error `out` has a part
/// of it. `progress` is called with the number of bytes that have come.
pub async fn export_cluster(
    client: &Client,
    with_files: bool,
    out: &mut impl Write,
    mut progress: impl FnMut(u64),
) -> anyhow::Result<ClusterExported> {
    let path = format!("/v1/export?files={with_files}");
    let mut body = client.download_recorded(&path).await?;
    let (mut decoder, mut exported) = (ExportDecoder::of_cluster(), ClusterExported::default());
    let (mut application, mut come) = (None, 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.context("the node went away")?;
        let Some(bytes) = frame.data_ref() else { continue };
        decoder.push(bytes, |piece| {
            match piece {
                ExportPiece::Contents(contents) => exported.contents = contents,
                ExportPiece::Files(name) => application = Some(name.to_string()),
                ExportPiece::FilesEnd(Some(why)) => {
                    exported.left_out.extend(application.take().map(|name| (name, why)));
                }
                _ => {}
            }
            Ok::<(), FormatError>(())
        })?;
        out.write_all(bytes)?;
        come += bytes.len() as u64;
        progress(come);
    }
    exported.totals = decoder.finish().map_err(|error| match error {
        FormatError::Cut(keys) => anyhow::anyhow!(
            "the export ended after {keys} keys: the node went away (its log says why); try again"
        ),
        error => error.into(),
    })?;
    Ok(exported)
}

/// Passes on a piece of what is sent, and how much of its file was read.
pub type Pass<'a> = &'a mut dyn FnMut(&[u8], u64) -> anyhow::Result<()>;

/// Brings in a cluster whose export has this hash: what `read` passes on, on a thread of its own.
pub async fn import_cluster(
    client: &Client,
    hash: &str,
    read: impl FnOnce(Pass<'_>) -> anyhow::Result<()> + Send + 'static,
    mut progress: impl FnMut(u64),
) -> anyhow::Result<ClusterImported> {
    let path = format!("/v1/import?export={}", encode(hash));
    send(client, &path, read, &mut progress).await
}

async fn send<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    read: impl FnOnce(Pass<'_>) -> anyhow::Result<()> + Send + 'static,
    progress: &mut dyn FnMut(u64),
) -> anyhow::Result<T> {
    let (sender, receiver) = mpsc::channel::<std::io::Result<Bytes>>(CHUNKS_WAITING_MAX);
    let sent = Arc::new(AtomicU64::new(0));
    let counted = sent.clone();
    runtime::task::spawn_blocking(move || {
        let mut pass = |bytes: &[u8], at: u64| {
            let taken = sender.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
            counted.store(at, Ordering::Relaxed);
            taken.ok().context("the node takes no more")
        };
        if let Err(error) = read(&mut pass) {
            sender.blocking_send(Err(std::io::Error::other(format!("{error:#}")))).ok();
        }
    });
    let chunks = futures_util::stream::unfold(receiver, |mut receiver| async {
        Some((receiver.recv().await?, receiver))
    });
    let mut importing = std::pin::pin!(client.upload(Method::POST, path, chunks));
    let mut ticks = tokio::time::interval(PROGRESS_INTERVAL);
    loop {
        tokio::select! {
            imported = &mut importing => return imported,
            _ = ticks.tick() => progress(sent.load(Ordering::Relaxed)),
        }
    }
}
