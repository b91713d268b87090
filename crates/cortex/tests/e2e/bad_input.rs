//! Bad input: each gets a clear error, and nothing is lost.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::machine::free_port;
use crate::node::{Node, Outcome, alone_with_chosen_ports, binary, run};
use crate::project::{copy_of_example, of_files};

/// Settings with a start timeout shorter than the default, so that tests of applications that never
/// get ready end soon.
const IMPATIENT: &str = "[health]\nstart_timeout = \"2s\"\n";

fn assert_nothing_was_made(node: &Node) {
    let apps = node.cortex(&["apps", "--json"]);
    assert_eq!(apps.trim(), "[]", "a refused push leaves nothing behind");
}

#[test]
fn an_unrecognised_directory_lists_what_was_seen_and_what_would_be() {
    let node = Node::start();
    let project = node.path("odd");
    of_files(&project, &[("notes.xyz", "hello"), ("chapter/one.xyz", "text")]);
    node.push_as_it_is(&project, "odd").refused().saying(&[
        "notes.xyz",
        "Procfile",
        "manage.py",
        "package.json",
        "index.html",
    ]);
    assert_nothing_was_made(&node);
}

#[test]
fn an_empty_directory_and_a_missing_one_are_told_apart() {
    let node = Node::start();
    let project = node.path("empty");
    fs::create_dir(&project).unwrap();
    node.push_as_it_is(&project, "empty").refused().saying(&["empty"]);
    node.push_as_it_is(&node.path("nowhere"), "nowhere").refused().saying(&["nowhere"]);
    assert_nothing_was_made(&node);
}

/// Pushes without privilege: root first gives up the two capabilities that allow it to read any
/// file.
fn push_without_privilege(node: &Node, project: &str) -> Outcome {
    let mut command = if rustix::process::geteuid().is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-dac_override,-dac_read_search"]).arg(binary());
        command
    } else {
        Command::new(binary())
    };
    command.args(["push", project, "-a", "app", "--data-dir"]).arg(node.data());
    run(command, "cortex push of something unreadable")
}

#[test]
fn an_unreadable_file_is_named_and_nothing_is_pushed() {
    let node = Node::start();
    let project = node.path("app");
    of_files(&project, &[("index.html", "<p>hi</p>"), ("secret.txt", "x")]);
    fs::set_permissions(project.join("secret.txt"), fs::Permissions::from_mode(0o000)).unwrap();
    push_without_privilege(&node, project.to_str().unwrap()).refused().saying(&["secret.txt"]);
    fs::set_permissions(&project, fs::Permissions::from_mode(0o000)).unwrap();
    push_without_privilege(&node, project.to_str().unwrap()).refused().saying(&["app"]);
    fs::set_permissions(&project, fs::Permissions::from_mode(0o700)).unwrap();
    assert_nothing_was_made(&node);
}

#[test]
fn a_link_that_leaves_the_project_is_named() {
    let node = Node::start();
    let project = node.path("app");
    of_files(&project, &[("index.html", "<p>hi</p>")]);
    std::os::unix::fs::symlink("/etc/hostname", project.join("outside")).unwrap();
    node.push_as_it_is(&project, "app").refused().saying(&["outside"]);
    assert_nothing_was_made(&node);
}

#[test]
fn an_application_that_never_binds_its_port_is_refused() {
    let node = Node::start();
    let project = node.path("app");
    of_files(
        &project,
        &[("Procfile", "web: echo at your service; sleep 1000\n"), ("cortex.toml", IMPATIENT)],
    );
    node.try_push(&project, "app").refused().saying(&["PORT", "at your service"]);
    node.await_ready("app", "web", 0);
}

#[test]
fn an_application_that_binds_another_port_is_told_which() {
    let node = Node::start();
    let project = node.path("app");
    let port = free_port().to_string();
    let web = format!("web: python3 -m http.server --bind 127.0.0.1 {port}\n");
    // Two instances would meet at that port.
    let settings = format!("[processes.web]\ncount = 1\n{IMPATIENT}");
    of_files(&project, &[("Procfile", &web), ("cortex.toml", &settings)]);
    node.try_push(&project, "app").refused().saying(&[&format!("127.0.0.1:{port}"), "PORT"]);
}

/// Asserts that binding every address is warned about, not refused: it works, but strangers could
/// go around the router.
#[test]
fn an_application_that_binds_every_address_is_warned_about() {
    let node = Node::start();
    let project = node.path("app");
    of_files(
        &project,
        &[("Procfile", "web: python3 -m http.server --bind 0.0.0.0 $PORT\n"), ("hi.txt", "hi")],
    );
    let outcome = node.try_push(&project, "app").succeeded();
    outcome.site().get("/hi.txt").assert_ok("hi");
    outcome.saying(&["0.0.0.0", "bind $HOST"]);
    let logs = node.cortex(&["logs", "-n", "200", "-a", "app"]);
    assert!(logs.contains("0.0.0.0"), "a warning names the address:\n{logs}");
}

#[test]
fn an_application_that_exits_at_once_is_refused_with_its_last_words() {
    let node = Node::start();
    let project = node.path("app");
    of_files(&project, &[("Procfile", "web: echo famous last words; exit 3\n")]);
    let refused = node.try_push(&project, "app").refused();
    refused.saying(&["famous last words", "exit status 3"]);
    node.await_ready("app", "web", 0);
}

#[test]
fn a_release_step_that_fails_is_shown_and_refused() {
    let node = Node::start();
    let project = node.path("app");
    copy_of_example("procfile", &project);
    of_files(&project, &[("prepare.py", "raise SystemExit('the table is missing')\n")]);
    node.try_push(&project, "app").refused().saying(&["the table is missing"]);
    node.await_ready("app", "web", 0);
}

#[test]
fn duplicate_procfile_entries_are_refused_with_both_lines() {
    let node = Node::start();
    let project = node.path("app");
    let procfile = "web: python3 a.py\nworker: python3 b.py\nweb: python3 c.py\n";
    of_files(&project, &[("Procfile", procfile)]);
    node.push_as_it_is(&project, "app").refused().saying(&["Procfile", "web", "1", "3"]);
    assert_nothing_was_made(&node);
}

#[test]
fn broken_settings_are_refused_with_file_and_key() {
    let node = Node::start();
    let project = node.path("app");
    of_files(&project, &[("index.html", "<p>hi</p>"), ("cortex.toml", "[health]\npath = 7\n")]);
    node.push_as_it_is(&project, "app").refused().saying(&["cortex.toml", "path"]);
    assert_nothing_was_made(&node);
}

#[test]
fn odd_names_get_a_suggestion() {
    let node = Node::start();
    for odd in ["My App!", "a::b", "../up", "UPPER", "-dash", "ünïcode", ""] {
        let create = format!("--app={odd}");
        node.run(&["apps", "create", "--", odd]).refused().saying(&["lower-case"]);
        node.run(&["ps", &create]).refused();
    }
    assert_nothing_was_made(&node);
}

/// Asserts that a directory's odd name is no error: the nearest good one is used, and named.
#[test]
fn a_directory_with_an_odd_name_is_pushed_under_a_suggested_one() {
    let _alone = alone_with_chosen_ports();
    let node = Node::start();
    let project = node.path("My Söng Book (2)");
    of_files(&project, &[("index.html", "<p>la la</p>")]);
    let outcome = node.run(&["push", project.to_str().unwrap()]).succeeded();
    outcome.site().get("/").assert_ok("la la");
    outcome.saying(&["my-s-ng-book-2"]);
}

#[test]
fn an_unknown_application_is_answered_with_the_nearest_name() {
    let node = Node::start();
    node.cortex(&["apps", "create", "shop"]);
    node.run(&["info", "-a", "shpo"]).refused().saying(&["shpo", "shop"]);
}

#[test]
fn a_taken_application_port_is_named() {
    let node = Node::start();
    let taken = std::net::TcpListener::bind(("127.0.0.1", free_port())).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    node.run(&["apps", "create", "shop", "--port", &port]).refused().saying(&[&port]);
    let other = free_port().to_string();
    node.cortex(&["apps", "create", "one", "--port", &other]);
    node.run(&["apps", "create", "two", "--port", &other]).refused().saying(&[&other, "one"]);
}
