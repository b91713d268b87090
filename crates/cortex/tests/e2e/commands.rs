//! The command line in a second terminal: what a new user tries.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::node::{Node, Running, binary};
use crate::outside::Site;
use crate::project::{copy_of_example, edit};
use crate::wait::{STATE_DEADLINE, wait_for};

fn with_hello() -> (Node, Site) {
    let node = Node::start();
    let project = node.path("hello");
    copy_of_example("hello", &project);
    let site = node.push(&project, "hello");
    (node, site)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("'{text}' is no JSON: {e}"))
}

#[test]
fn empty_states_are_sentences() {
    let node = Node::start();
    for arguments in [vec!["apps"], vec!["status"]] {
        let text = node.run(&arguments).succeeded();
        let all = format!("{}{}", text.stdout, text.stderr);
        assert!(all.contains("no applications"), "{arguments:?} printed {all}");
    }
    node.cortex(&["apps", "create", "bare"]);
    for command in ["ps", "releases", "logs"] {
        let outcome = node.run(&[command, "-a", "bare"]).succeeded();
        let all = format!("{}{}", outcome.stdout, outcome.stderr);
        assert!(all.contains("bare") && all.contains("no"), "{command} printed {all}");
    }
    let listed = json(&node.cortex(&["apps", "--json"]));
    assert_eq!(listed.as_array().map(Vec::len), Some(1));
}

#[test]
fn listings_have_json_and_tables_that_survive_a_closed_pipe() {
    let (node, _) = with_hello();
    for command in ["ps", "releases"] {
        let rows = json(&node.cortex(&[command, "--json", "-a", "hello"]));
        assert!(!rows.as_array().expect("a list").is_empty(), "{command}");
    }
    assert!(json(&node.cortex(&["status", "--json"])).is_object());
    assert!(json(&node.cortex(&["info", "--json", "-a", "hello"])).is_object());
    let rows = node.rows("hello");
    assert!(rows.iter().all(|row| row.application == "hello" && row.release == "v1"), "{rows:#?}");
    assert!(rows.iter().all(|row| row.started_at.is_some() && row.port.is_some()), "{rows:#?}");
    let data = node.data();
    let pipe =
        format!("'{}' ps -a hello --data-dir '{}' | head -n 1", binary().display(), data.display());
    let output = Command::new("bash").args(["-o", "pipefail", "-c", &pipe]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{output:?}");
}

#[test]
fn info_ps_and_status_agree() {
    let (node, site) = with_hello();
    let ps = node.cortex(&["ps", "-a", "hello"]);
    for label in ["web.1", "web.2", "web.3", "web.4"] {
        assert!(ps.contains(label), "{ps}");
    }
    let info = node.cortex(&["info", "-a", "hello"]);
    assert!(info.contains(&site.port.to_string()) && info.contains("app.py"), "{info}");
    let apps = node.cortex(&["apps"]);
    assert!(apps.contains("hello"), "{apps}");
    let status = node.cortex(&["status"]);
    assert!(status.contains("hello"), "{status}");
    assert!(node.run(&["doctor"]).stdout.to_lowercase().contains("python"), "doctor names tools");
}

#[test]
fn logs_follow_what_is_printed() {
    let (node, site) = with_hello();
    let mut command = Command::new(binary());
    command.args(["logs", "-f", "-n", "0", "-a", "hello", "--data-dir"]).arg(node.data());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = Running(child.unwrap());
    let (lines, arrived) = std::sync::mpsc::channel();
    let output = BufReader::new(child.0.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    wait_for("the request's line to be followed", STATE_DEADLINE, || {
        site.get("/followed-path");
        let line = arrived.try_iter().find(|line| line.contains("/followed-path"));
        line.ok_or("nothing yet".to_string())
    });
    drop(child);
    reader.join().unwrap();
}

#[test]
fn logs_can_be_narrowed_to_one_instance() {
    let (node, _) = with_hello();
    let all = node.cortex(&["logs", "-n", "100", "-a", "hello"]);
    assert!((1..=4).all(|slot| all.contains(&format!("web.{slot} listens"))), "{all}");
    let one = node.cortex(&["logs", "-n", "100", "-p", "web.2", "-a", "hello"]);
    assert!(one.contains("web.2 listens") && !one.contains("web.3 listens"), "{one}");
}

#[test]
fn releases_roll_back_and_forth() {
    let (node, site) = with_hello();
    let project = node.path("hello");
    edit(&project.join("app.py"), "Hello from", "Welcome from");
    node.push(&project, "hello");
    site.get("/").assert_ok("Welcome from");
    node.cortex(&["rollback", "-a", "hello"]);
    site.get("/").assert_ok("Hello from");
    node.cortex(&["rollback", "v2", "-a", "hello"]);
    site.get("/").assert_ok("Welcome from");
    let releases = json(&node.cortex(&["releases", "--json", "-a", "hello"]));
    assert_eq!(releases.as_array().map(Vec::len), Some(4), "{releases:#}");
    node.run(&["rollback", "v99", "-a", "hello"]).refused().saying(&["v99"]);
}

#[test]
fn configuration_reaches_the_processes_and_is_a_release() {
    let node = Node::start();
    let project = node.path("app");
    crate::project::of_files(
        &project,
        &[
            ("Procfile", "web: python3 app.py\n"),
            ("app.py", include_str!("fixtures/environment.py")),
        ],
    );
    let site = node.push(&project, "app");
    site.get("/GREETING").assert_ok("GREETING is not set");
    node.cortex(&["config", "set", "GREETING=hi there = you", "-a", "app"]);
    site.get("/GREETING").assert_ok("GREETING=hi there = you");
    let key = site.get("/SECRET_KEY_BASE").body;
    assert!(key.starts_with("SECRET_KEY_BASE=") && key.len() > 60, "a long secret");
    node.cortex(&["config", "unset", "GREETING", "-a", "app"]);
    site.get("/GREETING").assert_ok("GREETING is not set");
    assert_eq!(site.get("/SECRET_KEY_BASE").body, key, "stable over releases");
    let log = node.cortex(&["logs", "-n", "500", "-a", "app"]) + &node.log();
    assert!(!log.contains("hi there"), "values never show in logs");
}

#[test]
fn scaling_an_unknown_process_type_lists_the_known() {
    let (node, _) = with_hello();
    node.run(&["scale", "wob=2", "-a", "hello"]).refused().saying(&["wob", "web"]);
    node.run(&["scale", "web=many", "-a", "hello"]).refused().saying(&["many"]);
    node.await_ready("hello", "web", 4);
}

#[test]
fn colon_spellings_work() {
    let (node, _) = with_hello();
    node.cortex(&["ps:scale", "web=2", "-a", "hello"]);
    node.await_ready("hello", "web", 2);
    node.cortex(&["config:set", "A=b", "-a", "hello"]);
    assert!(node.cortex(&["config", "-a", "hello"]).contains("A"));
    node.cortex(&["apps:create", "other"]);
}

#[test]
fn the_configuration_file_or_directory_names_the_application() {
    let (node, _) = with_hello();
    let project = node.path("hello");
    let by_directory = node.run_in(&project, &["ps", "--json"]).succeeded();
    assert_eq!(json(&by_directory.stdout).as_array().map(Vec::len), Some(4));
    let elsewhere = node.path("elsewhere");
    crate::project::of_files(&elsewhere, &[("cortex.toml", "name = \"hello\"\n")]);
    let by_file = node.run_in(&elsewhere, &["ps", "--json"]).succeeded();
    assert_eq!(json(&by_file.stdout).as_array().map(Vec::len), Some(4));
}

#[test]
fn a_destroyed_application_is_gone() {
    let (node, site) = with_hello();
    let processes: Vec<_> =
        node.await_ready("hello", "web", 4).iter().filter_map(|row| row.identity()).collect();
    node.cortex(&["apps", "destroy", "hello", "--yes"]);
    crate::wait::wait_until("its processes to end", || {
        !processes.iter().any(|process| crate::machine::lives(*process))
    });
    crate::wait::wait_until("its port to be closed", || site.try_get("/").is_err());
    let by_name = Site { host: "hello.localhost".into(), port: node.http_port };
    crate::wait::wait_until("the router to forget it", || by_name.get("/").status == 404);
    assert_eq!(json(&node.cortex(&["apps", "--json"])), Value::Array(vec![]));
}
