//! An archive that is packed before it is sent, so that the cluster can be asked what it has.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use hyper::Method;
use model::ApplicationName;
use tempfile::SpooledTempFile;
use tokio::task::JoinHandle;

use super::chunks::{Chunks, pack};
use super::{Session, output, upload};
use api_types::delta::{DeltaEncoder, KnownPieces, PIECES_MAX, Piece, Splitter};
use api_types::{ARCHIVE_BYTES_MAX, ProblemBody, Released};
use client::{ClientError, encode};
use source::Source;

/// The most bytes that are held in memory; more go to a temporary file.
const MEMORY_BYTES_MAX: usize = 32 * 1024 * 1024;
/// The largest archive that is packed first: a larger one would fill the disk of a small computer.
const SPOOLED_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// The codes with which a node refuses a delta alone.
const OUTDATED: &[&str] = &["base_gone", "archive_differs", "invalid_delta"];
const READ_BYTES: usize = 256 * 1024;

pub struct Spooled {
    file: SpooledTempFile,
    bytes: u64,
    pieces: Vec<Piece>,
}

/// The error that an archive is sent as it is packed, for want of space or names.
#[derive(Debug, thiserror::Error)]
#[error("it is not packed first")]
struct Unspooled;

struct SpoolWriter {
    spooled: Spooled,
    splitter: Splitter,
}

impl SpoolWriter {
    fn keep(spooled: &mut Spooled, piece: Piece, bytes: &[u8]) -> io::Result<()> {
        spooled.bytes += bytes.len() as u64;
        let is_large = spooled.bytes > SPOOLED_BYTES_MAX;
        if is_large || spooled.pieces.len() == PIECES_MAX {
            return Err(io::Error::other(Unspooled));
        }
        spooled.pieces.push(piece);
        spooled.file.write_all(bytes).map_err(|_| io::Error::other(Unspooled))
    }
}

impl Write for SpoolWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let SpoolWriter { spooled, splitter } = self;
        splitter.push(bytes, &mut |piece, bytes| SpoolWriter::keep(spooled, piece, bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Spooled {
    /// Packs a source, and returns warnings about what was packed; `None` if there is no space for
    /// it here.
    pub async fn new(source: Arc<Source>) -> anyhow::Result<Option<(Spooled, Vec<String>)>> {
        let file = SpooledTempFile::new(MEMORY_BYTES_MAX);
        let spooled = Spooled { file, bytes: 0, pieces: Vec::new() };
        let packed = runtime::task::spawn_blocking(move || {
            let mut writer = SpoolWriter { spooled, splitter: Splitter::default() };
            let late = source.write(&mut writer, ARCHIVE_BYTES_MAX)?;
            let SpoolWriter { mut spooled, splitter } = writer;
            splitter.finish(&mut |piece, bytes| SpoolWriter::keep(&mut spooled, piece, bytes))?;
            anyhow::Ok((spooled, late))
        });
        match packed.await? {
            Ok(packed) => Ok(Some(packed)),
            Err(error) if is_unspooled(&error) => Ok(None),
            Err(error) => Err(error.context("the source cannot be packed")),
        }
    }

    pub async fn send(
        mut self,
        session: &Session,
        name: &ApplicationName,
        path: &str,
    ) -> anyhow::Result<Released> {
        let known = self.known(session, name).await;
        if known.runs.iter().any(|run| run.found.is_some()) {
            let (new, all) =
                (output::bytes(known.missing_bytes(&self.pieces)), output::bytes(self.bytes));
            output::say(&format!("       {new} of {all} are new to the platform"));
            let bases: Vec<String> = known.bases.iter().map(ToString::to_string).collect();
            let path = format!("{path}&bases={}", bases.join(","));
            let (chunks, packed) = self.delta(known)?;
            match upload(session, &path, chunks).await {
                Err(error) if is_outdated(&error) => {}
                released => return released,
            }
            self = packed.await??;
        }
        self.file.seek(SeekFrom::Start(0))?;
        let (chunks, _) = pack(move |to| Ok(io::copy(&mut self.file, to)?));
        upload(session, path, chunks).await
    }

    /// Asks what the cluster has. One that cannot say gets the whole archive.
    async fn known(&self, session: &Session, name: &ApplicationName) -> KnownPieces {
        let path = format!("/v1/apps/{}/sources/known", encode(name.as_str()));
        let names: Vec<u8> = self.pieces.iter().flat_map(|piece| piece.name).collect();
        let names = futures_util::stream::iter([Ok(Bytes::from(names))]);
        let known = session.client.upload::<KnownPieces>(Method::POST, &path, names).await;
        known.unwrap_or_default()
    }

    /// Makes the body of what the cluster lacks; the archive comes back when it is written.
    fn delta(
        mut self,
        known: KnownPieces,
    ) -> anyhow::Result<(Chunks, JoinHandle<anyhow::Result<Spooled>>)> {
        self.file.seek(SeekFrom::Start(0)).context("the packed source cannot be read")?;
        Ok(pack(move |to| {
            let mut out = Vec::new();
            let mut encoder = DeltaEncoder::begin(known, &mut out);
            let (mut splitter, mut buffer) = (Splitter::default(), vec![0; READ_BYTES]);
            let mut each = |_, bytes: &[u8]| {
                encoder.piece(bytes, &mut out);
                to.write_all(&out)?;
                out.clear();
                io::Result::Ok(())
            };
            loop {
                let count = self.file.read(&mut buffer)?;
                if count == 0 {
                    break;
                }
                splitter.push(&buffer[..count], &mut each)?;
            }
            splitter.finish(&mut each)?;
            encoder.finish(&mut out);
            to.write_all(&out)?;
            Ok(self)
        }))
    }
}

fn is_unspooled(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        inner.is_some_and(|inner| inner.is::<Unspooled>())
    })
}

/// Whether what the cluster had when it was asked is not there any more.
fn is_outdated(error: &anyhow::Error) -> bool {
    let problem = error.downcast_ref();
    problem.is_some_and(|problem| match problem {
        ClientError::Problem(ProblemBody { code, .. }) => OUTDATED.contains(&code.as_str()),
        _ => false,
    })
}
