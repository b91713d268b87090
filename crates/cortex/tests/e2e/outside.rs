//! The outside client: plain HTTP/1.1 over TCP, each request numbered, every failure kept.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::wait::{STATE_DEADLINE, space_out, wait_for};

/// The time limit for an answer, longer than any of the applications under test takes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The number of callers: half keep their connection, half make a new one for each request.
pub const CALLERS: usize = 4;
/// The pause of each caller between two requests: some 160 a second from all of them, which leaves
/// the machine to the tests that run meanwhile.
const PAUSE: Duration = Duration::from_millis(25);
/// A gentle caller's pause between two requests: some 40 requests a second from all of them.
const GENTLE_PAUSE: Duration = Duration::from_millis(100);
/// The number of failures that are kept, enough to tell what went wrong.
const FAILURES_SHOWN_MAX: usize = 20;

/// The host and port where an application answers, from a URL that Cortex printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    pub host: String,
    pub port: u16,
}

impl Site {
    pub fn parse(url: &str) -> Site {
        let rest = url.strip_prefix("http://").unwrap_or_else(|| panic!("'{url}' is no http URL"));
        let authority = rest.trim_end_matches('/');
        let (name, port) = authority.split_once(':').unwrap_or((authority, "80"));
        let port = port.parse().unwrap_or_else(|_| panic!("'{url}' has no port"));
        Site { host: format!("{name}:{port}"), port }
    }

    pub fn get(&self, path: &str) -> Answer {
        self.try_get(path).unwrap_or_else(|e| panic!("GET {path} of {}: {e}", self.host))
    }

    pub fn try_get(&self, path: &str) -> Result<Answer, String> {
        Connection::open(self)?.request("GET", path, &[], b"")
    }

    pub fn post_form(&self, path: &str, headers: &[(&str, &str)], form: &str) -> Answer {
        let mut all = vec![("content-type", "application/x-www-form-urlencoded")];
        all.extend_from_slice(headers);
        Connection::open(self)
            .and_then(|mut connection| connection.request("POST", path, &all, form.as_bytes()))
            .unwrap_or_else(|e| panic!("POST {path} of {}: {e}", self.host))
    }
}

#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub status: u16,
    /// The header fields, with names in lower case.
    pub headers: BTreeMap<String, String>,
    pub cookies: Vec<String>,
    pub body: String,
}

impl Answer {
    #[track_caller]
    pub fn assert_ok(&self, needle: &str) {
        assert!(
            self.status == 200 && self.body.contains(needle),
            "'{needle}' with status 200 was expected: {self:?}"
        );
    }
}

pub struct Connection {
    host: String,
    stream: BufReader<TcpStream>,
}

impl Connection {
    pub fn open(site: &Site) -> Result<Connection, String> {
        let stream = TcpStream::connect(("127.0.0.1", site.port))
            .map_err(|e| format!("connecting to port {}: {e}", site.port))?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(|e| e.to_string())?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        Ok(Connection { host: site.host.clone(), stream: BufReader::new(stream) })
    }

    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Answer, String> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.host);
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        self.stream.get_mut().write_all(&bytes).map_err(|e| format!("sending: {e}"))?;
        self.answer()
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => Err("the connection was closed before the answer ended".into()),
            Ok(_) => Ok(line.trim_end().to_string()),
            Err(e) => Err(format!("reading: {e}")),
        }
    }

    fn answer(&mut self) -> Result<Answer, String> {
        let status_line = self.line()?;
        let status = status_line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| format!("'{status_line}' is no status line"))?;
        let mut answer = Answer { status, ..Answer::default() };
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            let (name, value) = (name.to_ascii_lowercase(), value.trim().to_string());
            if name == "set-cookie" {
                answer.cookies.push(value.split(';').next().unwrap_or_default().to_string());
            } else {
                answer.headers.insert(name, value);
            }
        }
        answer.body = String::from_utf8_lossy(&self.body(&answer)?).into_owned();
        Ok(answer)
    }

    fn body(&mut self, answer: &Answer) -> Result<Vec<u8>, String> {
        let read = |e: std::io::Error| format!("reading the body: {e}");
        let mut body = Vec::new();
        if answer.headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked") {
            loop {
                let line = self.line()?;
                let size =
                    usize::from_str_radix(&line, 16).map_err(|_| format!("chunk '{line}'"))?;
                let mut chunk = vec![0; size + 2];
                self.stream.read_exact(&mut chunk).map_err(read)?;
                if size == 0 {
                    return Ok(body);
                }
                body.extend_from_slice(&chunk[..size]);
            }
        } else if let Some(length) = answer.headers.get("content-length") {
            body.resize(length.parse().map_err(|_| format!("length '{length}'"))?, 0);
            self.stream.read_exact(&mut body).map_err(read)?;
        } else if answer.status != 204 && answer.status != 304 {
            self.stream.read_to_end(&mut body).map_err(read)?;
        }
        Ok(body)
    }
}

fn closes(answer: &Answer) -> bool {
    answer.headers.get("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
}

/// Requests that run on while something happens. A failure is everything but the expected answer.
pub struct Callers {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    answered: Arc<AtomicU64>,
    failures: Arc<Mutex<Failures>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
pub struct Failures {
    pub count: u64,
    first: Vec<String>,
}

#[derive(Debug)]
pub struct Tally {
    pub sent: u64,
    pub failures: Failures,
}

impl Failures {
    fn add(&mut self, failure: String) {
        self.count += 1;
        if self.first.len() < FAILURES_SHOWN_MAX {
            self.first.push(failure);
        }
    }
}

impl Callers {
    /// Starts callers of `GET path` that expect status 200 and one of `needles` in the body.
    pub fn start(site: &Site, path: &str, needles: &[&str]) -> Callers {
        Callers::start_pausing(site, path, needles, PAUSE, CALLERS / 2)
    }

    /// Starts callers like `start`, but leaves the machine to compilers that run meanwhile.
    pub fn start_gently(site: &Site, path: &str, needles: &[&str]) -> Callers {
        Callers::start_pausing(site, path, needles, GENTLE_PAUSE, CALLERS / 2)
    }

    /// Starts callers like `start_gently`, with a connection for each request: for servers that
    /// close idle ones without a word.
    pub fn start_anew(site: &Site, path: &str, needles: &[&str]) -> Callers {
        Callers::start_pausing(site, path, needles, GENTLE_PAUSE, 0)
    }

    fn start_pausing(
        site: &Site,
        path: &str,
        needles: &[&str],
        pause: Duration,
        keepers: usize,
    ) -> Callers {
        let mut callers = Callers {
            stop: Arc::default(),
            sent: Arc::default(),
            answered: Arc::default(),
            failures: Arc::default(),
            threads: Vec::new(),
        };
        let needles: Arc<Vec<String>> = Arc::new(needles.iter().map(|n| n.to_string()).collect());
        let threads = (0..CALLERS).map(|caller| {
            let (site, path, needles) = (site.clone(), path.to_string(), needles.clone());
            let (stop, sent) = (callers.stop.clone(), callers.sent.clone());
            let (answered, failures) = (callers.answered.clone(), callers.failures.clone());
            std::thread::spawn(move || {
                let mut kept = None;
                while !stop.load(Ordering::Relaxed) {
                    let number = sent.fetch_add(1, Ordering::Relaxed);
                    match call(&site, &path, number, &mut kept, &needles) {
                        Ok(()) => answered.fetch_add(1, Ordering::Relaxed),
                        Err(e) => {
                            failures.lock().unwrap().add(format!("request {number}: {e}"));
                            answered.load(Ordering::Relaxed)
                        }
                    };
                    if caller >= keepers {
                        kept = None;
                    }
                    space_out(pause);
                }
            })
        });
        let threads = threads.collect();
        callers.threads = threads;
        callers
    }

    /// Returns once `count` more requests have been answered.
    pub fn answered_more(&self, count: u64) {
        let goal = self.answered.load(Ordering::Relaxed) + count;
        wait_for(&format!("{count} more answers"), STATE_DEADLINE, || {
            let answered = self.answered.load(Ordering::Relaxed);
            let failures = self.failures.lock().unwrap();
            if answered >= goal { Ok(()) } else { Err(format!("{answered}, {failures:#?}")) }
        });
    }

    pub fn finish(mut self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        for thread in std::mem::take(&mut self.threads) {
            thread.join().expect("a caller does not panic");
        }
        let failures = std::mem::take(&mut *self.failures.lock().unwrap());
        Tally { sent: self.sent.load(Ordering::Relaxed), failures }
    }

    #[track_caller]
    pub fn finish_without_failure(self) {
        let tally = self.finish();
        assert!(tally.sent > 0 && tally.failures.count == 0, "requests failed: {tally:#?}");
    }
}

/// Stops the callers, so that a failed test keeps no core busy with calls that nobody answers.
impl Drop for Callers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn call(
    site: &Site,
    path: &str,
    number: u64,
    kept: &mut Option<Connection>,
    needles: &[String],
) -> Result<(), String> {
    let mut connection = match kept.take() {
        Some(connection) => connection,
        None => Connection::open(site)?,
    };
    let number = number.to_string();
    let answer = connection.request("GET", path, &[("x-request-number", &number)], b"")?;
    if answer.status != 200 || !needles.iter().any(|needle| answer.body.contains(needle.as_str())) {
        return Err(format!("unexpected answer {answer:?}"));
    }
    if !closes(&answer) {
        *kept = Some(connection);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::wait::wait_until;

    /// Starts a server that answers each request with the next of `answers`, over and over, and
    /// closes after each.
    fn serve(answers: &'static [&'static str]) -> Site {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // The thread ends with the test process.
        std::thread::spawn(move || {
            for (stream, answer) in listener.incoming().zip(answers.iter().cycle()) {
                let mut stream = BufReader::new(stream.unwrap());
                let mut line = String::new();
                while stream.read_line(&mut line).is_ok_and(|size| size > 2) {
                    line.clear();
                }
                stream.get_mut().write_all(answer.as_bytes()).ok();
            }
        });
        Site { host: "test".into(), port }
    }

    const GOOD: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 4\r\n\r\ngood";
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\
                           \r\n2\r\ngo\r\n2\r\nod\r\n0\r\n\r\n";
    const BAD: &str = "HTTP/1.1 502 Bad\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    const CUT: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 9\r\n\r\ngood";

    #[test]
    fn good_answers_are_no_failures() {
        let callers = Callers::start(&serve(&[GOOD, CHUNKED]), "/", &["good"]);
        callers.answered_more(20);
        callers.finish_without_failure();
    }

    #[test]
    fn every_bad_answer_is_counted() {
        let thirds: [&'static [&'static str]; 3] =
            [&[GOOD, GOOD, BAD], &[GOOD, GOOD, CUT], &[GOOD, GOOD, ""]];
        for answers in thirds {
            let callers = Callers::start(&serve(answers), "/", &["good"]);
            callers.answered_more(20);
            let tally = callers.finish();
            let third = tally.sent / 3;
            assert!((third..=third + 1).contains(&tally.failures.count), "{tally:?}");
        }
    }

    #[test]
    fn another_text_is_a_failure() {
        let callers = Callers::start(&serve(&[GOOD]), "/", &["better"]);
        wait_until("failures", || callers.failures.lock().unwrap().count > 2);
        assert!(callers.finish().failures.count > 2);
    }
}
