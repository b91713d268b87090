//! What whoever started the node had open is no application's.

use std::process::Command;

use crate::node::{Node, run};
use crate::project::of_files;

/// The number of the descriptor, which nothing else has.
const NUMBER: u32 = 251;

#[test]
fn what_a_shell_had_open_when_it_started_the_node_reaches_no_application() {
    // A shell that duplicates to such numbers, which that of Debian does not.
    let open = format!("exec {NUMBER}</etc/hostname; exec \"$0\" \"$@\"");
    let node = Node::start_within(["bash", "-c", &open].map(str::to_owned).into(), &[]);
    let held = |pid: u32| format!("/proc/{pid}/fd/{NUMBER}");
    let listed = |path: &str| {
        let mut command = Command::new("ls");
        command.arg(path);
        run(command, path).status.success()
    };
    assert!(listed(&held(node.pid())), "the node itself inherits it");
    let said = "import os\nprint(sorted(int(n) for n in os.listdir('/proc/self/fd')))\n";
    for wall in ["none", "standard"] {
        let project = node.path(wall);
        let settings = format!("isolation = '{wall}'\n");
        let server = "web: python3 -m http.server $PORT --bind $HOST\n";
        of_files(&project, &[("Procfile", server), ("cortex.toml", &settings), ("fds.py", said)]);
        node.push(&project, wall);
        let web = node.await_ready(wall, "web", 1).remove(0);
        assert!(!listed(&held(web.pid.expect("it runs"))), "an instance, {wall}");
        let seen = node.cortex(&["run", "-a", wall, "--", "python3", "fds.py"]);
        assert!(!seen.contains(&NUMBER.to_string()), "a command, {wall}: {seen}");
    }
}
