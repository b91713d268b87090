//! Logs of an application that runs on two nodes, read at one of them: every line, whose it is, and
//! what becomes of it while the other node is away.

use std::fs::{self, File};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::fixtures::cluster::{await_state, cluster, id_of};
use crate::machine::free_port;
use crate::node::{Node, Running, binary};
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for};

const NAME: &str = "talker";
const COLOURED: &str = "\u{1b}[31mred\u{1b}[0m";

const SERVER: &str = r#"
import os, threading, time
from http.server import HTTPServer, SimpleHTTPRequestHandler

def talk():
    print("\x1b[31mred\x1b[0m from", os.environ["CORTEX_NODE"], flush=True)
    number = 0
    while True:
        number += 1
        print("line", number, "of", os.environ["CORTEX_NODE"], flush=True)
        time.sleep(0.3)

threading.Thread(target=talk, daemon=True).start()
HTTPServer((os.environ["HOST"], int(os.environ["PORT"])), SimpleHTTPRequestHandler).serve_forever()
"#;

fn logs(node: &Node, options: &[&str]) -> String {
    node.cortex(&[&["logs", "-a", NAME], options].concat())
}

fn await_lines(node: &Node, options: &[&str], needles: &[&str]) -> String {
    wait_for(&format!("{needles:?} in the logs"), STATE_DEADLINE, || {
        let text = logs(node, options);
        let missing = needles.iter().find(|needle| !text.contains(**needle));
        missing.map_or(Ok(text.clone()), |needle| Err(format!("no '{needle}': {text}")))
    })
}

#[test]
fn logs_of_all_nodes_are_read_at_one() {
    let [one, mut two] = cluster([&[], &[]]);
    let (here, there) = (id_of(&one), id_of(&two));
    one.cortex(&["apps", "create", NAME, "--port", &free_port().to_string()]);
    let project = one.path(NAME);
    of_files(&project, &[("Procfile", "web: python3 server.py\n"), ("server.py", SERVER)]);
    one.push_as_it_is(&project, NAME).succeeded();
    one.cortex(&["scale", "-a", NAME, "web=4"]);
    wait_for("both to run a part", STATE_DEADLINE, || {
        let rows = one.ready(NAME, "web");
        let on = |id: &str| rows.iter().any(|row| row.node == id);
        if on(&here) && on(&there) { Ok(()) } else { Err(format!("{rows:?}")) }
    });
    let (ours, theirs) = (format!("@{here}]: line"), format!("@{there}]: line"));
    let text = await_lines(&one, &["-n", "1000"], &[&ours, &theirs, "app[cortex@"]);
    let times: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(times.is_sorted(), "{text}");
    await_lines(&two, &[], &[&ours, &theirs]);
    assert_eq!(logs(&one, &["-n", "5"]).lines().count(), 5);
    // Colours are shown whole or not at all.
    let plain = await_lines(&one, &["-n", "10000"], &["red from"]);
    assert!(!plain.contains('\u{1b}') && !plain.contains("[31m"), "{plain}");
    assert!(logs(&one, &["-n", "10000", "--color=always"]).contains(COLOURED));
    for line in logs(&one, &["-n", "9", "--json", "-p", "web"]).lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        assert!(line["node"] == here.as_str() || line["node"] == there.as_str(), "{line}");
    }

    let (seen, said) = (one.path("seen"), one.path("said"));
    let mut follow = Command::new(binary());
    follow.arg("--data-dir").arg(one.data()).args(["logs", "-f", "-n", "0", "-a", NAME]);
    follow.stdin(Stdio::null()).stdout(File::create(&seen).expect("a file"));
    let follow = follow.stderr(File::create(&said).expect("a file")).spawn();
    let _follow = Running(follow.expect("it starts"));
    let read = |path| fs::read_to_string(path).expect("it is there");
    let await_in = |path, needle: &str| {
        wait_for(&format!("'{needle}'"), STATE_DEADLINE, || {
            let text = read(path);
            if text.contains(needle) { Ok(()) } else { Err(text) }
        });
    };
    await_in(&seen, &ours);
    await_in(&seen, &theirs);
    two.kill_nine();
    await_in(&said, &format!("node {there} is not reached"));
    await_state(&one, &there, "down");
    let outcome = one.run(&["logs", "-a", NAME]).succeeded();
    assert!(outcome.stdout.contains(&ours), "the rest goes on: {}", outcome.stdout);
    outcome.saying(&[&format!("node {there} is not reached"), "its lines are missing"]);
    fs::write(&seen, "").expect("it can be emptied");
    await_in(&seen, &ours);
    two.up();
    await_in(&said, &format!("node {there} is back"));
    await_in(&seen, &theirs);
}
