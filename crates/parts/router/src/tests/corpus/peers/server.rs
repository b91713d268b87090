//! A real nginx or HAProxy in front of an instance of its own, and whether it has anything to do.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::super::instance::{Answer, Instance};

/// The directories of servers, which are often where an ordinary user's search path does not lead.
const DIRECTORIES: [&str; 4] = ["/usr/local/sbin", "/usr/sbin", "/usr/local/bin", "/usr/bin"];
const START_TIME_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(1);
/// Looks after which a server waits for others: it slept each time, and nothing came of it.
const LOOKS: usize = 5;
/// The time to come to rest; a server that never does is a failure with a name.
const REST_TIME_MAX: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Nginx,
    Haproxy,
}

impl Kind {
    pub const ALL: [Kind; 2] = [Kind::Nginx, Kind::Haproxy];

    /// Returns the name of the program, of its Debian package and in the records.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Nginx => "nginx",
            Kind::Haproxy => "haproxy",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Kind::Nginx => "nginx",
            Kind::Haproxy => "HAProxy",
        }
    }

    fn program(self) -> PathBuf {
        let places = DIRECTORIES.iter().map(|place| Path::new(place).join(self.name()));
        let name = self.name();
        let found = { places }.find(|path| path.is_file());
        found.unwrap_or_else(|| panic!("there is no {name}: apt-get install {name}"))
    }

    /// Returns the version as the program says itself: `nginx version: nginx/1.22.1`,
    /// `HAProxy version 2.6.12-1 2026/…`.
    pub fn version(self) -> String {
        let output = Command::new(self.program()).arg("-v").output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let text = text.replace("nginx/", "");
        let word = text.split_whitespace().skip_while(|word| !word.starts_with("version")).nth(1);
        word.unwrap_or_else(|| panic!("no version: {text}")).to_owned()
    }

    fn configuration(self) -> &'static str {
        match self {
            Kind::Nginx => include_str!("nginx.conf"),
            Kind::Haproxy => include_str!("haproxy.conf"),
        }
    }
}

/// A running server, ended when it is dropped.
pub struct Server {
    pub port: u16,
    pub instance: Instance,
    child: Child,
    _directory: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Server {
    pub async fn start(kind: Kind) -> Server {
        let instance = Instance::start(Answer::Hello).await;
        let directory = tempfile::tempdir().unwrap();
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let (path, shown) = (directory.path().join("conf"), directory.path().to_str().unwrap());
        let text =
            kind.configuration().replace("@DIR@", shown).replace("@PORT@", &port.to_string());
        let text = text.replace("@INSTANCE@", &instance.backend.port.to_string());
        fs::write(&path, text).unwrap();
        let mut command = Command::new(kind.program());
        match kind {
            // Before its configuration is read, errors go there too.
            Kind::Nginx => command.arg("-p").arg(shown).arg("-e").arg(format!("{shown}/log")),
            Kind::Haproxy => command.arg("-db").arg("-q"),
        };
        command.arg(if kind == Kind::Nginx { "-c" } else { "-f" }).arg(&path);
        let said = fs::File::create(directory.path().join("said")).unwrap();
        command.stdin(Stdio::null()).stdout(said.try_clone().unwrap()).stderr(said);
        let child = command.spawn().unwrap();
        let mut server = Server { port, instance, child, _directory: directory };
        server.await_listening(kind).await;
        server
    }

    async fn await_listening(&mut self, kind: Kind) {
        let deadline = Instant::now() + START_TIME_MAX;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err() {
            let ended = self.child.try_wait().unwrap();
            if ended.is_some() || Instant::now() > deadline {
                let said = fs::read_to_string(self._directory.path().join("said"));
                panic!("{} does not listen, {ended:?}: {said:?}", kind.name());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until the server sleeps: it has done all that it does about what it was sent.
    pub async fn rest(&self, seen: impl Fn() -> usize) {
        let deadline = Instant::now() + REST_TIME_MAX;
        let (mut looks, mut before) = (0, None);
        while looks < LOOKS {
            let now = self.times_run_if_asleep().map(|times| (times, seen(), self.came()));
            looks = if now.is_some() && now == before { looks + 1 } else { 0 };
            before = now;
            assert!(Instant::now() < deadline, "it never rests");
            tokio::time::sleep(POLL).await;
        }
    }

    fn came(&self) -> (usize, usize) {
        let connections = &self.instance.backend.connections;
        (self.instance.got_bytes(), connections.load(std::sync::atomic::Ordering::SeqCst))
    }

    /// Returns how often it was given a processor so far; `None` while it is running or may run.
    fn times_run_if_asleep(&self) -> Option<u64> {
        let of = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", self.child.id()));
        let stat = of("stat").expect("it runs");
        let sleeps = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'));
        let status = of("status").expect("it runs");
        let switches = status.lines().filter(|line| line.contains("ctxt_switches:"));
        let counts =
            switches.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok());
        sleeps.then(|| counts.sum())
    }
}
