//! Instances behind the router. The last of them dies again and again, with what is under way; any
//! of them may die of certain requests, in the middle of the answer.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinSet;

pub const SMALL_BYTES: usize = 1024;
pub const LARGE_BYTES: usize = 300 * 1024;
const STEADY: usize = 2;
/// How long it lives, and how long it is dead.
const LIFE: Duration = Duration::from_millis(400);
const DEATH: Duration = Duration::from_millis(100);

/// What all of them together have seen.
#[derive(Default)]
struct Seen {
    deaths: AtomicU64,
    /// Whether one of them is dead of a request: the others live on meanwhile.
    is_one_dead: AtomicBool,
    /// The number of answers that had begun when their instance died of them.
    broken: AtomicU64,
    /// The numbers that were asked for with `POST /once/NUMBER`.
    once: Mutex<HashSet<u64>>,
    twice: AtomicU64,
}

#[derive(Clone)]
struct Instance {
    seen: Arc<Seen>,
    death: Arc<Notify>,
}

/// The instances, stopped when dropped.
pub struct Servers {
    pub ports: Vec<u16>,
    seen: Arc<Seen>,
    _runtime: Runtime,
}

impl Servers {
    pub fn start() -> Servers {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().expect("a runtime");
        let seen = Arc::new(Seen::default());
        let mut ports = Vec::new();
        for number in 0..=STEADY {
            let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
            let address = listener.local_addr().expect("it is bound");
            ports.push(address.port());
            let life = if number == STEADY { LIFE } else { Duration::MAX };
            runtime.spawn(live_and_die(listener, address, life, seen.clone()));
        }
        Servers { ports, seen, _runtime: runtime }
    }

    pub fn deaths(&self) -> u64 {
        self.seen.deaths.load(Ordering::Relaxed)
    }

    pub fn broken(&self) -> u64 {
        self.seen.broken.load(Ordering::Relaxed)
    }

    /// Returns the number of requests that came twice although that is not safe.
    pub fn twice(&self) -> u64 {
        self.seen.twice.load(Ordering::Relaxed)
    }
}

async fn live_and_die(first: TcpListener, address: SocketAddr, life: Duration, seen: Arc<Seen>) {
    let mut listener = Some(first);
    loop {
        // The listener is dropped in the middle of whatever it does.
        let next = match listener.take() {
            Some(listener) => listener,
            // Somebody else may have the port for a moment.
            None => match TcpListener::bind(address).await {
                Ok(listener) => listener,
                Err(_) => {
                    tokio::time::sleep(DEATH).await;
                    continue;
                }
            },
        };
        let death = Arc::new(Notify::new());
        let instance = Instance { seen: seen.clone(), death: death.clone() };
        let is_killed = tokio::select! {
            () = serve(next, instance) => false,
            () = death.notified() => true,
            () = tokio::time::sleep(life) => false,
        };
        seen.deaths.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(DEATH).await;
        if is_killed {
            seen.is_one_dead.store(false, Ordering::Relaxed);
        }
    }
}

/// Serves until it is dropped, with all of its connections.
async fn serve(listener: TcpListener, instance: Instance) {
    let mut connections = JoinSet::new();
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            let instance = instance.clone();
            connections.spawn(async move { converse(stream, &instance).await.ok() });
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn converse(stream: TcpStream, instance: &Instance) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let (mut length, mut chunked) = (0, false);
        loop {
            line.clear();
            stream.read_line(&mut line).await?;
            let header = line.trim_end().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(value) = header.strip_prefix("content-length: ") {
                length = value.parse().unwrap_or(0);
            }
            chunked |= header.starts_with("transfer-encoding:");
        }
        let got = match chunked {
            true => read_chunks(&mut stream).await?,
            false => read_exactly(&mut stream, length).await?,
        };
        if let Some(number) = path.strip_prefix("/once/") {
            instance.once(&mut stream, number.parse().unwrap_or(0)).await?;
            continue;
        }
        match path.as_str() {
            "/small" => answer(&mut stream, &"s".repeat(SMALL_BYTES)).await?,
            "/large" => answer(&mut stream, &"l".repeat(LARGE_BYTES)).await?,
            "/count" => answer(&mut stream, &got.to_string()).await?,
            "/chunks" => {
                let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
                stream.write_all(head.as_bytes()).await?;
                for _ in 0..4 {
                    let piece = format!("{:x}\r\n{}\r\n", SMALL_BYTES, "c".repeat(SMALL_BYTES));
                    stream.write_all(piece.as_bytes()).await?;
                }
                stream.write_all(b"0\r\n\r\n").await?;
            }
            "/cut" => {
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE_BYTES}\r\n\r\nbegun");
                return stream.write_all(head.as_bytes()).await;
            }
            // A conversation: whatever comes goes back.
            _ => {
                let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                            Connection: Upgrade\r\n\r\n";
                stream.write_all(head.as_bytes()).await?;
                let mut bytes = [0; 4096];
                loop {
                    match stream.read(&mut bytes).await? {
                        0 => return Ok(()),
                        count => stream.write_all(&bytes[..count]).await?,
                    }
                }
            }
        }
    }
}

impl Instance {
    /// Answers with something large, in either framing. Some kill their instance in the middle of
    /// it, with all that it does for others.
    async fn once(&self, stream: &mut BufReader<TcpStream>, number: u64) -> std::io::Result<()> {
        if !self.seen.once.lock().expect("nobody panicked").insert(number) {
            self.seen.twice.fetch_add(1, Ordering::Relaxed);
        }
        let half = "o".repeat(LARGE_BYTES / 2);
        let (head, piece, end) = match number % 2 {
            0 => (format!("Content-Length: {LARGE_BYTES}"), half, ""),
            _ => {
                let piece = format!("{:x}\r\n{half}\r\n", half.len());
                ("Transfer-Encoding: chunked".to_owned(), piece, "0\r\n\r\n")
            }
        };
        stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n").as_bytes()).await?;
        stream.write_all(piece.as_bytes()).await?;
        if is_fatal(number) && !self.seen.is_one_dead.swap(true, Ordering::Relaxed) {
            self.seen.broken.fetch_add(1, Ordering::Relaxed);
            self.death.notify_one();
            std::future::pending::<()>().await;
        }
        stream.write_all(piece.as_bytes()).await?;
        stream.write_all(end.as_bytes()).await
    }
}

/// Returns whether a request kills its instance. Requests of a kind have like numbers in every
/// hundred.
fn is_fatal(number: u64) -> bool {
    (number / 100).is_multiple_of(8)
}

async fn answer(stream: &mut BufReader<TcpStream>, body: &str) -> std::io::Result<()> {
    let text = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(text.as_bytes()).await
}

async fn read_exactly(stream: &mut BufReader<TcpStream>, length: u64) -> std::io::Result<u64> {
    let mut body = stream.take(length);
    tokio::io::copy(&mut body, &mut tokio::io::sink()).await
}

async fn read_chunks(stream: &mut BufReader<TcpStream>) -> std::io::Result<u64> {
    let (mut line, mut all) = (String::new(), 0);
    loop {
        line.clear();
        stream.read_line(&mut line).await?;
        let size = u64::from_str_radix(line.trim(), 16).unwrap_or(0);
        read_exactly(stream, size + 2).await?;
        all += size;
        if size == 0 {
            return Ok(all);
        }
    }
}
