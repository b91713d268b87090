//! Processes that a measurement starts: bound to one core, found by id and stopped by id; and how
//! much processor time and memory they use, from `/proc`.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use super::interrupted::Interrupted;
use os::observe::process as observe;

const START_TIME_MAX: Duration = Duration::from_secs(20);
/// The time that a process gets to stop before it is killed.
const STOP_TIME_MAX: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(10);
/// The directories in which servers are looked for, often outside an ordinary user's search path.
const PROGRAM_DIRECTORIES: [&str; 5] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/bin"];
/// The number of bytes at the end of a log that an error shows.
const LAST_WORDS_BYTES_MAX: usize = 2000;

pub fn find(program: &str) -> Option<PathBuf> {
    PROGRAM_DIRECTORIES
        .iter()
        .map(|place| Path::new(place).join(program))
        .find(|path| path.is_file())
}

pub fn on_loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Returns a port that was free a moment ago. If another process takes it meanwhile, the start
/// fails with a clear message.
pub fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind(on_loopback(0)).context("no port is free on loopback")?;
    Ok(listener.local_addr()?.port())
}

/// Runs a command and returns what it printed; an error if it failed.
pub fn output_of(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{name} cannot be started"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} failed, {}: {text}{errors}", output.status);
    Ok(text)
}

/// A process that is stopped with its children when it is dropped.
pub struct Process {
    name: String,
    child: Child,
    /// The file that it writes to; `None` if its last words come through a pipe.
    log: Option<PathBuf>,
}

impl Process {
    /// Starts it; `core` is the only one that it and its children run on, `None` on a machine with
    /// only one.
    pub fn start(
        name: &str,
        command: &mut Command,
        core: Option<usize>,
    ) -> anyhow::Result<Process> {
        let start = || command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = on_core(core, start)?.with_context(|| format!("{name} cannot be started"))?;
        Ok(Process { name: name.into(), child, log: None })
    }

    /// Starts a process that writes more than a pipe holds: all of its output goes to `log`.
    pub fn start_logging(
        name: &str,
        command: &mut Command,
        log: PathBuf,
    ) -> anyhow::Result<Process> {
        let file =
            File::create(&log).with_context(|| format!("{} cannot be made", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("{name} cannot be started"))?;
        Ok(Process { name: name.into(), child, log: Some(log) })
    }

    /// Waits until something accepts connections at `address`.
    pub fn wait_for(
        &mut self,
        address: SocketAddr,
        interrupted: &Interrupted,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_TIME_MAX;
        while TcpStream::connect(address).is_err() {
            interrupted.check()?;
            if let Some(status) = self.child.try_wait()? {
                let words = self.last_words();
                bail!("{} ended at once, {status}: {words}", self.name);
            }
            if Instant::now() > deadline {
                bail!("{} did not listen on {address} in {START_TIME_MAX:?}", self.name);
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Returns an error once the process has ended.
    pub fn check(&self) -> anyhow::Result<()> {
        let pid = Pid::from_raw(self.child.id() as i32).context("a process has a number")?;
        let asked = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pid(pid), asked)? {
            None => Ok(()),
            Some(_) => bail!("{} ended", self.name),
        }
    }

    /// Returns the last words of a process that ended.
    fn last_words(&mut self) -> String {
        if let Some(log) = &self.log {
            let bytes = fs::read(log).unwrap_or_default();
            let end = &bytes[bytes.len().saturating_sub(LAST_WORDS_BYTES_MAX)..];
            return String::from_utf8_lossy(end).trim().into();
        }
        let text = self.child.stderr.take().map(io::read_to_string);
        text.and_then(Result::ok).unwrap_or_default().trim().into()
    }

    /// Returns what it and its children use, including what children used that have ended.
    pub fn usage(&self) -> anyhow::Result<Usage> {
        let parent = self.child.id();
        let mut usage = Usage::default();
        for pid in family(parent)? {
            let added = usage.add(pid);
            // The time of a child that ended meanwhile is in its parent's sum the next time.
            if pid == parent {
                added.with_context(|| format!("what {} uses", self.name))?;
            }
        }
        Ok(usage)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The children are listed first: a master that is told to end tells them, one that is
        // killed does not.
        let family = family(self.child.id()).unwrap_or_default();
        signal(self.child.id(), Signal::TERM);
        if ended_within(&mut self.child, STOP_TIME_MAX).is_none() {
            family.iter().for_each(|pid| signal(*pid, Signal::KILL));
            self.child.wait().ok();
        }
    }
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // The process may have ended meanwhile.
    pid.map(|pid| kill_process(pid, signal).ok());
}

fn ended_within(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL),
            Ok(status) => return status,
            Err(_) => return None,
        }
    }
}

/// Runs `start` bound to `core`: a child inherits the cores of the thread that starts it.
pub fn on_core<T>(core: Option<usize>, start: impl FnOnce() -> T) -> anyhow::Result<T> {
    let Some(core) = core else { return Ok(start()) };
    let before = sched_getaffinity(None)?;
    let mut one = CpuSet::new();
    one.set(core);
    sched_setaffinity(None, &one).context("no process can be bound to a core here")?;
    let started = start();
    sched_setaffinity(None, &before)?;
    Ok(started)
}

/// Returns the cores that this process may run on.
pub fn cores() -> anyhow::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect())
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    pub cpu_seconds: f64,
    pub resident_kb: u64,
}

impl Usage {
    fn add(&mut self, pid: u32) -> anyhow::Result<()> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let ticks = cpu_ticks(&stat).context("/proc/PID/stat")?;
        self.cpu_seconds += ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        self.resident_kb += resident_kb(&status).context("/proc/PID/status")?;
        Ok(())
    }
}

/// Returns the user and kernel time of this process.
pub fn own_cpu_seconds() -> anyhow::Result<f64> {
    let mut usage = Usage::default();
    usage.add(std::process::id())?;
    Ok(usage.cpu_seconds)
}

/// Returns the resident memory of this process.
pub fn own_resident_kb() -> anyhow::Result<u64> {
    let mut usage = Usage::default();
    usage.add(std::process::id())?;
    Ok(usage.resident_kb)
}

/// Returns the user and kernel time of all threads of this process.
pub fn own_processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the user and kernel time, in ticks, of all threads of a process and of its children that
/// have ended.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks: Vec<u64> = fields.take(4).map_while(|field| field.parse().ok()).collect();
    (ticks.len() == 4).then(|| ticks.iter().sum())
}

fn resident_kb(status: &str) -> Option<u64> {
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Returns a process and its children; workers have no children of their own. Others come and go
/// meanwhile.
fn family(parent: u32) -> anyhow::Result<Vec<u32>> {
    let children = observe::pids()?
        .filter(|pid| observe::stat(*pid).is_some_and(|stat| stat.parent == parent));
    Ok([parent].into_iter().chain(children).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_belong_to_the_family() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let found = family(std::process::id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found[0], std::process::id());
        assert!(found.contains(&child.id()), "{found:?}");
    }

    #[test]
    fn times_are_read_past_odd_names() {
        let stat = "7 (a) b) S 3 7 7 0 -1 4 1 0 0 0 250 130 9 9 20 0 1 0";
        assert_eq!(cpu_ticks(stat), Some(398));
        assert_eq!(cpu_ticks("7 (a) S 3"), None);
        assert_eq!(resident_kb("Name:\ta\nVmRSS:\t  5120 kB\n"), Some(5120));
    }

    #[test]
    fn a_process_is_on_its_core_and_ends_with_its_owner() {
        let core = *cores().unwrap().last().unwrap();
        let mut command = Command::new("sleep");
        let process = Process::start("sleep", command.arg("600"), Some(core)).unwrap();
        let pid = Pid::from_raw(process.child.id().try_into().unwrap());
        let allowed = sched_getaffinity(pid).unwrap();
        assert!(allowed.is_set(core) && allowed.count() == 1);
        assert!(process.usage().unwrap().resident_kb > 0);
        drop(process);
        assert!(rustix::process::test_kill_process(pid.unwrap()).is_err());
        assert!(cores().unwrap().contains(&core));
    }

    #[test]
    fn the_last_words_are_in_the_log_and_ended_children_count() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "(i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done); sleep 600"]);
        let log = directory.path().join("log");
        let process = Process::start_logging("sh", &mut command, log.clone()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while process.usage().unwrap().cpu_seconds < 0.02 {
            assert!(Instant::now() < deadline, "the child's time is counted");
            std::thread::sleep(POLL);
        }
        drop(process);

        let mut command = Command::new("sh");
        command.args(["-c", "echo out of luck; exit 3"]);
        let mut process = Process::start_logging("sh", &mut command, log).unwrap();
        let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
        let error = process.wait_for(nobody, &Interrupted::default()).unwrap_err().to_string();
        assert!(error.contains("out of luck"), "{error}");
    }

    #[test]
    fn one_that_ends_at_once_is_told_with_its_last_words() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such luck >&2; exit 3"]);
        let mut process = Process::start("sh", &mut command, None).unwrap();
        let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
        let error = process.wait_for(nobody, &Interrupted::default()).unwrap_err().to_string();
        assert!(error.contains("no such luck"), "{error}");
    }
}
