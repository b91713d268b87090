//! The sources that an application was pushed with: which pieces of a new one they have, and how it
//! is put together from them and from what was sent.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use bytes::Bytes;
use model::value::ContentHash;
use model::{ApplicationName, TypedKey};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::problem::{Problem, storage};
use super::upload::{blocking, too_large};
use super::{Api, Shared, records};
use api_types::ARCHIVE_BYTES_MAX;
use api_types::delta::{
    BASES_MAX, DeltaDecoder, DeltaError, DeltaStep, KnownPieces, NAME_BYTES, PIECES_MAX,
    PieceIndex, PieceName, PieceOrigin, Splitter,
};
use store::{Value, ValueWriter};

/// The time within which an earlier source has to come from another node: sending the files again
/// would not take much longer.
const BASE_WAIT_MAX: Duration = Duration::from_secs(5);
/// The number of comparisons at a time; each may hold the names of all pieces in memory.
const COMPARISONS_MAX: usize = 2;
static COMPARISONS: Semaphore = Semaphore::const_new(COMPARISONS_MAX);
const COPY_BYTES: usize = 256 * 1024;

/// Answers which pieces of an archive the cluster has. The body is their names, in order.
pub async fn known(
    State(api): State<Shared>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Json<KnownPieces>, Problem> {
    let name: ApplicationName = name.parse()?;
    let names = axum::body::to_bytes(body, PIECES_MAX * NAME_BYTES).await.map_err(|_| {
        Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_many_pieces",
            format!("more than {PIECES_MAX} pieces are not compared: send the whole archive"),
        )
    })?;
    if names.len() % NAME_BYTES != 0 {
        let detail = format!("the body is no list of names of {NAME_BYTES} bytes each");
        return Err(Problem::invalid("invalid_request", detail));
    }
    let _turn = COMPARISONS.acquire().await;
    let bases = newest(&api, &name).await?;
    let find = move || {
        let mut index = PieceIndex::default();
        for (number, base) in (0..).zip(&bases) {
            base.index(number, &mut index)?;
        }
        let names = names.chunks_exact(NAME_BYTES).map(|name| {
            PieceName::try_from(name).expect("chunks_exact gives pieces of this length")
        });
        let bases = bases.iter().map(|base| base.hash).collect();
        Ok(KnownPieces { bases, runs: index.find(names) })
    };
    Ok(Json(blocking(find).await?))
}

/// Returns the sources that a new one resembles most, as far as they can be read here.
async fn newest(api: &Api, name: &ApplicationName) -> Result<Vec<Base>, Problem> {
    let Some(app) = records::find(&*api.store, name).await? else { return Ok(Vec::new()) };
    let mut hashes = Vec::new();
    for release in app.releases.last().into_iter().chain(app.serving()) {
        if !hashes.contains(&release.source) {
            hashes.push(release.source);
        }
    }
    let mut bases = Vec::new();
    for hash in hashes.into_iter().take(BASES_MAX) {
        bases.extend(open(api, name, hash).await);
    }
    Ok(bases)
}

/// Opens the sources that a client names; `None` if it sends the whole archive.
pub async fn named(
    api: &Api,
    name: &ApplicationName,
    hashes: Option<&str>,
) -> Result<Option<Vec<Base>>, Problem> {
    let Some(hashes) = hashes else { return Ok(None) };
    let mut bases = Vec::new();
    for hash in hashes.split(',').take(BASES_MAX) {
        let hash = hash.parse().map_err(|_: String| {
            Problem::invalid("invalid_request", "bases: this is no list of hashes of sources")
        })?;
        bases.push(open(api, name, hash).await.ok_or_else(gone)?);
    }
    Ok(Some(bases))
}

async fn open(api: &Api, name: &ApplicationName, hash: ContentHash) -> Option<Base> {
    let key = TypedKey::Source(name.clone(), hash).key();
    let value = api.store.lookup(&key).await.ok()??.value;
    let content = match timeout(BASE_WAIT_MAX, value.here()).await.ok()?.ok()? {
        Value::Inline(bytes) => BaseContent::Inline(bytes),
        Value::File { path, size, .. } => BaseContent::File(File::open(path).ok()?, size),
        Value::Away { .. } => return None,
    };
    Some(Base { hash, content })
}

fn gone() -> Problem {
    Problem::conflict("base_gone", "a source that the push builds on is not here any more")
        .hint("push again")
}

enum BaseContent {
    Inline(Bytes),
    File(File, u64),
}

/// A source that is copied from.
pub struct Base {
    hash: ContentHash,
    content: BaseContent,
}

impl Base {
    fn index(&self, number: u8, index: &mut PieceIndex) -> Result<(), Problem> {
        let (mut splitter, mut offset) = (Splitter::default(), 0);
        // A base that has no room is copied from as far as it was taken.
        let mut each = |piece, bytes: &[u8]| {
            index.add(PieceOrigin { base: number, offset }, piece);
            offset += bytes.len() as u64;
            Ok(())
        };
        self.copy(0, self.size(), |bytes| splitter.push(bytes, &mut each))?;
        splitter.finish(&mut each)
    }

    fn size(&self) -> u64 {
        match &self.content {
            BaseContent::Inline(bytes) => bytes.len() as u64,
            BaseContent::File(_, size) => *size,
        }
    }

    /// Hands out bytes of the source in order.
    fn copy(
        &self,
        offset: u64,
        bytes: u64,
        mut to: impl FnMut(&[u8]) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let end = offset.checked_add(bytes).filter(|end| *end <= self.size());
        let end = end.ok_or_else(|| invalid(&"it copies what a source does not have"))?;
        match &self.content {
            BaseContent::Inline(bytes) => to(&bytes[offset as usize..end as usize]),
            BaseContent::File(file, _) => {
                let (mut at, mut buffer) = (offset, vec![0; COPY_BYTES]);
                while at < end {
                    let count = (end - at).min(COPY_BYTES as u64) as usize;
                    file.read_exact_at(&mut buffer[..count], at)
                        .map_err(|error| storage("an earlier source cannot be read", &error))?;
                    to(&buffer[..count])?;
                    at += count as u64;
                }
                Ok(())
            }
        }
    }
}

fn invalid(why: &impl std::fmt::Display) -> Problem {
    Problem::invalid("invalid_delta", format!("the push is not understood: {why}"))
}

/// The error of a delta on its way through the decoder.
struct Refused(Problem);

impl From<DeltaError> for Refused {
    fn from(error: DeltaError) -> Refused {
        Refused(invalid(&error))
    }
}

/// An archive that arrives, as it is or as a delta. Its methods block.
pub struct Assembly {
    writer: ValueWriter,
    delta: Option<Delta>,
}

struct Delta {
    decoder: DeltaDecoder,
    bases: Vec<Base>,
    whole: blake3::Hasher,
    end: Option<ContentHash>,
}

impl Assembly {
    pub fn new(writer: ValueWriter, bases: Option<Vec<Base>>) -> Assembly {
        let delta = bases.map(|bases| Delta {
            decoder: DeltaDecoder::default(),
            bases,
            whole: blake3::Hasher::new(),
            end: None,
        });
        Assembly { writer, delta }
    }

    pub fn push(&mut self, chunk: &[u8]) -> Result<(), Problem> {
        let Some(delta) = &mut self.delta else { return Ok(self.writer.write(chunk)?) };
        let Delta { decoder, bases, whole, end } = delta;
        let writer = &mut self.writer;
        let mut take = |bytes: &[u8]| {
            // A few bytes can ask for many.
            if writer.size + bytes.len() as u64 > ARCHIVE_BYTES_MAX {
                return Err(too_large());
            }
            whole.update(bytes);
            Ok(writer.write(bytes)?)
        };
        let taken = decoder.push(chunk, |step| {
            match step {
                DeltaStep::Literal(bytes) => take(bytes),
                DeltaStep::Copy { origin, bytes } => match bases.get(usize::from(origin.base)) {
                    Some(base) => base.copy(origin.offset, bytes, &mut take),
                    None => Err(invalid(&"it copies from a source that it does not name")),
                },
                DeltaStep::End(hash) => {
                    *end = Some(hash);
                    Ok(())
                }
            }
            .map_err(Refused)
        });
        taken.map_err(|Refused(problem)| problem)
    }

    /// Returns what was written, if it is the archive that the client has.
    pub fn finish(self) -> Result<ValueWriter, Problem> {
        if let Some(Delta { decoder, whole, end, .. }) = self.delta {
            decoder.finish().map_err(|error| invalid(&error))?;
            if end != Some(ContentHash(*whole.finalize().as_bytes())) {
                let detail = "what was put together is not the archive that was meant";
                return Err(Problem::conflict("archive_differs", detail).hint("push again"));
            }
        }
        Ok(self.writer)
    }
}
