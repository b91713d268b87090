//! `examples/hello`: the first thing that a new user sees.

use std::process::Stdio;
use std::thread;

use serde::Deserialize;

use crate::journey::Journey;
use crate::node::{Node, Running, alone_with_chosen_ports, run};
use crate::outside::{Callers, Site};
use crate::project::{copy_of_example, edit, of_files};
use crate::wait::{STATE_DEADLINE, wait_for};

#[derive(Debug, Deserialize)]
struct Slow {
    instance: String,
    pid: u32,
    started: f64,
    ended: f64,
}

/// Asserts that four instances of a server that answers one request at a time overlap when four
/// requests come at once.
#[test]
fn four_serial_instances_answer_in_parallel() {
    let node = Node::start();
    let project = node.path("hello");
    copy_of_example("hello", &project);
    let site = node.push(&project, "hello");
    site.get("/").assert_ok("Hello from web.");
    assert_eq!(node.await_ready("hello", "web", 4).len(), 4);
    let answers: Vec<Slow> = thread::scope(|scope| {
        let calls: Vec<_> = (0..4).map(|_| scope.spawn(|| site.get("/slow"))).collect();
        calls.into_iter().map(|call| call.join().expect("it answers")).collect::<Vec<_>>()
    })
    .iter()
    .map(|answer| serde_json::from_str(&answer.body).unwrap_or_else(|e| panic!("{answer:?}: {e}")))
    .collect();
    let mut instances: Vec<_> = answers.iter().map(|slow| (&slow.instance, slow.pid)).collect();
    instances.sort();
    instances.dedup();
    assert_eq!(instances.len(), 4, "four instances: {answers:?}");
    let last_start = answers.iter().map(|slow| slow.started).fold(f64::MIN, f64::max);
    let first_end = answers.iter().map(|slow| slow.ended).fold(f64::MAX, f64::min);
    assert!(last_start < first_end, "all four were at work at one moment: {answers:?}");
}

#[test]
fn the_example_goes_through_the_journey() {
    let mut node = Node::start();
    let project = node.path("hello");
    copy_of_example("hello", &project);
    Journey {
        name: "hello",
        project: &project,
        path: "/",
        first: "Hello from web.",
        second: "Welcome from web.",
        edit: &|project| edit(&project.join("app.py"), "Hello from", "Welcome from"),
        spoil: &|project| {
            of_files(
                project,
                &[(
                    "app.py",
                    "from http.server import HTTPServer\nraise SystemExit('spoilt on purpose')\n",
                )],
            );
        },
        complaint: "spoilt on purpose",
        in_hand_max: 1,
    }
    .run(&mut node, &mut |_| {});
}

/// Asserts that the README's first command, `cortex up DIR`, prints the URL as soon as it answers.
#[test]
fn up_with_a_directory_prints_the_url() {
    let _alone = alone_with_chosen_ports();
    let mut node = Node::start();
    let project = node.path("hello");
    copy_of_example("hello", &project);
    node.down();
    let output = node.path("up.out");
    let file = std::fs::File::create(&output).expect("a file");
    let mut command = node.up_command();
    command.arg(&project).stdin(Stdio::null()).stdout(file).stderr(Stdio::null());
    let mut child = Running(command.spawn().expect("the binary starts"));
    let site = wait_for("the URL", STATE_DEADLINE, || {
        assert!(child.0.try_wait().expect("a child").is_none(), "`up` ended early");
        let text = std::fs::read_to_string(&output).expect("it is there");
        let url = text.lines().find(|line| line.starts_with("http://") && text.ends_with('\n'));
        url.map(Site::parse).ok_or(text.clone())
    });
    site.get("/").assert_ok("Hello from web.");
    // The application also answers by name on the node's public address.
    let by_name = Site { host: "hello.localhost".into(), port: node.http_port };
    by_name.get("/").assert_ok("Hello from web.");
    node.cortex(&["down"]);
    wait_for("`up` to end", STATE_DEADLINE, || match child.0.try_wait().expect("a child") {
        Some(status) => Ok(status),
        None => Err("it runs on".into()),
    });
}

/// Asserts that what is pushed again unchanged serves on, and that nothing fails while instances
/// are replaced one by one.
#[test]
fn restart_replaces_every_process_without_a_failed_request() {
    let node = Node::start();
    let project = node.path("hello");
    copy_of_example("hello", &project);
    let site = node.push(&project, "hello");
    let before: Vec<_> =
        node.await_ready("hello", "web", 4).iter().map(|row| row.identity().unwrap()).collect();
    let callers = Callers::start(&site, "/", &["Hello from"]);
    callers.answered_more(20);
    node.cortex(&["restart", "-a", "hello"]);
    wait_for("four new processes", STATE_DEADLINE, || {
        let rows = node.rows("hello");
        let new = rows.len() == 4
            && rows.iter().all(|row| {
                row.is_ready() && row.identity().is_some_and(|id| !before.contains(&id))
            });
        if new { Ok(()) } else { Err(format!("{rows:#?}")) }
    });
    callers.answered_more(20);
    callers.finish_without_failure();
}

/// Asserts that commands say so when there is no node to talk to.
#[test]
fn commands_without_a_node_say_how_to_start_one() {
    let directory = tempfile::tempdir().expect("a directory");
    for arguments in [["status"], ["apps"], ["ps"]] {
        let mut command = std::process::Command::new(crate::node::binary());
        command.args(arguments).arg("--data-dir").arg(directory.path().join("data"));
        run(command, arguments[0]).refused().saying(&["cortex up"]);
    }
}
