//! `examples/procfile`: two process types and a release step.

use crate::journey::Journey;
use crate::machine::lives;
use crate::node::{Node, kill_nine};
use crate::project::{copy_of_example, edit, of_files};
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

#[test]
fn a_procfile_goes_through_the_journey() {
    let mut node = Node::start();
    let project = node.path("procfile");
    copy_of_example("procfile", &project);
    Journey {
        name: "procfile",
        project: &project,
        path: "/",
        first: "at your service",
        second: "at your command",
        edit: &|project| edit(&project.join("web.py"), "at your service", "at your command"),
        spoil: &|project| {
            of_files(project, &[("prepare.py", "raise SystemExit('spoilt on purpose')\n")]);
        },
        complaint: "spoilt on purpose",
        in_hand_max: 4,
    }
    .run(&mut node, &mut |_| {});
}

#[test]
fn the_worker_is_scaled_restarted_and_logged_apart_from_web() {
    let node = Node::start();
    let project = node.path("procfile");
    copy_of_example("procfile", &project);
    node.push(&project, "procfile");
    let web = node.ready("procfile", "web");
    let worker = node.await_ready("procfile", "worker", 1).remove(0);
    assert_eq!(worker.port, None, "no traffic, no port");
    node.cortex(&["scale", "worker=3", "-a", "procfile"]);
    node.await_ready("procfile", "worker", 3);
    let before = worker.identity().expect("it lives");
    kill_nine(before.pid);
    wait_for("another worker.1", STATE_DEADLINE, || {
        let rows = node.ready("procfile", "worker");
        let back = rows.iter().any(|row| row.slot == 1 && row.pid != worker.pid);
        if back { Ok(()) } else { Err(format!("{rows:#?}")) }
    });
    let logs = node.cortex(&["logs", "-n", "100", "-p", "worker", "-a", "procfile"]);
    assert!(logs.contains("worker.2 started") && !logs.contains("preparing"), "{logs}");
    // SIGTERM lets a worker end in its own way.
    let third = node.await_ready("procfile", "worker", 3)[2].identity().unwrap();
    node.cortex(&["scale", "worker=2", "-a", "procfile"]);
    wait_until("worker.3 to end", || !lives(third));
    wait_for("its farewell", STATE_DEADLINE, || {
        let logs = node.cortex(&["logs", "-n", "100", "-p", "worker.3", "-a", "procfile"]);
        if logs.contains("worker.3 stopped") { Ok(()) } else { Err(logs) }
    });
    let pids = |rows: &[crate::node::Row]| rows.iter().map(|row| row.pid).collect::<Vec<_>>();
    assert_eq!(pids(&node.ready("procfile", "web")), pids(&web), "web was left alone");
}
