//! One node under test: `cortex up` as a child in a directory of its own, and the command line
//! against it. Whatever a test does, everything that its node started is stopped in the end.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use serde::Deserialize;
use tempfile::TempDir;

use crate::machine::{Identity, free_port, freeze, identity, kill, processes_below};
use crate::netns::lab::Host;
use crate::outside::Site;
use crate::wait::{STATE_DEADLINE, holds_within, wait_for, wait_until};

/// The time limit for a command; some pushes install packages over a slow network.
const COMMAND_DEADLINE: Duration = Duration::from_secs(600);
/// The time limit for shims to end: one says that it ends before it does, and on a busy machine the
/// node has ended before.
const LAST_MOMENTS_MAX: Duration = Duration::from_secs(5);

pub fn binary() -> PathBuf {
    let path = std::env::var_os("CORTEX_BIN").map(PathBuf::from);
    path.unwrap_or_else(|| env!("CARGO_BIN_EXE_cortex").into())
}

/// Returns a command for the binary on the host that `enter` leads to.
pub fn command_within(enter: &[String]) -> Command {
    let Some((first, rest)) = enter.split_first() else { return Command::new(binary()) };
    let mut command = Command::new(first);
    command.args(rest).arg(binary());
    command
}

/// The result of one command.
#[derive(Debug)]
pub struct Outcome {
    pub command: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    #[track_caller]
    pub fn succeeded(self) -> Outcome {
        assert!(
            self.status.success(),
            "`{}` failed:\n{}{}",
            self.command,
            self.stdout,
            self.stderr
        );
        self
    }

    /// Asserts that it was refused in an orderly way: an exit code, something on stderr, no panic.
    #[track_caller]
    pub fn refused(self) -> Outcome {
        let orderly = self.status.code().is_some_and(|code| code != 0 && code != 101)
            && !self.stderr.trim().is_empty()
            && !self.stderr.contains("panicked");
        assert!(orderly, "`{}` was to be refused with a reason: {self:#?}", self.command);
        self
    }

    /// Asserts that each of `needles` appears in what people read on stderr.
    #[track_caller]
    pub fn saying(self, needles: &[&str]) -> Outcome {
        for needle in needles {
            assert!(
                self.stderr.to_lowercase().contains(&needle.to_lowercase()),
                "`{}` was to say '{needle}':\n{}",
                self.command,
                self.stderr
            );
        }
        self
    }

    /// Returns the URL that stands alone on a line of stdout.
    #[track_caller]
    pub fn site(&self) -> Site {
        let url = self.stdout.lines().find(|line| line.starts_with("http://"));
        Site::parse(url.unwrap_or_else(|| panic!("no URL on stdout: {self:#?}")))
    }
}

/// A row of `cortex ps --json`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Row {
    pub application: String,
    pub process: String,
    pub slot: u32,
    pub node: String,
    pub pid: Option<u32>,
    pub port: Option<u16>,
    pub release: String,
    pub state: String,
    pub started_at: Option<String>,
    pub memory_bytes: Option<u64>,
    pub restarts: u32,
}

impl Row {
    pub fn is_ready(&self) -> bool {
        self.state == "ready"
    }

    pub fn identity(&self) -> Option<Identity> {
        self.pid.and_then(identity)
    }
}

pub struct Node {
    pub directory: TempDir,
    pub http_port: u16,
    http_ip: String,
    /// The words with which its command line begins; only set if it runs on a network of its own.
    enter: Vec<String>,
    options: Vec<String>,
    child: Option<Child>,
    starts: u32,
    /// The applications that have been created.
    named: RefCell<BTreeSet<String>>,
}

impl Node {
    pub fn start() -> Node {
        Node::start_with(&[])
    }

    pub fn start_with(options: &[&str]) -> Node {
        let directory = TempDir::with_prefix("cortex-e2e-").expect("a temporary directory");
        Node::start_in(directory, options)
    }

    /// Starts a node on a host of its own, with the usual ports.
    pub fn start_at(host: &Host, options: &[&str]) -> Node {
        let directory = TempDir::with_prefix("cortex-e2e-").expect("a temporary directory");
        let listen = format!("{}:8205", host.address);
        let options = [&["--listen", &listen], options].concat();
        Node::start_where(directory, host.enter(), (&host.address, 8080), &options)
    }

    /// Starts a node on this machine, by a command line that begins with these words.
    pub fn start_within(enter: Vec<String>, options: &[&str]) -> Node {
        let directory = TempDir::with_prefix("cortex-e2e-").expect("a temporary directory");
        Node::start_where(directory, enter, ("127.0.0.1", free_port()), options)
    }

    /// Starts a node on an address of loopback that others do not use: its ports are its own.
    pub fn start_on(ip: &str, options: &[&str]) -> Node {
        let directory = TempDir::with_prefix("cortex-e2e-").expect("a temporary directory");
        Node::start_where(directory, Vec::new(), (ip, free_port()), options)
    }

    /// Starts a node in a directory in which `data` may exist already.
    pub fn start_in(directory: TempDir, options: &[&str]) -> Node {
        Node::start_where(directory, Vec::new(), ("127.0.0.1", free_port()), options)
    }

    pub fn start_where(
        directory: TempDir,
        enter: Vec<String>,
        http: (&str, u16),
        options: &[&str],
    ) -> Node {
        let mut node = Node {
            directory,
            http_port: http.1,
            http_ip: http.0.into(),
            enter,
            options: options.iter().map(|option| option.to_string()).collect(),
            child: None,
            starts: 0,
            named: RefCell::default(),
        };
        node.up();
        node
    }

    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Returns a path in a directory where a test may put projects.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn up_command(&self) -> Command {
        let mut command = command_within(&self.enter);
        command.arg("up").arg("--data-dir").arg(self.data());
        command.args(["--http", &self.http_address()]).args(&self.options);
        command
    }

    pub fn http_address(&self) -> String {
        format!("{}:{}", self.http_ip, self.http_port)
    }

    /// Starts the node and returns when it answers commands.
    pub fn up(&mut self) {
        self.up_by(self.up_command());
    }

    /// Starts the node like `up`, by another command.
    pub fn up_by(&mut self, mut command: Command) {
        assert!(self.child.is_none(), "it is up already");
        self.starts += 1;
        let log = File::create(self.log_path()).expect("a file for the node's output");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("the same file")).stderr(log);
        self.child = Some(command.spawn().expect("the binary starts"));
        wait_for("the node to answer", STATE_DEADLINE, || {
            if let Ok(Some(status)) = self.child.as_mut().expect("just started").try_wait() {
                panic!("the node ended with {status}:\n{}", self.log());
            }
            let outcome = self.run(&["status"]);
            if outcome.status.success() { Ok(()) } else { Err(outcome.stderr) }
        });
    }

    fn log_path(&self) -> PathBuf {
        self.path(&format!("node.{}.log", self.starts))
    }

    /// Returns what the node printed since its last start.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the node is up").id()
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    pub fn freeze(&self) {
        freeze(self.pid());
    }

    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    pub fn kill_nine(&mut self) {
        let mut child = self.child.take().expect("the node is up");
        child.kill().expect("it can be killed");
        child.wait().expect("it can be awaited");
    }

    /// Waits for the end of the process that was started.
    pub fn ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("the node is up");
        wait_for("the node process to end", STATE_DEADLINE, || {
            child.try_wait().expect("it can be awaited").ok_or_else(|| "it goes on".to_string())
        })
    }

    /// Runs `cortex down`, and waits until nothing is left of what it ran.
    pub fn down(&mut self) {
        self.cortex(&["down"]);
        let mut child = self.child.take().expect("the node is up");
        wait_until("the node process to end", || matches!(child.try_wait(), Ok(Some(_))));
        let data = self.data();
        wait_for("everything to be stopped", STATE_DEADLINE, || {
            let left = processes_below(&data);
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        });
    }

    pub fn run(&self, arguments: &[&str]) -> Outcome {
        self.run_in(self.directory.path(), arguments)
    }

    pub fn run_in(&self, directory: &Path, arguments: &[&str]) -> Outcome {
        let mut command = Command::new(binary());
        command.arg("--data-dir").arg(self.data()).args(arguments);
        command.current_dir(directory);
        run(command, &format!("cortex {}", arguments.join(" ")))
    }

    /// Runs a command that must succeed, and returns its stdout.
    #[track_caller]
    pub fn cortex(&self, arguments: &[&str]) -> String {
        self.run(arguments).succeeded().stdout
    }

    /// Pushes under a port of the test's own. Nodes of one user that look for a port at the same
    /// moment could find the same one, and would share it: `push_as_it_is` is for tests that run
    /// alone.
    pub fn try_push(&self, project: &Path, name: &str) -> Outcome {
        if self.named.borrow_mut().insert(name.into()) {
            self.cortex(&["apps", "create", name, "--port", &free_port().to_string()]);
        }
        self.push_as_it_is(project, name)
    }

    pub fn push_as_it_is(&self, project: &Path, name: &str) -> Outcome {
        self.run(&["push", project.to_str().expect("test paths are text"), "-a", name])
    }

    #[track_caller]
    pub fn push(&self, project: &Path, name: &str) -> Site {
        self.try_push(project, name).succeeded().site()
    }

    /// Returns the directory of the only build of an application.
    pub fn build_directory(&self, name: &str) -> PathBuf {
        let mut found = self.build_directories(name);
        assert_eq!(found.len(), 1, "one build: {found:?}");
        found.remove(0)
    }

    pub fn build_directories(&self, name: &str) -> Vec<PathBuf> {
        let builds = self.data().join("apps").join(name).join("builds");
        let entries = fs::read_dir(&builds).expect("it was pushed").flatten();
        let is_build = |path: &PathBuf| path.is_dir() && path.extension().is_none();
        entries.map(|e| e.path()).filter(is_build).collect()
    }

    /// Returns the processes that `ps --json` shows.
    pub fn rows(&self, name: &str) -> Vec<Row> {
        let text = self.cortex(&["ps", "--json", "-a", name]);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("ps --json printed '{text}': {e}"))
    }

    pub fn ready(&self, name: &str, process: &str) -> Vec<Row> {
        let rows = self.rows(name).into_iter();
        rows.filter(|row| row.is_ready() && row.process == process).collect()
    }

    /// Waits until exactly `count` processes of that type are there, all of them ready.
    pub fn await_ready(&self, name: &str, process: &str, count: usize) -> Vec<Row> {
        wait_for(&format!("{count} x {name}/{process}"), STATE_DEADLINE, || {
            let mut rows = self.rows(name);
            rows.retain(|row| row.process == process);
            let good = rows.len() == count && rows.iter().all(Row::is_ready);
            if good { Ok(rows) } else { Err(format!("{rows:#?}")) }
        })
    }
}

impl Node {
    /// Takes the node down if it runs; returns whether that went well. It must not panic: a test
    /// that fails would take all others with it.
    fn goes_down(&mut self) -> bool {
        let Some(child) = &mut self.child else { return false };
        if !matches!(child.try_wait(), Ok(None)) {
            return false;
        }
        if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
            // If a test failed while the node was stopped, this would wait for it for ever.
            rustix::process::kill_process(pid, Signal::CONT).ok();
        }
        let down = AssertUnwindSafe(|| self.run(&["down"]).status.success());
        catch_unwind(down).unwrap_or(false)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the node's output:\n{}---", self.log());
        }
        let orderly = self.goes_down();
        if let Some(mut child) = self.child.take() {
            if !orderly {
                child.kill().ok();
            }
            child.wait().ok();
        }
        if orderly {
            holds_within(LAST_MOMENTS_MAX, || processes_below(&self.data()).is_empty());
        }
        let left = processes_below(&self.data());
        for (pid, _) in &left {
            if let Some(pid) = rustix::process::Pid::from_raw(*pid as i32) {
                rustix::process::kill_process(pid, Signal::KILL).ok();
            }
        }
        if orderly && !left.is_empty() && !std::thread::panicking() {
            panic!("`cortex down` left processes behind: {left:?}");
        }
    }
}

/// Returns a lock that a test holds while it lets Cortex choose an application's port.
pub fn alone_with_chosen_ports() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A child that a failed test does not leave behind.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Runs a command to its end, or kills it at the deadline. Output goes to files, so that no pipe
/// that some grandchild holds open can stall the test.
pub fn run(mut command: Command, shown: &str) -> Outcome {
    let stdout = tempfile::NamedTempFile::new().expect("a temporary file");
    let stderr = tempfile::NamedTempFile::new().expect("a temporary file");
    command.stdin(Stdio::null());
    command.stdout(stdout.reopen().expect("it is there"));
    command.stderr(stderr.reopen().expect("it is there"));
    let mut child = command.spawn().unwrap_or_else(|e| panic!("`{shown}` does not start: {e}"));
    let started = std::time::Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("it can be awaited") {
            break status;
        }
        if started.elapsed() > COMMAND_DEADLINE {
            child.kill().ok();
            child.wait().ok();
            let said = fs::read(stderr.path()).unwrap_or_default();
            panic!("`{shown}` did not end: {}", String::from_utf8_lossy(&said));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(status.signal().is_none(), "`{shown}` was ended by {status}");
    let text =
        |path: &Path| String::from_utf8_lossy(&fs::read(path).expect("it is there")).into_owned();
    let (stdout, stderr) = (text(stdout.path()), text(stderr.path()));
    Outcome { command: shown.into(), status, stdout, stderr }
}

/// Sends `kill -9`, as an accident would end a process.
pub fn kill_nine(pid: u32) {
    kill(pid, Signal::KILL);
}
