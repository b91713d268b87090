//! Shims as real processes, started from the built binary: what is launched, kept, adopted and
//! stopped. Every test has a data directory of its own and stops what is left in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use agent::launcher::{Held, Launcher};
use agent::plain::{PlainLauncher, stop_all};
use agent_core::application::Exit;
use model::{ApplicationName, InstanceId, ProcessType};
use os::layout::DataDirectory;
use os::observe::process::{self, is_alive};
use os::observe::{Listeners, Snapshot};
use shim::spec::{LaunchSpec, Purpose};

#[path = "shim/sandbox.rs"]
mod sandbox;
#[path = "shim/session.rs"]
mod session;

/// The time limit for a state that must come; far above what it takes on a slow machine.
const DEADLINE: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(600);

struct ShimFixture {
    layout: DataDirectory,
    root: tempfile::TempDir,
}

impl ShimFixture {
    fn new() -> ShimFixture {
        let root = tempfile::tempdir().unwrap();
        ShimFixture { layout: layout(root.path()), root }
    }

    fn launcher(&self) -> PlainLauncher {
        launcher(self.layout.clone())
    }

    fn log(&self) -> PathBuf {
        self.root.path().join("logs/web.1.log")
    }

    fn shell(&self, script: &str) -> LaunchSpec {
        LaunchSpec {
            purpose: purpose(1),
            argv: vec!["sh".into(), "-c".into(), script.into()],
            directory: self.root.path().to_owned(),
            environment: BTreeMap::from([
                ("PATH".into(), "/usr/bin:/bin".into()),
                // The mark finds every descendant, wherever it went.
                ("MARK".into(), self.mark()),
            ]),
            log: self.log(),
            port: Some(20_001),
            ports: BTreeMap::from([(model::PortId::udp(53), 20_002)]),
            cap: None,
            sandbox: None,
        }
    }

    fn mark(&self) -> String {
        format!("marked-{}", self.root.path().file_name().unwrap().to_str().unwrap())
    }

    /// Returns the living processes that were started with this place's mark.
    fn marked(&self) -> Vec<u32> {
        let mark = format!("MARK={}", self.mark()).into_bytes();
        let has_mark = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark)
        };
        process::pids().unwrap().filter(has_mark).collect()
    }
}

impl Drop for ShimFixture {
    fn drop(&mut self) {
        let layout = self.layout.clone();
        let stopped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(stop_all(layout, Duration::ZERO)).unwrap();
        });
        let stopped = stopped.join();
        assert!(stopped.is_ok() || std::thread::panicking(), "something could not be stopped");
    }
}

fn layout(root: &Path) -> DataDirectory {
    DataDirectory::new(root.join("data"), &root.join("sockets"))
}

fn launcher(layout: DataDirectory) -> PlainLauncher {
    PlainLauncher::with_binary(layout, env!("CARGO_BIN_EXE_cortex").into())
}

fn application() -> ApplicationName {
    "shop".parse().unwrap()
}

fn purpose(generation: u64) -> Purpose {
    let instance = InstanceId { application: application(), process: ProcessType::web(), slot: 1 };
    Purpose::Instance { instance, generation }
}

async fn exit_of(held: &dyn Held) -> Exit {
    let mut exit = held.exit();
    let ended = tokio::time::timeout(DEADLINE, exit.wait_for(Option::is_some)).await;
    ended.expect("did not end in time").unwrap().clone().unwrap()
}

async fn until(what: &str, mut state: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !state() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn parent(pid: u32) -> u32 {
    process::stat(pid).unwrap().parent
}

fn all_files(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => all_files(&entry.path(), files),
            false => files.push(entry.path()),
        }
    }
}

#[tokio::test]
async fn an_exit_at_once_is_told_with_its_last_words() {
    let place = ShimFixture::new();
    let script = "echo one; echo two >&2; printf 'no end'; exit 3";
    let held = place.launcher().launch(place.shell(script)).await.unwrap();
    assert_eq!(held.port(), Some(20_001));
    assert_eq!(held.purpose(), &purpose(1));
    let exit = exit_of(&*held).await;
    assert_eq!(exit.how, "exit status 3");
    assert!(!exit.success);
    assert_eq!(exit.last_words, "one\ntwo\nno end");
    let log = fs::read_to_string(place.log()).unwrap();
    let texts: Vec<&str> = log.lines().map(|line| line.split_once("Z ").unwrap().1).collect();
    assert_eq!(texts, ["one", "two", "no end"]);

    // The exit can be read until it is forgotten, and not after.
    let again = place.launcher().adopt().await.unwrap();
    assert_eq!(*again[0].exit().borrow(), Some(exit));
    drop(again);
    held.forget().await.unwrap();
    assert!(place.launcher().adopt().await.unwrap().is_empty());
    assert_eq!(fs::read_dir(place.layout.run()).unwrap().count(), 0);
    until("the socket is removed", || !place.layout.shim_socket(&purpose(1).id()).exists()).await;
}

#[tokio::test]
async fn success_and_signals_are_told_apart() {
    let place = ShimFixture::new();
    let launcher = place.launcher();
    let held = launcher.launch(place.shell("exit 0")).await.unwrap();
    let exit = exit_of(&*held).await;
    assert_eq!((exit.how.as_str(), exit.success), ("exit status 0", true));
    // The place of a process that ended is free again.
    let held = launcher.launch(place.shell("kill -SEGV $$")).await.unwrap();
    let exit = exit_of(&*held).await;
    assert!(exit.how.starts_with("killed by signal 11 (SIGSEGV)"), "{}", exit.how);
    assert!(!exit.success);
}

#[tokio::test]
async fn the_child_gets_what_is_given_and_nothing_else() {
    let place = ShimFixture::new();
    let mut spec = place.shell("env; pwd; cat; ls /proc/$$/fd; cut -d' ' -f5,6 /proc/$$/stat");
    spec.environment.insert("GIVEN".into(), "a b=c".into());
    let held = place.launcher().launch(spec).await.unwrap();
    let words = exit_of(&*held).await.last_words;
    let mut lines: BTreeSet<&str> = words.lines().collect();
    let mark = format!("MARK={}", place.mark());
    for expected in ["PATH=/usr/bin:/bin", "GIVEN=a b=c", &mark, "0", "1", "2"] {
        assert!(lines.remove(expected), "{expected} is missing in {words}");
    }
    let directory = place.root.path().canonicalize().unwrap();
    assert!(lines.remove(directory.to_str().unwrap()), "{words}");
    let pid = held.process().pid;
    assert!(lines.remove(format!("{pid} {pid}").as_str()), "own group and session: {words}");
    // The shell sets this one itself.
    lines.retain(|line| !line.starts_with("PWD="));
    // Descriptors that a test runner leaves open are inherited by everything it starts.
    lines.retain(|line| line.parse::<u32>().is_err());
    assert!(lines.is_empty(), "{lines:?}");
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let place = ShimFixture::new();
    let launcher = place.launcher();
    let plain = place.root.path().join("plain.txt");
    fs::write(&plain, "#!/nowhere/at/all\n").unwrap();
    let check = async |argv: &[&str], directory: &str, expected: &str| {
        let mut spec = place.shell("");
        spec.argv = argv.iter().map(|word| (*word).to_owned()).collect();
        spec.directory = directory.into();
        let error = launcher.launch(spec).await.err().expect("must not start");
        assert!(format!("{error:#}").contains(expected), "{error:#}");
    };
    check(&["/nowhere/server"], "/", "no such file: /nowhere/server").await;
    check(&["no-such-program-here"], "/", "'no-such-program-here' is in no directory of PATH")
        .await;
    check(&["sh"], "/nowhere", "cannot enter directory /nowhere").await;
    check(&[], "/", "the command is empty").await;
    check(&["a\0b"], "/", "cannot run").await;
    check(&[plain.to_str().unwrap()], "/", "is not executable").await;
    Command::new("chmod").arg("+x").arg(&plain).status().unwrap();
    check(&[plain.to_str().unwrap()], "/", "the interpreter named in its first line").await;
    let mut spec = place.shell("exit 0");
    spec.purpose = Purpose::Task { application: application(), name: "../../x".into() };
    let error = launcher.launch(spec).await.err().unwrap();
    assert!(error.to_string().contains("does not name a directory"), "{error}");
    assert!(launcher.adopt().await.unwrap().is_empty());
    // The place is free.
    let held = launcher.launch(place.shell("exit 0")).await.unwrap();
    assert!(exit_of(&*held).await.success);
}

#[tokio::test]
async fn one_id_is_not_launched_twice() {
    let place = ShimFixture::new();
    let launcher = place.launcher();
    let held = launcher.launch(place.shell("exec sleep 1000")).await.unwrap();
    let error = launcher.launch(place.shell("exit 0")).await.err().unwrap();
    assert!(error.to_string().contains("is already running, as process"), "{error}");
    assert!(is_alive(held.process()));
    assert!(held.forget().await.unwrap_err().to_string().contains("still running"));

    let mut other = place.shell("exit 0");
    other.purpose = purpose(2);
    let (first, second) = tokio::join!(launcher.launch(other.clone()), launcher.launch(other));
    assert!(first.is_ok() != second.is_ok());
}

#[tokio::test]
async fn a_stop_is_graceful() {
    let place = ShimFixture::new();
    let script = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let held = place.launcher().launch(place.shell(script)).await.unwrap();
    until("ready", || fs::read_to_string(place.log()).is_ok_and(|log| log.contains("ready"))).await;
    held.stop(LONG).await.unwrap();
    let exit = exit_of(&*held).await;
    assert!(exit.success, "{exit:?}");
    assert!(exit.last_words.ends_with("bye"), "{exit:?}");
}

#[tokio::test]
async fn what_ignores_sigterm_is_killed_after_the_grace_and_a_shorter_one_counts() {
    let place = ShimFixture::new();
    let script = "trap '' TERM; echo ready; while :; do sleep 0.02; done";
    let held = place.launcher().launch(place.shell(script)).await.unwrap();
    until("ready", || fs::read_to_string(place.log()).is_ok_and(|log| log.contains("ready"))).await;
    held.stop(LONG).await.unwrap();
    assert!(is_alive(held.process()));
    held.stop(Duration::from_millis(50)).await.unwrap();
    assert_eq!(exit_of(&*held).await.how, "killed by signal 9 (SIGKILL)");
    assert_eq!(place.marked(), Vec::<u32>::new());
}

#[tokio::test]
async fn nothing_escapes_a_stop() {
    let place = ShimFixture::new();
    let path = |name: &str| place.root.path().join(name);
    // Each one ignores SIGTERM, loses its parent, makes a session of its own, and goes on.
    fs::write(path("daemon.sh"), "trap '' TERM; while :; do sleep 0.02; done\n").unwrap();
    // A chain that is never the same process for long.
    fs::write(path("chain.sh"), "trap '' TERM; setsid sh chain.sh & exit\n").unwrap();
    let script = "trap '' TERM; setsid sh chain.sh & \
                  for i in 1 2 3 4 5 6 7 8; do (setsid sh daemon.sh &); done; \
                  echo ready; while :; do (setsid sh daemon.sh &); sleep 0.05; done";
    let held = place.launcher().launch(place.shell(script)).await.unwrap();
    until("many", || place.marked().len() > 20).await;
    held.stop(Duration::ZERO).await.unwrap();
    exit_of(&*held).await;
    assert_eq!(place.marked(), Vec::<u32>::new());
}

#[tokio::test]
async fn what_the_main_process_leaves_behind_is_stopped() {
    let place = ShimFixture::new();
    fs::write(place.root.path().join("daemon.sh"), "trap '' TERM; sleep 1000; sleep 1000").unwrap();
    let script = "(setsid sh daemon.sh &); sleep 0.1; echo done";
    let held = place.launcher().launch(place.shell(script)).await.unwrap();
    let exit = exit_of(&*held).await;
    assert_eq!((exit.how.as_str(), exit.success), ("exit status 0", true));
    assert_eq!(place.marked(), Vec::<u32>::new());
}

#[tokio::test]
async fn a_flood_of_output_is_rotated() {
    let place = ShimFixture::new();
    let script =
        "yes 'a line of some forty-odd bytes, many times' | head -c 48000000; echo the end";
    let held = place.launcher().launch(place.shell(script)).await.unwrap();
    let exit = exit_of(&*held).await;
    assert!(exit.success && exit.last_words.ends_with("the end"), "{exit:?}");
    let sizes: Vec<u64> = ["", ".1", ".2"]
        .iter()
        .map(|end| fs::metadata(format!("{}{end}", place.log().display())).unwrap().len())
        .collect();
    assert!(sizes.iter().all(|size| *size < 11 << 20), "{sizes:?}");
    assert!(sizes[1] >= 10 << 20 && sizes[2] >= 10 << 20, "{sizes:?}");
    assert_eq!(fs::read_dir(place.log().parent().unwrap()).unwrap().count(), 3);
}

/// The variable that marks the second half of the test below, in a process of its own that is
/// killed.
const NODE: &str = "CORTEX_TEST_NODE";

#[tokio::test]
async fn a_node_killed_with_its_group_leaves_its_processes_to_the_next_one() {
    if let Some(root) = std::env::var_os(NODE) {
        let root = PathBuf::from(root);
        let place = std::mem::ManuallyDrop::new(ShimFixture {
            layout: layout(&root),
            root: tempfile::tempdir().unwrap(),
        });
        let mut spec = place.shell("trap 'exit 7' TERM; while :; do echo on; sleep 0.02; done");
        spec.log = root.join("web.1.log");
        let held = launcher(layout(&root)).launch(spec).await.unwrap();
        fs::write(root.join("pid"), held.process().pid.to_string()).unwrap();
        fs::remove_dir(place.root.path()).unwrap();
        std::future::pending::<()>().await;
    }
    let place = ShimFixture::new();
    let mut node = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_node_killed_with_its_group_leaves_its_processes_to_the_next_one"])
        .env(NODE, place.root.path())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let read_pid = || fs::read_to_string(place.root.path().join("pid")).ok()?.parse().ok();
    until("launched", || read_pid().is_some()).await;
    let process = process::identity(read_pid().unwrap()).unwrap();
    let shim = parent(process.pid);
    assert!(![node.id(), std::process::id()].contains(&parent(shim)), "detached");
    let group = rustix::process::Pid::from_child(&node);
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
    node.wait().unwrap();

    let held = place.launcher().adopt().await.unwrap();
    assert_eq!(held.len(), 1);
    assert_eq!(held[0].process(), &process);
    assert_eq!((held[0].purpose(), held[0].port()), (&purpose(1), Some(20_001)));
    assert_eq!(held[0].ports()[&model::PortId::udp(53)], 20_002);
    assert!(held[0].exit().borrow().is_none());
    // Its output still goes somewhere.
    let log = place.root.path().join("web.1.log");
    let length = fs::metadata(&log).unwrap().len();
    until("more output", || fs::metadata(&log).unwrap().len() > length).await;
    // Two launchers that hold it are both told.
    let also = place.launcher().adopt().await.unwrap();
    held[0].stop(LONG).await.unwrap();
    assert_eq!(exit_of(&*held[0]).await.how, "exit status 7");
    assert_eq!(exit_of(&*also[0]).await.how, "exit status 7");
}

#[tokio::test]
async fn an_exit_that_nobody_heard_is_told_later() {
    let place = ShimFixture::new();
    let held = place.launcher().launch(place.shell("echo last; sleep 0.1; exit 4")).await.unwrap();
    let shim = process::identity(parent(held.process().pid)).unwrap();
    drop(held);
    let exit_json = place.layout.run().join(purpose(1).id()).join("exit.json");
    until("exit.json", || exit_json.exists()).await;
    // The shim may be gone too.
    let pid = rustix::process::Pid::from_raw(i32::try_from(shim.pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    until("the shim is gone", || !is_alive(&shim)).await;
    let held = place.launcher().adopt().await.unwrap();
    let exit = exit_of(&*held[0]).await;
    assert_eq!((exit.how.as_str(), exit.last_words.as_str()), ("exit status 4", "last"));
    held[0].forget().await.unwrap();
    assert!(place.launcher().adopt().await.unwrap().is_empty());
}

/// Asserts that, of two processes with the same lease, the one that is no longer spoken to is
/// stopped.
#[tokio::test]
async fn what_no_node_speaks_to_is_stopped_when_its_lease_is_over() {
    const LEASE: Duration = Duration::from_secs(8);
    let place = ShimFixture::new();
    let (kept, left) = (place.launcher(), place.launcher());
    kept.lease(Some(LEASE));
    left.lease(Some(LEASE));
    let spec = place.shell("trap 'exit 0' TERM; while :; do sleep 0.1; done");
    let held = kept.launch(spec.clone()).await.unwrap();
    let other = left.launch(LaunchSpec { purpose: purpose(2), ..spec.clone() }).await.unwrap();
    let unlimited = place.launcher();
    let third = unlimited.launch(LaunchSpec { purpose: purpose(3), ..spec }).await.unwrap();
    let (process, forever) = (other.process().clone(), third.process().clone());
    drop((other, third));
    let since = Instant::now();
    until("the end of the lease", || !is_alive(&process)).await;
    // Its last renewal was before that.
    assert!(since.elapsed() >= LEASE / 2, "stopped long before the lease was over");
    assert!(held.exit().borrow().is_none() && is_alive(held.process()), "this one was renewed");
    assert!(is_alive(&forever), "this one has no limit");
    let exit = place.root.path().join("data/run").join(purpose(2).id()).join("exit.json");
    until("exit.json", || exit.exists()).await;
    let next = place.launcher().adopt().await.unwrap();
    let told = next.iter().find(|one| *one.purpose() == purpose(2)).expect("it is told later");
    let exit = exit_of(&**told).await;
    assert!(exit.lease_over && exit.how.contains("longer than the lease"), "{exit:?}");
}

#[tokio::test]
async fn a_killed_shim_counts_as_an_exit_and_leaves_nothing_running() {
    let place = ShimFixture::new();
    let script = "sleep 1000 & sleep 1000 & wait";
    for adopted in [false, true] {
        let held = place.launcher().launch(place.shell(script)).await.unwrap();
        until("all run", || Snapshot::take().unwrap().tree(held.process().pid).len() == 3).await;
        let shim = parent(held.process().pid);
        let pid = rustix::process::Pid::from_raw(i32::try_from(shim).unwrap()).unwrap();
        let exit = if adopted {
            drop(held);
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            exit_of(&*place.launcher().adopt().await.unwrap()[0]).await
        } else {
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            exit_of(&*held).await
        };
        assert_eq!(exit.how, "its shim was killed, so Cortex stopped it");
        assert!(!exit.success);
        until("nothing runs", || place.marked().is_empty()).await;
    }
}

#[tokio::test]
async fn secrets_are_in_no_command_line_and_on_no_disk() {
    const SECRET: &str = "s3cr3t-swordfish-0815";
    let place = ShimFixture::new();
    let mut spec = place.shell("test -n \"$KEY\" && echo has it; exec sleep 1000");
    spec.environment.insert("KEY".into(), SECRET.into());
    let held = place.launcher().launch(spec).await.unwrap();
    until("runs", || fs::read_to_string(place.log()).is_ok_and(|log| log.contains("has it"))).await;
    let shim = parent(held.process().pid);
    let contains = |bytes: &[u8]| bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes());
    for file in ["cmdline", "environ"] {
        assert!(!contains(&fs::read(format!("/proc/{shim}/{file}")).unwrap()), "{file}");
    }
    let mut files = Vec::new();
    all_files(place.root.path(), &mut files);
    assert!(files.iter().any(|file| file.ends_with("state.json")));
    // The copy of the binary can be left out: it is not that of this test, which has the secret in
    // it.
    files.retain(|file| !file.starts_with(place.layout.bin()));
    for file in files.iter().filter(|file| fs::metadata(file).unwrap().is_file()) {
        assert!(!contains(&fs::read(file).unwrap()), "{}", file.display());
    }
    // The counter-check: the child's own environment has it.
    let own = fs::read(format!("/proc/{}/environ", held.process().pid)).unwrap();
    assert!(contains(&own));
}

#[tokio::test]
async fn what_left_the_tree_is_observed_with_it() {
    let place = ShimFixture::new();
    // The port is bound by a process that has lost its parent and has a session of its own.
    let server = "import socket; s = socket.create_server(('127.0.0.1', 0)); \
                  m = bytearray(30_000_000); print('port', s.getsockname()[1], flush=True); \
                  s.accept()";
    fs::write(place.root.path().join("server.py"), server).unwrap();
    let script = "(setsid python3 server.py &); exec sleep 1000";
    let held = place.launcher().launch(place.shell(script)).await.unwrap();
    let pid = held.process().pid;
    let mut port = None;
    until("bound", || {
        let log = fs::read_to_string(place.log()).unwrap_or_default();
        port = log.trim().rsplit_once("port ").and_then(|(_, port)| port.parse::<u16>().ok());
        port.is_some()
    })
    .await;
    let snapshot = Snapshot::take().unwrap();
    let tree: BTreeSet<u32> = snapshot.tree(pid).into_iter().collect();
    assert_eq!(tree, place.marked().into_iter().collect());
    assert_eq!(tree.len(), 2);
    let addresses = Listeners::take(model::port::Transport::Tcp).unwrap().of(&snapshot, pid);
    let expected = std::net::SocketAddr::from(([127, 0, 0, 1], port.unwrap()));
    assert_eq!(addresses, BTreeSet::from([expected]));
    let memory = snapshot.memory(pid).unwrap();
    assert!((30_000_000..300_000_000).contains(&memory.bytes), "{memory:?}");
}

#[tokio::test]
async fn tasks_yield_to_instances() {
    let place = ShimFixture::new();
    let nice_of = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[16].parse::<i32>().unwrap()
    };
    let score_of = |pid: u32| {
        let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
        score.trim().parse::<i32>().unwrap()
    };
    let launcher = place.launcher();
    let instance = launcher.launch(place.shell("exec sleep 1000")).await.unwrap();
    let mut spec = place.shell("exec sleep 1000");
    spec.purpose = Purpose::Task { application: application(), name: "build-v3".into() };
    let task = launcher.launch(spec).await.unwrap();
    let (instance, task) = (instance.process().pid, task.process().pid);
    let shim = parent(task);
    // The user who starts the tests may have lowered their own priority already.
    let own = nice_of(std::process::id());
    assert_eq!((nice_of(shim), nice_of(instance), nice_of(task)), (own, own, own.max(10)));
    assert!(score_of(shim) < score_of(instance) && score_of(instance) < score_of(task));
    let class = Command::new("ionice").args(["-p", &task.to_string()]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&class.stdout).trim(), "idle");
}

#[tokio::test]
async fn all_is_stopped_without_a_node() {
    let place = ShimFixture::new();
    let held = place.launcher().launch(place.shell("exec sleep 1000")).await.unwrap();
    let mut other = place.shell("exit 0");
    other.purpose = purpose(2);
    exit_of(&*place.launcher().launch(other).await.unwrap()).await;
    let stopped = stop_all(place.layout.clone(), LONG).await.unwrap();
    assert_eq!(stopped, 1);
    assert!(!is_alive(held.process()));
    assert_eq!(fs::read_dir(place.layout.run()).unwrap().count(), 0);
}

#[tokio::test]
async fn torn_records_of_a_power_failure_do_not_block_a_place() {
    let place = ShimFixture::new();
    let run = place.layout.run().join(purpose(1).id());
    for content in ["", "{", "\0\0\0", "{\"v\":1}"] {
        fs::create_dir_all(&run).unwrap();
        fs::write(run.join("state.json"), content).unwrap();
        fs::write(run.join("exit.json"), content).unwrap();
        assert!(place.launcher().adopt().await.unwrap().is_empty());
        assert!(!run.exists());
    }
    fs::create_dir_all(&run).unwrap();
    fs::write(run.join("state.json"), "").unwrap();
    let held = place.launcher().launch(place.shell("exit 0")).await.unwrap();
    assert!(exit_of(&*held).await.success);
}

#[tokio::test]
async fn copies_that_nothing_runs_from_are_removed() {
    let place = ShimFixture::new();
    let held = place.launcher().launch(place.shell("exec sleep 1000")).await.unwrap();
    let old = fs::read_link(format!("/proc/{}/exe", parent(held.process().pid))).unwrap();
    assert!(old.starts_with(place.layout.bin().canonicalize().unwrap()));
    // The upgrade is another binary.
    let upgraded = place.root.path().join("cortex");
    fs::copy(env!("CARGO_BIN_EXE_cortex"), &upgraded).unwrap();
    fs::OpenOptions::new()
        .append(true)
        .open(&upgraded)
        .and_then(|mut file| std::io::Write::write_all(&mut file, b"newer"))
        .unwrap();
    let next = PlainLauncher::with_binary(place.layout.clone(), upgraded);
    let copies = || fs::read_dir(place.layout.bin()).unwrap().count();
    let adopted = next.adopt().await.unwrap();
    assert_eq!(copies(), 2);
    adopted[0].stop(Duration::ZERO).await.unwrap();
    exit_of(&*adopted[0]).await;
    adopted[0].forget().await.unwrap();
    assert!(next.adopt().await.unwrap().is_empty());
    assert_eq!(copies(), 1);
    assert!(!old.exists());
}

/// Asserts that, with a full disk for example, nothing new starts, but what runs can still be
/// stopped.
#[tokio::test]
async fn what_runs_is_adopted_although_the_binary_cannot_be_copied() {
    let place = ShimFixture::new();
    place.launcher().launch(place.shell("exec sleep 1000")).await.unwrap();
    let missing = place.root.path().join("missing");
    let next = PlainLauncher::with_binary(place.layout.clone(), missing);
    let adopted = next.adopt().await.unwrap();
    assert_eq!(adopted.len(), 1);
    adopted[0].stop(Duration::ZERO).await.unwrap();
    exit_of(&*adopted[0]).await;
    adopted[0].forget().await.unwrap();
    assert!(next.launch(place.shell("exit 0")).await.is_err());
}
