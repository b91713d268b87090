//! The logs of an application on this node: files that shims write, merged by time, the last lines
//! and then what follows. Also the output of a build. Must not know of other nodes.

pub mod follow;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use model::{ApplicationName, NodeId, ReleaseId, Rollout, RolloutPhase, TypedKey};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use self::follow::Follower;
use api_types::LogLine;
use store::{SharedStore, lookup_record};

/// The maximum number of lines of one answer: more than a person reads; the files themselves hold
/// the rest.
pub const LINES_MAX: usize = 100_000;
/// The number of bytes at the end of one file that are searched for lines.
const TAIL_BYTES_MAX: u64 = 8 * 1024 * 1024;
const POLL: Duration = Duration::from_millis(200);
/// The polling interval of a build's log, which is watched more closely.
const BUILD_POLL: Duration = Duration::from_millis(50);
/// The maximum number of lines between the files and a reader: a slow one makes the files wait.
const ITEMS_WAITING_MAX: usize = 256;
/// The source of the platform's own lines.
const PLATFORM: &str = "cortex";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LogSelection {
    pub lines: usize,
    #[serde(default)]
    pub follow: bool,
    /// The process type, instance or source: `web`, `web.1` or `cortex`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// The time before which lines are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Item {
    Line(LogLine),
    /// The mark after the last lines; what follows was printed since.
    Now,
}

/// Reads the last lines of the files in `directory`, and what follows if that is wanted.
pub fn read(directory: PathBuf, wanted: LogSelection) -> mpsc::Receiver<Item> {
    let (sender, receiver) = mpsc::channel(ITEMS_WAITING_MAX);
    runtime::task::spawn(async move { send(directory, wanted, sender).await.ok() });
    receiver
}

/// Sends what the steps of a release print on this node, until it is neither building it nor
/// running its release steps.
pub async fn follow_build(
    log: PathBuf,
    store: SharedStore,
    node: NodeId,
    application: ApplicationName,
    release: ReleaseId,
    sender: mpsc::Sender<Item>,
) -> anyhow::Result<()> {
    let mut follower = Follower::from_start(log, "build".into());
    let key = TypedKey::Rollout(application).key();
    loop {
        let rollout: Option<Rollout> = lookup_record(&*store, key.clone()).await?;
        let goes_on = rollout.is_some_and(|rollout| {
            let here = rollout.coordinator == node && rollout.target.as_ref() == Some(&release);
            here && is_in_steps(rollout.phase)
        });
        // The log is read after the state: what was printed before its end is there by now.
        loop {
            let lines = follower.read();
            if lines.is_empty() {
                break;
            }
            for line in lines {
                sender.send(Item::Line(line)).await?;
            }
        }
        if !goes_on {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(BUILD_POLL) => {}
            () = sender.closed() => return Ok(()),
        }
    }
}

/// Whether a rollout's coordinator may print in this phase.
pub fn is_in_steps(phase: RolloutPhase) -> bool {
    matches!(phase, RolloutPhase::Requested | RolloutPhase::Building | RolloutPhase::Releasing)
}

type Gone = mpsc::error::SendError<Item>;

async fn send(
    directory: PathBuf,
    wanted: LogSelection,
    sender: mpsc::Sender<Item>,
) -> Result<(), Gone> {
    // Followers take their places first and the last lines are read up to there: nothing falls
    // between, and nothing is shown twice.
    let mut followers = BTreeMap::new();
    if wanted.follow {
        join(&mut followers, &directory, wanted.process.as_deref(), Follower::from_end);
    }
    let positions: Positions = followers
        .iter_mut()
        .filter_map(|(path, follower)| Some((path.clone(), follower.position()?)))
        .collect();
    let (of, asked) = (directory.clone(), wanted.clone());
    let tail = runtime::task::spawn_blocking(move || tail(&of, &asked, &positions));
    for line in tail.await.unwrap_or_default() {
        sender.send(Item::Line(line)).await?;
    }
    sender.send(Item::Now).await?;
    if !wanted.follow {
        return Ok(());
    }
    loop {
        pass_on(&mut followers, &sender).await?;
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            () = sender.closed() => return Ok(()),
        }
        join(&mut followers, &directory, wanted.process.as_deref(), Follower::from_start);
    }
}

/// The positions up to which files' lines are among the last ones; what comes after is followed.
type Positions = BTreeMap<PathBuf, u64>;

async fn pass_on(
    followers: &mut BTreeMap<PathBuf, Follower>,
    sender: &mpsc::Sender<Item>,
) -> Result<(), Gone> {
    let mut fresh: Vec<LogLine> = followers.values_mut().flat_map(Follower::read).collect();
    sort(&mut fresh);
    for line in fresh {
        sender.send(Item::Line(line)).await?;
    }
    followers.retain(|path, _| path.exists());
    Ok(())
}

fn join(
    followers: &mut BTreeMap<PathBuf, Follower>,
    directory: &Path,
    filter: Option<&str>,
    follow: fn(PathBuf, String) -> Follower,
) {
    for (path, source) in current_files(directory, filter) {
        followers.entry(path.clone()).or_insert_with(|| follow(path, source));
    }
}

/// Returns files `NAME.log` with their names; rotated files are not among them.
fn current_files(directory: &Path, filter: Option<&str>) -> Vec<(PathBuf, String)> {
    log_files(directory, filter).into_iter().filter(|(path, _)| is_current(path)).collect()
}

fn is_current(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "log")
}

/// Returns all files, also rotated ones: `NAME.log.N`.
fn log_files(directory: &Path, filter: Option<&str>) -> Vec<(PathBuf, String)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<(PathBuf, String)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (source, rest) = name.rsplit_once(".log")?;
            let rotated = rest.is_empty() || rest[1..].bytes().all(|byte| byte.is_ascii_digit());
            let shown = rotated && !source.starts_with("build.") && matches(source, filter);
            shown.then(|| (entry.path(), source.to_string()))
        })
        .collect();
    files.sort();
    files
}

fn matches(source: &str, filter: Option<&str>) -> bool {
    match filter {
        None => true,
        Some(filter) => {
            source == filter
                || source.strip_prefix(filter).is_some_and(|rest| {
                    source != PLATFORM
                        && rest.strip_prefix('.').is_some_and(|slot| !slot.is_empty())
                })
        }
    }
}

/// Returns the last `wanted` lines of all files together.
fn tail(directory: &Path, wanted: &LogSelection, positions: &Positions) -> Vec<LogLine> {
    let mut all = Vec::new();
    let count = wanted.lines.min(LINES_MAX);
    for (path, source) in log_files(directory, wanted.process.as_deref()) {
        let end = positions.get(&path).copied();
        all.extend(last_lines(&path, &source, count, end));
    }
    if wanted.after.is_some() {
        all.retain(|line| line.time >= wanted.after);
    }
    sort(&mut all);
    let excess = all.len().saturating_sub(count);
    all.split_off(excess)
}

fn last_lines(path: &Path, source: &str, wanted: usize, end: Option<u64>) -> VecDeque<LogLine> {
    let mut lines = VecDeque::new();
    let Ok(mut file) = File::open(path) else {
        return lines;
    };
    let size = end.unwrap_or_else(|| file.metadata().map_or(0, |metadata| metadata.len()));
    let from = size.saturating_sub(TAIL_BYTES_MAX);
    if file.seek(SeekFrom::Start(from)).is_err() {
        return lines;
    }
    let mut reader = BufReader::new(file.take(size - from));
    let mut bytes = Vec::new();
    let mut torn = from > 0;
    while reader.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
        if !std::mem::take(&mut torn) {
            let mut line = follow::line(&bytes, source);
            line.time =
                line.time.or_else(|| lines.back().and_then(|last: &LogLine| last.time.clone()));
            lines.push_back(line);
            if lines.len() > wanted {
                lines.pop_front();
            }
        }
        bytes.clear();
    }
    lines
}

/// Sorts lines by time. Times of one format compare as text; lines of the same time stay in their
/// file's order.
pub fn sort(lines: &mut [LogLine]) {
    lines.sort_by(|a, b| a.time.cmp(&b.time));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("web.1.log.1", "2026-08-01T12:00:00.000Z oldest\n"),
            ("web.1.log", "2026-08-01T12:00:02.000Z b\n  and more\n2026-08-01T12:00:05.000Z e\n"),
            ("web.11.log", "2026-08-01T12:00:03.000Z c\n"),
            ("worker.1.log", "2026-08-01T12:00:04.000Z d\n"),
            ("cortex.log", "2026-08-01T12:00:01.000Z a\n"),
            ("build.v1.n1.log", "2026-08-01T12:00:01.500Z hidden\n"),
        ] {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        directory
    }

    fn check(filter: Option<&str>, wanted: usize, expected: &[&str]) {
        let directory = directory();
        let process = filter.map(str::to_string);
        let asked = LogSelection { lines: wanted, process, ..LogSelection::default() };
        let lines = tail(directory.path(), &asked, &Positions::new());
        let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(texts, expected, "{filter:?}");
    }

    #[test]
    fn logs_are_merged_by_time() {
        check(None, 100, &["oldest", "a", "b", "  and more", "c", "d", "e"]);
        check(None, 2, &["d", "e"]);
        check(Some("web"), 100, &["oldest", "b", "  and more", "c", "e"]);
        check(Some("web.1"), 100, &["oldest", "b", "  and more", "e"]);
        check(Some("cortex"), 100, &["a"]);
        check(Some("nothing"), 100, &[]);
        check(None, 0, &[]);
    }

    #[test]
    fn what_is_followed_is_not_among_the_last_lines() {
        let directory = directory();
        let first = "2026-08-01T12:00:02.000Z b\n  and more\n".len() as u64;
        let positions = [(directory.path().join("web.1.log"), first)].into();
        let process = Some("web.1".to_string());
        let asked = LogSelection { lines: 1, process, ..LogSelection::default() };
        let lines = tail(directory.path(), &asked, &positions);
        assert_eq!(lines[0].text, "  and more");
    }

    #[test]
    fn what_was_seen_before_is_not_read_again() {
        let directory = directory();
        let after = Some("2026-08-01T12:00:04.000Z".to_string());
        let asked = LogSelection { lines: 100, after, ..LogSelection::default() };
        let lines = tail(directory.path(), &asked, &Positions::new());
        let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(texts, ["d", "e"]);
    }
}
