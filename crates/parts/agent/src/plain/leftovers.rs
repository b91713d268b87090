//! The leftovers in run directories, and those of shims that were killed. Blocking.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use anyhow::Context;
use model::Timestamp;
use rustix::process::{Pid, Signal};

use os::observe::Snapshot;
use os::observe::process::{self, is_alive};
use shim::message::VERSION;
use shim::record::{self, EXIT, ExitRecord, Holding, STATE};

/// The maximum time until a shim that is about to end has written `exit.json`.
const SHIM_END_WAIT: Duration = Duration::from_secs(2);
/// The maximum wait for processes to go after SIGKILL; processes that stay wait for a disk, and the
/// next start tries again.
const KILL_WAIT: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Returns `NAME/ID` of every run directory.
pub fn ids(run: &Path) -> anyhow::Result<Vec<String>> {
    let mut ids = Vec::new();
    for application in names(run)? {
        for id in names(&run.join(&application))? {
            ids.push(format!("{application}/{id}"));
        }
    }
    ids.sort_unstable();
    Ok(ids)
}

fn names(directory: &Path) -> anyhow::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => {
            entries.with_context(|| format!("cannot read directory {}", directory.display()))?
        }
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir()
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push(name);
        }
    }
    Ok(names)
}

/// Returns how the process of a run directory ended if its shim does not answer. Whatever still
/// runs of it is killed first, as nobody keeps its output, its exit or its limits any more.
pub fn bury(run: &Path) -> anyhow::Result<Option<ExitRecord>> {
    let state = run.join(STATE);
    let holding: Option<Holding> =
        record::read(&state).with_context(|| format!("cannot read {}", state.display()))?;
    let Some(holding) = holding else { return read_exit(run) };
    let deadline = Instant::now() + SHIM_END_WAIT;
    loop {
        if let Some(ended) = read_exit(run)? {
            return Ok(Some(ended));
        }
        if !is_alive(&holding.shim) {
            break;
        }
        if Instant::now() >= deadline {
            tracing::warn!(pid = holding.shim.pid, "shim.killed_as_it_does_not_answer");
            kill(holding.shim.pid);
            break;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    // It may have been written between the two looks.
    if let Some(ended) = read_exit(run)? {
        return Ok(Some(ended));
    }
    let how = match is_alive(&holding.process) {
        true => "its shim was killed, so Cortex stopped it",
        false => "ended unseen: its shim was killed, or the machine restarted",
    };
    kill_tree(&holding)?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ended = ExitRecord {
        v: VERSION,
        holding,
        how: how.to_owned(),
        success: false,
        code: None,
        last_words: String::new(),
        lease_over: false,
        over_cap: None,
        background: false,
        ended_at: Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
    };
    let exit = run.join(EXIT);
    record::write(&exit, &ended).with_context(|| format!("cannot write {}", exit.display()))?;
    Ok(Some(ended))
}

fn read_exit(run: &Path) -> anyhow::Result<Option<ExitRecord>> {
    let exit = run.join(EXIT);
    record::read(&exit).with_context(|| format!("cannot read {}", exit.display()))
}

/// Kills the tree below the main process, and its session. What left both cannot be told from other
/// processes once the shim is gone; nor can anything once the main process is.
fn kill_tree(holding: &Holding) -> anyhow::Result<()> {
    if !is_alive(&holding.process) {
        return Ok(());
    }
    let deadline = Instant::now() + KILL_WAIT;
    let mut targets = Vec::new();
    loop {
        let snapshot = Snapshot::take()?;
        for stat in snapshot.tree_and_session(holding.process.pid) {
            if !targets.contains(&(stat.pid, stat.start_ticks)) {
                targets.push((stat.pid, stat.start_ticks));
            }
        }
        targets.retain(|(pid, start_ticks)| {
            process::stat(*pid)
                .is_some_and(|stat| !stat.is_dead() && stat.start_ticks == *start_ticks)
        });
        if targets.is_empty() {
            return Ok(());
        }
        // The main process is killed last: it is what the others are found by.
        for (pid, _) in targets.iter().rev() {
            kill(*pid);
        }
        anyhow::ensure!(
            Instant::now() < deadline,
            "process {} does not end after SIGKILL; look at what it waits for",
            targets[0].0
        );
        std::thread::sleep(LOOK_AGAIN);
    }
}

fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}
