//! Builds that take all they can get: they are stopped, and nobody who is served notices.

use std::path::Path;

use crate::machine::{Identity, lives};
use crate::node::Node;
use crate::outside::{Callers, Site};
use crate::project::{copy_of_example, of_files};
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

const NAME: &str = "hello";
/// The number of answers before the hog begins, while it runs, and after its end.
const ANSWERS: u64 = 100;

/// The beginning of each hog: each of its processes adds a line that identifies it.
const NOTE: &str = r#"
import os, time
def note():
    start = open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19]
    with open(PIDS, "a") as pids:
        pids.write(f"{os.getpid()} {start}\n")
note()
"#;

/// A hog whose three children, in sessions of their own, grow by some hundred megabytes a second.
const MEMORY: &str = r#"
for child in range(3):
    if os.fork() == 0:
        os.setsid()
        note()
        hoard = []
        while True:
            hoard.append(bytearray(b"x") * (8 << 20))
            time.sleep(0.03)
time.sleep(600)
"#;

/// A hog whose two dozen children fork without end.
const PROCESSOR: &str = r#"
with open(PIDS + ".share", "w") as share:
    share.write(f"{len(os.sched_getaffinity(0))} {os.nice(0)}")
for child in range(24):
    if os.fork() == 0:
        note()
        while True:
            if os.fork() == 0:
                os._exit(0)
            os.wait()
time.sleep(600)
"#;

struct Case {
    node: Node,
    site: Site,
}

impl Case {
    fn serving() -> Case {
        let node = Node::start();
        let project = node.path(NAME);
        copy_of_example(NAME, &project);
        let site = node.push(&project, NAME);
        Case { node, site }
    }

    /// Changes the project so that its build is such a hog.
    fn spoil(&self, hog: &str, limit: &str) {
        let settings = format!("build = [\"python3 hog.py\"]\n[limits]\n{limit}\n");
        let hog = format!("PIDS = {:?}\n{NOTE}{hog}", self.pids());
        let files = [("hog.py", hog.as_str()), ("cortex.toml", &settings)];
        of_files(&self.node.path(NAME), &files);
    }

    fn pids(&self) -> std::path::PathBuf {
        self.node.path("pids")
    }
}

fn noted(pids: &Path) -> Vec<Identity> {
    let text = std::fs::read_to_string(pids).unwrap_or_default();
    let identity = |line: &str| {
        let (pid, start) = line.split_once(' ')?;
        Some(Identity { pid: pid.parse().ok()?, start_ticks: start.parse().ok()? })
    };
    text.lines().filter_map(identity).collect()
}

fn all_are_gone(hogs: &[Identity]) {
    for hog in hogs {
        wait_until("the hog to be gone", || !lives(*hog));
    }
}

#[test]
fn a_build_that_eats_memory_is_stopped_and_nobody_notices() {
    let case = Case::serving();
    let callers = Callers::start_gently(&case.site, "/", &["Hello from"]);
    callers.answered_more(ANSWERS);
    case.spoil(MEMORY, "build_memory = \"200MB\"");
    let project = case.node.path(NAME);
    let said = ["used more than 200 MB of memory", "build_memory", "v1 keeps serving"];
    case.node.push_as_it_is(&project, NAME).refused().saying(&said[..2]);
    let hogs = noted(&case.pids());
    assert_eq!(hogs.len(), 4, "{hogs:?}");
    all_are_gone(&hogs);
    let logs = case.node.cortex(&["logs", "-n", "50", "-a", NAME]);
    assert!(said.iter().all(|words| logs.contains(words)), "{logs}");
    callers.answered_more(ANSWERS);
    callers.finish_without_failure();
}

#[test]
fn a_build_that_eats_processors_leaves_some_to_instances() {
    let case = Case::serving();
    let callers = Callers::start_gently(&case.site, "/", &["Hello from"]);
    callers.answered_more(ANSWERS);
    case.spoil(PROCESSOR, "build_time = \"10s\"");
    let project = case.node.path(NAME);
    let pids = case.pids();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_for("all hogs at work", STATE_DEADLINE, || match noted(&pids).len() {
                25 => Ok(()),
                count => Err(count.to_string()),
            });
            callers.answered_more(ANSWERS);
        });
        let outcome = case.node.push_as_it_is(&project, NAME);
        outcome.refused().saying(&["took longer than 10 s", "build_time"]);
    });
    let share = std::fs::read_to_string(case.node.path("pids.share")).expect("it was written");
    let cores = std::thread::available_parallelism().expect("cores").get();
    assert_eq!(share, format!("{} 19", (cores / 2).max(1)));
    all_are_gone(&noted(&case.pids()));
    callers.answered_more(ANSWERS);
    callers.finish_without_failure();
}

#[test]
fn a_build_ends_with_the_node_that_is_stopped() {
    let mut case = Case::serving();
    let (built, project) = (case.node.path("begun"), case.node.path(NAME));
    let waits = "import os, time\nnote()\nopen(BEGUN, \"w\").close()\ntime.sleep(600)\n";
    case.spoil(&format!("BEGUN = {built:?}\n{waits}"), "");
    let data = case.node.data();
    let push = std::thread::spawn(move || {
        let mut command = std::process::Command::new(crate::node::binary());
        command.arg("--data-dir").arg(data).args(["push", "-a", NAME]).arg(project);
        crate::node::run(command, "push")
    });
    wait_until("the build to begin", || built.exists());
    case.node.down();
    assert!(crate::machine::processes_below(&case.node.data()).is_empty());
    push.join().expect("it ends").refused();
    // What served before serves again.
    case.node.up();
    wait_for("an answer", STATE_DEADLINE, || {
        let answer = case.site.try_get("/")?;
        if answer.status == 200 { Ok(()) } else { Err(format!("{answer:?}")) }
    });
}
