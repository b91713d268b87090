//! `cortex store export` and `import`: the whole store as one file, or through a pipe.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;

use super::super::{Session, output};
use client::transfer::{self, Verified};

/// The step in percent in which progress is shown while a large store is imported.
const PROGRESS_STEP_PERCENT: u64 = 10;

#[derive(Debug, Args)]
pub struct Export {
    /// The file to write; '-' for stdout
    file: PathBuf,
    /// Only the keys under this prefix
    #[arg(long, default_value = "", hide_default_value = true)]
    prefix: String,
}

#[derive(Debug, Args)]
pub struct Import {
    /// What `cortex store export` wrote; '-' for stdin
    file: PathBuf,
}

fn is_standard(file: &Path) -> bool {
    file.as_os_str() == "-"
}

impl Export {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        if is_standard(&self.file) {
            let mut out = std::io::stdout().lock();
            let totals = transfer::export(&session.client, &self.prefix, &mut out).await?;
            output::say(&format!("Exported {}", count(totals.keys, totals.bytes)));
            return Ok(());
        }
        output::begin("Exporting");
        let written = output::finish(self.write(session).await)?;
        output::say(&format!("done, {written} in {}", self.file.display()));
        Ok(())
    }

    /// Writes the export; the file gets its name once it is whole.
    async fn write(&self, session: &Session) -> anyhow::Result<String> {
        let mut part = self.file.clone().into_os_string();
        part.push(".part");
        let part = PathBuf::from(part);
        let cannot = || format!("{} cannot be written", part.display());
        let mut out = private().truncate(true).open(&part).with_context(cannot)?;
        let exported = transfer::export(&session.client, &self.prefix, &mut out).await;
        let finished = exported.and_then(|totals| {
            out.sync_all().with_context(cannot)?;
            std::fs::rename(&part, &self.file).with_context(|| {
                format!("{} cannot be named {}", part.display(), self.file.display())
            })?;
            Ok(count(totals.keys, totals.bytes))
        });
        if finished.is_err() {
            std::fs::remove_file(&part).ok();
        }
        finished
    }
}

impl Import {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let name = if is_standard(&self.file) { "stdin".into() } else { self.named() };
        let file = if is_standard(&self.file) {
            spool(session.layout.root())?
        } else {
            File::open(&self.file).with_context(|| format!("{name} cannot be read"))?
        };
        let verified = transfer::verify(file).with_context(|| {
            format!("nothing was imported from {name}, and nothing in the store was changed")
        })?;
        let Verified { totals, file_bytes, .. } = verified;
        output::begin(&format!("Importing {}", count(totals.keys, totals.bytes)));
        let mut shown = 0;
        let progress = |sent: u64| {
            let percent = (sent * 100).checked_div(file_bytes).unwrap_or(100);
            if percent >= shown + PROGRESS_STEP_PERCENT && percent < 100 {
                shown = percent - percent % PROGRESS_STEP_PERCENT;
                output::go_on(&format!("{shown}% "));
            }
        };
        let imported = transfer::import(&session.client, verified, progress).await;
        let imported = output::finish(imported)?;
        output::say(&format!("done, {} set", output::count(imported.keys, "key")));
        Ok(())
    }

    fn named(&self) -> String {
        self.file.display().to_string()
    }
}

fn count(keys: u64, bytes: u64) -> String {
    format!("{} with {}", output::count(keys, "key"), output::bytes(bytes))
}

/// Returns options for a file that only its owner can read: values hold passwords.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).write(true).mode(0o600);
    options
}

/// Copies all of stdin to a file without a name: it has to be read through before any of it counts.
fn spool(directory: &Path) -> anyhow::Result<File> {
    let path = directory.join(format!("import.{}", std::process::id()));
    let cannot = || format!("{} cannot be written; free space there", path.display());
    let mut file = private().read(true).create_new(true).open(&path).with_context(cannot)?;
    std::fs::remove_file(&path).with_context(cannot)?;
    std::io::copy(&mut std::io::stdin().lock().by_ref(), &mut file).with_context(cannot)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}
