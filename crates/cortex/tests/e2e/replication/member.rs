//! One store under test: `cortex store serve` as a child, its command line, and a client of its
//! UNIX socket.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::machine::{free_port, freeze, kill};
use crate::netns::lab::Host;
use crate::node::{Outcome, binary, command_within, run};
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

/// The time limit for a reply, even of a loaded machine; reached only when something is wrong.
const REPLY_DEADLINE: Duration = Duration::from_secs(60);

pub struct Member {
    pub name: &'static str,
    directory: TempDir,
    address: String,
    /// The words with which its command line begins; only set if it runs on a network of its own.
    enter: Vec<String>,
    options: Vec<String>,
    child: Option<Child>,
    starts: u32,
}

impl Member {
    pub fn start(name: &'static str, options: &[&str]) -> Member {
        Member::start_where(name, format!("127.0.0.1:{}", free_port()), Vec::new(), options)
    }

    /// Starts a store on a host of its own, with the usual port.
    pub fn start_at(name: &'static str, host: &Host, options: &[&str]) -> Member {
        Member::start_where(name, format!("{}:8205", host.address), host.enter(), options)
    }

    fn start_where(
        name: &'static str,
        address: String,
        enter: Vec<String>,
        options: &[&str],
    ) -> Member {
        let directory = TempDir::with_prefix("cortex-e2e-").expect("a temporary directory");
        let options = options.iter().map(ToString::to_string).collect();
        let mut member =
            Member { name, directory, address, enter, options, child: None, starts: 0 };
        member.up();
        member
    }

    pub fn join_at(name: &'static str, host: &Host, other: &Member) -> Member {
        Member::joined(Member::start_at(name, host, &["--join", &other.invitation()]))
    }

    pub fn join(name: &'static str, other: &Member) -> Member {
        Member::joined(Member::start(name, &["--join", &other.invitation()]))
    }

    fn joined(member: Member) -> Member {
        wait_for("the new member to have everything", STATE_DEADLINE, || {
            let peers = member.peers();
            let joined = peers["state"] == "member" || peers["state"] == "catching up";
            if joined { Ok(()) } else { Err(format!("{peers}\n{}", member.log())) }
        });
        member
    }

    pub fn set_options(&mut self, options: &[&str]) {
        self.options = options.iter().map(ToString::to_string).collect();
    }

    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub fn address(&self) -> String {
        self.address.clone()
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("redis")
    }

    fn serve(&self) -> Command {
        let log = File::create(self.log_path()).expect("a file for its output");
        let mut command = command_within(&self.enter);
        command.args(["store", "serve", "--verbose", "--redis", "none", "--unix"]);
        command.arg(self.socket()).arg("--data-dir").arg(self.data());
        command.args(["--listen", &self.address()]).args(&self.options);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("the same file")).stderr(log);
        command
    }

    pub fn up(&mut self) {
        assert!(self.child.is_none(), "it is up already");
        self.starts += 1;
        self.child = Some(self.serve().spawn().expect("the binary starts"));
        wait_for("the store to answer", STATE_DEADLINE, || {
            if let Ok(Some(status)) = self.child.as_mut().expect("just started").try_wait() {
                panic!("{} ended with {status}:\n{}", self.name, self.log());
            }
            let outcome = self.run(&["store", "head"]);
            let answers = outcome.status.success() && UnixStream::connect(self.socket()).is_ok();
            if answers { Ok(()) } else { Err(outcome.stderr) }
        });
    }

    /// Starts it, and returns what it says as it ends by itself.
    pub fn fails_to_start(&mut self) -> String {
        self.starts += 1;
        let mut child = self.serve().spawn().expect("the binary starts");
        let mut status = None;
        wait_until("it to end", || {
            status = child.try_wait().expect("it can be awaited");
            status.is_some()
        });
        assert!(status.is_some_and(|status| !status.success()), "{}", self.log());
        self.log()
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join(format!("serve.{}.log", self.starts))
    }

    /// Returns what it said since its last start.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.child.as_ref().expect("it is up").id(), signal);
    }

    pub fn freeze(&self) {
        freeze(self.child.as_ref().expect("it is up").id());
    }

    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    pub fn kill_nine(&mut self) {
        let mut child = self.child.take().expect("it is up");
        child.kill().expect("it can be killed");
        child.wait().expect("it can be awaited");
    }

    pub fn stop(&mut self) {
        self.signal(Signal::TERM);
        let mut child = self.child.take().expect("it is up");
        wait_until("it to end", || matches!(child.try_wait(), Ok(Some(_))));
    }

    pub fn run(&self, arguments: &[&str]) -> Outcome {
        let mut command = Command::new(binary());
        command.arg("--data-dir").arg(self.data()).args(arguments);
        run(command, &format!("cortex {} ({})", arguments.join(" "), self.name))
    }

    #[track_caller]
    pub fn cortex(&self, arguments: &[&str]) -> String {
        self.run(arguments).succeeded().stdout
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it is up").id()
    }

    pub fn id(&self) -> String {
        fs::read_to_string(self.data().join("node.id")).expect("its id").trim().to_string()
    }

    #[track_caller]
    pub fn invitation(&self) -> String {
        self.cortex(&["store", "invite"]).trim().to_string()
    }

    #[track_caller]
    pub fn set(&self, key: &str, value: &str) {
        self.cortex(&["store", "set", key, value]);
    }

    pub fn get(&self, key: &str) -> Option<String> {
        let outcome = self.run(&["store", "get", key]);
        outcome.status.success().then_some(outcome.stdout)
    }

    #[track_caller]
    pub fn await_value(&self, key: &str, value: &str) {
        wait_for(&format!("{key} on {}", self.name), STATE_DEADLINE, || match self.get(key) {
            Some(found) if found == value => Ok(()),
            found => Err(format!("{found:?}\n{}\n{}", self.peers(), self.log())),
        });
    }

    pub fn peers(&self) -> Value {
        let text = self.run(&["store", "peers", "--json"]);
        serde_json::from_str(&text.stdout).unwrap_or(Value::String(text.stderr))
    }

    pub fn await_reachable(&self, count: usize) {
        wait_for("peers to be reachable", STATE_DEADLINE, || {
            let peers = self.peers();
            let rows = peers["peers"].as_array().cloned().unwrap_or_default();
            let reachable = rows.iter().filter(|row| row["reachable"] == true).count();
            if reachable >= count { Ok(()) } else { Err(peers.to_string()) }
        });
    }

    pub fn head(&self) -> String {
        self.run(&["store", "head"]).stdout
    }

    pub fn client(&self) -> Client {
        let stream = UnixStream::connect(self.socket()).expect("its socket");
        stream.set_read_timeout(Some(REPLY_DEADLINE)).expect("a time limit");
        Client { reader: BufReader::new(stream) }
    }

    pub fn copy_data(&self) -> TempDir {
        let copy = TempDir::with_prefix("cortex-e2e-").expect("a temporary directory");
        copy_tree(&self.data().join("store"), &copy.path().join("store"));
        copy
    }

    /// Puts its log back as it was when it was copied.
    pub fn restore(&self, copy: TempDir) {
        let store = self.data().join("store");
        fs::remove_dir_all(&store).expect("its log");
        copy_tree(&copy.path().join("store"), &store);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- {} said:\n{}---", self.name, self.log());
        }
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory for the copy");
    for entry in fs::read_dir(from).expect("its directory").flatten() {
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
}

/// Waits until their histories are the same, and so is all they show.
#[track_caller]
pub fn await_equal(members: &[&Member]) {
    wait_for("equal histories", STATE_DEADLINE, || {
        let heads: Vec<String> = members.iter().map(|member| member.head()).collect();
        let equal = !heads[0].is_empty() && heads.iter().all(|head| *head == heads[0]);
        if equal { Ok(()) } else { Err(format!("{heads:?}")) }
    });
    let history = |member: &Member| member.cortex(&["store", "history", "-n", "10000", "--json"]);
    let first = history(members[0]);
    for member in members {
        assert_eq!(history(member), first, "{}", member.name);
    }
}

/// A client of the Redis protocol, as far as these tests need it.
pub struct Client {
    reader: BufReader<UnixStream>,
}

impl Client {
    /// Sends a command and returns the first line of the reply; `None` if the connection broke.
    pub fn try_command(&mut self, arguments: &[&str]) -> Option<String> {
        let mut request = format!("*{}\r\n", arguments.len());
        for argument in arguments {
            request.push_str(&format!("${}\r\n{argument}\r\n", argument.len()));
        }
        self.reader.get_mut().write_all(request.as_bytes()).ok()?;
        self.line()
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.reader.read_line(&mut line).ok()?;
        (read > 0).then(|| line.trim_end().to_string())
    }

    /// Sends a command and returns the reply, as far as it is on lines of its own.
    pub fn command(&mut self, arguments: &[&str]) -> String {
        let mut said = self.try_command(arguments).expect("a reply");
        if let Some(count) = said.strip_prefix('*').and_then(|count| count.parse::<usize>().ok()) {
            for _ in 0..2 * count - 1 {
                said.push_str(&format!(" {}", self.line().expect("more of the reply")));
            }
        }
        said
    }

    pub fn read_until(&mut self, wanted: &str) -> String {
        let mut said = String::new();
        while !said.contains(wanted) {
            said.push_str(&format!(" {}", self.line().expect("a message")));
        }
        said
    }
}
