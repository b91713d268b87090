//! `cortex push [DIR]`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use hyper::Method;
use model::ApplicationName;
use tokio::sync::mpsc;

use super::{App, Session, deploy, output};
use api_types::Released;
use client::{ClientError, encode};
use source::{Source, Vcs};

/// The size of the pieces in which the archive travels.
const CHUNK_BYTES: usize = 64 * 1024;
/// Pieces that wait between packing and sending.
const CHUNKS_WAITING_MAX: usize = 16;

#[derive(Debug, Args)]
pub struct Push {
    /// What to push
    #[arg(default_value = ".", value_name = "DIR")]
    directory: PathBuf,
    /// What DIR is
    #[arg(
        long,
        alias = "repo-type",
        value_enum,
        default_value_t,
        hide_possible_values = true,
        value_name = "auto|git|hg|bzr|dir"
    )]
    vcs: Vcs,
    /// The revision to push [default: the current one]
    #[arg(long, value_name = "REV")]
    rev: Option<String>,
    /// Build it anew, although nothing that is built has changed
    #[arg(long)]
    rebuild: bool,
    #[command(flatten)]
    app: App,
}

impl Push {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let source = find(&self.directory, self.vcs, self.rev).await?;
        let name = self.app.name_in(&self.directory)?;
        let repeat = if self.rebuild { Repeat::Rebuilt } else { Repeat::Always };
        push(session, source, &name, repeat).await
    }
}

async fn find(directory: &Path, vcs: Vcs, revision: Option<String>) -> anyhow::Result<Source> {
    let directory = directory.to_path_buf();
    runtime::task::spawn_blocking(move || Source::find(&directory, vcs, revision.as_deref()))
        .await?
}

/// Pushes a directory as `up DIR` does once the node answers.
pub async fn push_directory(session: &Session, directory: &Path) -> anyhow::Result<()> {
    let name = App { app: None }.name_in(directory)?;
    let source = find(directory, Vcs::Auto, None).await?;
    push(session, source, &name, Repeat::IfChanged).await
}

/// Pushes a directory to an application whose name is known.
pub async fn push_as(
    session: &Session,
    directory: &Path,
    vcs: Vcs,
    name: &ApplicationName,
) -> anyhow::Result<()> {
    let source = find(directory, vcs, None).await?;
    push(session, source, name, Repeat::Always).await
}

/// Pushes a commit of the repository around a directory, as `git push` does.
pub async fn push_commit(
    session: &Session,
    directory: &Path,
    commit: &str,
    name: &ApplicationName,
) -> anyhow::Result<()> {
    let mut source = find(directory, Vcs::Git, Some(commit.into())).await?;
    // Whoever pushes a branch with Git knows that it takes what is committed.
    source.uncommitted = None;
    push(session, source, name, Repeat::Always).await
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeat {
    Always,
    /// Pushes nothing if the same source serves already.
    IfChanged,
    /// Pushes always, and has it built anew.
    Rebuilt,
}

async fn push(
    session: &Session,
    source: Source,
    name: &ApplicationName,
    repeat: Repeat,
) -> anyhow::Result<()> {
    for warning in source.uncommitted.iter().chain(&source.warnings) {
        output::say(&format!("Warning: {warning}"));
    }
    let note = source.note.clone();
    output::say(&format!("-----> Pushing {name}: {note}"));
    let revision = source.revision.as_deref().map(|id| format!("&revision={}", encode(id)));
    let path = format!(
        "/v1/apps/{}/releases?note={}&if_changed={}&rebuild={}{}",
        encode(name.as_str()),
        encode(&note),
        repeat == Repeat::IfChanged,
        repeat == Repeat::Rebuilt,
        revision.unwrap_or_default()
    );
    let (chunks, packed) = pack(source);
    let uploaded = tokio::select! {
        uploaded = session.client.upload::<Released>(Method::POST, &path, chunks) => uploaded,
        _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted: nothing was pushed"),
    };
    let packed = packed.await.unwrap_or_else(|error| Err(error.into()));
    let late = packed.as_deref().unwrap_or_default();
    late.iter().for_each(|warning| output::say(&format!("Warning: {warning}")));
    let released = match uploaded {
        Ok(released) => released,
        Err(error) => return Err(cause(error, packed)),
    };
    describe(&released);
    if released.unchanged {
        output::say(&format!("-----> {} is unchanged and serving", released.release));
        output::say("=====> Application deployed:");
        return released.url.as_deref().map_or(Ok(()), output::print);
    }
    deploy::follow(session, &released, deploy::Url::Printed).await
}

fn describe(released: &Released) {
    if released.created {
        output::say(&format!("-----> Created {}", released.application));
    }
    output::say(&format!(
        "-----> {} detected ({})",
        application_of(&released.framework),
        released.decided_by
    ));
    for note in &released.notes {
        output::say(&format!("       {note}"));
    }
    for port in &released.ports {
        let (protocol, process) = (&port.protocol, &port.process);
        output::say(&format!("       {protocol} on {} leads to {process}", port.address));
    }
}

/// Names the kind of application as Heroku's build packs do: `Python app`.
fn application_of(framework: &str) -> String {
    let mut letters = framework.chars();
    let first = letters.next().map(char::to_uppercase).into_iter().flatten();
    format!("{} app", first.chain(letters).collect::<String>())
}

/// Returns the error to show. If packing failed, that is why the upload did: the cut stream only
/// followed from it.
fn cause(upload: anyhow::Error, packed: anyhow::Result<Vec<String>>) -> anyhow::Error {
    let answered = matches!(upload.downcast_ref(), Some(ClientError::Problem(problem)) if problem.code != "push_cut");
    if answered || matches!(upload.downcast_ref(), Some(ClientError::NoNode(_))) {
        return upload;
    }
    match packed {
        Err(packing) if packing.downcast_ref::<Unwanted>().is_none() => packing,
        _ => upload,
    }
}

type Chunks = std::pin::Pin<Box<dyn futures_util::Stream<Item = io::Result<Bytes>> + Send>>;

/// Packs the source on a thread of its own, at most a few pieces ahead of the socket.
fn pack(source: Source) -> (Chunks, tokio::task::JoinHandle<anyhow::Result<Vec<String>>>) {
    let (sender, receiver) = mpsc::channel(CHUNKS_WAITING_MAX);
    let packed = runtime::task::spawn_blocking(move || {
        let mut chunks = ChunkWriter { sender, buffer: Vec::with_capacity(CHUNK_BYTES) };
        let written = source
            .write(&mut chunks)
            .and_then(|late| chunks.flush().map(|()| late).map_err(Into::into));
        if written.is_err() {
            // The stream must end as broken, not as complete.
            let broken = io::Error::other("the source could not be packed");
            chunks.sender.blocking_send(Err(broken)).ok();
        }
        written.context("the source cannot be packed")
    });
    let chunks = futures_util::stream::unfold(receiver, |mut receiver| async {
        Some((receiver.recv().await?, receiver))
    });
    (Box::pin(chunks), packed)
}

/// The error that the node stopped reading; the node's own answer says why.
#[derive(Debug, thiserror::Error)]
#[error("the node stopped reading")]
struct Unwanted;

struct ChunkWriter {
    sender: mpsc::Sender<io::Result<Bytes>>,
    buffer: Vec<u8>,
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(CHUNK_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..count]);
        if self.buffer.len() == CHUNK_BYTES {
            self.flush()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let full = std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK_BYTES));
        self.sender.blocking_send(Ok(full.into())).map_err(|_| io::Error::other(Unwanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frameworks_read_well() {
        assert_eq!(application_of("python"), "Python app");
        assert_eq!(application_of(""), " app");
    }
}
