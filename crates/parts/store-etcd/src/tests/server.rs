//! A real etcd server on free ports of the loopback, with a directory of its own. It is stopped by
//! its process id, and ends with the test in any case.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The time limit of a wait: generous, since machines that run tests are busy.
const DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// The number of attempts to start; somebody else may take a port that was free a moment ago.
const STARTS_MAX: usize = 5;

pub struct EtcdServer {
    directory: TempDir,
    client: u16,
    peer: u16,
    /// The first port, while the server is on another one.
    home: Option<u16>,
    child: Option<Child>,
}

impl EtcdServer {
    pub fn start() -> EtcdServer {
        for _ in 0..STARTS_MAX {
            let directory = TempDir::new().unwrap();
            let ports = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
            let [client, peer] = ports.map(|port| port.local_addr().unwrap().port());
            let mut server = EtcdServer { directory, client, peer, home: None, child: None };
            if server.run() {
                return server;
            }
        }
        panic!("etcd does not start; is Debian's etcd-server installed?");
    }

    /// Starts the server; returns `false` if it ends at once.
    fn run(&mut self) -> bool {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let log = std::fs::File::create(self.directory.path().join("log")).unwrap();
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "etcd", "--name", "t", "--log-level", "error"])
            .args(["--data-dir"])
            .arg(self.directory.path().join("etcd"))
            .args(["--listen-client-urls", &url(self.client)])
            .args(["--advertise-client-urls", &url(self.client)])
            .args(["--listen-peer-urls", &url(self.peer)])
            .args(["--initial-advertise-peer-urls", &url(self.peer)])
            .args(["--initial-cluster", &format!("t={}", url(self.peer))])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("setpriv of Debian's util-linux");
        let child = self.child.insert(child);
        let deadline = Instant::now() + DEADLINE;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.client)).is_err() {
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            assert!(Instant::now() < deadline, "etcd does not listen");
            std::thread::sleep(POLL);
        }
        true
    }

    /// Kills the server as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts the server again, with the same ports and directory.
    pub fn start_again(&mut self) {
        let deadline = Instant::now() + DEADLINE;
        while !self.run() {
            assert!(Instant::now() < deadline, "etcd does not start again");
        }
    }

    /// Moves the server to another port; clients of the first one lose it until it moves back.
    pub fn move_to_another_port(&mut self) {
        self.kill();
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        self.home = Some(std::mem::replace(&mut self.client, free.local_addr().unwrap().port()));
        drop(free);
        self.start_again();
    }

    pub fn move_back(&mut self) {
        self.kill();
        self.client = self.home.take().unwrap_or(self.client);
        self.start_again();
    }

    /// Returns the port for clients, on the loopback.
    pub fn port(&self) -> u16 {
        self.client
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}
