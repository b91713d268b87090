//! The store through the command line, and a disk that is full.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use crate::node::{Node, run};
use crate::outside::Callers;
use crate::project::{copy_of_example, edit, of_files};
use crate::wait::{STATE_DEADLINE, wait_for};

#[test]
fn values_are_set_listed_hashed_and_survive_a_killed_node() {
    let mut node = Node::start();
    node.cortex(&["store", "set", "foo::bar::baz", "one"]);
    node.cortex(&["store", "set", "foo::barbaz", "two"]);
    assert_eq!(node.cortex(&["store", "get", "foo::bar::baz"]).trim_end(), "one");
    let listed = node.cortex(&["store", "ls", "foo::bar"]);
    assert!(listed.contains("foo::bar::baz") && !listed.contains("foo::barbaz"), "{listed}");
    // This is the SHA-1 of "one".
    let hash = node.cortex(&["store", "hash", "foo::bar::baz"]);
    assert_eq!(hash.trim(), "fe05bcdcdc4928012781a5f1a2a77cbb5398e106");
    node.cortex(&["store", "set", "foo::bar::baz", "three"]);
    let history = node.cortex(&["store", "history", "foo::bar::baz"]);
    assert!(
        history.lines().filter(|line| line.contains("foo::bar::baz")).count() >= 2,
        "{history}"
    );
    for number in 0..20 {
        node.cortex(&["store", "set", &format!("many::{number}"), &"v".repeat(number * 1000)]);
    }
    node.kill_nine();
    node.up();
    assert_eq!(node.cortex(&["store", "get", "foo::bar::baz"]).trim_end(), "three");
    for number in 0..20 {
        let value = node.cortex(&["store", "get", &format!("many::{number}")]);
        assert_eq!(value.trim_end().len(), number * 1000);
    }
    node.cortex(&["store", "del", "foo::bar::baz"]);
    node.run(&["store", "get", "foo::bar::baz"]).refused().saying(&["foo::bar::baz"]);
    node.run(&["store", "set", "foo::::bar", "x"]).refused().saying(&["foo::::bar"]);
}

const FULL_DISK: &str = "CORTEX_TEST_FULL_DISK";
/// The size of the disk in MiB, beside three times the binary, of which a node keeps a copy.
const DISK_MIB: u64 = 64;

/// Runs in a mount namespace of its own, so that an ordinary user may mount a small disk.
#[test]
fn a_full_disk_refuses_a_push_and_loses_nothing() {
    if let Some(disk) = std::env::var_os(FULL_DISK) {
        return on_a_small_disk(Path::new(&disk));
    }
    let disk = tempfile::tempdir().unwrap();
    let test = std::env::current_exe().unwrap();
    let name = std::thread::current().name().expect("libtest names threads").to_string();
    let size = fs::metadata(crate::node::binary()).unwrap().len() * 3 / (1 << 20) + DISK_MIB;
    let script = format!(
        "mount -t tmpfs -o size={size}m,mode=700 none \"$1\" && exec \"$2\" --exact \"$3\" --nocapture"
    );
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "--", "sh", "-c", &script, "sh"]);
    command.arg(disk.path()).arg(test).arg(name);
    // The user is root in there: sockets must not meet those of the true one.
    command.env(FULL_DISK, disk.path()).env("XDG_RUNTIME_DIR", disk.path());
    let outcome = run(command, "the test on a small disk").succeeded();
    assert!(outcome.stdout.contains("1 passed"), "{outcome:#?}");
}

fn on_a_small_disk(disk: &Path) {
    let directory = tempfile::TempDir::with_prefix_in("node", disk).unwrap();
    let mut node = Node::start_in(directory, &[]);
    let project = node.path("hello");
    copy_of_example("hello", &project);
    let site = node.push(&project, "hello");
    let callers = Callers::start(&site, "/", &["Hello from", "Welcome from"]);
    callers.answered_more(20);

    edit(&project.join("app.py"), "Hello from", "Welcome from");
    let filler = node.path("filler");
    let mut file = fs::File::create(&filler).unwrap();
    let block = vec![b'x'; 64 << 10];
    while file.write_all(&block).is_ok() {}
    while file.write_all(b"x").is_ok() {}
    node.try_push(&project, "hello").refused().saying(&["space"]);
    callers.answered_more(20);

    drop(file);
    fs::remove_file(&filler).unwrap();
    node.push(&project, "hello");
    callers.answered_more(20);
    callers.finish_without_failure();
    site.get("/").assert_ok("Welcome from");
    node.cortex(&["store", "set", "after::all", "well"]);
    node.kill_nine();
    node.up();
    assert_eq!(node.cortex(&["store", "get", "after::all"]).trim_end(), "well");
    wait_for("the application to answer", STATE_DEADLINE, || {
        site.try_get("/").map(|answer| answer.assert_ok("Welcome from"))
    });
    node.down();
}

#[test]
fn a_source_above_the_limit_is_refused_before_it_fills_the_disk() {
    let node = Node::start();
    let project = node.path("big");
    of_files(&project, &[("index.html", "<p>big</p>")]);
    // The file is sparse: it takes no room here, but would at the other end.
    let file = fs::File::create(project.join("big.bin")).unwrap();
    file.set_len(20 << 30).unwrap();
    node.try_push(&project, "big").refused().saying(&["large", "big.bin", ".cortexignore"]);
    // Another client announces it, and is refused before it sends anything.
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--request", "POST", "--upload-file"]);
    curl.arg(project.join("big.bin")).arg("--unix-socket").arg(node.data().join("sockets/api"));
    curl.arg("http://localhost/v1/apps/big/releases");
    let answer = run(curl, "an archive that is announced").succeeded();
    assert!(answer.stdout.contains("source_too_large"), "{answer:#?}");
    node.cortex(&["status"]);
}
