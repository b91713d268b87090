//! Clients of every kind, many at a time, from many addresses. What they do follows from the number
//! of the request alone.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use hyper::Request;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::servers::{LARGE_BYTES, SMALL_BYTES};

const CLIENTS: u64 = 32;
/// The time limit for a request; none that goes well takes so long.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(60);
/// A slow client's pause between two pieces.
const PAUSE: Duration = Duration::from_millis(3);
const UPLOAD_BYTES: usize = 150 * 1024;
const STREAMS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Kept,
    New,
    Http2,
    Tls,
    Large,
    Upload,
    Conversation,
    SlowHead,
    SlowReader,
    Reset,
    Cut,
    Once,
}

/// The number of requests of each kind in a hundred.
const MIX: [(Kind, u64); 12] = [
    (Kind::Kept, 38),
    (Kind::New, 15),
    (Kind::Http2, 20),
    (Kind::Tls, 5),
    (Kind::Large, 4),
    (Kind::Upload, 4),
    (Kind::Conversation, 3),
    (Kind::SlowHead, 2),
    (Kind::SlowReader, 2),
    (Kind::Reset, 3),
    (Kind::Cut, 2),
    (Kind::Once, 2),
];

impl Kind {
    fn of(number: u64) -> Kind {
        // The factor makes neighbours differ.
        let mut left = number.wrapping_mul(37) % 100;
        for (kind, part) in MIX {
            if left < part {
                return kind;
            }
            left -= part;
        }
        unreachable!("the parts make a hundred")
    }

    /// Returns whether it is to be answered; the others are not meant to have a whole answer.
    fn is_answered(self) -> bool {
        !matches!(self, Kind::Reset | Kind::Cut | Kind::Once)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub answered: u64,
    pub unanswered: u64,
    /// The number of answers that began well and were seen to break off.
    pub cut: u64,
    pub by_kind: BTreeMap<String, u64>,
}

#[derive(Clone, Debug)]
pub struct Clients {
    pub plain: u16,
    pub secure: u16,
    pub http_1: Arc<ClientConfig>,
    pub http_2: Arc<ClientConfig>,
}

impl Clients {
    /// Sends the requests from number `from` to before `to`; returns once all of them are over.
    pub fn run(&self, from: u64, to: u64) -> Tally {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().expect("a runtime");
        let next = Arc::new(AtomicU64::new(from));
        runtime.block_on(async {
            let mut clients = JoinSet::new();
            for _ in 0..CLIENTS {
                let all = self.clone();
                let client = Client { all, number: 0, kept: None, calls: None, cut: 0 };
                clients.spawn(client.ask_until(next.clone(), to));
            }
            let mut sum = Tally::default();
            while let Some(tally) = clients.join_next().await {
                let tally = tally.expect("no answer is wrong");
                sum.answered += tally.answered;
                sum.unanswered += tally.unanswered;
                sum.cut += tally.cut;
                for (kind, count) in tally.by_kind {
                    *sum.by_kind.entry(kind).or_default() += count;
                }
            }
            sum
        })
    }
}

struct Client {
    all: Clients,
    number: u64,
    kept: Option<TcpStream>,
    calls: Option<SendRequest<Bytes>>,
    cut: u64,
}

impl Client {
    async fn ask_until(mut self, next: Arc<AtomicU64>, end: u64) -> Tally {
        let mut tally = Tally::default();
        loop {
            self.number = next.fetch_add(1, Ordering::Relaxed);
            if self.number >= end {
                return Tally { cut: self.cut, ..tally };
            }
            let kind = Kind::of(self.number);
            *tally.by_kind.entry(format!("{kind:?}")).or_default() += 1;
            let asked = tokio::time::timeout(REQUEST_TIME_MAX, self.ask(kind));
            let result = asked.await.unwrap_or_else(|_| panic!("{kind:?} never ended"));
            match result {
                _ if !kind.is_answered() => {}
                Ok(()) => tally.answered += 1,
                Err(_) => {
                    (self.kept, self.calls) = (None, None);
                    tally.unanswered += 1;
                }
            }
        }
    }

    async fn ask(&mut self, kind: Kind) -> Result<()> {
        match kind {
            Kind::Kept => {
                let mut stream = match self.kept.take() {
                    Some(stream) => stream,
                    None => self.connect(self.all.plain).await?,
                };
                get(&mut stream, "/small", SMALL_BYTES).await?;
                self.kept = Some(stream);
                Ok(())
            }
            Kind::New => get(&mut self.connect(self.all.plain).await?, "/small", SMALL_BYTES).await,
            Kind::Tls => {
                let mut stream = self.secure(self.all.http_1.clone()).await?;
                get(&mut stream, "/small", SMALL_BYTES).await
            }
            Kind::Large => {
                get(&mut self.connect(self.all.plain).await?, "/large", LARGE_BYTES).await
            }
            Kind::Http2 => self.streams().await,
            Kind::Upload => self.upload().await,
            Kind::Conversation => self.converse().await,
            Kind::SlowHead => {
                let mut stream = self.connect(self.all.plain).await?;
                let head = head("GET", "/small", "");
                for piece in head.as_bytes().chunks(head.len() / 4 + 1) {
                    stream.write_all(piece).await?;
                    tokio::time::sleep(PAUSE).await;
                }
                whole(&mut stream, SMALL_BYTES).await
            }
            Kind::SlowReader => {
                let mut stream = self.connect(self.all.plain).await?;
                stream.write_all(head("GET", "/large", "").as_bytes()).await?;
                let mut piece = vec![0; 32 * 1024];
                let mut count = 0;
                while count < LARGE_BYTES {
                    match stream.read(&mut piece).await? {
                        0 => return Err(ErrorKind::UnexpectedEof.into()),
                        more => count += more,
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                Ok(())
            }
            Kind::Reset => {
                let mut stream = self.connect(self.all.plain).await?;
                stream.write_all(head("GET", "/large", "").as_bytes()).await?;
                if self.number.is_multiple_of(2) {
                    stream.read_exact(&mut [0; 100]).await?;
                }
                socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))
            }
            Kind::Cut => {
                let mut stream = self.connect(self.all.plain).await?;
                let cut = get(&mut stream, "/cut", LARGE_BYTES).await;
                assert!(cut.is_err(), "what was cut looked whole");
                Ok(())
            }
            Kind::Once => self.once().await,
        }
    }

    /// Connects from one of 250 addresses: the router counts clients by theirs.
    async fn connect(&self, port: u16) -> Result<TcpStream> {
        let host = u8::try_from(self.number % 250).unwrap_or(0) + 1;
        let socket = TcpSocket::new_v4()?;
        // Many connections are buried at a time.
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::from((Ipv4Addr::new(127, 1, 0, host), 0)))?;
        let stream = socket.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn secure(&self, config: Arc<ClientConfig>) -> Result<TlsStream<TcpStream>> {
        let stream = self.connect(self.all.secure).await?;
        let name = ServerName::try_from("proxy.localhost").map_err(Error::other)?;
        TlsConnector::from(config).connect(name, stream).await
    }

    /// Sends several requests at a time on one connection, of which the last is given up.
    async fn streams(&mut self) -> Result<()> {
        let mut calls = match self.calls.take() {
            Some(calls) => calls,
            None => {
                let stream = self.secure(self.all.http_2.clone()).await?;
                let (calls, connection) =
                    h2::client::handshake(stream).await.map_err(Error::other)?;
                tokio::spawn(connection);
                calls
            }
        };
        let mut answers = Vec::new();
        for number in 0..STREAMS {
            calls = calls.ready().await.map_err(Error::other)?;
            let path = if number == 0 { "chunks" } else { "small" };
            let request = Request::get(format!("https://proxy.localhost/{path}"));
            let request = request.body(()).map_err(Error::other)?;
            let (answer, _) = calls.send_request(request, true).map_err(Error::other)?;
            answers.push(answer);
        }
        // The dropped one is reset.
        answers.pop();
        for answer in answers {
            let answer = answer.await.map_err(Error::other)?;
            let good = answer.status() == 200;
            let mut body = answer.into_body();
            let mut count = 0;
            while let Some(data) = body.data().await {
                let data = data.map_err(Error::other)?;
                count += data.len();
                body.flow_control().release_capacity(data.len()).map_err(Error::other)?;
            }
            if !good {
                return Err(ErrorKind::Other.into());
            }
            assert!(count == SMALL_BYTES || count == 4 * SMALL_BYTES, "{count} bytes");
        }
        self.calls = Some(calls);
        Ok(())
    }

    async fn upload(&self) -> Result<()> {
        let mut stream = self.connect(self.all.plain).await?;
        let body = "u".repeat(UPLOAD_BYTES);
        let text = match self.number % 2 {
            0 => {
                let length = format!("Content-Length: {UPLOAD_BYTES}\r\n");
                head("POST", "/count", &length) + &body
            }
            _ => {
                let chunk = format!("{UPLOAD_BYTES:x}\r\n{body}\r\n0\r\n\r\n");
                head("POST", "/count", "Transfer-Encoding: chunked\r\n") + &chunk
            }
        };
        stream.write_all(text.as_bytes()).await?;
        whole(&mut stream, UPLOAD_BYTES.to_string().len()).await
    }

    /// Asks for something large that must not be asked for twice; its instance may die of it.
    async fn once(&mut self) -> Result<()> {
        let mut stream = self.connect(self.all.plain).await?;
        let more = "Content-Length: 0\r\nConnection: close\r\n";
        let text = head("POST", &format!("/once/{}", self.number), more);
        stream.write_all(text.as_bytes()).await?;
        let (head, mut body) = answer_head(&mut stream).await?;
        if !head.starts_with("HTTP/1.1 200 ") {
            return Err(ErrorKind::Other.into());
        }
        // A reset is an end, too; what came before it counts.
        let ended = stream.read_to_end(&mut body).await;
        let content = body.iter().filter(|byte| **byte == b'o').count();
        let looks_whole = match head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
            true => body.ends_with(b"\r\n0\r\n\r\n"),
            false => body.len() == LARGE_BYTES,
        };
        assert!(content == LARGE_BYTES || !looks_whole, "{content} bytes looked whole");
        assert!(looks_whole || content < LARGE_BYTES, "what is whole looked cut: {ended:?}");
        self.cut += u64::from(!looks_whole);
        Ok(())
    }

    /// Converses like a WebSocket: the two ends alone decide what goes in both directions.
    async fn converse(&self) -> Result<()> {
        let mut stream = self.connect(self.all.plain).await?;
        let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n\
                       Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        stream.write_all(head("GET", "/conversation", upgrade).as_bytes()).await?;
        let (head, rest) = answer_head(&mut stream).await?;
        if !head.starts_with("HTTP/1.1 101 ") || !rest.is_empty() {
            return Err(ErrorKind::Other.into());
        }
        for number in 0..4_u8 {
            let said = [number; 200];
            stream.write_all(&said).await?;
            let mut heard = [0; 200];
            stream.read_exact(&mut heard).await?;
            assert_eq!(said, heard);
        }
        Ok(())
    }
}

fn head(method: &str, path: &str, more: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: proxy.localhost\r\n{more}\r\n")
}

async fn get(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    path: &str,
    bytes: usize,
) -> Result<()> {
    stream.write_all(head("GET", path, "").as_bytes()).await?;
    whole(stream, bytes).await
}

/// Reads a good answer of so many bytes to its end.
async fn whole(stream: &mut (impl AsyncRead + Unpin), bytes: usize) -> Result<()> {
    let (head, rest) = answer_head(stream).await?;
    if !head.starts_with("HTTP/1.1 200 ") {
        return Err(ErrorKind::Other.into());
    }
    let length = format!("content-length: {bytes}\r\n");
    assert!(head.to_ascii_lowercase().contains(&length), "{head}");
    let mut left = vec![0; bytes - rest.len()];
    stream.read_exact(&mut left).await?;
    Ok(())
}

/// Reads an answer's head, and returns it with what came behind it.
async fn answer_head(stream: &mut (impl AsyncRead + Unpin)) -> Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let rest = bytes.split_off(end + 4);
            return Ok((String::from_utf8_lossy(&bytes).into_owned(), rest));
        }
    }
}
