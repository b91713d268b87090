//! The succession of one process by another. The one from before has stopped all parts of its node,
//! keeps the listening sockets and what it still answers, starts the new binary and watches it; it
//! ends it again where it does not become healthy. The new one gets the sockets and learns whether
//! it stays.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use agent_core::upgrade::trial::{Event, Trial, TrialVerdict, Vitals};
use anyhow::{Context, ensure};
use model::Timestamp;
use model::value::ContentHash;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use api_types::upgrade::NodeVitals;
use os::binaries;
use os::layout::DataDirectory;
use os::passing;
use os::shared_port::BoundListeners;
use runtime::task::Boxed;

const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum wait for an answer; a node on a loaded machine reports its state in less.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// The maximum time for passing sockets: they are some kilobytes, and the other side has nothing
/// else to do.
const PASSING_MAX: Duration = Duration::from_secs(20);
/// The time after which a binary is killed that does not end when told to.
const END_MAX: Duration = Duration::from_secs(10);
const KEPT: &[u8] = b"kept\n";
const STOPPED: &[u8] = b"stopped\n";

/// The binary to be tried and all that the trial needs, decided while the node still ran.
#[derive(Clone, Debug)]
pub struct Testament {
    /// The id of the roll, for the node's record.
    pub roll: String,
    pub binary: ContentHash,
    /// The path of its copy in `DATA/bin`.
    pub path: PathBuf,
    pub limit_ms: u64,
    /// The state of the node before the trial.
    pub before: Vitals,
}

/// What is still under way in the router of the old process.
pub struct UnderWay {
    /// Blocks until nothing is left of it.
    pub finish: Box<dyn FnOnce() + Send>,
    /// Leaves it only so much time from now on.
    pub stop: Box<dyn Fn(Duration) + Send>,
}

/// A function that asks the new process for its state.
pub type AskVitals<'a> = &'a (dyn Fn() -> Boxed<anyhow::Result<NodeVitals>> + Sync);

/// The remainder of a node that was stopped for a successor.
pub struct Handover {
    pub testament: Testament,
    pub listeners: BoundListeners,
    /// `None` without a router.
    pub under_way: Option<UnderWay>,
    /// The address where public HTTP listens.
    pub public: Option<SocketAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrialOutcome {
    /// The process with this pid runs the node now.
    Kept(u32),
    Returned(String),
    /// Somebody stopped the node meanwhile.
    Stopped,
}

/// The side that takes over.
#[derive(Debug)]
pub struct Heir {
    stream: UnixStream,
    /// Whether this process stays; also true if the process from before is gone, as nobody could
    /// end it then.
    kept: watch::Receiver<bool>,
}

impl Heir {
    /// Receives what the process from before passes on. Blocks; to be called on a runtime.
    pub fn meet(layout: &DataDirectory) -> anyhow::Result<(BoundListeners, Heir)> {
        let path = layout.handover_socket();
        let stream = UnixStream::connect(&path).with_context(|| {
            format!("no process hands over at {}: leave --take-over out", path.display())
        })?;
        stream.set_read_timeout(Some(PASSING_MAX))?;
        let bound = passing::receive(&stream)?;
        let own = stream.try_clone()?;
        own.set_nonblocking(true)?;
        let mut reading = tokio::net::UnixStream::from_std(own)?;
        let (known, kept) = watch::channel(false);
        tokio::spawn(async move {
            let mut word = [0; KEPT.len()];
            reading.read_exact(&mut word).await.ok();
            known.send_replace(true);
        });
        Ok((bound, Heir { stream, kept }))
    }

    pub fn kept(&self) -> watch::Receiver<bool> {
        self.kept.clone()
    }

    pub fn says_farewell(&self) {
        (&self.stream).write_all(STOPPED).ok();
    }
}

/// Starts the new binary with these arguments and watches it until it stays or is gone.
pub async fn attempt(
    layout: &DataDirectory,
    left: &Handover,
    arguments: &[String],
    ask: AskVitals<'_>,
) -> anyhow::Result<TrialOutcome> {
    let socket = layout.handover_socket();
    std::fs::remove_file(&socket).ok();
    let door = UnixListener::bind(&socket)
        .with_context(|| format!("{} cannot be made", socket.display()))?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut command = Command::new(&left.testament.path);
    command.args(arguments).stdin(Stdio::null());
    let child = match binaries::spawn(&mut command) {
        Ok(child) => child,
        Err(error) => {
            return Ok(TrialOutcome::Returned(format!("the new binary cannot be run: {error}")));
        }
    };
    tracing::info!(pid = child.id(), binary = %left.testament.binary, "upgrade.trying");
    let mut watched = WatchedProcess { child, stream: None };
    let outcome = tokio::select! {
        outcome = watched.until_decided(left, &door, ask) => outcome,
        _ = terminate.recv() => Decision::Told,
    };
    std::fs::remove_file(&socket).ok();
    Ok(match outcome {
        Decision::Keep => {
            watched.say(KEPT).await;
            TrialOutcome::Kept(watched.child.id())
        }
        Decision::Return(why) => {
            watched.end().await;
            TrialOutcome::Returned(why)
        }
        Decision::Told => {
            watched.end().await;
            TrialOutcome::Stopped
        }
    })
}

enum Decision {
    Keep,
    Return(String),
    /// The node is to stop, whatever binary runs it.
    Told,
}

struct WatchedProcess {
    child: Child,
    stream: Option<tokio::net::UnixStream>,
}

impl WatchedProcess {
    async fn until_decided(
        &mut self,
        left: &Handover,
        door: &UnixListener,
        ask: AskVitals<'_>,
    ) -> Decision {
        let began = Instant::now();
        let now = || Timestamp(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
        let Testament { limit_ms, binary, before, .. } = &left.testament;
        let mut trial = Trial::begin(now(), *limit_ms, *binary, before.clone());
        loop {
            let event = match self.child.try_wait() {
                Ok(Some(_)) if self.has_said_farewell().await => return Decision::Told,
                Ok(Some(status)) => Event::Ended(format!("ended with {status}")),
                Err(error) => Event::Silent(error.to_string()),
                Ok(None) if self.stream.is_none() => match self.pass(door, &left.listeners).await {
                    Ok(()) => Event::Silent("it does not answer yet".into()),
                    Err(error) => Event::Silent(format!("{error:#}")),
                },
                Ok(None) => look(ask, left.public).await,
            };
            match trial.handle(now(), event) {
                TrialVerdict::Keep => return Decision::Keep,
                TrialVerdict::Return(why) => return Decision::Return(why),
                TrialVerdict::GoOn => tokio::time::sleep(LOOK_INTERVAL).await,
            }
        }
    }

    /// Gives the sockets to the child once it asks for them.
    async fn pass(
        &mut self,
        door: &UnixListener,
        listeners: &BoundListeners,
    ) -> anyhow::Result<()> {
        let (stream, _) = timeout(LOOK_INTERVAL, door.accept())
            .await
            .map_err(|_| anyhow::anyhow!("it has not asked for the sockets yet"))??;
        let peer = stream.peer_cred()?;
        let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok());
        ensure!(pid == Some(self.child.id()), "another process asked for the sockets");
        let blocking = stream.into_std()?;
        blocking.set_nonblocking(false)?;
        blocking.set_write_timeout(Some(PASSING_MAX))?;
        passing::send(&blocking, listeners)?;
        blocking.set_nonblocking(true)?;
        self.stream = Some(tokio::net::UnixStream::from_std(blocking)?);
        Ok(())
    }

    /// Returns, after the child's end, whether somebody had stopped it.
    async fn has_said_farewell(&mut self) -> bool {
        let Some(stream) = self.stream.take() else { return false };
        let Ok(stream) = stream.into_std() else { return false };
        let mut word = [0; STOPPED.len()];
        let read = stream.set_nonblocking(true).and_then(|()| (&stream).read(&mut word));
        read.is_ok_and(|size| word[..size] == *STOPPED)
    }

    async fn say(&mut self, word: &[u8]) {
        if let Some(stream) = &mut self.stream {
            stream.write_all(word).await.ok();
        }
    }

    /// Ends the child. What it started lives on in shims, as with every node that ends.
    async fn end(&mut self) {
        let deadline = Instant::now() + END_MAX;
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let (Ok(None), Some(pid)) = (self.child.try_wait(), pid) {
            kill_process(pid, Signal::TERM).ok();
        }
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() >= deadline {
                self.child.kill().ok();
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }
}

/// Returns the child's own report, and whether its router answers at all.
async fn look(ask: AskVitals<'_>, public: Option<SocketAddr>) -> Event {
    let said = match timeout(ANSWER_MAX, ask()).await {
        Ok(Ok(said)) => said,
        Ok(Err(error)) => return Event::Silent(format!("it does not say how it is: {error:#}")),
        Err(_) => return Event::Silent("it does not say how it is".into()),
    };
    if let Some(public) = public {
        match timeout(ANSWER_MAX, knock(public)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Event::Silent(format!("its public port fails: {error:#}")),
            Err(_) => return Event::Silent("its public port does not answer".into()),
        }
    }
    Event::Said(said.into())
}

async fn knock(public: SocketAddr) -> anyhow::Result<()> {
    let ip = match public.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let mut stream = TcpStream::connect((ip, public.port())).await?;
    // No application has this name.
    let request = b"HEAD / HTTP/1.1\r\nHost: upgrade.invalid\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await?;
    let mut answer = [0; 7];
    match stream.read_exact(&mut answer).await {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            anyhow::bail!("it closes without an answer")
        }
        Err(error) => return Err(error.into()),
    }
    ensure!(&answer == b"HTTP/1.", "it speaks no HTTP");
    Ok(())
}
