//! `cortex push [DIR]`.

mod chunks;
mod spooled;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use hyper::Method;
use model::ApplicationName;

use super::{App, Session, deploy, output};
use api_types::{ARCHIVE_BYTES_MAX, Released};
use chunks::{Chunks, Unwanted, pack};
use client::{ClientError, encode};
use source::{Source, Vcs};
use spooled::Spooled;

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
    warn(source.uncommitted.as_slice());
    warn(&source.warnings);
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
    let released = tokio::select! {
        released = send(session, Arc::new(source), name, &path) => released?,
        _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted: nothing was pushed"),
    };
    describe(&released);
    if released.unchanged {
        output::say(&format!("-----> {} is unchanged and serving", released.release));
        output::say("=====> Application deployed:");
        return released.url.as_deref().map_or(Ok(()), output::print);
    }
    deploy::follow(session, &released, deploy::Url::Printed).await
}

/// Sends the archive: to the node of this machine as it is packed, over a network what the cluster
/// does not have of it.
async fn send(
    session: &Session,
    source: Arc<Source>,
    name: &ApplicationName,
    path: &str,
) -> anyhow::Result<Released> {
    if !session.client.is_local()
        && let Some((spooled, late)) = Spooled::new(source.clone()).await?
    {
        warn(&late);
        return spooled.send(session, name, path).await;
    }
    let (chunks, packed) = pack(move |chunks| source.write(chunks, ARCHIVE_BYTES_MAX));
    let uploaded = upload(session, path, chunks).await;
    let packed = packed.await.unwrap_or_else(|error| Err(error.into()));
    warn(packed.as_deref().unwrap_or_default());
    uploaded.map_err(|error| cause(error, packed))
}

async fn upload(session: &Session, path: &str, chunks: Chunks) -> anyhow::Result<Released> {
    session.client.upload(Method::POST, path, chunks).await
}

fn warn(warnings: &[String]) {
    warnings.iter().for_each(|warning| output::say(&format!("Warning: {warning}")));
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
        output::remark(note);
    }
    for port in &released.ports {
        let (protocol, process) = (&port.protocol, &port.process);
        output::remark(&format!("{protocol} on {} leads to {process}", port.address));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frameworks_read_well() {
        assert_eq!(application_of("python"), "Python app");
        assert_eq!(application_of(""), " app");
    }
}
