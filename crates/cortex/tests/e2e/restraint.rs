//! Applications that misbehave: each is stopped, or warned about, without harm to anything else.

use std::path::PathBuf;

use rustix::process::Signal;

use crate::machine::{identity, kill, lives};
use crate::node::Node;
use crate::outside::Site;
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

/// Returns a web process on Python's standard library; `prelude` runs first.
fn server(prelude: &str) -> String {
    format!(
        r#"import os, signal, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"fine"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass

{prelude}
ThreadingHTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Answer).serve_forever()
"#
    )
}

struct Case {
    node: Node,
    project: PathBuf,
}

impl Case {
    fn new(prelude: &str) -> Case {
        let node = Node::start();
        let project = node.path("app");
        of_files(&project, &[("Procfile", "web: python3 app.py\n"), ("app.py", &server(prelude))]);
        Case { node, project }
    }

    /// Creates a case in which `settings` is the project's own `cortex.toml`.
    fn with_settings(prelude: &str, settings: &str) -> Case {
        let case = Case::new(prelude);
        of_files(&case.project, &[("cortex.toml", settings)]);
        case
    }

    fn push(&self) -> Site {
        self.node.push(&self.project, "app")
    }
}

#[test]
fn an_instance_that_prints_megabytes_keeps_serving_and_its_logs_stay_small() {
    let case =
        Case::new("for n in range(400_000): print('x' * 100, n)\nprint('the end', flush=True)");
    let site = case.push();
    site.get("/").assert_ok("fine");
    let logs = case.node.data().join("apps/app/logs");
    let size: u64 = std::fs::read_dir(&logs)
        .expect("there are logs")
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    // It wrote 40 MB; what is kept is a few files of 10 MiB at most.
    assert!(size < 80 << 20, "logs take {size} bytes");
    let shown = case.node.cortex(&["logs", "-n", "20", "-a", "app"]);
    assert!(shown.contains("the end"), "the newest lines are shown:\n{shown}");
}

#[test]
fn an_instance_that_ignores_sigterm_is_killed_after_the_grace() {
    let case = Case::with_settings(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "stop_grace = \"1s\"\n",
    );
    case.push();
    case.node.cortex(&["scale", "web=2", "-a", "app"]);
    let rows = case.node.await_ready("app", "web", 2);
    case.node.cortex(&["scale", "web=0", "-a", "app"]);
    for row in rows {
        let process = row.identity();
        wait_until("the stubborn one to be killed", || !process.is_some_and(lives));
    }
    assert!(case.node.await_ready("app", "web", 0).is_empty());
}

#[test]
fn children_that_leave_their_session_do_not_outlive_it() {
    let case = Case::new(concat!(
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n",
        "subprocess.run(['sh', '-c', 'setsid sleep 1001 & echo $! > orphan.$CORTEX_SLOT'])\n",
        "open('child.' + os.environ['CORTEX_SLOT'], 'w').write(str(child.pid))",
    ));
    case.push();
    case.node.cortex(&["scale", "web=1", "-a", "app"]);
    case.node.await_ready("app", "web", 1);
    let release = case.node.build_directory("app");
    let children: Vec<_> = ["child.1", "orphan.1"]
        .map(|name| {
            let text = std::fs::read_to_string(release.join(name)).expect("it was written");
            let pid: u32 = text.trim().parse().expect("a pid");
            identity(pid).unwrap_or_else(|| panic!("{name} {pid} lives"))
        })
        .into();
    case.node.cortex(&["scale", "web=0", "-a", "app"]);
    case.node.await_ready("app", "web", 0);
    for child in children {
        wait_until("the children to end", || !lives(child));
    }
}

#[test]
fn a_crash_loop_is_recognised_and_its_output_shown() {
    let case = Case::new("");
    let site = case.push();
    case.node.cortex(&["scale", "web=1", "-a", "app"]);
    case.node.await_ready("app", "web", 1);
    site.get("/").assert_ok("fine");
    // From now on every start ends at once; the one that runs is killed.
    let release = case.node.build_directory("app");
    std::fs::write(release.join("app.py"), "raise SystemExit('no more')\n").unwrap();
    let row = case.node.ready("app", "web").remove(0);
    kill(row.pid.unwrap(), Signal::KILL);
    let row = wait_for("the crash loop to be recognised", STATE_DEADLINE, || {
        let rows = case.node.rows("app");
        let crashed = rows.iter().find(|row| row.state == "crashed" && row.restarts >= 3);
        crashed.cloned().ok_or_else(|| format!("{rows:#?}"))
    });
    assert_eq!((row.process.as_str(), row.slot), ("web", 1));
    wait_for("the reason in the logs", STATE_DEADLINE, || {
        let logs = case.node.cortex(&["logs", "-n", "200", "-a", "app"]);
        if logs.contains("no more") { Ok(()) } else { Err(logs) }
    });
}

#[test]
fn an_instance_above_its_memory_limit_is_replaced_and_the_reason_kept() {
    let case = Case::with_settings(
        concat!(
            "import threading\n",
            "def grow():\n",
            "    import os.path\n",
            "    while not os.path.exists('/proc/self/cwd/grow'): time.sleep(0.05)\n",
            "    os.remove('/proc/self/cwd/grow')\n",
            "    global hoard\n",
            "    hoard = bytearray(b'x') * (300 << 20)\n",
            "threading.Thread(target=grow, daemon=True).start()",
        ),
        "[limits]\nmemory = \"200MB\"\n",
    );
    case.push();
    case.node.cortex(&["scale", "web=1", "-a", "app"]);
    let before = case.node.await_ready("app", "web", 1).remove(0);
    let release = case.node.build_directory("app");
    std::fs::write(release.join("grow"), "").unwrap();
    wait_for("a new process", STATE_DEADLINE, || {
        let rows = case.node.rows("app");
        let new = rows.iter().any(|row| row.is_ready() && row.pid != before.pid);
        if new { Ok(()) } else { Err(format!("{rows:#?}")) }
    });
    wait_for("the reason in the logs", STATE_DEADLINE, || {
        let logs = case.node.cortex(&["logs", "-n", "200", "-a", "app"]);
        if logs.contains("web.1 is replaced: used") { Ok(()) } else { Err(logs) }
    });
}
