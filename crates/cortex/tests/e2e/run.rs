//! Commands that people run in a release: as if they ran here, with or without a terminal, at
//! whichever node they are asked for.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::Signal;
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, Winsize};

use crate::fixtures::cluster::{cluster, id_of};
use crate::machine::{free_port, kill};
use crate::node::{Node, Running, binary};
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

pub const NAME: &str = "tool";
/// A Procfile whose web process always ends at once, so that it is of no use.
const BROKEN: &str = "web: python3 -c 'exit(1)'\ngreet: echo hello from the Procfile\n";
const SERVER: &str = "web: python3 -m http.server $PORT --bind $HOST\n";
const BINARY_BYTES: usize = 3 << 20;

pub fn push(node: &Node, settings: &str) {
    let project = node.path(NAME);
    of_files(&project, &[("Procfile", SERVER), ("index.html", "ok"), ("cortex.toml", settings)]);
    node.push_as_it_is(&project, NAME).succeeded();
}

pub fn create(node: &Node) {
    node.cortex(&["apps", "create", NAME, "--port", &free_port().to_string()]);
}

fn run_command(node: &Node, command: &[&str]) -> Command {
    let mut run = Command::new(binary());
    run.arg("--data-dir").arg(node.data()).args(["run", "-a", NAME]).args(command);
    run
}

fn start_run(node: &Node, command: &[&str], stdin: Stdio, stdout: Stdio) -> Child {
    start(node, &[&["run", "-a", NAME], command].concat(), stdin, stdout)
}

pub fn start(node: &Node, arguments: &[&str], stdin: Stdio, stdout: Stdio) -> Child {
    let mut run = Command::new(binary());
    run.arg("--data-dir").arg(node.data()).args(arguments);
    run.stdin(stdin).stdout(stdout).stderr(Stdio::inherit()).spawn().expect("it starts")
}

pub fn await_file(path: &std::path::Path) {
    wait_for("the command to have begun", STATE_DEADLINE, || {
        if path.exists() { Ok(()) } else { Err(format!("no {}", path.display())) }
    });
}

pub fn platform_says(node: &Node, words: &str) {
    wait_for(words, STATE_DEADLINE, || {
        let log = node.cortex(&["logs", "-a", NAME, "-p", "cortex"]);
        if log.contains(words) { Ok(()) } else { Err(log) }
    });
}

#[test]
fn a_command_runs_as_if_it_ran_here() {
    let node = Node::start();
    let project = node.path(NAME);
    create(&node);
    node.run(&["run", "-a", NAME, "true"]).refused().saying(&["no release", "cortex push"]);
    node.run(&["run", "-a", NAME]).refused().saying(&["say what to run", "for example"]);
    // Something may have to be run before the first release can serve.
    of_files(&project, &[("Procfile", BROKEN)]);
    node.push_as_it_is(&project, NAME).refused();
    assert_eq!(node.cortex(&["run", "-a", NAME, "greet"]), "hello from the Procfile\n");
    push(&node, "");
    node.cortex(&["scale", "-a", NAME, "web=0"]);

    let outcome =
        node.run(&["run", "-a", NAME, "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!(outcome.status.code(), Some(7), "{outcome:?}");
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(node.cortex(&["run", "-a", NAME, "ls *.html | wc -l"]).trim(), "1");
    assert_eq!(
        node.cortex(&["run", "-a", NAME, "printf", "%s|", "a b", "$HOME", "*"]),
        "a b|$HOME|*|"
    );
    let missing = node.run(&["run", "-a", NAME, "nosuch", "x"]);
    assert_eq!(missing.status.code(), Some(127));
    missing.saying(&["nosuch: not found"]);
    assert_eq!(node.run(&["run", "-a", NAME, "kill -9 $$"]).status.code(), Some(137));
    platform_says(&node, "run.1 ended: exit status 7");

    // Every byte passes, in both directions at once.
    let sent: Vec<u8> =
        (0..BINARY_BYTES as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let (from, to) = (node.path("sent"), node.path("received"));
    fs::write(&from, &sent).expect("a file");
    let input = File::open(&from).expect("it is there").into();
    let mut copy = start_run(&node, &["cat"], input, File::create(&to).expect("a file").into());
    assert!(copy.wait().expect("it ends").success());
    let received = fs::read(&to).expect("it is there");
    assert_eq!(blake3::hash(&received), blake3::hash(&sent), "{} bytes", received.len());

    // A signal passes although the command reads none of its input.
    let begun = node.path("begun");
    let script =
        format!("trap 'exit 9' INT; touch {}; while :; do sleep 0.05; done", begun.display());
    let endless = File::open("/dev/zero").expect("it is there").into();
    let mut deaf = Running(start_run(&node, &[&script], endless, Stdio::null()));
    await_file(&begun);
    node.await_ready(NAME, "run", 1);
    kill(deaf.0.id(), Signal::INT);
    assert_eq!(deaf.0.wait().expect("it ends").code(), Some(9));

    // A client that goes away leaves nothing running.
    let script = format!("rm {}; exec sleep 1000", begun.display());
    let mut left = Running(start_run(&node, &[&script], Stdio::null(), Stdio::null()));
    wait_for("it to have begun", STATE_DEADLINE, || {
        if begun.exists() { Err("it is there".into()) } else { Ok(()) }
    });
    left.0.kill().expect("it runs");
    platform_says(&node, "killed by signal 1 (SIGHUP) (its client went away)");
}

/// A person at a terminal: what they see and do.
pub struct Person {
    screen: File,
    pub seen: String,
    run: Running,
}

impl Person {
    pub fn sits_at(node: &Node, command: &[&str]) -> Person {
        Person::at(run_command(node, command))
    }

    pub fn at(run: Command) -> Person {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let near = rustix::pty::openpt(flags).expect("a terminal");
        rustix::pty::grantpt(&near).expect("its own");
        rustix::pty::unlockpt(&near).expect("unlocked");
        let far = rustix::pty::ioctl_tiocgptpeer(&near, flags).expect("its other end");
        rustix::io::ioctl_fionbio(&near, true).expect("a flag");
        let end = || far.try_clone().expect("one more");
        // The command has a session of its own, so that it is told of a new size.
        let mut session = Command::new("setsid");
        session.args(["--ctty", "--wait"]).arg(run.get_program()).args(run.get_args());
        session.env("TERM", "vt220").stdin(end()).stdout(end()).stderr(end());
        let run = Running(session.spawn().expect("setsid is there"));
        let person = Person { screen: near.into(), seen: String::new(), run };
        person.resizes(33, 77);
        person
    }

    fn resizes(&self, ws_row: u16, ws_col: u16) {
        let size = Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&self.screen, size).expect("a size");
    }

    pub fn types(&mut self, keys: &str) {
        self.screen.write_all(keys.as_bytes()).expect("keys are taken");
    }

    fn look(&mut self) {
        let mut chunk = [0; 4096];
        while let Ok(count @ 1..) = self.screen.read(&mut chunk) {
            self.seen.push_str(&String::from_utf8_lossy(&chunk[..count]));
        }
    }

    pub fn sees(&mut self, answer: &str) {
        wait_for(&format!("'{answer}' on the screen"), STATE_DEADLINE, || {
            self.look();
            if self.seen.contains(answer) { Ok(()) } else { Err(self.seen.clone()) }
        });
    }

    pub fn has_left(&mut self) -> bool {
        self.look();
        matches!(self.run.0.try_wait(), Ok(Some(_)))
    }

    /// Waits until the command line has ended.
    pub fn leaves(&mut self) -> ExitStatus {
        wait_for("it to end", STATE_DEADLINE, || {
            self.look();
            match self.run.0.try_wait() {
                Ok(Some(status)) => Ok(status),
                other => Err(format!("{other:?}: {}", self.seen)),
            }
        })
    }

    pub fn modes(&self) -> LocalModes {
        rustix::termios::tcgetattr(&self.screen).expect("its modes").local_modes
    }

    /// Returns the process of the command line: `setsid` has become that.
    pub fn client(&self) -> u32 {
        self.run.0.id()
    }

    /// Types it again until the answer appears; the echo of what is typed does not count.
    pub fn asks(&mut self, keys: &str, answer: &str) {
        wait_for(&format!("'{answer}' on the screen"), STATE_DEADLINE, || {
            self.types(keys);
            let asked = std::time::Instant::now();
            while asked.elapsed().as_millis() < 300 {
                self.look();
                if self.seen.contains(answer) {
                    return Ok(());
                }
            }
            Err(self.seen.clone())
        });
    }
}

#[test]
fn a_command_has_a_terminal_where_there_is_one() {
    let node = Node::start();
    create(&node);
    push(&node, "");
    let mut person = Person::sits_at(&node, &["sh"]);
    person.asks("echo term is $TERM\n", "term is vt220");
    person.asks("tty\n", "/dev/pts/");
    person.asks("stty size\n", "33 77");
    person.resizes(40, 100);
    person.asks("stty size\n", "40 100");
    // Ctrl-C ends what runs there, and nothing here.
    let begun = node.path("begun");
    person.types(&format!("touch {}; sleep 1000\n", begun.display()));
    wait_until("the shell to be at it", || begun.exists());
    person.types("\u{3}");
    person.asks("echo still $((40 + 2))\n", "still 42");
    person.types("exit 5\n");
    let ended = person.leaves();
    assert_eq!(ended.code(), Some(5), "{}", person.seen);
    assert!(person.modes().contains(LocalModes::ICANON), "it is as before");
    // There is no terminal if none is wanted.
    let plain = node.run(&["run", "-a", NAME, "--no-tty", "test -t 0 || echo none"]);
    assert_eq!(plain.succeeded().stdout, "none\n");
}

#[test]
fn a_command_runs_where_the_files_are() {
    let [one, mut two] = cluster([&[], &[]]);
    create(&one);
    push(&one, "persist = [\"kept/\"]\n");
    let here = id_of(&one);
    let said = two.cortex(&["run", "-a", NAME, "echo $CORTEX_NODE; echo noted > kept/note"]);
    assert_eq!(said.trim(), here);
    assert_eq!(one.cortex(&["run", "-a", NAME, "cat", "kept/note"]).trim(), "noted");
    let failing = two.run(&["run", "-a", NAME, "cat >&2; exit 3"]);
    assert_eq!(failing.status.code(), Some(3));
    // The name of the one before may not be free yet.
    platform_says(&one, "ended: exit status 3");
    // The node at which it was asked for is lost: the command goes on, and its client with it.
    let begun = one.path("begun");
    let script = format!("touch {}; read line; echo $line; exit 4", begun.display());
    let output = two.path("output");
    let to = File::create(&output).expect("a file");
    let mut asked = Running(start_run(&two, &[&script], Stdio::piped(), to.into()));
    await_file(&begun);
    two.kill_nine();
    asked.0.stdin.take().expect("a pipe").write_all(b"still there\n").expect("it listens");
    two.up();
    let ended = wait_for("it to end", STATE_DEADLINE, || {
        asked.0.try_wait().expect("it can be awaited").ok_or_else(|| "it goes on".to_string())
    });
    assert_eq!(ended.code(), Some(4));
    assert_eq!(fs::read_to_string(&output).expect("a file"), "still there\n");
}
