//! Export and import as streams: of a store alone, and of a whole cluster. `backup` makes the
//! streams and takes them apart; `api_types::export` is their format.

use std::convert::Infallible;
use std::sync::Arc;

use ::backup::BackupContext;
use ::backup::exporter::{export_cluster, export_store};
use ::backup::importer::{self, ClusterImporter, ImportError};
use ::backup::keys::KeyWriter;
use axum::Json;
use axum::body::{Body, BodyDataStream};
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::StreamExt;
use model::TypedKey;
use model::role::Role;
use model::secrets::SealingRecord;
use runtime::members::Members;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::mpsc;

use super::keys::PrefixQuery;
use super::problem::Problem;
use super::{Api, Shared, records};
use api_types::Imported;
use api_types::backup::{ClusterImported, ImportReadiness};
use api_types::export::{ExportDecoder, ExportPiece, FormatError};
use store::SharedStore;

/// What to do about an import that has begun and failed.
const GOES_ON: &str = "what has come stays, and no application starts; import the same file again \
                       once the cause is mended, or start from an empty data directory";
/// Bytes that a client may go on sending after an error before it is cut off.
const DISCARDED_BYTES_MAX: u64 = 1 << 30;

#[derive(Debug, Deserialize, JsonSchema)]
pub struct ExportQuery {
    /// Whether the files that applications keep are in it.
    #[serde(default)]
    files: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub struct ImportQuery {
    /// The BLAKE3 of the whole export in hexadecimal digits.
    export: String,
}

pub async fn export(
    State(store): State<SharedStore>,
    Query(query): Query<PrefixQuery>,
) -> Result<Response, Problem> {
    let prefix = super::keys::prefix(&query.prefix)?;
    Ok(streamed(export_store(store, prefix)))
}

fn streamed(receiver: mpsc::Receiver<Bytes>) -> Response {
    let pieces = futures_util::stream::unfold(receiver, |mut receiver| async {
        Some((Ok::<Bytes, Infallible>(receiver.recv().await?), receiver))
    });
    let kind = [(header::CONTENT_TYPE, "application/octet-stream")];
    (kind, Body::from_stream(pieces)).into_response()
}

/// Imports a stream. Each value is written once it is whole and unchanged; the client makes sure
/// that the end is there as well before it sends anything.
pub async fn import(
    State(store): State<SharedStore>,
    body: Body,
) -> Result<Json<Imported>, Problem> {
    let mut importer =
        StoreImporter { decoder: ExportDecoder::default(), writer: KeyWriter::new(store) };
    let mut body = body.into_data_stream();
    while let Some(chunk) = body.next().await {
        let taken = match chunk {
            Ok(chunk) => importer.take(&chunk).await,
            Err(error) => Err(cut(&error)),
        };
        if let Err(problem) = taken {
            let kept = importer.writer.settle().await.map_or(0, |imported| imported.keys);
            discard(body).await;
            return Err(problem.hint(format!(
                "{kept} keys had been written and stay; importing all of it again is safe"
            )));
        }
    }
    Ok(Json(importer.finish().await?))
}

fn cut(error: &axum::Error) -> Problem {
    Problem::invalid("import_cut", format!("it was cut: {error}"))
}

/// Reads the rest, since a client that still sends would not see the answer.
async fn discard(mut body: BodyDataStream) {
    let mut discarded = 0;
    while let Some(Ok(chunk)) = body.next().await {
        discarded += chunk.len() as u64;
        if discarded > DISCARDED_BYTES_MAX {
            break;
        }
    }
}

struct StoreImporter {
    decoder: ExportDecoder,
    writer: KeyWriter,
}

impl StoreImporter {
    async fn take(&mut self, chunk: &[u8]) -> Result<(), Problem> {
        let mut pieces = Vec::new();
        let taken = self.decoder.push(chunk, |piece| {
            pieces.push(piece);
            Ok::<(), FormatError>(())
        });
        for piece in pieces {
            match piece {
                ExportPiece::Key { key, ends, size } => self.writer.begin(key, ends, size).await?,
                ExportPiece::Value(bytes) => self.writer.gather(&bytes).await?,
                ExportPiece::Checked => self.writer.write().await?,
                _ => {}
            }
        }
        taken.map_err(malformed)?;
        Ok(self.writer.check()?)
    }

    async fn finish(mut self) -> Result<Imported, Problem> {
        let imported = self.writer.settle().await?;
        self.writer.check()?;
        self.decoder.finish().map_err(malformed)?;
        Ok(imported)
    }
}

fn malformed(error: FormatError) -> Problem {
    Problem::invalid("invalid_export", error.to_string())
}

/// Exports the whole cluster, in clear: whoever asks wraps it.
pub async fn take_out(
    State(api): State<Shared>,
    Query(query): Query<ExportQuery>,
) -> Result<Response, Problem> {
    Ok(streamed(export_cluster(context(&api)?, query.files)))
}

/// Says whether an export can be imported here.
pub async fn readiness(State(api): State<Shared>) -> Result<Json<ImportReadiness>, Problem> {
    let context = context(&api)?;
    let under_way = importer::under_way(&context).await?.map(|before| before.export);
    let content = importer::content_of(&context).await?;
    Ok(Json(ImportReadiness { has: content.as_ref().map(importer::described), under_way }))
}

/// Imports a whole cluster into one that is empty.
pub async fn bring_in(
    State(api): State<Shared>,
    Query(query): Query<ImportQuery>,
    body: Body,
) -> Result<Json<ClusterImported>, Problem> {
    let context = context(&api)?;
    let mut body = body.into_data_stream();
    let begun = match seals(&api).await {
        Ok(()) => ClusterImporter::begin(context, &query.export).await.map_err(refused),
        Err(problem) => Err(problem),
    };
    let mut importer = match begun {
        Ok(importer) => importer,
        Err(problem) => {
            discard(body).await;
            return Err(problem);
        }
    };
    while let Some(chunk) = body.next().await {
        let taken = match chunk {
            Ok(chunk) => importer.take(&chunk).await.map_err(refused),
            Err(error) => Err(cut(&error)),
        };
        if let Err(problem) = taken {
            importer.settle().await;
            discard(body).await;
            return Err(problem.hint(GOES_ON));
        }
    }
    Ok(Json(importer.finish().await.map_err(|error| refused(error).hint(GOES_ON))?))
}

/// Fails on a node without a store of its own: what it has to do is another one's.
pub fn keeps_store(api: &Api) -> Result<(), Problem> {
    if api.roles.has(Role::Store) {
        return Ok(());
    }
    let what = "this node keeps no store";
    Err(Problem::conflict("no_store", what).hint("ask a node that keeps one"))
}

fn context(api: &Api) -> Result<BackupContext, Problem> {
    keeps_store(api)?;
    Ok(BackupContext {
        store: api.store.clone(),
        node: api.node.clone(),
        layout: api.layout.clone(),
        clock: api.clock,
        members: api.peers.clone().map(|peers| peers as Arc<dyn Members>),
    })
}

/// Fails where secrets would be written as they are, though they are sealed here a moment later.
pub async fn seals(api: &Api) -> Result<(), Problem> {
    if api.secrets.is_none() {
        return Ok(());
    }
    let record: Option<SealingRecord> = records::read(&*api.store, TypedKey::Sealing).await?;
    if record.is_some_and(|record| record.seals.is_some()) {
        return Ok(());
    }
    let what = "secrets are not sealed yet, so none is taken";
    Err(Problem::conflict("not_sealed", what).hint("`cortex secrets` says what is waited for"))
}

fn refused(error: ImportError) -> Problem {
    let detail = error.to_string();
    match error {
        ImportError::Format(error) => malformed(error),
        ImportError::Store(error) => error.into(),
        ImportError::Files { .. } => Problem::conflict("files_not_imported", detail)
            .hint("free space in the data directory, or mend what is said, and import it again"),
        ImportError::NotEmpty(_) => Problem::conflict("not_empty", detail).hint(
            "import into a node that was just started: `cortex up --data-dir` with another \
             directory; other nodes join it afterwards",
        ),
        ImportError::OtherUnderWay => Problem::conflict("other_import", detail)
            .hint("import that file again, which goes on, or start from an empty data directory"),
        ImportError::TooMuch(_) => Problem::invalid("invalid_export", detail),
    }
}
