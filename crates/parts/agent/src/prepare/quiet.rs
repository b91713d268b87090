//! The watch over steps that print nothing for a while: one line in the log says what such a step
//! is doing, so that the person who pushed can tell a slow network from a long computation. Looks
//! from outside; asks the step nothing.

use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use os::observe::{Activity, Snapshot, connections};
use os::platform_log;
use runtime::driver::Clock;

/// The silence before the first line: long enough for what is merely slow to print, short enough
/// for people who wait to wonder.
const SILENCE: Duration = Duration::from_secs(15);
/// The maximum silence before a further line: each line doubles the wait for the next one, up to
/// this.
const SILENCE_MAX: Duration = Duration::from_secs(5 * 60);
/// The interval at which the log is polled.
const POLL: Duration = Duration::from_secs(1);

/// The activity over some time of silence.
#[derive(Clone, Debug, Default)]
struct Seen {
    over: Duration,
    cpu: Duration,
    delayed: Duration,
    processes: usize,
    on_disk: usize,
    connections: usize,
    cores: u32,
}

/// Writes into `log` whenever the tree of `pid` was quiet for too long, until it is dropped.
pub(super) async fn watch(log: PathBuf, pid: u32, clock: Clock) -> Infallible {
    let (mut bytes, mut quiet_since) = (size(&log), Instant::now());
    let (mut pause, mut before) = (SILENCE, (Instant::now(), activity(pid).await));
    loop {
        tokio::time::sleep(POLL).await;
        let now = size(&log);
        if now != bytes {
            (bytes, quiet_since, pause) = (now, Instant::now(), SILENCE);
            before = (Instant::now(), activity(pid).await);
            continue;
        }
        if before.0.elapsed() < pause {
            continue;
        }
        let after = activity(pid).await;
        if let Some(seen) = compared(pid, before.0.elapsed(), &before.1, &after).await {
            let quiet = quiet_since.elapsed().as_secs();
            let text = format!("(nothing printed for {quiet} s: {})", what(&seen));
            platform_log::append(&log, clock.now(), &text);
        }
        (bytes, before, pause) =
            (size(&log), (Instant::now(), after), (pause * 2).min(SILENCE_MAX));
    }
}

fn size(log: &Path) -> u64 {
    fs::metadata(log).map_or(0, |metadata| metadata.len())
}

async fn activity(pid: u32) -> Activity {
    let look = move || Snapshot::take().map(|snapshot| Activity::of(&snapshot, pid));
    let looked = runtime::task::spawn_blocking(look).await;
    looked.ok().and_then(Result::ok).unwrap_or_default()
}

/// Compares two samples of a tree; `None` if the tree is gone.
async fn compared(pid: u32, over: Duration, before: &Activity, after: &Activity) -> Option<Seen> {
    let look = move || Snapshot::take().map(|snapshot| connections(&snapshot, pid));
    let connections = runtime::task::spawn_blocking(look).await.ok()?.unwrap_or(0);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    (after.processes > 0).then(|| Seen {
        over,
        // Processes that ended take their processor time with them.
        cpu: after.cpu.saturating_sub(before.cpu),
        delayed: after.delayed.saturating_sub(before.delayed),
        processes: after.processes,
        on_disk: after.on_disk,
        connections,
        cores: u32::try_from(cores).unwrap_or(u32::MAX),
    })
}

fn what(seen: &Seen) -> String {
    let part = |time: Duration| time.as_secs_f64() / seen.over.as_secs_f64().max(0.001);
    let seconds = seen.cpu.as_secs_f64();
    if part(seen.cpu) >= 0.5 || (part(seen.cpu) >= 0.1 && part(seen.delayed) < 0.3) {
        let share = 100.0 * part(seen.cpu) / f64::from(seen.cores.max(1));
        return format!(
            "it computes, {seconds:.1} s of processor time in the last {:.0} s, {share:.0} % of \
             this machine",
            seen.over.as_secs_f64()
        );
    }
    if part(seen.delayed) >= 0.3 {
        return format!(
            "it waits for its turn on the processor, which other work on this machine uses; it got \
             {seconds:.1} s in the last {:.0} s",
            seen.over.as_secs_f64()
        );
    }
    match (seen.connections, seen.on_disk) {
        (1.., _) => {
            let plural = if seen.connections == 1 { "connection is" } else { "connections are" };
            format!("it waits for the network, {} {plural} open", seen.connections)
        }
        (0, 1..) => "it waits for the disk".into(),
        (0, 0) => {
            let plural = if seen.processes == 1 { "process sleeps" } else { "processes sleep" };
            format!(
                "it waits, {} {plural} and no connection to another machine is open",
                seen.processes
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(seen: Seen, expected: &str) {
        let seen = Seen { over: SILENCE, processes: 2, cores: 2, ..seen };
        assert!(what(&seen).contains(expected), "{}", what(&seen));
    }

    #[test]
    fn the_activity_of_a_quiet_step_is_told() {
        let seconds = Duration::from_secs_f64;
        check(
            Seen { cpu: seconds(15.0), ..Seen::default() },
            "15.0 s of processor time in the last 15 s, 50 %",
        );
        check(Seen { cpu: seconds(2.0), ..Seen::default() }, "it computes");
        let starved =
            Seen { cpu: seconds(2.0), delayed: seconds(12.0), connections: 1, ..Seen::default() };
        check(starved, "waits for its turn on the processor");
        check(Seen { connections: 1, ..Seen::default() }, "the network, 1 connection is open");
        check(Seen { connections: 3, on_disk: 1, ..Seen::default() }, "3 connections are open");
        check(Seen { on_disk: 1, ..Seen::default() }, "waits for the disk");
        check(Seen::default(), "2 processes sleep and no connection");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_step_is_reported_more_and_more_rarely() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("build.log");
        let watching = watch(log.clone(), std::process::id(), Clock::start());
        tokio::time::timeout(SILENCE * 8, watching).await.unwrap_err();
        let text = fs::read_to_string(&log).unwrap();
        assert!(text.lines().all(|line| line.contains("(nothing printed for ")), "{text}");
        // The lines come at 15, 45 and 105 seconds, as far as a busy machine lets the clock go on.
        assert!((1..=4).contains(&text.lines().count()), "{text}");
    }
}
