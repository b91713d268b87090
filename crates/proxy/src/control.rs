//! The control socket of a running proxy: one JSON object per line asks, one answers. It lists and
//! changes back ends, and hands the listeners to the next process. Anybody who can open the socket
//! may do all of that: it belongs to its owner alone.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::back_ends::{BackEndConfig, BackEndName, BackEndRow, BackEnds};
use super::sharing;
use os::passing;
use os::shared_port::BoundListeners;

/// The maximum length of a line in bytes: a list of a thousand back ends is shorter.
const LINE_BYTES_MAX: u64 = 1024 * 1024;
/// The maximum wait for an answer: both sides are on this machine and have nothing else to do.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(20);
/// The maximum duration of a conversation: somebody may type by hand.
const ASK_TIME_MAX: Duration = Duration::from_secs(300);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The word that the process that has taken over sends once it accepts connections.
const SERVING: &str = "serving";
/// The word that it sends once it has read all that came in lines: what follows travels with the
/// sockets.
const READY: &str = "ready";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum ControlRequest {
    List,
    Add(BackEndConfig),
    Remove(BackEndName),
    Drain(BackEndName),
    Weight {
        #[serde(flatten)]
        named: BackEndName,
        weight: u32,
    },
    TakeOver,
}

/// The answer to every question: the back ends, or an error.
#[derive(Debug, Serialize, Deserialize)]
struct ControlAnswer {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(default)]
    back_ends: Vec<BackEndRow>,
}

/// The parts of the proxy that the socket needs.
pub struct Controlled {
    pub back_ends: Arc<BackEnds>,
    /// The listeners under the address that the next process asks for.
    pub listeners: BoundListeners,
    pub taken_over: Notify,
}

/// Listens at `path`, where no other proxy may listen.
pub async fn bind(path: &Path) -> anyhow::Result<UnixListener> {
    if UnixStream::connect(path).await.is_ok() {
        bail!(
            "another proxy listens at {}: stop it, take it over with --take-over, or name another \
             socket with --control",
            path.display()
        );
    }
    bind_anew(path)
}

/// Listens at `path`, in the place of whatever socket was there.
pub fn bind_anew(path: &Path) -> anyhow::Result<UnixListener> {
    let context =
        || format!("--control: no socket can be made at {}; name another path", path.display());
    match std::fs::symlink_metadata(path) {
        Ok(found) => {
            use std::os::unix::fs::FileTypeExt;
            ensure!(
                found.file_type().is_socket(),
                "--control: {} is there and is no socket; name another path",
                path.display()
            );
            std::fs::remove_file(path).with_context(context)?;
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(context),
    }
    let listener = UnixListener::bind(path).with_context(context)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).with_context(context)?;
    Ok(listener)
}

/// Runs for as long as the proxy does.
pub async fn serve(controlled: Arc<Controlled>, listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let controlled = controlled.clone();
                tokio::spawn(async move {
                    let answered = timeout(ASK_TIME_MAX, converse(&controlled, stream)).await;
                    if let Ok(Err(error)) = answered {
                        tracing::warn!(error = format!("{error:#}"), "proxy.control_failed");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "proxy.control_accept_failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn converse(controlled: &Arc<Controlled>, stream: UnixStream) -> anyhow::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let Some(line) = read_line(&mut stream).await? else { return Ok(()) };
        let ask: Result<ControlRequest, _> = serde_json::from_str(&line);
        let done = match &ask {
            Ok(ask) => perform(&controlled.back_ends, ask),
            Err(error) => Err(anyhow::anyhow!("this proxy does not understand that: {error}")),
        };
        let error = done.err().map(|error| format!("{error:#}"));
        let refused = error.is_some();
        let answer = ControlAnswer { error, back_ends: controlled.back_ends.rows() };
        write_line(&mut stream, &answer).await?;
        if !refused && matches!(ask, Ok(ControlRequest::TakeOver)) {
            return hand_over(controlled, stream).await;
        }
    }
}

fn perform(back_ends: &BackEnds, ask: &ControlRequest) -> anyhow::Result<()> {
    match ask {
        ControlRequest::List | ControlRequest::TakeOver => Ok(()),
        ControlRequest::Add(wanted) => back_ends.add(wanted.clone()),
        ControlRequest::Remove(named) => back_ends.remove(named.address, named.sort.as_deref()),
        ControlRequest::Drain(named) => back_ends.drain(named.address, named.sort.as_deref()),
        ControlRequest::Weight { named, weight } => {
            back_ends.weigh(named.address, named.sort.as_deref(), *weight)
        }
    }
}

/// Hands over the listeners. Both processes accept until the other one says that it serves; if it
/// never does, nothing has happened.
async fn hand_over(
    controlled: &Arc<Controlled>,
    mut stream: BufReader<UnixStream>,
) -> anyhow::Result<()> {
    hear(&mut stream, READY).await?;
    let socket = blocking(stream.get_ref())?;
    let giving = controlled.clone();
    tokio::task::spawn_blocking(move || passing::send(&socket, &giving.listeners)).await??;
    unblock(&stream)?;
    hear(&mut stream, SERVING).await?;
    tracing::info!("proxy.taken_over");
    controlled.taken_over.notify_one();
    tokio::spawn(sharing::leave(controlled.back_ends.clone(), stream));
    Ok(())
}

async fn hear(stream: &mut BufReader<UnixStream>, word: &str) -> anyhow::Result<()> {
    let said = timeout(ANSWER_TIME_MAX, read_line(stream)).await;
    let said = said.context("the process that takes over says nothing")??;
    ensure!(said.as_deref() == Some(word), "the process that takes over ended early");
    Ok(())
}

/// Returns a second handle of the same socket, for calls that block.
fn blocking(stream: &UnixStream) -> anyhow::Result<std::os::unix::net::UnixStream> {
    use std::os::fd::AsFd;
    let own: OwnedFd = stream.as_fd().try_clone_to_owned()?;
    let own = std::os::unix::net::UnixStream::from(own);
    own.set_nonblocking(false)?;
    own.set_write_timeout(Some(ANSWER_TIME_MAX))?;
    own.set_read_timeout(Some(ANSWER_TIME_MAX))?;
    Ok(own)
}

/// Makes the socket non-blocking again: `blocking` changed it for all its handles.
fn unblock(stream: &BufReader<UnixStream>) -> std::io::Result<()> {
    socket2::SockRef::from(stream.get_ref()).set_nonblocking(true)
}

async fn read_line(stream: &mut BufReader<UnixStream>) -> anyhow::Result<Option<String>> {
    let mut line = String::new();
    let mut bounded = stream.take(LINE_BYTES_MAX);
    if bounded.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    ensure!(line.ends_with('\n'), "a line is too long or ends early");
    Ok(Some(line.trim_end().to_owned()))
}

async fn write_line<T: Serialize>(
    stream: &mut BufReader<UnixStream>,
    line: &T,
) -> anyhow::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    stream.write_all(&text).await?;
    Ok(())
}

/// Asks one question of the proxy at `path`.
pub async fn ask(path: &Path, ask: &ControlRequest) -> anyhow::Result<Vec<BackEndRow>> {
    let mut stream = connect(path).await?;
    answered(&mut stream, ask).await
}

async fn connect(path: &Path) -> anyhow::Result<BufReader<UnixStream>> {
    let stream = UnixStream::connect(path).await.with_context(|| {
        format!(
            "no proxy listens at {}: start one with `cortex proxy`, or name its socket with \
             --control",
            path.display()
        )
    })?;
    Ok(BufReader::new(stream))
}

async fn answered(
    stream: &mut BufReader<UnixStream>,
    ask: &ControlRequest,
) -> anyhow::Result<Vec<BackEndRow>> {
    let exchange = async {
        write_line(stream, ask).await?;
        read_line(stream).await?.context("the proxy ended before it answered")
    };
    let line = timeout(ANSWER_TIME_MAX, exchange).await.context("the proxy does not answer")??;
    let answer: ControlAnswer = serde_json::from_str(&line).context("the proxy's answer")?;
    match answer.error {
        Some(error) => bail!("{error}"),
        None => Ok(answer.back_ends),
    }
}

/// The side that takes over: it has the listeners, and tells the process from before when it
/// serves.
pub struct ProxyHeir {
    stream: BufReader<UnixStream>,
    pub listeners: BoundListeners,
    /// The back ends of the process from before.
    pub back_ends: Vec<BackEndConfig>,
    pub names: Vec<BackEndName>,
}

impl ProxyHeir {
    pub async fn meet(path: &Path) -> anyhow::Result<ProxyHeir> {
        let mut stream = connect(path).await.context("--take-over")?;
        let rows = answered(&mut stream, &ControlRequest::TakeOver).await?;
        let socket = blocking(stream.get_ref())?;
        let receiving = tokio::task::spawn_blocking(move || {
            use std::io::Write;
            (&socket).write_all(format!("{READY}\n").as_bytes())?;
            passing::receive(&socket)
        });
        let listeners = receiving.await?.context("its listeners")?;
        unblock(&stream)?;
        let stays = rows.into_iter().filter(|row| row.state != "leaving");
        let back_ends: Vec<BackEndConfig> = stays.map(|row| row.wanted).collect();
        let names = back_ends.iter().map(BackEndConfig::name).collect();
        Ok(ProxyHeir { stream, listeners, back_ends, names })
    }

    /// Tells the process from before that this one serves: from now on it accepts nothing. What is
    /// left to say is for `sharing`.
    pub async fn serves(mut self) -> anyhow::Result<BufReader<UnixStream>> {
        self.stream.write_all(format!("{SERVING}\n").as_bytes()).await?;
        Ok(self.stream)
    }
}

/// Converts sockets of either kind into the type that is passed on.
pub fn carried<T: Into<OwnedFd>>(sockets: impl IntoIterator<Item = T>) -> Vec<TcpListener> {
    sockets.into_iter().map(|socket| TcpListener::from(socket.into())).collect()
}

/// Returns where the proxy on an address has its socket, if it was not told otherwise.
pub fn default_path(runtime: &Path, listen: SocketAddr, kind: &str) -> PathBuf {
    let address = listen.to_string().replace(['[', ']'], "").replace(':', "_");
    runtime.join(format!("proxy-{kind}-{address}"))
}
