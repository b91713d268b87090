//! The shim's only loop: it waits for its connections, its child, the child's output and its own
//! deadlines, and decides what is due. Everything else here is told by it what to do.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, io};

use agent_core::lease::{LEASE_GRACE, Lease};
use anyhow::Context;
use model::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, WaitStatus};

use super::cap::CapWatch;
use super::child;
use super::connection::NodeConnection;
use super::log::{FILE_BYTES_MAX, LogFile};
use super::message::{Attachment, ShimCommand, ShimRequest, Tell, VERSION};
use super::output::{Output, PipeState, now_ms};
use super::record::{self, ExitRecord, Holding};
use super::tree::{self, Reaped};
use crate::sandbox::{self, Ending};
use crate::spec::{Attached, LaunchSpec};
use os::observe::process;

/// The maximum number of connections: a node, its successor and a few commands; further ones wait
/// in the listener's queue.
const CONNECTIONS_MAX: usize = 8;
/// The maximum wait for the command to launch; the node that started this shim may have died before
/// it sent that.
const LAUNCH_WAIT: Duration = Duration::from_secs(30);
/// The time in which nodes that connect are told about the end; later ones read `exit.json`.
const ENDED_WAIT: Duration = Duration::from_secs(3600);
/// The grace for what a process that ended by itself left behind.
const LEFTOVER_GRACE: Duration = Duration::from_secs(2);
/// The maximum interval at which orphans are reaped and the files checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The interval while a tree is being stopped: descendants beside the main process end without a
/// signal to us.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// The interval between two rounds of SIGKILL: fast at first, as children may fork meanwhile; then
/// slow, as what is left waits for a disk.
const KILL_INTERVAL_MIN: Duration = Duration::from_millis(2);
const KILL_INTERVAL_MAX: Duration = Duration::from_millis(500);
/// The number of checks that must agree that the run directory was removed.
const VANISHED_CHECKS: u32 = 2;

pub fn run(run: PathBuf, socket: PathBuf, listener: UnixListener) -> anyhow::Result<()> {
    listener.set_nonblocking(true)?;
    let socket_inode = fs::metadata(&socket).map(|metadata| metadata.ino()).ok();
    let mut shim = Shim {
        run,
        socket,
        socket_inode,
        listener,
        connections: Vec::new(),
        phase: Phase::Waiting { until: Instant::now() + LAUNCH_WAIT },
        check_at: Instant::now() + CHECK_INTERVAL,
        vanished_checks: 0,
    };
    while !matches!(shim.phase, Phase::Gone) {
        let ready = shim.wait()?;
        if ready.listener {
            shim.accept();
        }
        if ready.output {
            shim.read_output();
        }
        shim.serve(&ready.connections);
        shim.step();
    }
    Ok(())
}

struct Shim {
    run: PathBuf,
    socket: PathBuf,
    /// The socket's inode; `None` when it could not be told, and then it is bound anew at the next
    /// check.
    socket_inode: Option<u64>,
    listener: UnixListener,
    connections: Vec<NodeConnection>,
    phase: Phase,
    check_at: Instant,
    vanished_checks: u32,
}

enum Phase {
    Waiting {
        until: Instant,
    },
    Running(Box<Running>),
    /// It lasts until it is forgotten. `written` says whether `exit.json` is on disk.
    Ended {
        ended: Box<ExitRecord>,
        written: bool,
        until: Instant,
    },
    Gone,
}

struct Running {
    holding: Holding,
    main: Pid,
    /// Readable once the main process has ended; `None` on kernels before 5.3, and after the end.
    main_end: Option<OwnedFd>,
    status: Option<WaitStatus>,
    /// The pipe that tells how the program of a sandbox ended.
    report: Option<OwnedFd>,
    output: Output,
    output_open: bool,
    /// The start of the clock by which the lease is kept.
    started: Instant,
    lease: Lease,
    lease_over: bool,
    watch: Option<CapWatch>,
    over_cap: Option<String>,
    background: bool,
    stopping: Option<Stopping>,
}

struct Stopping {
    kill_at: Instant,
    /// The pause before the next SIGKILL; `None` until the first was sent.
    kill_interval: Option<Duration>,
}

/// The descriptors that are ready.
struct Ready {
    listener: bool,
    output: bool,
    connections: Vec<bool>,
}

impl Shim {
    fn wait(&self) -> anyhow::Result<Ready> {
        let running = match &self.phase {
            Phase::Running(running) => Some(running),
            _ => None,
        };
        let mut fds: Vec<PollFd<'_>> =
            self.connections.iter().map(|one| PollFd::new(&one.stream, PollFlags::IN)).collect();
        let room = self.connections.len() < CONNECTIONS_MAX;
        let listen = if room { PollFlags::IN } else { PollFlags::empty() };
        fds.push(PollFd::new(&self.listener, listen));
        let output = running.filter(|running| running.output_open);
        if let Some(running) = output {
            fds.push(PollFd::new(&running.output.pipe, PollFlags::IN));
        }
        if let Some(end) = running.and_then(|running| running.main_end.as_ref()) {
            fds.push(PollFd::new(end, PollFlags::IN));
        }
        let wait = self.deadline().saturating_duration_since(Instant::now());
        // The wait is rounded up, so that the deadline has passed on return.
        let wait = Timespec::try_from(wait + Duration::from_micros(100))?;
        match rustix::event::poll(&mut fds, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for events"),
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        let connections = ready.by_ref().take(self.connections.len()).collect();
        let listener = ready.next().unwrap_or(false);
        Ok(Ready { connections, listener, output: output.is_some() && ready.next() == Some(true) })
    }

    fn deadline(&self) -> Instant {
        let now = Instant::now();
        let own = match &self.phase {
            Phase::Waiting { until } | Phase::Ended { until, .. } => *until,
            Phase::Gone => now,
            Phase::Running(running) => match &running.stopping {
                // Nothing wakes the loop when the main process ends, or it has ended.
                None if running.main_end.is_none() => now + STOP_CHECK_INTERVAL,
                None => running.next_look(self.check_at),
                Some(Stopping { kill_interval: Some(interval), .. }) => now + *interval,
                Some(Stopping { kill_at, .. }) => (*kill_at).min(now + STOP_CHECK_INTERVAL),
            },
        };
        own.min(self.check_at)
    }

    fn accept(&mut self) {
        let Ok((stream, _)) = self.listener.accept() else { return };
        let Some(mut connection) = NodeConnection::accept(stream) else { return };
        if connection.tell(self.state()).is_ok() {
            self.heard();
            self.connections.push(connection);
        }
    }

    fn state(&self) -> Tell {
        match &self.phase {
            Phase::Waiting { .. } | Phase::Gone => Tell::Waiting,
            Phase::Running(running) => Tell::Running { holding: running.holding.clone() },
            Phase::Ended { ended, .. } => Tell::Ended { ended: (**ended).clone() },
        }
    }

    fn serve(&mut self, ready: &[bool]) {
        let mut connections = std::mem::take(&mut self.connections);
        let mut ready = ready.iter().copied().chain(std::iter::repeat(false));
        connections.retain_mut(|connection| {
            if ready.next() != Some(true) {
                return true;
            }
            // What came before the other side closed is still obeyed.
            let alive = connection.receive().is_ok();
            while let Some(request) = connection.next() {
                let tell = match request {
                    Ok(request) => self.obey(request, connection.take_descriptors()),
                    Err(why) => Tell::Refused { why },
                };
                if connection.tell(tell).is_err() {
                    return false;
                }
            }
            alive
        });
        // Nothing else adds connections while requests are obeyed.
        self.connections = connections;
    }

    fn heard(&mut self) {
        if let Phase::Running(running) = &mut self.phase {
            running.lease.heard(running.monotonic());
        }
    }

    fn obey(&mut self, request: ShimRequest, descriptors: Vec<OwnedFd>) -> Tell {
        self.heard();
        match (request.ask, &mut self.phase) {
            (ShimCommand::Launch { spec, lease_ms, attached }, Phase::Waiting { .. }) => {
                let launched = attach(attached, descriptors)
                    .and_then(|attached| self.launch(spec, lease_ms, attached));
                match launched {
                    Ok(()) => self.state(),
                    Err(error) => {
                        self.go();
                        Tell::Failed { why: format!("{error:#}") }
                    }
                }
            }
            (ShimCommand::Launch { .. }, _) => {
                Tell::Refused { why: "this shim launched already".into() }
            }
            (ShimCommand::Signal { signal }, Phase::Running(running)) => {
                running.signal(signal);
                Tell::Signalled
            }
            (ShimCommand::Signal { .. }, _) => Tell::Signalled,
            (ShimCommand::Stop { grace_ms }, Phase::Running(running)) => {
                running.stop(Duration::from_millis(grace_ms));
                Tell::Stopping
            }
            (ShimCommand::Stop { .. }, _) => Tell::Stopping,
            (ShimCommand::Renew { lease_ms }, Phase::Running(running)) => {
                let limit = lease_ms.map(Duration::from_millis);
                running.lease.renew(limit, running.monotonic());
                Tell::Renewed
            }
            (ShimCommand::Renew { .. } | ShimCommand::Greet, _) => Tell::Renewed,
            (ShimCommand::Forget, Phase::Running(_)) => {
                Tell::Refused { why: "the process is still running; stop it first".into() }
            }
            (ShimCommand::Forget, _) => {
                self.go();
                Tell::Forgotten
            }
        }
    }

    fn launch(
        &mut self,
        spec: LaunchSpec,
        lease_ms: Option<u64>,
        attached: Option<Attached>,
    ) -> anyhow::Result<()> {
        if let Some(directory) = spec.log.parent() {
            // A missing log is no reason not to serve; its lines are counted as lost.
            let _ = fs::create_dir_all(directory);
        }
        let (purpose, cap) = (spec.purpose.clone(), spec.cap);
        let (port, ports) = (spec.port, spec.ports.clone());
        let log = LogFile::new(spec.log.clone(), FILE_BYTES_MAX);
        let started = child::start(spec, attached)?;
        let pid = started.child.id();
        let main = Pid::from_child(&started.child);
        // It is not reaped before this loop does so: the identity can be read even if it ended at
        // once.
        let holding = Holding {
            v: VERSION,
            purpose,
            process: process::identity(pid)?,
            port,
            ports,
            started_at: Timestamp(now_ms()),
            shim: process::identity(std::process::id())?,
            binary: std::env::current_exe()?,
        };
        let written = record::write(&self.run.join(record::STATE), &holding);
        let mut running = Running {
            holding,
            main,
            main_end: rustix::process::pidfd_open(main, PidfdFlags::empty()).ok(),
            status: None,
            report: started.report,
            output: Output::new(started.output, log),
            output_open: true,
            started: Instant::now(),
            lease: Lease::new(lease_ms.map(Duration::from_millis), Timestamp(0)),
            lease_over: false,
            watch: cap.map(|cap| CapWatch::new(cap, Instant::now())),
            over_cap: None,
            background: false,
            stopping: None,
        };
        if let Err(error) = written {
            // Nobody could adopt it.
            running.abandon();
            return Err(error).context("cannot write down what was started");
        }
        self.phase = Phase::Running(Box::new(running));
        Ok(())
    }

    fn read_output(&mut self) {
        if let Phase::Running(running) = &mut self.phase {
            running.output_open = running.output.read() != PipeState::Ended;
        }
    }

    fn step(&mut self) {
        let now = Instant::now();
        if now >= self.check_at {
            self.check_files();
            self.check_at = now + CHECK_INTERVAL;
        }
        let finished = match &mut self.phase {
            Phase::Running(running) => running.step(now),
            Phase::Waiting { until } | Phase::Ended { until, .. } if now >= *until => {
                self.go();
                false
            }
            _ => false,
        };
        if finished {
            self.end();
        }
    }

    fn end(&mut self) {
        let Phase::Running(running) = std::mem::replace(&mut self.phase, Phase::Gone) else {
            return;
        };
        let ended = running.end();
        let written = record::write(&self.run.join(record::EXIT), &ended).is_ok();
        self.connections
            .retain_mut(|connection| connection.tell(Tell::Ended { ended: ended.clone() }).is_ok());
        let until = Instant::now() + ENDED_WAIT;
        self.phase = Phase::Ended { ended: Box::new(ended), written, until };
    }

    /// Checks, once in a while, what others may have removed.
    fn check_files(&mut self) {
        let vanished = matches!(fs::metadata(&self.run),
            Err(error) if error.kind() == io::ErrorKind::NotFound);
        self.vanished_checks = if vanished { self.vanished_checks + 1 } else { 0 };
        if self.vanished_checks >= VANISHED_CHECKS {
            match &mut self.phase {
                // Without its directory no node will ever find it again.
                Phase::Running(running) => running.stop(LEFTOVER_GRACE),
                _ => self.go(),
            }
        }
        if let Phase::Ended { ended, written, .. } = &mut self.phase
            && !*written
        {
            *written = record::write(&self.run.join(record::EXIT), &**ended).is_ok();
        }
        let inode = fs::metadata(&self.socket).map(|metadata| metadata.ino());
        if inode.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
            || self.socket_inode.is_none()
        {
            self.listen_again();
        }
    }

    /// Listens again; directories for sockets are cleared by the system at times, for example at a
    /// logout.
    fn listen_again(&mut self) {
        let bound = self
            .socket
            .parent()
            .map_or(Ok(()), |directory| {
                use std::os::unix::fs::DirBuilderExt;
                fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
            })
            .and_then(|()| UnixListener::bind(&self.socket))
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
        if let Ok(listener) = bound {
            self.listener = listener;
            self.socket_inode = fs::metadata(&self.socket).map(|metadata| metadata.ino()).ok();
        }
    }

    /// Ends the loop. `exit.json` stays if nobody has taken note of it. The socket goes before
    /// anybody is told, as the same name may be bound again from then on.
    fn go(&mut self) {
        let _ = fs::remove_file(&self.socket);
        self.phase = Phase::Gone;
    }
}

fn attach(
    wanted: Option<Attachment>,
    descriptors: Vec<OwnedFd>,
) -> anyhow::Result<Option<Attached>> {
    let Some(wanted) = wanted else { return Ok(None) };
    let [stdin, stdout, stderr] = descriptors.try_into().map_err(|came: Vec<OwnedFd>| {
        anyhow::anyhow!("{} open files came along in place of three", came.len())
    })?;
    Ok(Some(Attached { terminal: wanted == Attachment::Terminal, stdin, stdout, stderr }))
}

impl Running {
    /// Returns the time since the start. It stands still while the machine is asleep, as the node
    /// process does.
    fn monotonic(&self) -> Timestamp {
        Timestamp(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn lease_end(&self) -> Option<Instant> {
        let end = self.lease.end()?;
        self.started.checked_add(Duration::from_millis(end.0))
    }

    /// Returns when something may have to be done, at the latest `limit`.
    fn next_look(&self, limit: Instant) -> Instant {
        let watch = self.watch.as_ref().map(CapWatch::next);
        self.lease_end().into_iter().chain(watch).fold(limit, Instant::min)
    }

    /// Signals the main process's group. That process is not reaped before its status is known
    /// here, so its pid is nobody else's.
    fn signal(&self, signal: i32) {
        if self.status.is_none()
            && let Some(signal) = Signal::from_named_raw(signal)
        {
            // The group may be gone but for a main process that nobody has reaped.
            let _ = rustix::process::kill_process_group(self.main, signal);
        }
    }

    /// Stops the tree. A shorter grace than before counts; a longer one does not.
    fn stop(&mut self, grace: Duration) {
        let kill_at = Instant::now() + grace;
        match &mut self.stopping {
            Some(stopping) => stopping.kill_at = stopping.kill_at.min(kill_at),
            None => {
                tree::signal_all(Signal::TERM);
                // A stopped process would not see it.
                tree::signal_all(Signal::CONT);
                self.stopping = Some(Stopping { kill_at, kill_interval: None });
            }
        }
    }

    /// Does what is due; true once no descendant is left.
    fn step(&mut self, now: Instant) -> bool {
        loop {
            match tree::reap() {
                Reaped::Child(pid, status) if pid == self.main => {
                    self.status = Some(status);
                    self.main_end = None;
                }
                Reaped::Child(..) => {}
                Reaped::NoneYet => break,
                Reaped::NoChildren => return true,
            }
        }
        if self.status.is_some() && self.stopping.is_none() {
            self.background = true;
            self.stop(LEFTOVER_GRACE);
        }
        if self.stopping.is_none() && self.lease.is_over(self.monotonic()) {
            self.lease_over = true;
            self.stop(LEASE_GRACE);
        }
        if self.stopping.is_none()
            && let Some(excess) = self.watch.as_mut().and_then(|watch| watch.look(now))
        {
            self.over_cap = Some(excess);
            // It grows while it is asked to end.
            self.stop(Duration::ZERO);
        }
        if let Some(stopping) = &mut self.stopping
            && now >= stopping.kill_at
        {
            tree::signal_all(Signal::KILL);
            let next = stopping.kill_interval.map_or(KILL_INTERVAL_MIN, |interval| interval * 2);
            stopping.kill_interval = Some(next.min(KILL_INTERVAL_MAX));
        }
        false
    }

    fn end(mut self) -> ExitRecord {
        // A stranger that was handed the pipe may hold it open for ever, so only what is there now
        // is read.
        while self.output_open && self.output.read() == PipeState::Open {}
        let killed_here = self.stopping.is_some_and(|stopping| stopping.kill_interval.is_some());
        let lease_over = self.lease_over;
        // The first process of a sandbox ends as its program did, but for signals.
        let ending =
            self.report.take().and_then(sandbox::ending).or(self.status.and_then(Ending::of));
        let mut how = ending.map_or_else(|| "ended".to_owned(), tree::describe);
        if lease_over {
            how.push_str(", stopped by its shim: the node was away for longer than the lease");
        } else if let Some(excess) = &self.over_cap {
            how = format!("stopped by its shim, as it {excess}");
        } else if !killed_here && ending == Some(Ending::Killed(9)) {
            how.push_str(", not by Cortex: out of memory, or by hand");
        }
        ExitRecord {
            v: VERSION,
            how,
            code: ending.and_then(tree::code),
            success: ending == Some(Ending::Exited(0)),
            last_words: self.output.finish(),
            lease_over,
            over_cap: self.over_cap,
            background: self.background,
            ended_at: Timestamp(now_ms()),
            holding: self.holding,
        }
    }

    /// Kills all processes at once and waits for their end.
    fn abandon(&mut self) {
        self.stop(Duration::ZERO);
        while !self.step(Instant::now()) {
            std::thread::sleep(KILL_INTERVAL_MIN);
        }
    }
}
