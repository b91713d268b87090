//! The place that a copy goes to: a directory that keeps the newest ones, or a command. It gets its
//! name in a directory once it is whole, and a command is told by its end of input.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use api_types::backup::FilesState;
use api_types::export::{ExportDecoder, ExportPiece, FormatError};
use bytes::Bytes;
use model::backup::{BackupPlace, BackupSettings};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::sync::mpsc;

use super::BackupContext;
use super::archive::ArchiveWriter;
use super::exporter::export_cluster;

/// The longest that a hook may take: a night, for a large cluster over a slow line.
const HOOK_MAX: Duration = Duration::from_secs(6 * 3600);
/// Bytes of what a hook says on stderr that are read: the reason why it failed.
const COMPLAINT_BYTES_MAX: u64 = 500;
/// The beginning, end and length of the names of copies: other files in the directory are none of
/// ours.
const NAME_BEGIN: &str = "cortex-";
const NAME_END: &str = "Z.age";
const NAME_LENGTH: usize = "cortex-20260101T000000Z.age".len();

#[derive(Debug, Default)]
pub struct Made {
    pub bytes: u64,
    /// Applications whose files are not in it, though they were to be.
    pub without_files: Vec<String>,
}

/// Makes a copy of that name.
pub async fn make(
    context: &BackupContext,
    settings: &BackupSettings,
    name: &str,
) -> anyhow::Result<Made> {
    let pieces = export_cluster(context.clone(), settings.with_files);
    let (settings, name) = (settings.clone(), name.to_owned());
    let making = runtime::task::spawn_blocking(move || match &settings.place {
        BackupPlace::Directory(directory) => {
            let made = into_directory(Path::new(directory), &name, &settings.pass_phrase, pieces)?;
            prune(Path::new(directory), settings.keep as usize);
            Ok(made)
        }
        BackupPlace::Hook(command) => to_hook(command, &name, &settings.pass_phrase, pieces),
    });
    making.await?
}

fn into_directory(
    directory: &Path,
    name: &str,
    pass_phrase: &str,
    pieces: mpsc::Receiver<Bytes>,
) -> anyhow::Result<Made> {
    // It is not made: it may be one that is not mounted.
    ensure!(directory.is_dir(), "{} is no directory: mount or make it", directory.display());
    let (part, path) = (directory.join(format!("{name}.part")), directory.join(name));
    let cannot = || format!("{} cannot be written", part.display());
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(0o600);
    let written = options.open(&part).with_context(cannot).and_then(|file| {
        let made = fill(&file, pass_phrase, pieces)?;
        file.sync_all().with_context(cannot)?;
        std::fs::rename(&part, &path).with_context(cannot)?;
        File::open(directory)?.sync_all()?;
        Ok(made)
    });
    if written.is_err() {
        std::fs::remove_file(&part).ok();
    }
    written
}

/// Removes the oldest copies, and what a crash left of one.
fn prune(directory: &Path, keep: usize) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let (mut copies, mut parts) = (Vec::new(), Vec::new());
    for name in names {
        match name.strip_suffix(".part") {
            Some(of) if is_copy(of) => parts.push(name),
            None if is_copy(&name) => copies.push(name),
            _ => {}
        }
    }
    copies.sort_unstable();
    let surplus = copies.len().saturating_sub(keep);
    for name in copies.iter().take(surplus).chain(&parts) {
        if let Err(error) = std::fs::remove_file(directory.join(name)) {
            tracing::warn!(name, %error, "backup.not_removed");
        }
    }
}

fn is_copy(name: &str) -> bool {
    name.len() == NAME_LENGTH && name.starts_with(NAME_BEGIN) && name.ends_with(NAME_END)
}

fn to_hook(
    hook: &str,
    name: &str,
    pass_phrase: &str,
    pieces: mpsc::Receiver<Bytes>,
) -> anyhow::Result<Made> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", hook]).env("CORTEX_BACKUP", name).process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().context("/bin/sh")?;
    let stdin = child.stdin.take().context("its stdin is piped")?;
    let (ended, limit) = channel::<()>();
    let group = Pid::from_child(&child);
    let watching = std::thread::spawn(move || {
        let late = limit.recv_timeout(HOOK_MAX) == Err(RecvTimeoutError::Timeout);
        if late {
            kill_process_group(group, Signal::KILL).ok();
        }
        late
    });
    let complaint = complaint(&mut child)?;
    let filled = fill(&stdin, pass_phrase, pieces);
    if filled.is_err() {
        // What has come so far must not look whole: it is over before it could see an end.
        kill_process_group(group, Signal::KILL).ok();
    }
    drop(stdin);
    let status = child.wait().context("the hook")?;
    drop(ended);
    ensure!(
        !watching.join().unwrap_or_default(),
        "the hook took more than {} hours",
        HOOK_MAX.as_secs() / 3600
    );
    // A process that it left behind may hold its output open: nothing more is waited for.
    let said = if complaint.is_finished() { complaint.join() } else { Ok(String::new()) };
    let said = said.unwrap_or_default();
    match filled {
        Ok(made) if status.success() => Ok(made),
        Ok(_) => bail!("the hook ended with {status} {said}"),
        Err(error) => Err(error.context(format!("the hook took not all of it {said}"))),
    }
}

/// Reads what a hook says to its end, or it would wait for somebody to read it.
fn complaint(child: &mut Child) -> anyhow::Result<std::thread::JoinHandle<String>> {
    let mut stderr = child.stderr.take().context("its stderr is piped")?;
    Ok(std::thread::spawn(move || {
        let mut said = Vec::new();
        (&mut stderr).take(COMPLAINT_BYTES_MAX).read_to_end(&mut said).ok();
        std::io::copy(&mut stderr, &mut std::io::sink()).ok();
        String::from_utf8_lossy(&said).trim().to_owned()
    }))
}

/// Encrypts what comes, and makes sure that all of it has come.
fn fill(
    out: impl Write,
    pass_phrase: &str,
    mut pieces: mpsc::Receiver<Bytes>,
) -> anyhow::Result<Made> {
    let mut writer = ArchiveWriter::begin(out, Some(pass_phrase))?;
    let (mut decoder, mut made) = (ExportDecoder::of_cluster(), Made::default());
    let mut application = None;
    while let Some(bytes) = pieces.blocking_recv() {
        decoder.push(&bytes, |piece| {
            match piece {
                ExportPiece::Contents(contents) => {
                    let away = contents.applications.into_iter();
                    let away = away.filter(|app| app.files == FilesState::Away);
                    made.without_files.extend(away.map(|app| app.name));
                }
                ExportPiece::Files(name) => application = Some(name.to_string()),
                ExportPiece::FilesEnd(Some(_)) => made.without_files.extend(application.take()),
                _ => {}
            }
            Ok::<(), FormatError>(())
        })?;
        writer.write_all(&bytes)?;
    }
    decoder.finish()?;
    let bytes = writer.finish()?;
    Ok(Made { bytes, ..made })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::Archive;
    use api_types::backup::Contents;
    use api_types::export::ExportEncoder;

    const PHRASE: &str = "correct horse battery staple";
    const NAME: &str = "cortex-20261128T030000Z.age";

    fn pieces(whole: bool) -> mpsc::Receiver<Bytes> {
        let (sender, receiver) = mpsc::channel(4);
        let (encoder, head) = ExportEncoder::begin_cluster(&Contents::default());
        sender.try_send(head.into()).unwrap();
        let end = if whole { encoder.end() } else { ExportEncoder::failure("it broke") };
        sender.try_send(end.into()).unwrap();
        receiver
    }

    #[test]
    fn a_directory_keeps_the_newest_and_nothing_that_failed() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        for other in ["cortex-20200101T000000Z.age.part", "cortex-2020.age", "mine"] {
            std::fs::write(at.join(other), "x").unwrap();
        }
        for day in 1..=4 {
            let name = format!("cortex-2026010{day}T030000Z.age");
            let made = into_directory(at, &name, PHRASE, pieces(true)).unwrap();
            assert_eq!(made.bytes, std::fs::metadata(at.join(&name)).unwrap().len());
            prune(at, 2);
        }
        let error = into_directory(at, NAME, PHRASE, pieces(false)).unwrap_err();
        assert!(error.to_string().contains("it broke"), "{error:#}");
        let entries = std::fs::read_dir(at).unwrap().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        let kept = ["cortex-20260103T030000Z.age", "cortex-20260104T030000Z.age"];
        assert_eq!(names, ["cortex-2020.age", kept[0], kept[1], "mine"]);
        let file = File::open(at.join(kept[1])).unwrap();
        Archive::open(file, Some(PHRASE)).unwrap().check().unwrap();
        let nowhere = into_directory(&at.join("no"), NAME, PHRASE, pieces(true)).unwrap_err();
        assert!(nowhere.to_string().contains("no directory"), "{nowhere:#}");
    }

    #[test]
    fn a_hook_gets_all_of_it_or_is_stopped() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        let hook = format!("cat > {0}; echo \"$CORTEX_BACKUP\" > {0}.name", out.display());
        let made = to_hook(&hook, NAME, PHRASE, pieces(true)).unwrap();
        assert_eq!(made.bytes, std::fs::metadata(&out).unwrap().len());
        let name = std::fs::read_to_string(out.with_extension("name")).unwrap();
        assert_eq!(name.trim(), NAME);
        let failed = |hook: &str, whole: bool| {
            format!("{:#}", to_hook(hook, NAME, PHRASE, pieces(whole)).unwrap_err())
        };
        let said = failed("cat > /dev/null; echo no room >&2; exit 3", true);
        assert!(said.contains("exit status: 3") && said.contains("no room"), "{said}");
        let hook = format!("cat > {0} && touch {0}.done", out.display());
        assert!(failed(&hook, false).contains("it broke"));
        assert!(!out.with_extension("done").exists(), "it does not see an end");
    }
}
