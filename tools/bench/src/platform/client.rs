//! A closed-loop HTTP client over plain sockets that numbers its requests and counts those that
//! failed. Nothing is retried: each failure is one that a user would have seen.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

/// The time limit for connecting, sending and each read; no answer of the example takes longer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of a body that are read; the example's answers are one line.
const BODY_MAX: usize = 64 * 1024;

pub struct Load {
    stopped: Arc<AtomicBool>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    next: AtomicU64,
    failed: AtomicU64,
    first_answers: Mutex<BTreeMap<u32, Instant>>,
}

pub struct LoadReport {
    pub requests: u64,
    pub failed: u64,
    /// The time at which each process, by the pid in its answer, first answered.
    pub first_answers: BTreeMap<u32, Instant>,
}

impl Load {
    pub fn start(url: &str, clients: usize) -> anyhow::Result<Load> {
        let address = address_of(url)?;
        let stopped = Arc::new(AtomicBool::new(false));
        let shared = Arc::new(Shared::default());
        let threads = (0..clients)
            .map(|_| {
                let (stopped, shared) = (stopped.clone(), shared.clone());
                std::thread::spawn(move || client(address, &stopped, &shared))
            })
            .collect();
        Ok(Load { stopped, shared, threads })
    }

    pub fn stop(self) -> LoadReport {
        self.stopped.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().ok();
        }
        LoadReport {
            requests: self.shared.next.load(Ordering::Relaxed),
            failed: self.shared.failed.load(Ordering::Relaxed),
            first_answers: self.shared.first_answers.lock().expect("no client panics").clone(),
        }
    }
}

fn client(address: SocketAddr, stopped: &AtomicBool, shared: &Shared) {
    let mut connection = None;
    while !stopped.load(Ordering::Relaxed) {
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        match request(&mut connection, address, number) {
            Ok(body) => {
                if let Some(pid) = pid_in(&body) {
                    let mut first = shared.first_answers.lock().expect("no client panics");
                    first.entry(pid).or_insert_with(Instant::now);
                }
            }
            Err(error) => {
                eprintln!("request {number} failed: {error:#}");
                shared.failed.fetch_add(1, Ordering::Relaxed);
                connection = None;
            }
        }
    }
}

/// Returns the N of `pid N`, which the example's answers contain.
fn pid_in(body: &str) -> Option<u32> {
    let rest = &body[body.find("pid ")? + 4..];
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

pub fn get_once(url: &str) -> anyhow::Result<String> {
    request(&mut None, address_of(url)?, 0)
}

fn address_of(url: &str) -> anyhow::Result<SocketAddr> {
    let rest = url.strip_prefix("http://").with_context(|| format!("{url} is no http URL"))?;
    let host = rest.trim_end_matches('/').replace("localhost", "127.0.0.1");
    host.parse().with_context(|| format!("{url} does not name an address and a port"))
}

fn request(
    connection: &mut Option<BufReader<TcpStream>>,
    address: SocketAddr,
    number: u64,
) -> anyhow::Result<String> {
    if connection.is_none() {
        let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        *connection = Some(BufReader::new(stream));
    }
    let reader = connection.as_mut().expect("connected above");
    reader.get_mut().write_all(
        format!("GET / HTTP/1.1\r\nHost: {address}\r\nX-Request-Number: {number}\r\n\r\n")
            .as_bytes(),
    )?;
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let status = line.split(' ').nth(1).unwrap_or_default().to_string();
    let (mut length, mut close, mut chunked) = (None, false, false);
    loop {
        line.clear();
        ensure!(reader.read_line(&mut line)? > 0, "the connection was cut in the answer's head");
        let header = line.trim_end().to_ascii_lowercase();
        match header.split_once(':').map(|(name, value)| (name, value.trim())) {
            None => break,
            Some(("content-length", value)) => length = Some(value.parse::<usize>()?),
            Some(("connection", "close")) => close = true,
            Some(("transfer-encoding", "chunked")) => chunked = true,
            Some(_) => {}
        }
    }
    let body = match (chunked, length) {
        (true, _) => read_chunks(reader)?,
        (false, Some(length)) => read_exactly(reader, length)?,
        (false, None) => bail!("the answer has no length"),
    };
    if close {
        *connection = None;
    }
    ensure!(status == "200", "status {status}");
    Ok(String::from_utf8_lossy(&body).into_owned())
}

fn read_exactly(reader: &mut impl Read, length: usize) -> anyhow::Result<Vec<u8>> {
    ensure!(length <= BODY_MAX, "an answer of {length} bytes was not expected");
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(body)
}

fn read_chunks(reader: &mut impl BufRead) -> anyhow::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let length = usize::from_str_radix(line.trim_end(), 16)?;
        ensure!(body.len() + length <= BODY_MAX, "a longer answer than expected");
        body.extend(read_exactly(reader, length)?);
        reader.read_line(&mut line)?;
        if length == 0 {
            return Ok(body);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pid_is_found_in_an_answer() {
        assert_eq!(pid_in("Hello from web.1, pid 4711, release v2"), Some(4711));
        assert_eq!(pid_in("no process named"), None);
    }

    #[test]
    fn urls_become_addresses() {
        assert_eq!(address_of("http://127.0.0.1:8000/").unwrap().port(), 8000);
        assert_eq!(address_of("http://localhost:8000").unwrap().port(), 8000);
        assert!(address_of("https://x").is_err());
    }
}
