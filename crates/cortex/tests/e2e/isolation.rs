//! The wall around an application: attempts to leave it, each of which succeeds without one.

mod default;
mod egress;
mod full;
mod inherited;
mod links;
mod marked;

use std::collections::BTreeMap;
use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::machine::{free_port, kill};
use crate::node::{Node, run};
use crate::outside::Site;
use crate::project::of_files;
use crate::wait::wait_until;

const SERVER: &str = include_str!("isolation/server.py");
const ATTEMPTS: (&str, &str) = ("attempts.py", include_str!("isolation/attempts.py"));
/// What makes attempts and says what came of them.
const TRIES: (&str, &str) = ("tries.py", include_str!("isolation/tries.py"));
const PROCFILE: (&str, &str) = ("Procfile", "web: python3 server.py\n");
const STANDARD: (&str, &str) = ("cortex.toml", "isolation = \"standard\"\n");

/// What others on the machine have, which no application is to reach.
struct Others {
    facts: serde_json::Value,
    files: Vec<PathBuf>,
    shared_memory: String,
    _abstract: UnixListener,
}

impl Others {
    fn of(node: &Node) -> Others {
        let victim = node.await_ready("victim", "web", 1).remove(0);
        let unique = format!("cortex-e2e-{}", node.pid());
        let home = PathBuf::from(std::env::var_os("HOME").expect("a home")).join(&unique);
        let (temporary, shared) =
            (std::env::temp_dir().join(&unique), Path::new("/dev/shm").join(&unique));
        let files = vec![home, temporary, shared];
        files.iter().for_each(|path| fs::write(path, "of somebody else").expect("it is ours"));
        let address = SocketAddr::from_abstract_name(&unique).expect("a short name");
        let made = run(ipc("ipcmk", &["-M", "64"]), "ipcmk").succeeded().stdout;
        let shared_memory = made.rsplit(' ').next().expect("its id comes last").trim().to_owned();
        let application = node.data().join("apps/victim");
        let facts = serde_json::json!({
            "data": node.data(),
            "node": node.pid(),
            "victim": victim.pid,
            "victim_file": node.build_directory("victim").join("server.py"),
            "victim_persisted": application.join("persist/kept.txt"),
            "victim_log": application.join("logs/web.1.log"),
            "home_file": files[0],
            "temporary_file": files[1],
            "temporary_inode": fs::metadata(std::env::temp_dir()).expect("it is there").ino(),
            "shared_file": unique,
            "shared_memory": shared_memory.parse::<i32>().expect("a number"),
            "abstract": unique,
            "sockets": fs::canonicalize(node.data().join("sockets")).expect("the node's own"),
            "http_port": node.http_port,
            "free_port": free_port(),
        });
        let _abstract = UnixListener::bind_addr(&address).expect("nobody has it");
        Others { facts, files, shared_memory, _abstract }
    }

    /// Returns the attempts by name, each with its kind and what came of it.
    fn attempted_by(&self, site: &Site) -> Outcomes {
        attempted(site, "/", &self.facts, 35)
    }
}

type Outcomes = BTreeMap<String, (String, String)>;

/// Has an application make its attempts, of which there are at least `count`.
fn attempted(site: &Site, path: &str, facts: &serde_json::Value, count: usize) -> Outcomes {
    outcomes(&site.post_form(path, &[], &facts.to_string()).body, count)
}

fn outcomes(text: &str, count: usize) -> Outcomes {
    let line = |line: &str| {
        let (kind, rest) = line.split_once(' ')?;
        let (name, outcome) = rest.split_once(' ')?;
        Some((name.to_owned(), (kind.to_owned(), outcome.to_owned())))
    };
    let attempts: BTreeMap<_, _> = text.lines().filter_map(line).collect();
    assert!(attempts.len() >= count, "{text}");
    attempts
}

/// Asserts that those that are real succeeded, and no others.
fn assert_real(outcomes: &Outcomes) {
    let unreal = outcomes.iter().filter(|(_, (kind, outcome))| {
        kind == "real" && outcome != "succeeded" || kind == "never" && outcome == "succeeded"
    });
    assert_eq!(unreal.count(), 0, "{outcomes:#?}");
}

fn assert_none_escaped(outcomes: &Outcomes) {
    let escaped = outcomes.iter().filter(|(_, (_, outcome))| outcome == "succeeded");
    assert_eq!(escaped.count(), 0, "{outcomes:#?}");
}

impl Drop for Others {
    fn drop(&mut self) {
        ipc("ipcrm", &["-m", &self.shared_memory]).status().ok();
        self.files.iter().for_each(|path| drop(fs::remove_file(path)));
    }
}

fn ipc(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

#[test]
fn an_application_behind_a_wall_reaches_nobody_else() {
    let node = Node::start();
    let files = [PROCFILE, ("server.py", SERVER), TRIES, ATTEMPTS];
    let (victim, plain, walled) = (node.path("victim"), node.path("plain"), node.path("walled"));
    // Its name is in its command, by which others find it.
    let named = ("Procfile", "web: python3 server.py victim\n");
    of_files(&victim, &[named, files[1], ("cortex.toml", "persist = [\"kept.txt\"]\n")]);
    of_files(&victim, &[("kept.txt", "kept")]);
    of_files(&plain, &files);
    of_files(&walled, &files);
    of_files(&walled, &[STANDARD]);
    node.push(&victim, "victim").get("/").assert_ok("here");
    let (plain, walled) = (node.push(&plain, "plain"), node.push(&walled, "walled"));
    let others = Others::of(&node);
    let without = others.attempted_by(&plain);
    assert_real(&without);
    let within = others.attempted_by(&walled);
    assert_none_escaped(&within);
    assert_eq!(without.len(), within.len());
    // A network of its own takes nothing away from that.
    let own = node.path("own");
    of_files(&own, &files);
    of_files(&own, &[full::FULL]);
    assert_none_escaped(&others.attempted_by(&node.push(&own, "own")));
    // It still serves, is scaled and rolled back like any other.
    walled.get("/").assert_ok("here");
    node.cortex(&["scale", "web=2", "-a", "walled"]);
    node.await_ready("walled", "web", 2);
}

#[test]
fn builds_and_commands_stand_behind_the_same_wall() {
    let node = Node::start();
    let project = node.path("walled");
    let data = node.data();
    let settings = format!(
        "isolation = \"standard\"\nrelease = [\"! ls {}/store\", \"echo kept >> log/steps\"]\n\
         build = [\"! ls {}/store\"]\npersist = [\"log\"]\n",
        data.display(),
        data.display()
    );
    of_files(&project, &[PROCFILE, ("server.py", SERVER), ("cortex.toml", &settings)]);
    node.push(&project, "walled").get("/").assert_ok("here");
    let script = "cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep ^CORTEX_PROCESS=; cat log/steps";
    let said = node.cortex(&["run", "-a", "walled", "--", "sh", "-c", script]);
    let processes: Vec<&str> =
        said.lines().filter(|line| line.contains("CORTEX_PROCESS=")).collect();
    assert!(!processes.is_empty() && said.contains("kept"), "{said}");
    assert!(processes.iter().all(|line| line.starts_with("CORTEX_PROCESS=run")), "{said}");
}

#[test]
fn what_is_behind_a_wall_ends_with_its_shim() {
    let node = Node::start();
    let server = format!(
        "import subprocess\nsubprocess.Popen(['setsid', '-f', 'sleep', '86399'])\n{SERVER}"
    );
    for (name, settings) in [("walled", STANDARD), ("own", full::FULL)] {
        let project = node.path(name);
        of_files(&project, &[PROCFILE, ("server.py", &server), settings]);
        node.push(&project, name).get("/").assert_ok("here");
        let first = node.await_ready(name, "web", 1).remove(0);
        let pid = first.pid.expect("it runs");
        let shim = os::observe::process::stat(pid).expect("it lives").parent;
        // With a network of its own, the relay is among them.
        let before = below(shim);
        assert!(below(pid).len() >= 2, "the server and what it left in the background");
        assert_eq!(before.len(), below(pid).len() + if name == "own" { 2 } else { 1 });
        kill(shim, Signal::KILL);
        let lives = |pid: &u32| crate::machine::identity(*pid).is_some();
        wait_until("nothing to be left", || !before.iter().any(lives));
        node.await_ready(name, "web", 1);
    }
}

/// Returns the processes below another one.
fn below(pid: u32) -> Vec<u32> {
    let snapshot = os::observe::Snapshot::take().expect("a list of processes");
    snapshot.descendants(pid).into_iter().filter(|one| *one != pid).collect()
}
