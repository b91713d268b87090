//! Logs of an application: the last lines of all its instances and of the platform, merged by time,
//! and then what follows.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use serde::Deserialize;
use tokio::sync::mpsc;

use super::Shared;
use super::follow::{self, Follower};
use super::problem::Problem;
use super::progress::ndjson;
use super::records;
use super::wire::LogLine;

/// What `heroku logs` shows.
const LINES_DEFAULT: usize = 100;
/// More than a person reads; the files themselves hold the rest.
const LINES_MAX: usize = 100_000;
/// The end of one file that is searched for lines.
const TAIL_BYTES_MAX: u64 = 8 * 1024 * 1024;
const POLL: Duration = Duration::from_millis(200);
/// Lines between the files and a slow terminal.
const LINES_WAITING_MAX: usize = 256;
/// The platform's own lines.
const PLATFORM: &str = "cortex";

#[derive(Debug, Default, Deserialize)]
pub struct LogQuery {
    #[serde(default)]
    lines: Option<usize>,
    #[serde(default)]
    follow: bool,
    /// `web`, `web.1` or `cortex`.
    #[serde(default)]
    process: Option<String>,
}

pub async fn lines(
    State(api): State<Shared>,
    Path(name): Path<String>,
    Query(query): Query<LogQuery>,
) -> Result<Response, Problem> {
    let app = records::require(&*api.store, &name).await?;
    let wanted = query.lines.unwrap_or(LINES_DEFAULT).min(LINES_MAX);
    let directory = api.layout.logs(&app.name);
    let (sender, receiver) = mpsc::channel(LINES_WAITING_MAX);
    let filter = query.process;
    let follow = query.follow;
    crate::task::spawn(async move {
        // Followers take their places first and the last lines are read up to there: nothing falls
        // between, and nothing is shown twice.
        let mut followers = BTreeMap::new();
        if follow {
            join(&mut followers, &directory, filter.as_deref(), Follower::from_end);
        }
        let positions: Positions = followers
            .iter_mut()
            .filter_map(|(path, follower)| Some((path.clone(), follower.position()?)))
            .collect();
        let (tail_directory, tail_filter) = (directory.clone(), filter.clone());
        let tail = crate::task::spawn_blocking(move || {
            tail(&tail_directory, tail_filter.as_deref(), wanted, &positions)
        });
        for line in tail.await.unwrap_or_default() {
            if sender.send(line).await.is_err() {
                return;
            }
        }
        if !follow {
            return;
        }
        while pass_on(&mut followers, &sender).await.is_ok() {
            tokio::select! {
                () = tokio::time::sleep(POLL) => {}
                () = sender.closed() => return,
            }
            join(&mut followers, &directory, filter.as_deref(), Follower::from_start);
        }
    });
    Ok(ndjson(receiver))
}

/// Up to where a file's lines are among the last ones; what comes after is followed.
type Positions = BTreeMap<PathBuf, u64>;

async fn pass_on(
    followers: &mut BTreeMap<PathBuf, Follower>,
    sender: &mpsc::Sender<LogLine>,
) -> Result<(), mpsc::error::SendError<LogLine>> {
    let mut fresh: Vec<LogLine> = followers.values_mut().flat_map(Follower::read).collect();
    sort(&mut fresh);
    for line in fresh {
        sender.send(line).await?;
    }
    followers.retain(|path, _| path.exists());
    Ok(())
}

fn join(
    followers: &mut BTreeMap<PathBuf, Follower>,
    directory: &FilePath,
    filter: Option<&str>,
    follow: fn(PathBuf, String) -> Follower,
) {
    for (path, source) in current_files(directory, filter) {
        followers.entry(path.clone()).or_insert_with(|| follow(path, source));
    }
}

/// `NAME.log` and the name; rotated files are not among them.
fn current_files(directory: &FilePath, filter: Option<&str>) -> Vec<(PathBuf, String)> {
    log_files(directory, filter).into_iter().filter(|(path, _)| is_current(path)).collect()
}

fn is_current(path: &FilePath) -> bool {
    path.extension().is_some_and(|extension| extension == "log")
}

/// Also rotated ones: `NAME.log.N`.
fn log_files(directory: &FilePath, filter: Option<&str>) -> Vec<(PathBuf, String)> {
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

/// The last `wanted` lines of all files together.
fn tail(
    directory: &FilePath,
    filter: Option<&str>,
    wanted: usize,
    positions: &Positions,
) -> Vec<LogLine> {
    let mut all = Vec::new();
    for (path, source) in log_files(directory, filter) {
        let end = positions.get(&path).copied();
        all.extend(last_lines(&path, &source, wanted, end));
    }
    sort(&mut all);
    let excess = all.len().saturating_sub(wanted);
    all.split_off(excess)
}

fn last_lines(path: &FilePath, source: &str, wanted: usize, end: Option<u64>) -> VecDeque<LogLine> {
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

/// Times of one format compare as text; lines of the same time stay in their file's order.
fn sort(lines: &mut [LogLine]) {
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
        let lines = tail(directory.path(), filter, wanted, &Positions::new());
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
        let lines = tail(directory.path(), Some("web.1"), 1, &positions);
        assert_eq!(lines[0].text, "  and more");
    }
}
