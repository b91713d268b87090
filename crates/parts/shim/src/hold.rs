//! The shim's only loop: it waits for its connections, its child, the child's output and its own
//! deadlines, and decides what is due. Everything else here is told by it what to do.

use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, io};

use agent_core::lease::Lease;
use anyhow::Context;
use model::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use session_core::holder::HolderEffect;

use super::cap::CapWatch;
use super::child;
use super::connection::NodeConnection;
use super::log::{FILE_BYTES_MAX, LogFile};
use super::message::{ShimCommand, ShimRequest, Tell, VERSION};
use super::output::{Output, PipeState, now_ms};
use super::record::{self, ExitRecord, Holding};
use super::running::{LEFTOVER_GRACE, Running};
use crate::session::{HeldSession, Source};
use crate::spec::{LaunchSpec, SessionSpec};
use os::observe::process;

/// The maximum number of connections: a node, its successor and a few commands; further ones wait
/// in the listener's queue.
const CONNECTIONS_MAX: usize = 8;
/// The maximum wait for the command to launch; the node that started this shim may have died before
/// it sent that.
const LAUNCH_WAIT: Duration = Duration::from_secs(30);
/// The time in which nodes that connect are told about the end; later ones read `exit.json`.
const ENDED_WAIT: Duration = Duration::from_secs(3600);
/// The maximum interval at which orphans are reaped and the files checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The interval where nothing tells when the main process ends.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// The time after SIGHUP for a command that has something to finish.
const HANGUP_GRACE: Duration = Duration::from_secs(10);
/// The time from SIGTERM to SIGKILL for a command that does not heed SIGHUP.
const STOP_GRACE: Duration = Duration::from_secs(5);
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
        session: None,
        hung_up_at: None,
        was_left: false,
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
        shim.turn_session(&ready.session);
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
    session: Option<HeldSession>,
    /// The time at which the session's command was told that nobody is there any more.
    hung_up_at: Option<Instant>,
    was_left: bool,
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

/// The descriptors that are ready.
struct Ready {
    listener: bool,
    output: bool,
    connections: Vec<bool>,
    session: Vec<Source>,
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
        let (sources, waits): (Vec<_>, Vec<_>) =
            self.session.iter().flat_map(HeldSession::sources).unzip();
        fds.extend(waits);
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
        let output = output.is_some() && ready.next() == Some(true);
        if running.is_some_and(|running| running.main_end.is_some()) {
            ready.next();
        }
        let session = sources.into_iter().zip(ready).filter(|(_, ready)| *ready);
        let session = session.map(|(source, _)| source).collect();
        Ok(Ready { connections, listener, output, session })
    }

    fn deadline(&self) -> Instant {
        let now = Instant::now();
        let own = match &self.phase {
            Phase::Waiting { until } | Phase::Ended { until, .. } => *until,
            Phase::Gone => now,
            Phase::Running(running) => match &running.stopping {
                // Nothing wakes the loop when the main process ends, or it has ended.
                None if running.main_end.is_none() => now + END_CHECK_INTERVAL,
                None => running.next_look(self.check_at),
                Some(stopping) => stopping.next_look(now),
            },
        };
        let session = self.session.as_ref().and_then(HeldSession::deadline);
        let hang_up = self.hung_up_at.map(|at| at + HANGUP_GRACE);
        session.into_iter().chain(hang_up).fold(own.min(self.check_at), Instant::min)
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
                    Ok(ShimRequest { ask: ShimCommand::Attach { by }, .. })
                        if self.session.is_some() =>
                    {
                        connection.attaching = Some(by);
                        Tell::Attaching
                    }
                    Ok(request) => self.obey(request),
                    Err(why) => Tell::Refused { why },
                };
                if connection.tell(tell).is_err() {
                    return false;
                }
                if connection.attaching.is_some() {
                    // What follows are frames.
                    return true;
                }
            }
            alive
        });
        // Nothing else adds connections while requests are obeyed.
        self.connections = connections;
        while let Some(place) = self.connections.iter().position(|one| one.attaching.is_some()) {
            let mut connection = self.connections.remove(place);
            let by = connection.attaching.take().unwrap_or_default();
            let (stream, received) = connection.into_stream();
            if let Some(session) = &mut self.session {
                session.connect(stream, by, &received);
            }
        }
    }

    fn turn_session(&mut self, ready: &[Source]) {
        let Some(session) = &mut self.session else { return };
        let effects = session.turn(ready);
        self.perform(effects);
        if self.hung_up_at.is_some_and(|at| at + HANGUP_GRACE <= Instant::now()) {
            self.hung_up_at = None;
            if let Phase::Running(running) = &mut self.phase {
                running.stop(STOP_GRACE);
            }
        }
    }

    /// Performs what follows from a session for its command.
    fn perform(&mut self, effects: Vec<HolderEffect>) {
        for effect in effects {
            match (effect, &mut self.phase) {
                (HolderEffect::Signal(signal), Phase::Running(running)) => {
                    running.signal(signal.into());
                }
                (HolderEffect::HangUp, Phase::Running(running)) => {
                    for signal in [Signal::HUP, Signal::CONT] {
                        running.signal(signal.as_raw());
                    }
                    self.hung_up_at = Some(Instant::now());
                    self.was_left = true;
                }
                (HolderEffect::Forget, Phase::Ended { .. }) => self.go(),
                _ => {}
            }
        }
    }

    fn heard(&mut self) {
        if let Phase::Running(running) = &mut self.phase {
            running.lease.heard(running.monotonic());
        }
    }

    fn obey(&mut self, request: ShimRequest) -> Tell {
        self.heard();
        match (request.ask, &mut self.phase) {
            (ShimCommand::Launch { spec, lease_ms, session }, Phase::Waiting { .. }) => {
                match self.launch(spec, lease_ms, session) {
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
            (ShimCommand::Attach { .. }, _) => {
                Tell::Refused { why: "nobody can be connected to this process".into() }
            }
            (ShimCommand::HangUp, _) => {
                let effects = self.session.as_mut().map(HeldSession::leave);
                self.perform(effects.unwrap_or_default());
                Tell::Signalled
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
                running.lease.renew(running.limit(lease_ms), running.monotonic());
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
        session: Option<SessionSpec>,
    ) -> anyhow::Result<()> {
        if let Some(directory) = spec.log.parent() {
            // A missing log is no reason not to serve; its lines are counted as lost.
            let _ = fs::create_dir_all(directory);
        }
        let (purpose, cap) = (spec.purpose.clone(), spec.cap);
        let (port, ports) = (spec.port, spec.ports.clone());
        let log = LogFile::new(spec.log.clone(), FILE_BYTES_MAX);
        let (held, attached) = session.as_ref().map(HeldSession::new).transpose()?.unzip();
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
            session,
        };
        let written = record::write(&self.run.join(record::STATE), &holding);
        let mut running = Running {
            holding,
            main,
            main_end: rustix::process::pidfd_open(main, PidfdFlags::empty()).ok(),
            status: None,
            report: started.report,
            relay: started.relay,
            relay_lost: false,
            output: Output::new(started.output, log),
            output_open: true,
            started: Instant::now(),
            lease: Lease::new(None, Timestamp(0)),
            lease_over: false,
            watch: cap.map(|cap| CapWatch::new(cap, Instant::now())),
            over_cap: None,
            background: false,
            stopping: None,
        };
        running.lease = Lease::new(running.limit(lease_ms), Timestamp(0));
        if let Err(error) = written {
            // Nobody could adopt it.
            running.abandon();
            return Err(error).context("cannot write down what was started");
        }
        self.phase = Phase::Running(Box::new(running));
        self.session = held;
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
        let mut ended = running.end();
        if self.was_left {
            ended.how.push_str(" (its client went away)");
        }
        let written = record::write(&self.run.join(record::EXIT), &ended).is_ok();
        self.connections
            .retain_mut(|connection| connection.tell(Tell::Ended { ended: ended.clone() }).is_ok());
        if let Some(session) = &mut self.session {
            session.command_ended(ended.code, &ended.how);
        }
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
