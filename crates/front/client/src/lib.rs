//! The client of the API, the one path from people to the platform: HTTP over the node's UNIX
//! socket, or over TLS to one of the nodes of a cluster elsewhere. Knows addresses and errors of
//! the API, and nothing of what it is used for; driven by the command line.

mod pinned;
mod reach;
pub mod transfer;

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use access_core::TokenText;
use anyhow::Context;
use bytes::Bytes;
use futures_util::Stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::net::UnixStream;

use api_types::login::{HOST, NodeReach, ROSTER_HEADER};
use api_types::{NOTE_HEADER, ProblemBody};
use os::layout::DataDirectory;
use runtime::lock::locked;
use runtime::members::BoxedStream;

/// The most bytes of an answer that is read as a whole, such as a listing.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The most bytes of one line of a stream.
const LINE_BYTES_MAX: usize = 1024 * 1024;

#[derive(Debug, Error)]
pub enum ClientError {
    #[error("no node is running on {0}")]
    NoNode(PathBuf),
    #[error("no node of the cluster can be reached: {}", tried_words(.tried))]
    NoNodeReached { tried: Vec<String>, is_wrong_key: bool },
    #[error("{}", .0.detail)]
    Problem(ProblemBody),
}

impl ClientError {
    pub fn hint(&self) -> Option<String> {
        match self {
            ClientError::NoNode(_) => {
                let hint = "start one with `cortex up`, say where it runs with --data-dir, or log in \
                            to a platform elsewhere with `cortex login`";
                Some(hint.to_string())
            }
            ClientError::NoNodeReached { is_wrong_key: true, .. } => {
                let hint = "compare the key with what `cortex whoami` shows on the node itself; if \
                            that is right, ask for another invitation";
                Some(hint.to_string())
            }
            ClientError::NoNodeReached { .. } => {
                let hint = "are you online, and is the port of the nodes open to you? `cortex \
                            contexts` shows where they are looked for";
                Some(hint.to_string())
            }
            ClientError::Problem(problem) => problem.hint.clone(),
        }
    }
}

pub type RequestBody = UnsyncBoxBody<Bytes, std::io::Error>;

fn tried_words(tried: &[String]) -> String {
    if tried.is_empty() { "it has no address".into() } else { tried.join("; ") }
}

/// The way to the platform.
enum Way {
    /// The node on this machine with that data directory.
    Socket { socket: PathBuf, data: PathBuf },
    /// Some node of a cluster, the first ones preferred.
    Cluster(Vec<NodeReach>),
}

type Sender = SendRequest<RequestBody>;

pub struct Client {
    way: Way,
    /// A connection to a cluster elsewhere that may be used again.
    kept: Mutex<Option<Sender>>,
    /// What tells the nodes of the cluster from others, as the last answer had it.
    roster: Mutex<Option<String>>,
    /// The header that says who asks; `None` leaves that to the credentials of the socket.
    authorization: Option<HeaderValue>,
    /// What is said of every change.
    note: Option<HeaderValue>,
}

impl Client {
    pub fn new(layout: &DataDirectory) -> Client {
        let (socket, data) = (layout.api_socket(), layout.root().to_path_buf());
        Client::by(Way::Socket { socket, data })
    }

    /// Returns a client of a cluster elsewhere, which asks whichever of these nodes answers.
    pub fn of_cluster(nodes: Vec<NodeReach>) -> Client {
        Client::by(Way::Cluster(nodes))
    }

    fn by(way: Way) -> Client {
        let (kept, roster) = (Mutex::default(), Mutex::default());
        Client { way, kept, roster, authorization: None, note: None }
    }

    /// Returns what tells the nodes of the cluster from others, if an answer said so.
    pub fn roster(&self) -> Option<String> {
        locked(&self.roster).clone()
    }

    pub fn is_local(&self) -> bool {
        matches!(self.way, Way::Socket { .. })
    }

    /// Asks with a token from now on.
    pub fn with_token(mut self, token: &TokenText) -> Client {
        let value = HeaderValue::try_from(format!("Bearer {}", token.as_str()));
        let mut value = value.expect("a token has letters and digits alone");
        value.set_sensitive(true);
        self.authorization = Some(value);
        self
    }

    /// Says this of every change from now on. Returns the reason if it cannot be said.
    pub fn with_note(mut self, note: &str) -> anyhow::Result<Client> {
        let value = HeaderValue::from_bytes(note.as_bytes());
        let why = "a note is one line, without control characters";
        self.note = Some(value.map_err(|_| anyhow::anyhow!(why))?);
        Ok(self)
    }

    fn request(&self, method: Method, path: &str) -> hyper::http::request::Builder {
        let said = self.note.as_ref().filter(|_| method != Method::GET);
        let request = Request::builder().method(method).uri(path).header(header::HOST, HOST);
        let request = match said {
            Some(note) => request.header(NOTE_HEADER, note),
            None => request,
        };
        match &self.authorization {
            Some(value) => request.header(header::AUTHORIZATION, value),
            None => request,
        }
    }

    pub async fn is_answering(&self) -> bool {
        self.connect().await.is_ok()
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        read(self.send(Method::GET, path, empty()).await?).await
    }

    pub async fn post<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> anyhow::Result<T> {
        let bytes = serde_json::to_vec(body)?;
        read(self.send(Method::POST, path, full(bytes)).await?).await
    }

    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        read(self.send(Method::DELETE, path, empty()).await?).await
    }

    pub async fn upload<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        chunks: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    ) -> anyhow::Result<T> {
        use futures_util::TryStreamExt;
        let body = BodyExt::boxed_unsync(StreamBody::new(chunks.map_ok(Frame::data)));
        read(self.send(method, path, body).await?).await
    }

    /// Returns the answer's bytes as they come.
    pub async fn download(&self, path: &str) -> anyhow::Result<Incoming> {
        Ok(self.send(Method::GET, path, empty()).await?.into_body())
    }

    /// Returns the bytes of an answer to what the audit records, as they come.
    pub async fn download_recorded(&self, path: &str) -> anyhow::Result<Incoming> {
        Ok(self.send(Method::POST, path, empty()).await?.into_body())
    }

    /// Returns a stream of JSON objects, one a line.
    pub async fn lines(&self, path: &str) -> anyhow::Result<AnswerLines> {
        Ok(AnswerLines { body: self.download(path).await?, buffer: Vec::new(), ended: false })
    }

    /// Returns the connection itself, once the node has agreed to speak `protocol` on it.
    pub async fn upgrade(&self, path: &str, protocol: &str) -> anyhow::Result<BoxedStream> {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(self.connect().await?)).await?;
        runtime::task::spawn(connection.with_upgrades());
        let request = self
            .request(Method::POST, path)
            .header(header::CONNECTION, "upgrade")
            .header(header::UPGRADE, protocol)
            .body(empty())?;
        let response = sender.send_request(request).await.map_err(gone)?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(Box::new(TokioIo::new(hyper::upgrade::on(response).await?)));
        }
        Err(ClientError::Problem(problem(response).await).into())
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: RequestBody,
    ) -> anyhow::Result<Response<Incoming>> {
        let is_read = method == Method::GET;
        let response = match self.exchange(method.clone(), path, body).await {
            // What only reads may be asked again, of whichever node answers now.
            Err(error) if is_read && !self.is_local() && error.is::<NodeGone>() => {
                self.exchange(method, path, empty()).await?
            }
            other => other?,
        };
        if response.status().is_success() {
            return Ok(response);
        }
        Err(ClientError::Problem(problem(response).await).into())
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: RequestBody,
    ) -> anyhow::Result<Response<Incoming>> {
        let mut sender = self.sender().await?;
        let request = self
            .request(method, path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(body)?;
        let response = sender.send_request(request).await.map_err(gone)?;
        if let Some(roster) = response.headers().get(ROSTER_HEADER) {
            *locked(&self.roster) = roster.to_str().ok().map(String::from);
        }
        if !self.is_local() {
            *locked(&self.kept) = Some(sender);
        }
        Ok(response)
    }

    /// Returns a connection on which a request can be sent now.
    async fn sender(&self) -> anyhow::Result<Sender> {
        let kept = locked(&self.kept).take();
        if let Some(kept) = kept.filter(Sender::is_ready) {
            return Ok(kept);
        }
        let (sender, connection) = http1::handshake(TokioIo::new(self.connect().await?)).await?;
        runtime::task::spawn(connection);
        Ok(sender)
    }

    async fn connect(&self) -> anyhow::Result<BoxedStream> {
        match &self.way {
            Way::Socket { socket, data } => Ok(Box::new(connect_here(socket, data).await?)),
            Way::Cluster(nodes) => reach::connect(nodes).await,
        }
    }
}

async fn connect_here(socket: &Path, data: &Path) -> anyhow::Result<UnixStream> {
    use std::io::ErrorKind;
    UnixStream::connect(socket).await.map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            ClientError::NoNode(data.to_path_buf()).into()
        }
        _ => anyhow::Error::new(error)
            .context(format!("the node's socket {} cannot be used", socket.display())),
    })
}

/// The error of a node that hung up before it had answered.
#[derive(Debug, Error)]
#[error("the node went away")]
struct NodeGone;

/// Returns the error for a node that hung up. That TLS was not ended in order says no more.
fn gone(error: hyper::Error) -> anyhow::Error {
    let source = std::error::Error::source(&error);
    let source = source.and_then(|source| source.downcast_ref::<std::io::Error>());
    match source.map(std::io::Error::kind) {
        Some(std::io::ErrorKind::UnexpectedEof) => NodeGone.into(),
        _ => anyhow::Error::new(error).context(NodeGone),
    }
}

fn empty() -> RequestBody {
    full(Vec::new())
}

fn full(bytes: Vec<u8>) -> RequestBody {
    Full::new(Bytes::from(bytes)).map_err(|never| match never {}).boxed_unsync()
}

async fn read<T: DeserializeOwned>(response: Response<Incoming>) -> anyhow::Result<T> {
    let bytes = collect(response).await?;
    serde_json::from_slice(&bytes)
        .context("the node's answer is not understood: is it of another version?")
}

async fn collect(response: Response<Incoming>) -> anyhow::Result<Bytes> {
    let limited = http_body_util::Limited::new(response.into_body(), ANSWER_BYTES_MAX);
    let collected = limited
        .collect()
        .await
        .map_err(|error| anyhow::anyhow!("the node's answer was cut: {error}"))?;
    Ok(collected.to_bytes())
}

/// Reads a problem, also from an answer that is no problem document.
async fn problem(response: Response<Incoming>) -> ProblemBody {
    let status = response.status();
    let bytes = collect(response).await.unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_else(|_| ProblemBody {
        status: status.as_u16(),
        kind: String::new(),
        code: "unknown".into(),
        title: status.canonical_reason().unwrap_or_default().into(),
        detail: format!("the node answered {status}: {}", String::from_utf8_lossy(&bytes)),
        hint: (status == StatusCode::NOT_FOUND).then(|| "is it of another version?".into()),
    })
}

pub struct AnswerLines {
    body: Incoming,
    buffer: Vec<u8>,
    ended: bool,
}

impl AnswerLines {
    /// Reads the next object; returns `None` at the end of the stream.
    pub async fn next<T: DeserializeOwned>(&mut self) -> anyhow::Result<Option<T>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            if self.ended {
                return Ok(None);
            }
            anyhow::ensure!(self.buffer.len() <= LINE_BYTES_MAX, "the node sent an endless line");
            match self.body.frame().await {
                None => self.ended = true,
                Some(frame) => {
                    let frame = frame.map_err(gone)?;
                    if let Some(bytes) = frame.data_ref() {
                        self.buffer.extend_from_slice(bytes);
                    }
                }
            }
        }
    }
}

/// Encodes a text for paths and queries of the API.
pub fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_fits_a_path() {
        assert_eq!(encode("a::b c/ä"), "a%3A%3Ab%20c%2F%C3%A4");
    }

    #[tokio::test]
    async fn a_dead_socket_says_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let layout = DataDirectory::new(directory.path().into(), directory.path());
        let error = Client::new(&layout).get::<u32>("/v1/status").await.unwrap_err();
        let error = error.downcast_ref::<ClientError>().unwrap();
        assert!(error.to_string().contains("no node is running on"), "{error}");
        assert!(error.hint().unwrap().contains("cortex up"));
    }
}
