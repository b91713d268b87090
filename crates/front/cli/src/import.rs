//! `cortex import`: a whole cluster from one file into an empty one. The file is read through
//! before anything is sent; what it is decrypted to is never on a disk.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;

use super::export::{ensure_here, is_standard, private};
use super::pass_phrase::{PassPhrase, PassPhraseArgs};
use super::{Json, Session, output};
use api_types::backup::{ClusterImported, ImportReadiness};
use backup::archive::{Archive, Checked, Wrapping, wrapping_of};
use client::transfer;

/// The step in percent in which progress is shown.
const PROGRESS_STEP_PERCENT: u64 = 10;

const HELP: &str = "\
The node must be new: `cortex up` on an empty data directory, and other nodes join it afterwards.
Nothing is imported unless the whole file is good. Applications start once everything is there; they
are built anew from their sources. An import that was cut goes on when the same file is imported
again.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Import {
    /// What `cortex export` wrote; '-' for stdin
    file: PathBuf,
    #[command(flatten)]
    pass_phrase: PassPhraseArgs,
    #[command(flatten)]
    json: Json,
}

impl Import {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        ensure_here(session, "imported")?;
        let readiness: ImportReadiness = session.client.get("/v1/import").await?;
        if let (Some(has), None) = (&readiness.has, &readiness.under_way) {
            bail!(
                "nothing was imported: this cluster is not empty, it has {has}\n  import into a \
                 node that was just started: `cortex up --data-dir` with another directory; other \
                 nodes join it afterwards"
            );
        }
        let name = match is_standard(&self.file) {
            true => "stdin".to_owned(),
            false => self.file.display().to_string(),
        };
        let unchanged = || format!("nothing was imported from {name}");
        let (mut archive, checked) = self.checked(session).await.with_context(unchanged)?;
        let Checked { totals, hash, .. } = checked;
        let what =
            format!("{} with {}", output::count(totals.keys, "key"), output::bytes(totals.bytes));
        output::begin(&format!("Importing {what}"));
        let (all, mut shown) = (archive.file_bytes, 0);
        let progress = |sent: u64| {
            let percent = (sent * 100).checked_div(all).unwrap_or(100);
            if percent >= shown + PROGRESS_STEP_PERCENT && percent < 100 {
                shown = percent - percent % PROGRESS_STEP_PERCENT;
                output::go_on(&format!("{shown}% "));
            }
        };
        let read = move |pass: transfer::Pass<'_>| archive.read(pass);
        let imported = transfer::import_cluster(&session.client, &hash, read, progress).await;
        let imported = output::finish(imported)?;
        output::say(&format!(
            "done, {}",
            output::count(imported.applications.len() as u64, "application")
        ));
        for line in notes(&imported, &imported.node) {
            output::complain(&line);
        }
        if self.json.json {
            return output::json(&imported);
        }
        output::say("Applications are built and started; `cortex ps` shows how far they are.");
        Ok(())
    }

    /// Opens the file and reads it through.
    async fn checked(&self, session: &Session) -> anyhow::Result<(Archive, Checked)> {
        let mut file = match is_standard(&self.file) {
            true => {
                let both = "stdin has either the file or the pass-phrase";
                ensure!(!self.pass_phrase.is_stdin(), both);
                spool(session.layout.root())?
            }
            false => File::open(&self.file).context("it cannot be read")?,
        };
        let phrase = match wrapping_of(&mut file)? {
            Wrapping::PassPhrase => Some(self.pass_phrase.recall().await?),
            Wrapping::Plain => {
                let clear = "it is not encrypted, and would lie on the disk so: name it as a file";
                ensure!(!is_standard(&self.file), clear);
                None
            }
        };
        let mut archive = Archive::open(file, phrase.as_ref().map(PassPhrase::as_str))?;
        let checked = archive.check()?;
        Ok((archive, checked))
    }
}

/// Copies all of stdin to a file without a name, as it has to be read twice. It stays encrypted.
fn spool(directory: &Path) -> anyhow::Result<File> {
    let path = directory.join(format!("import.{}", std::process::id()));
    let cannot = || format!("{} cannot be written; free space there", path.display());
    let mut file = private(&path).with_context(cannot)?;
    std::fs::remove_file(&path).with_context(cannot)?;
    std::io::copy(&mut std::io::stdin().lock(), &mut file).with_context(cannot)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

/// Returns whose files did not come, though one could think so.
fn notes(imported: &ClusterImported, node: &str) -> Vec<String> {
    let line = |name: &String| {
        let files = imported.files.iter().find(|files| files.application == *name);
        let why = match files {
            None => String::new(),
            Some(files) => format!(" ({})", files.left_out.as_ref()?),
        };
        Some(format!(
            "The files that {name} keeps are not in the export{why}, and it waits for them. Put a \
             copy into DATA/apps/{name}/persist, then `cortex pin {name} {node} --without-files`."
        ))
    };
    imported.kept_files.iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use api_types::backup::FilesImported;

    #[test]
    fn files_that_did_not_come_are_named() {
        let files = vec![
            FilesImported { application: "b".into(), left_out: None },
            FilesImported { application: "c".into(), left_out: Some("n went away".into()) },
        ];
        let kept_files = ["b", "c", "d"].map(String::from).to_vec();
        let imported = ClusterImported { files, kept_files, ..ClusterImported::default() };
        let notes = notes(&imported, "n1");
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].contains(" c keeps") && notes[0].contains("n went away"));
        assert!(notes[1].contains(" d keeps") && notes[1].contains("pin d n1 --without-files"));
    }
}
