//! Faults that stay within one part: fail points are armed through the API while an outside client
//! counts requests.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::node::{Node, Running, kill_nine};
use crate::outside::{Callers, Site};
use crate::project::copy_of_example;
use crate::wait::{STATE_DEADLINE, wait_for};

/// Sets a fail point; `action` is `panic-once`, `stall`, `error` or `off`.
fn set(node: &Node, point: &str, action: &str) -> String {
    let socket = node.data().join("sockets/api");
    let mut stream = UnixStream::connect(&socket).expect("the API's socket");
    let body = format!("{{\"action\":\"{action}\"}}");
    let head = format!(
        "POST /v1/fail-points/{point} HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

pub fn arm(node: &Node, point: &str, fault: &str) {
    let answer = set(node, point, fault);
    assert!(answer.starts_with("HTTP/1.1 2"), "{point}: {answer}");
}

pub fn disarm(node: &Node, point: &str) {
    arm(node, point, "off");
}

fn with_hello() -> (Node, Site) {
    let node = Node::start_with(&["--fail-points"]);
    let project = node.path("hello");
    copy_of_example("hello", &project);
    let site = node.push(&project, "hello");
    node.await_ready("hello", "web", 4);
    (node, site)
}

/// Asserts that a panic costs no request, and that the platform still heals instances after it.
fn a_panic_is_survived(point: &str) {
    let (node, site) = with_hello();
    let callers = Callers::start(&site, "/", &["Hello from"]);
    callers.answered_more(20);
    arm(&node, point, "panic-once");
    wait_for("the panic to be logged", STATE_DEADLINE, || {
        // These commands give every part something to do.
        node.cortex(&["scale", "web=3", "-a", "hello"]);
        node.cortex(&["scale", "web=4", "-a", "hello"]);
        let log = node.log();
        if log.contains("panic") { Ok(()) } else { Err(log) }
    });
    callers.answered_more(50);
    callers.finish_without_failure();
    let victim = node.await_ready("hello", "web", 4).remove(2);
    kill_nine(victim.pid.unwrap());
    wait_for("it to be back", STATE_DEADLINE, || {
        let rows = node.ready("hello", "web");
        let back = rows.len() == 4 && rows.iter().all(|row| row.pid != victim.pid);
        if back { Ok(()) } else { Err(format!("{rows:#?}")) }
    });
    site.get("/").assert_ok("Hello from");
}

#[test]
fn a_panic_of_the_checker_is_survived() {
    a_panic_is_survived("checker");
}

#[test]
fn a_panic_of_the_metrics_is_survived() {
    a_panic_is_survived("metrics");
}

#[test]
fn a_panic_of_an_applications_actor_is_survived() {
    a_panic_is_survived("application.hello");
}

#[test]
fn a_panic_of_the_routers_control_is_survived() {
    a_panic_is_survived("router.control");
}

/// Asserts that requests do not wait while every sync of the store hangs; writes do.
#[test]
fn a_stalled_disk_does_not_stall_serving() {
    let (node, site) = with_hello();
    arm(&node, "store.sync", "stall");
    let callers = Callers::start(&site, "/", &["Hello from"]);
    let mut write = std::process::Command::new(crate::node::binary());
    write.args(["store", "set", "a::b", "c", "--data-dir"]).arg(node.data());
    let mut write = Running(write.spawn().unwrap());
    callers.answered_more(200);
    assert!(write.0.try_wait().unwrap().is_none(), "a write is not acknowledged before it is safe");
    disarm(&node, "store.sync");
    let status = wait_for("the write to end", STATE_DEADLINE, || {
        write.0.try_wait().unwrap().ok_or("it waits".to_string())
    });
    assert!(status.success());
    callers.finish_without_failure();
    assert_eq!(node.cortex(&["store", "get", "a::b"]).trim_end(), "c");
}

/// Asserts that the router no longer calls an instance that died while the disk stalled.
#[test]
fn an_instance_that_dies_during_a_stall_costs_no_more_than_its_own_request() {
    let (node, site) = with_hello();
    let victim = node.ready("hello", "web").remove(0);
    arm(&node, "store.sync", "stall");
    let callers = Callers::start(&site, "/", &["Hello from"]);
    callers.answered_more(20);
    kill_nine(victim.pid.unwrap());
    callers.answered_more(200);
    let tally = callers.finish();
    assert!(tally.failures.count <= 1, "{tally:#?}");
    disarm(&node, "store.sync");
    wait_for("it to be back", STATE_DEADLINE, || {
        let rows = node.ready("hello", "web");
        let back = rows.len() == 4 && rows.iter().all(|row| row.pid != victim.pid);
        if back { Ok(()) } else { Err(format!("{rows:#?}")) }
    });
}

#[test]
fn fail_points_are_off_unless_asked_for() {
    let node = Node::start();
    let answer = set(&node, "checker", "panic-once");
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
}
