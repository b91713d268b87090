//! The start of the application's process. The shim starts this binary once more; that process
//! makes itself a session of its own, then becomes the program. (Between fork and exec only unsafe
//! code could do that.) It gets everything through a socket on its standard input: so nothing is
//! ever in a command line, and an odd environment cannot disturb this step.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use rustix::pipe::PipeFlags;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::{EXEC, OWN_BINARY, OWN_NAME, cap, descriptors as passing, relay};
use crate::relay::{Relay, Starting};
use crate::sandbox::{self, Sandbox};
use crate::spec::{Cap, LaunchSpec, Purpose};

/// The maximum time of a start: a program on a file system that hangs is given up on.
const EXEC_TIMEOUT: Duration = Duration::from_secs(30);
/// The nice value of steps and scheduled commands, which yield to what serves requests.
const TASK_NICE: i32 = 10;
/// The OOM score of instances, added to the node's own: when memory runs out, instances go before
/// shims and nodes ...
const INSTANCE_OOM_SCORE: i32 = 200;
/// ... and builds before instances.
const TASK_OOM_SCORE: i32 = 500;
const OOM_SCORE_MAX: i32 = 1000;
/// The number of bytes of a program's description that are read at once.
const READ_BYTES: usize = 16 << 10;
/// The maximum length of a failure in bytes: the kernel's own limit for a path in a message, and
/// then some.
const FAILURE_BYTES_MAX: u64 = 8 << 10;

/// The descriptors that a command reads and writes in place of its log.
#[derive(Debug)]
pub struct Attached {
    /// Whether these are a terminal, which is to become the command's controlling one.
    pub terminal: bool,
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

#[derive(Serialize, Deserialize)]
struct Program {
    argv: Vec<String>,
    directory: PathBuf,
    environment: BTreeMap<String, String>,
    task: bool,
    cap: Option<Cap>,
    sandbox: Option<Sandbox>,
    stdin: Stdin,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Stdin {
    /// An empty input.
    Null,
    /// The descriptor that came along with the program.
    Attached,
    /// The same descriptor, which becomes the terminal of the new session.
    Terminal,
}

pub struct Started {
    pub child: Child,
    /// The program's standard output and error, non-blocking.
    pub output: OwnedFd,
    /// The pipe that tells how the program ended, where `child` is the first process of a sandbox.
    pub report: Option<OwnedFd>,
    /// The process between its network and the machine's.
    pub relay: Option<Pid>,
}

/// Returns once the program runs. The error says why it does not.
pub fn start(spec: LaunchSpec, attached: Option<Attached>) -> anyhow::Result<Started> {
    let (output, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&output, true)?;
    let (mut ours, theirs) = UnixStream::pair()?;
    let terminal = attached.as_ref().is_some_and(|attached| attached.terminal);
    let (stdin, stdout, stderr) = match attached {
        // Nothing is written to the pipe then, and its end is seen at once.
        Some(Attached { stdin, stdout, stderr, .. }) => (Some(stdin), stdout, stderr),
        None => (None, writer.try_clone()?, writer),
    };
    let (mut report, mut reporter, mut relay) = (None, None, None);
    let namespaces = spec.sandbox.as_ref().filter(|sandbox| !sandbox.landlock_alone);
    if let Some(sandbox) = namespaces {
        sandbox::make_user_namespace()?;
        // It is to be in the machine's namespace of processes, where nobody within can name it.
        relay = sandbox.network.as_ref().map(relay::start).transpose()?;
        sandbox::make_process_namespace()?;
        let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        (report, reporter) = (Some(ours), Some(theirs));
    }
    let mut child = Command::new(OWN_BINARY)
        .arg0(OWN_NAME)
        .arg(EXEC)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(stdout)
        .stderr(stderr)
        .spawn()
        .context("no process could be started")?;
    if report.is_some() {
        sandbox::give_up_privileges()?;
    }
    let handed = || {
        let relay = relay.map(Starting::ready).transpose()?;
        let pid = relay.as_ref().map(|relay| relay.pid);
        let descriptors = Descriptors { stdin, report: reporter, relay: relay.map(Within::from) };
        hand_over(&mut ours, spec, descriptors, terminal).map(|()| pid)
    };
    match handed() {
        Ok(relay) => Ok(Started { child, output, report, relay }),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

/// The descriptors that come along with a program's description.
#[derive(Default)]
struct Descriptors {
    stdin: Option<OwnedFd>,
    report: Option<OwnedFd>,
    relay: Option<Within>,
}

/// What a program's first process has of its relay.
struct Within {
    namespace: OwnedFd,
    /// The relay ends with this.
    link: OwnedFd,
}

impl From<Relay> for Within {
    fn from(relay: Relay) -> Within {
        Within { namespace: relay.namespace, link: relay.link.into() }
    }
}

fn hand_over(
    stream: &mut UnixStream,
    spec: LaunchSpec,
    descriptors: Descriptors,
    terminal: bool,
) -> anyhow::Result<()> {
    let program = Program {
        task: matches!(spec.purpose, Purpose::Task { .. }),
        argv: spec.argv,
        directory: spec.directory,
        environment: spec.environment,
        cap: spec.cap,
        sandbox: spec.sandbox,
        stdin: match descriptors.stdin {
            None => Stdin::Null,
            Some(_) if terminal => Stdin::Terminal,
            Some(_) => Stdin::Attached,
        },
    };
    stream.set_read_timeout(Some(EXEC_TIMEOUT))?;
    stream.set_write_timeout(Some(EXEC_TIMEOUT))?;
    let bytes = serde_json::to_vec(&program)?;
    let relay = descriptors.relay.iter().flat_map(|relay| [&relay.namespace, &relay.link]);
    let all = descriptors.stdin.iter().chain(&descriptors.report).chain(relay);
    let fds: Vec<BorrowedFd<'_>> = all.map(AsFd::as_fd).collect();
    let sent = match fds.is_empty() {
        true => 0,
        false => passing::send(&*stream, &bytes, &fds)?,
    };
    drop(descriptors);
    stream.write_all(&bytes[sent..])?;
    stream.shutdown(Shutdown::Write)?;
    let mut failure = Vec::new();
    stream.take(FAILURE_BYTES_MAX).read_to_end(&mut failure).context("the program hangs")?;
    anyhow::ensure!(failure.is_empty(), "{}", String::from_utf8_lossy(&failure));
    Ok(())
}

/// Runs in the new process. Returns only after a failure, which was reported to the shim.
pub fn become_program() -> anyhow::Result<()> {
    // This copy is closed on exec: its end of file tells the shim that all is well.
    let mut shim = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let error = match prepare_and_exec(&mut shim) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    shim.write_all(format!("{error:#}").as_bytes())?;
    Ok(())
}

enum Never {}

fn prepare_and_exec(shim: &mut UnixStream) -> anyhow::Result<Never> {
    let (program, Descriptors { stdin, report, relay }) = receive(shim)?;
    rustix::process::setsid()?;
    if let (Stdin::Terminal, Some(terminal)) = (program.stdin, &stdin) {
        rustix::process::ioctl_tiocsctty(terminal).context("it gets no terminal of its own")?;
    }
    raise_oom_score(if program.task { TASK_OOM_SCORE } else { INSTANCE_OOM_SCORE });
    // If descriptors are attached, somebody waits at the other end.
    if program.task && program.stdin == Stdin::Null {
        yield_to_others();
    }
    if let Some(cap) = &program.cap {
        cap::apply(cap);
    }
    // Its link is held until this process ends.
    let _link = match relay {
        Some(Within { namespace, link }) => {
            sandbox::enter_network(namespace.as_fd())?;
            Some(link)
        }
        None => None,
    };
    if let Some(sandbox) = &program.sandbox {
        sandbox::enter(sandbox)?;
    }
    std::env::set_current_dir(&program.directory)
        .with_context(|| format!("cannot enter directory {}", program.directory.display()))?;
    let (name, arguments) =
        program.argv.split_first().context("the command is empty: nothing to run")?;
    let mut command = Command::new(name);
    command
        .args(arguments)
        .env_clear()
        .envs(&program.environment)
        .stdin(stdin.map_or_else(Stdio::null, Stdio::from));
    let error = match report {
        Some(report) => sandbox::become_init(command, shim, report),
        None => command.exec(),
    };
    Err(explain(name, &program, error))
}

fn receive(shim: &mut UnixStream) -> anyhow::Result<(Program, Descriptors)> {
    let (mut bytes, mut chunk, mut fds) = (Vec::new(), [0; READ_BYTES], Vec::new());
    loop {
        match passing::receive(&*shim, &mut chunk, &mut fds) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    let program: Program = serde_json::from_slice(&bytes)?;
    let network = program.sandbox.as_ref().and_then(|sandbox| sandbox.network.as_ref());
    let link = network.and_then(|_| fds.pop());
    let relay = link.zip(network.and_then(|_| fds.pop()));
    let relay = relay.map(|(link, namespace)| Within { namespace, link });
    anyhow::ensure!(network.is_some() == relay.is_some(), "its network did not come along");
    let namespaces = program.sandbox.as_ref().filter(|sandbox| !sandbox.landlock_alone);
    let report = namespaces.and_then(|_| fds.pop());
    Ok((program, Descriptors { stdin: fds.pop(), report, relay }))
}

/// Raises the OOM score; that is not allowed everywhere, and nothing depends on it.
fn raise_oom_score(by: i32) {
    const FILE: &str = "/proc/self/oom_score_adj";
    let current = std::fs::read_to_string(FILE).ok().and_then(|text| text.trim().parse().ok());
    let wanted = (current.unwrap_or(0) + by).min(OOM_SCORE_MAX);
    let _ = std::fs::write(FILE, wanted.to_string());
}

/// Lowers this process's priority, where that is allowed. The idle I/O class has no safe call, but
/// a program of util-linux and busybox.
fn yield_to_others() {
    let _ = rustix::process::setpriority_process(None, TASK_NICE);
    let _ = Command::new("ionice")
        .args(["-c", "3", "-p", &std::process::id().to_string()])
        .env_clear()
        .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

fn explain(name: &str, program: &Program, error: io::Error) -> anyhow::Error {
    let path = Path::new(name);
    let is_path = name.contains('/');
    match error.kind() {
        io::ErrorKind::NotFound if !is_path => {
            let search = program.environment.get("PATH").map_or("", String::as_str);
            anyhow::anyhow!(
                "no such program: '{name}' is in no directory of PATH ({search}); install it or \
                 name it by its path"
            )
        }
        io::ErrorKind::NotFound if path.exists() => anyhow::anyhow!(
            "cannot run {name}: the interpreter named in its first line, or its loader, does not \
             exist"
        ),
        io::ErrorKind::NotFound => {
            anyhow::anyhow!("no such file: {name} (in {})", program.directory.display())
        }
        io::ErrorKind::PermissionDenied => {
            anyhow::anyhow!("{name} is not executable; chmod +x it, or start it by its interpreter")
        }
        _ => anyhow::Error::new(error).context(format!("cannot run {name}")),
    }
}
