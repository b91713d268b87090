//! A running proxy, and servers to put behind it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::machine::{free_port, kill};
use crate::node::{Outcome, Running, binary, run};
use crate::outside::Site;
use crate::wait::{STATE_DEADLINE, wait_for};

pub const LIMIT: Duration = Duration::from_secs(60);

pub struct Proxy {
    pub place: Arc<TempDir>,
    pub port: u16,
    starts: u32,
    child: Option<Running>,
}

impl Proxy {
    pub fn start(options: &[&str]) -> Proxy {
        let place = TempDir::with_prefix("cortex-e2e-").expect("a temporary directory");
        Proxy::start_in(Arc::new(place), free_port(), 1, options)
    }

    /// Starts another process on the same address, which goes on where this one leaves off.
    pub fn successor(&self, options: &[&str]) -> Proxy {
        let options = [&["--take-over"], options].concat();
        Proxy::start_in(self.place.clone(), self.port, self.starts + 1, &options)
    }

    /// Waits until this process takes no more clients: until then one may come to it although its
    /// successor listens.
    pub fn await_hand_over(&self) {
        wait_for("it to take no more clients", STATE_DEADLINE, || {
            let said = self.said("err");
            if said.contains("has taken over") { Ok(()) } else { Err(said) }
        });
    }

    fn start_in(place: Arc<TempDir>, port: u16, starts: u32, options: &[&str]) -> Proxy {
        let mut proxy = Proxy { place, port, starts, child: None };
        let file = |name: &str| File::create(proxy.file(name)).expect("a file for its output");
        let mut command = Command::new(binary());
        command.arg("proxy").args(["--listen", &format!("127.0.0.1:{port}")]);
        command.arg("--control").arg(proxy.control()).args(options);
        command.env("XDG_RUNTIME_DIR", proxy.place.path());
        command.stdin(Stdio::null()).stdout(file("out")).stderr(file("err"));
        let mut child = command.spawn().expect("the binary starts");
        wait_for("the proxy to listen", STATE_DEADLINE, || {
            if let Ok(Some(status)) = child.try_wait() {
                panic!("the proxy ended with {status}: {}", proxy.said("err"));
            }
            let said = proxy.said("out");
            if said.contains("Listening on") { Ok(()) } else { Err(said) }
        });
        proxy.child = Some(Running(child));
        proxy
    }

    fn file(&self, name: &str) -> PathBuf {
        self.place.path().join(format!("{name}.{}", self.starts))
    }

    fn control(&self) -> PathBuf {
        self.place.path().join("control")
    }

    pub fn said(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.file(name)).unwrap_or_default()).into_owned()
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    pub fn site(&self) -> Site {
        Site { host: "shop.example".into(), port: self.port }
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").0.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> ExitStatus {
        let child = &mut self.child.as_mut().expect("it runs").0;
        wait_for("the proxy to end", STATE_DEADLINE, || {
            child.try_wait().expect("it can be awaited").ok_or_else(|| "it goes on".to_string())
        })
    }

    pub fn runs(&mut self) -> bool {
        let child = &mut self.child.as_mut().expect("it runs").0;
        child.try_wait().expect("it can be awaited").is_none()
    }

    /// Ends it in order, and returns what it printed.
    pub fn end(mut self) -> String {
        self.signal(Signal::TERM);
        assert!(self.ended().success(), "{}", self.said("err"));
        self.said("out")
    }

    pub fn try_change(&self, arguments: &[&str]) -> Outcome {
        let mut command = Command::new(binary());
        command.args(["proxy", "back-ends"]).args(arguments).arg("--control").arg(self.control());
        run(command, &format!("proxy back-ends {arguments:?}"))
    }

    /// Runs `proxy back-ends …`, and returns its JSON.
    #[track_caller]
    pub fn change(&self, arguments: &[&str]) -> Vec<serde_json::Value> {
        let said = self.try_change(&[arguments, &["--json"]].concat()).succeeded().stdout;
        serde_json::from_str(&said).expect("it prints JSON")
    }
}

/// An HTTP/1.1 server that says its own name, keeps connections and counts.
pub struct Named {
    pub port: u16,
    pub answered: Arc<AtomicU64>,
    stopped: Arc<AtomicBool>,
}

impl Named {
    pub fn start(name: &'static str) -> Named {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        let server = Named { port, answered: Arc::default(), stopped: Arc::default() };
        let (answered, stopped) = (server.answered.clone(), server.stopped.clone());
        // Its connections end with the test.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let answered = answered.clone();
                std::thread::spawn(move || answer_all(stream, name, &answered));
            }
        });
        server
    }

    pub fn to(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn count(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        TcpStream::connect(("127.0.0.1", self.port)).ok();
    }
}

fn answer_all(stream: TcpStream, name: &str, answered: &AtomicU64) {
    stream.set_nodelay(true).ok();
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        loop {
            line.clear();
            match reader.read_line(&mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) if line == "\r\n" => break,
                Ok(_) => {}
            }
        }
        let length = name.len();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{name}");
        // The count comes before the answer: a client that has it may look at once.
        answered.fetch_add(1, Ordering::Relaxed);
        if reader.get_mut().write_all(answer.as_bytes()).is_err() {
            answered.fetch_sub(1, Ordering::Relaxed);
            return;
        }
    }
}

/// A server that keeps every byte of each request that it got, and answers by path as its script
/// says.
pub struct Recording {
    pub port: u16,
    pub requests: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// A function from the path to the bytes of an answer, and whether the connection ends with them.
pub type Script = fn(path: &str) -> (Vec<u8>, bool);

impl Recording {
    pub fn start(script: Script) -> Recording {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        let requests: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let kept = requests.clone();
        // The threads end with the test.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let kept = kept.clone();
                std::thread::spawn(move || record(stream, &kept, script));
            }
        });
        Recording { port, requests }
    }

    pub fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }
}

fn record(mut stream: TcpStream, kept: &Mutex<Vec<Vec<u8>>>, script: Script) {
    let mut bytes = Vec::new();
    loop {
        let Some(end) = read_until(&mut stream, &mut bytes, 0, b"\r\n\r\n") else { return };
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        if head.contains("expect: 100-continue") {
            // This comes before the body, which the client sends only after it.
            stream.write_all(b"HTTP/1.1 100 Go on\r\nx-INTERIM:1\r\n\r\n").ok();
        }
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
        let whole = match length.map(|text| text.trim().parse::<usize>().expect("a length")) {
            Some(length) => {
                while bytes.len() < end + length {
                    if read_some(&mut stream, &mut bytes) == 0 {
                        return;
                    }
                }
                end + length
            }
            None if head.contains("transfer-encoding") => {
                match read_until(&mut stream, &mut bytes, end, b"0\r\n\r\n") {
                    Some(whole) => whole,
                    None => return,
                }
            }
            None => end,
        };
        let path = head.split(' ').nth(1).unwrap_or("/").to_string();
        kept.lock().unwrap().push(bytes.drain(..whole).collect());
        let (answer, last) = script(&path);
        if stream.write_all(&answer).is_err() || last {
            return;
        }
    }
}

fn read_until(
    stream: &mut TcpStream,
    bytes: &mut Vec<u8>,
    from: usize,
    mark: &[u8],
) -> Option<usize> {
    loop {
        let at = bytes[from..].windows(mark.len()).position(|window| window == mark);
        if let Some(at) = at {
            return Some(from + at + mark.len());
        }
        if read_some(stream, bytes) == 0 {
            return None;
        }
    }
}

fn read_some(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> usize {
    let mut piece = [0; 4096];
    let count = stream.read(&mut piece).unwrap_or(0);
    bytes.extend_from_slice(&piece[..count]);
    count
}

/// Starts somebody else's server for a test, and waits until its port takes connections.
pub fn serve_with(mut command: Command, port: u16) -> Running {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let running = Running(command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}")));
    wait_for("the server to listen", STATE_DEADLINE, || {
        TcpStream::connect(("127.0.0.1", port)).map(drop).map_err(|error| error.to_string())
    });
    running
}

/// Returns everything until the end, or the error that ended it.
pub fn read_to_end(mut stream: &TcpStream) -> std::io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(LIMIT))?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).map(|_| bytes)
}
