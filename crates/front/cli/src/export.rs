//! `cortex export`: the whole cluster in one file, which a pass-phrase opens.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::json;
use tokio::time::Instant;

use super::pass_phrase::{PassPhrase, PassPhraseArgs};
use super::{Json, Session, output};
use api_types::backup::{ApplicationContents, FilesState};
use backup::archive::ArchiveWriter;
use client::transfer::{self, ClusterExported};

/// The time after which how much has come is said again.
const SAID_EVERY: Duration = Duration::from_secs(2);

const HELP: &str = "\
The file has applications, releases, sources, variables, domains, certificates, people, teams and
the hashes of tokens, and with --with-files what applications keep. It is in the format of `age`:
`age -d` opens it too. Bring it to an empty node with `cortex import FILE`.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Export {
    /// The file to write; '-' for stdout
    file: PathBuf,
    /// Also the files that applications keep, from the nodes that have them
    #[arg(long)]
    with_files: bool,
    /// Write everything, also passwords and private keys, as it is
    #[arg(long, conflicts_with = "passphrase_file")]
    plain: bool,
    #[command(flatten)]
    pass_phrase: PassPhraseArgs,
    #[command(flatten)]
    json: Json,
}

impl Export {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        ensure_here(session, "exported")?;
        let both = "stdout has either the file or the JSON";
        ensure!(!(self.json.json && is_standard(&self.file)), both);
        let phrase = match self.plain {
            true => None,
            false => Some(self.pass_phrase.choose().await?),
        };
        output::begin("Exporting");
        let exported = output::finish(self.write(session, phrase.as_ref()).await)?;
        let (exported, bytes) = exported;
        let place = match is_standard(&self.file) {
            true => "stdout".to_owned(),
            false => self.file.display().to_string(),
        };
        let applications = exported.contents.applications.len() as u64;
        output::say(&format!(
            "done, {} and {} in {place}, {}",
            output::count(applications, "application"),
            output::count(exported.totals.keys, "key"),
            output::bytes(bytes)
        ));
        not_asked_for(&exported).iter().for_each(|line| output::remark(line));
        missing(&exported).iter().for_each(|line| output::complain(line));
        if !self.json.json {
            return Ok(());
        }
        let left_out = exported.left_out.iter();
        let left_out = left_out.map(|(name, why)| json!({"application": name, "why": why}));
        output::json(&json!({
            "file": place,
            "bytes": bytes,
            "keys": exported.totals.keys,
            "contents": exported.contents,
            "left_out": left_out.collect::<Vec<_>>(),
        }))
    }

    /// Writes the export; the file gets its name once it is whole.
    async fn write(
        &self,
        session: &Session,
        phrase: Option<&PassPhrase>,
    ) -> anyhow::Result<(ClusterExported, u64)> {
        let phrase = phrase.map(PassPhrase::as_str);
        if is_standard(&self.file) {
            let writer = ArchiveWriter::begin(std::io::stdout(), phrase)?;
            return self.fill(session, writer).await;
        }
        let mut part = self.file.clone().into_os_string();
        part.push(".part");
        let part = PathBuf::from(part);
        let cannot = || format!("{} cannot be written", part.display());
        let filled = async {
            let file = private(&part).with_context(cannot)?;
            let writer = ArchiveWriter::begin(&file, phrase)?;
            let (exported, bytes) = self.fill(session, writer).await?;
            file.sync_all().with_context(cannot)?;
            std::fs::rename(&part, &self.file).with_context(|| {
                format!("{} cannot be named {}", part.display(), self.file.display())
            })?;
            Ok((exported, bytes))
        };
        let filled = filled.await;
        if filled.is_err() {
            std::fs::remove_file(&part).ok();
        }
        filled
    }

    async fn fill(
        &self,
        session: &Session,
        mut writer: ArchiveWriter<impl std::io::Write>,
    ) -> anyhow::Result<(ClusterExported, u64)> {
        let mut said = Instant::now();
        let progress = |come: u64| {
            if said.elapsed() >= SAID_EVERY {
                said = Instant::now();
                output::go_on(&format!("{} ", output::bytes(come)));
            }
        };
        let client = &session.client;
        let exported =
            transfer::export_cluster(client, self.with_files, &mut writer, progress).await?;
        let bytes = writer.finish()?;
        Ok((exported, bytes))
    }
}

/// Returns what is not in the export, though one could think so.
fn not_asked_for(exported: &ClusterExported) -> Vec<String> {
    let left =
        exported.contents.applications.iter().filter(|app| app.files == FilesState::NotAsked);
    let line = |app: &ApplicationContents| {
        let (name, node) = (&app.name, app.node.as_deref().unwrap_or_default());
        format!(
            "The files that {name} keeps on node {node} are not in it; --with-files takes them."
        )
    };
    left.map(line).collect()
}

/// Returns what is not in the export, though it was asked for.
fn missing(exported: &ClusterExported) -> Vec<String> {
    let away = exported.contents.applications.iter().filter(|app| app.files == FilesState::Away);
    let away = away.map(|app| {
        let (name, node) = (&app.name, app.node.as_deref().unwrap_or_default());
        format!(
            "The files that {name} keeps are not in it: node {node}, which has them, does not run. \
             Start it, and export again."
        )
    });
    let left_out = exported.left_out.iter().map(|(name, why)| {
        format!("The files that {name} keeps are not in it: {why}. Export again.")
    });
    away.chain(left_out).collect()
}

/// Refuses what only the node on this machine does.
pub fn ensure_here(session: &Session, what: &str) -> anyhow::Result<()> {
    let name = session.context.as_deref().unwrap_or("another platform");
    ensure!(
        session.client.is_local(),
        "a cluster is {what} on one of its nodes, by the account that the node runs as; commands \
         go to {name} now: log in to a node's machine, or use `--context local`"
    );
    Ok(())
}

pub fn is_standard(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// Creates a file that only its owner can read.
pub fn private(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).read(true).write(true).truncate(true).mode(0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_in_it_is_named() {
        let mut exported = ClusterExported::default();
        for (name, files) in [
            ("one", FilesState::None),
            ("two", FilesState::NotAsked),
            ("three", FilesState::Away),
            ("four", FilesState::Included),
        ] {
            let node = Some("n2".into());
            exported.contents.applications.push(ApplicationContents {
                name: name.into(),
                files,
                node,
            });
        }
        exported.left_out.push(("four".into(), "the disk broke".into()));
        let [remarks, problems] = [not_asked_for(&exported), missing(&exported)];
        assert_eq!((remarks.len(), problems.len()), (1, 2), "{remarks:?} {problems:?}");
        assert!(remarks[0].contains("two") && remarks[0].contains("--with-files"));
        assert!(problems[0].contains("three") && problems[0].contains("node n2"));
        assert!(problems[1].contains("four") && problems[1].contains("the disk broke"));
    }
}
