//! Copies of the cluster that are made by themselves: by one node, where they are to go, and told
//! when they fail.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::fixtures::cluster::{await_state, cluster, first, id_of};
use crate::node::Node;
use crate::secrets::files_with;
use crate::wait::{STATE_DEADLINE, wait_for};

const PHRASE: &str = "canary horse battery staple";

fn phrase(node: &Node) -> PathBuf {
    let path = node.directory.path().parent().expect("a parent").join("phrase");
    let path = path.with_extension(id_of(node));
    fs::write(&path, format!("{PHRASE}\n")).expect("a file");
    path
}

fn shown(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

fn backups(node: &Node) -> Value {
    serde_json::from_str(&node.cortex(&["backups", "--json"])).expect("JSON")
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory").flatten();
    let mut names: Vec<_> = entries.map(|e| e.file_name().into_string().expect("text")).collect();
    names.sort_unstable();
    names
}

/// Returns the time of day a moment from now, in UTC.
fn soon() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock that is set").as_secs();
    let minutes = (now + 65) / 60 % (24 * 60);
    format!("{:02}:{:02}", minutes / 60, minutes % 60)
}

#[test]
fn one_node_makes_a_copy_when_it_is_due() {
    let [one, mut two] = cluster([&[], &[]]);
    one.cortex(&["apps", "create", "blog"]);
    let out = tempfile::tempdir().expect("a directory");
    let hook = format!("cat > {}/$CORTEX_BACKUP.$PPID", out.path().display());
    let phrase = phrase(&one);
    let schedule = ["backups", "schedule", "--at", &soon(), "--hook", &hook];
    one.run(&[&schedule[..], &["--passphrase-file", shown(&phrase)]].concat()).succeeded();
    wait_for("a copy on both nodes' lists", 2 * STATE_DEADLINE, || {
        let lists = [backups(&one), backups(&two)];
        let good =
            |list: &Value| list["backups"][0]["failure"].is_null() && !list["backups"][0].is_null();
        if lists.iter().all(good) { Ok(()) } else { Err(format!("{lists:#?}")) }
    });
    assert_eq!(backups(&one)["backups"].as_array().map(Vec::len), Some(1));
    let made = names(out.path());
    assert_eq!(made.len(), 1, "one node makes it: {made:?}");
    fs::remove_file(&phrase).expect("it is there");
    for node in [&one, &two] {
        assert_eq!(files_with(&node.data(), "canary horse"), Vec::<PathBuf>::new());
        assert!(!node.log().contains("canary horse"));
    }
    // Another one takes over where the one that made it is gone.
    let maker = backups(&one)["backups"][0]["node"].clone();
    let there = id_of(&two);
    two.kill_nine();
    await_state(&one, &there, "down");
    one.run(&["backups", "capture"]).succeeded().saying(&["done, cortex-"]);
    assert_eq!(backups(&one)["backups"][0]["node"], id_of(&one).as_str(), "after {maker}");

    let new = first(&[]);
    let copy = out.path().join(names(out.path()).last().expect("two copies"));
    fs::write(&phrase, format!("{PHRASE}\n")).expect("a file");
    let import = ["import", shown(&copy), "--passphrase-file", shown(&phrase)];
    new.run(&import).succeeded().saying(&["1 application"]);
    assert!(new.cortex(&["apps"]).contains("blog"));
    assert_eq!(backups(&new)["schedule"]["hook"], hook.as_str(), "the schedule came along");
    fs::remove_file(phrase).expect("it is there");
}

#[test]
fn a_directory_keeps_the_newest_and_a_failure_is_told() {
    let node = first(&[]);
    let copies = node.path("copies");
    let phrase = phrase(&node);
    let with_phrase = ["--passphrase-file", shown(&phrase)];
    let schedule =
        |more: &[&str]| node.run(&[&["backups", "schedule"], more, &with_phrase[..]].concat());
    node.run(&["backups", "capture"]).refused().saying(&["no back-ups are scheduled"]);
    let place = shown(&copies);
    schedule(&["--at", "03:00", "--to", place]).refused().saying(&["no directory", "mount"]);
    fs::create_dir(&copies).expect("a directory");
    schedule(&["--at", "25:00", "--to", place]).refused().saying(&["time of day"]);
    schedule(&["--at", "03:00 Mars/Base", "--to", place]).refused().saying(&["Mars/Base"]);
    schedule(&["--at", "03:00", "--to", place, "--keep", "0"]).refused().saying(&["1 to 366"]);
    schedule(&["--at", "03:00", "--to", shown(&node.data())]).refused().saying(&["data directory"]);
    let good = ["--at", "03:00 UTC", "--to", place, "--keep", "2"];
    schedule(&good).succeeded().saying(&["every day at 03:00 UTC", "keeps 2 copies"]);
    for _ in 0..3 {
        // Names are to the second.
        let before = names(&copies);
        wait_for("another name", STATE_DEADLINE, || {
            node.run(&["backups", "capture"]).succeeded();
            let now = names(&copies);
            if now != before { Ok(()) } else { Err(format!("{now:?}")) }
        });
    }
    assert_eq!(names(&copies).len(), 2);
    assert!(node.cortex(&["doctor"]).contains("made as scheduled"));

    fs::remove_dir_all(&copies).expect("it is there");
    node.run(&["backups", "capture"]).refused().saying(&["is no directory"]);
    assert!(node.run(&["doctor"]).stdout.contains("the last back-up failed"));
    assert!(node.cortex(&["status", "--json"]).contains("the last back-up failed"));
    assert!(node.cortex(&["backups"]).contains("failed: "));
    fs::create_dir(&copies).expect("a directory");
    node.run(&["backups", "capture"]).succeeded();
    assert!(!node.cortex(&["status", "--json"]).contains("back-up failed"));
    node.run(&["backups", "unschedule"]).succeeded();
    node.run(&["backups"]).succeeded().saying(&["No back-ups are scheduled"]);
    fs::remove_file(phrase).expect("it is there");
}
