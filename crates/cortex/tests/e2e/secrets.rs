//! Secrets: sealed on every disk, nowhere to be found but where they are asked for, and sealed anew
//! with another key whatever is lost on the way.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::faults::arm;
use crate::fixtures::cluster::{cluster, first, id_of, join, local_address};
use crate::machine::processes_below;
use crate::node::Node;
use crate::project::copy_of_example;
use crate::wait::{STATE_DEADLINE, wait_for};

const NAME: &str = "hello";
const CANARY: &str = "canary-7c1e9b52d04f8a63";

fn key_file(node: &Node) -> PathBuf {
    node.data().join("cluster/secrets.json")
}

/// Returns the ids of the keys on a node's disk.
fn keys(node: &Node) -> Vec<String> {
    let text = fs::read(key_file(node)).unwrap_or_default();
    let content: Value = serde_json::from_slice(&text).unwrap_or_default();
    content["keys"].as_object().map(|keys| keys.keys().cloned().collect()).unwrap_or_default()
}

fn shown(node: &Node) -> Value {
    serde_json::from_str(&node.cortex(&["secrets", "--json"])).expect("JSON")
}

/// Waits until everything is sealed with one key on all these nodes, and returns it.
fn await_settled(nodes: &[&Node]) -> String {
    wait_for("one key on all nodes", STATE_DEADLINE, || {
        let shown: Vec<Value> = nodes.iter().map(|node| shown(node)).collect();
        let key = shown[0]["sealed_with"].as_str().unwrap_or_default().to_owned();
        let good = !key.is_empty()
            && shown.iter().all(|shown| shown["settled"] == true && shown["sealed_with"] == *key)
            && nodes.iter().all(|node| keys(node) == [key.clone()]);
        if good { Ok(key) } else { Err(format!("{shown:#?}")) }
    })
}

/// Sets a variable from a file, so that it is in no command line.
fn set(node: &Node, name: &str, value: &str) {
    let file = node.path("variables");
    fs::write(&file, format!("{name}={value}\n")).expect("a file");
    let path = file.to_str().expect("text");
    node.cortex(&["config", "set", "-a", NAME, "--file", path]);
    fs::remove_file(file).expect("it is there");
}

fn get(node: &Node, name: &str) -> String {
    node.cortex(&["config", "get", "-a", NAME, name]).trim().to_owned()
}

fn await_value(node: &Node, name: &str, value: &str) {
    wait_for("the value to be there", STATE_DEADLINE, || {
        let got = node.run(&["config", "get", "-a", NAME, name]);
        if got.stdout.trim() == value { Ok(()) } else { Err(format!("{got:?}")) }
    });
}

/// Returns the files at or below a path that hold a text.
pub fn files_with(path: &Path, text: &str) -> Vec<PathBuf> {
    if path.is_symlink() {
        return Vec::new();
    }
    if let Ok(entries) = fs::read_dir(path) {
        return entries.flatten().flat_map(|entry| files_with(&entry.path(), text)).collect();
    }
    let bytes = fs::read(path).unwrap_or_default();
    let found = bytes.windows(text.len()).any(|window| window == text.as_bytes());
    if found { vec![path.to_owned()] } else { Vec::new() }
}

/// Returns the command lines of all processes that a node has started, and its own.
fn command_lines(node: &Node) -> String {
    let mut pids = vec![node.pid()];
    pids.extend(processes_below(&node.data()).iter().map(|(pid, _)| *pid));
    let lines = pids.iter().filter_map(|pid| fs::read(format!("/proc/{pid}/cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).into_owned()).collect()
}

/// A secret that reached a process is searched for in everything that anybody keeps or shows.
#[test]
fn a_secret_is_in_no_file_listing_log_or_command_line() {
    let mut node = first(&[]);
    let project = node.path(NAME);
    copy_of_example(NAME, &project);
    node.push(&project, NAME);
    set(&node, "TOKEN", CANARY);
    let long = CANARY.repeat(400);
    set(&node, "LONG", &long);
    node.await_ready(NAME, "web", 4);
    let seen = node.cortex(&["run", "-a", NAME, "--", "sh", "-c", "echo ${#TOKEN}"]);
    assert_eq!(seen.trim(), CANARY.len().to_string(), "the process has it");
    let key = format!("app::{NAME}::config");
    let listings: [&[&str]; 15] = [
        &["store", "ls", "app"],
        &["store", "ls"],
        &["store", "get", &key],
        &["store", "history"],
        &["audit", "--json"],
        &["audit"],
        &["releases", "-a", NAME],
        &["releases", "-a", NAME, "--json"],
        &["info", "-a", NAME],
        &["apps", "--json"],
        &["ps", "-a", NAME, "--json"],
        &["status", "--json"],
        &["secrets", "--json"],
        &["logs", "-a", NAME],
        &["nodes", "--json"],
    ];
    for listing in listings {
        let outcome = node.run(listing);
        let said = format!("{}{}", outcome.stdout, outcome.stderr);
        assert!(!said.contains(CANARY), "{listing:?} shows it");
    }
    assert!(!node.log().contains(CANARY), "the log shows it");
    let lines = command_lines(&node);
    assert!(lines.contains("cortex") && !lines.contains(CANARY), "{lines}");
    let status = fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("a status");
    let locked = status.lines().find(|line| line.starts_with("VmLck:")).expect("as of any process");
    assert!(!locked.ends_with(" 0 kB"), "the key is kept out of swap: {locked}");
    let limits = fs::read_to_string(format!("/proc/{}/limits", node.pid())).expect("limits");
    let core = limits.lines().find(|line| line.starts_with("Max core")).expect("a limit");
    let soft: u64 = core.split_whitespace().nth(4).and_then(|soft| soft.parse().ok()).unwrap_or(0);
    assert!(soft <= 1, "no core dumps: {core}");

    node.kill_nine();
    assert_eq!(files_with(&node.data(), CANARY), Vec::<PathBuf>::new());
    assert!(!files_with(&node.data(), &key).is_empty(), "what is searched is read");
    node.up();
    assert_eq!(get(&node, "TOKEN"), CANARY);
    assert_eq!(get(&node, "LONG"), long);
}

#[test]
fn a_member_gets_the_key_and_a_node_without_a_store_does_not() {
    let one = first(&[]);
    let made = await_settled(&[&one]);
    one.cortex(&["apps", "create", NAME]);
    set(&one, "TOKEN", CANARY);
    let two = join(&one, &[]);
    assert_eq!(await_settled(&[&one, &two]), made, "the cluster's key is not changed by a join");
    let mode = fs::metadata(key_file(&two)).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    await_value(&two, "TOKEN", CANARY);
    let guest = join(&one, &["--roles", "agent,router"]);
    await_value(&guest, "TOKEN", CANARY);
    set(&guest, "OTHER", CANARY);
    await_value(&one, "OTHER", CANARY);
    await_value(&two, "OTHER", CANARY);
    let key = format!("app::{NAME}::config");
    guest.run(&["store", "get", &key]).refused().saying(&["is a secret", "config get"]);
    assert!(keys(&guest).is_empty() && !key_file(&guest).exists());
    for node in [&one, &two, &guest] {
        assert_eq!(files_with(&node.data(), CANARY), Vec::<PathBuf>::new());
    }
    for member in shown(&guest)["members"].as_array().expect("members") {
        assert_eq!(member["keys"], serde_json::json!([made]), "{member}");
    }
}

/// Returns how often a node has begun a step of a rotation since its start.
fn begun(node: &Node, step: &str) -> usize {
    node.log().matches(&format!("secrets.step step=\"{step}\"")).count()
}

const OPTIONS: [&str; 2] = ["--fail-points", "--verbose"];

/// A relay in front of a node, which keeps a copy of all that passes.
struct Tap {
    address: String,
    passed: Arc<Mutex<Vec<u8>>>,
}

impl Tap {
    fn before(to: &str) -> Tap {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let (passed, to) = (Arc::new(Mutex::default()), to.to_owned());
        let tap = Tap { address, passed: Arc::clone(&passed) };
        // It ends with the process of the tests.
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                // A node that is not up yet refuses connections, and so does the relay.
                let Ok(far) = TcpStream::connect(&to) else { continue };
                copy(&near, &far, passed.clone());
                copy(&far, &near, passed.clone());
            }
        });
        tap
    }

    fn heard(&self, wanted: &[u8]) -> bool {
        let passed = self.passed.lock().expect("no panic holds it");
        passed.windows(wanted.len()).any(|window| window == wanted)
    }
}

fn copy(from: &TcpStream, to: &TcpStream, passed: Arc<Mutex<Vec<u8>>>) {
    let (mut from, mut to) = (from.try_clone().expect("a copy"), to.try_clone().expect("a copy"));
    std::thread::spawn(move || {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            passed.lock().expect("no panic holds it").extend_from_slice(&buffer[..count]);
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        from.shutdown(Shutdown::Both).ok();
        to.shutdown(Shutdown::Both).ok();
    });
}

#[test]
fn neither_a_secret_nor_a_key_is_heard_on_the_wire() {
    let places = [local_address(), local_address(), local_address()];
    let taps = places.each_ref().map(|place| Tap::before(place));
    let options = |at: usize| ["--listen", &places[at], "--advertise", &taps[at].address];
    let one = Node::start_with(&[&options(0)[..], &["--load=20"]].concat());
    one.cortex(&["apps", "create", NAME]);
    set(&one, "TOKEN", CANARY);
    let joining = |options: &[&str]| {
        let word = crate::fixtures::cluster::invitation(&one, &[]);
        Node::start_with(&[options, &["--load=20", "--join", &word]].concat())
    };
    let two = joining(&options(1));
    let guest = joining(&[&options(2)[..], &["--roles", "agent"]].concat());
    for node in [&two, &guest] {
        await_value(node, "TOKEN", CANARY);
    }
    set(&guest, "OTHER", CANARY);
    await_value(&two, "OTHER", CANARY);
    let first_key = fs::read_to_string(key_file(&two)).expect("it was fetched");
    two.cortex(&["secrets", "rotate"]);
    let second_key = fs::read_to_string(key_file(&one)).expect("a file");
    // What nodes say first is in clear, so this is the traffic between them.
    let heard = |wanted: &[u8]| taps.iter().any(|tap| tap.heard(wanted));
    assert!(heard(b"cortex-secrets/1") && heard(b"cortex-store/1") && heard(b"cortex-node/1"));
    assert!(!heard(CANARY.as_bytes()));
    for file in [first_key, second_key] {
        let content: Value = serde_json::from_str(&file).expect("JSON");
        for digits in content["keys"].as_object().expect("keys").values() {
            let digits = digits.as_str().expect("digits");
            assert_eq!(digits.len(), 64);
            assert!(!heard(digits.as_bytes()));
            let bytes: [u8; 32] = model::hex::from_hex(digits).expect("digits");
            assert!(!heard(&bytes));
        }
    }
}

/// Each of these places is right before the step of that name, but for `made`: there a key is on
/// the disk that no record names.
#[test]
fn a_rotation_goes_on_wherever_a_node_is_killed() {
    let mut nodes = cluster([&OPTIONS, &OPTIONS]);
    nodes.sort_by_key(id_of);
    let [mut one, mut two] = nodes;
    one.cortex(&["apps", "create", NAME]);
    set(&one, "TOKEN", CANARY);
    let mut key = await_settled(&[&one, &two]);
    // The first of the living members makes the key, and the other one fetches it.
    for step in ["make", "made", "record", "reseal", "tell", "drop", "fetch"] {
        let (victim, other) = if step == "fetch" { (&mut two, &one) } else { (&mut one, &two) };
        let logged = if step == "made" { "make" } else { step };
        let before = begun(victim, logged);
        arm(victim, &format!("secrets.{step}"), "stall");
        other.cortex(&["secrets", "rotate", "--no-wait"]);
        wait_for("the step to begin", STATE_DEADLINE, || {
            let (now, keys) = (begun(victim, logged), keys(victim).len());
            let there = now > before && (step != "made" || keys == 2);
            if there { Ok(()) } else { Err(format!("{step}: {now}\n{}", victim.log())) }
        });
        victim.kill_nine();
        assert_eq!(get(other, "TOKEN"), CANARY, "the other one goes on");
        victim.up();
        let next = await_settled(&[victim, other]);
        assert_ne!(next, key, "after a death at `{step}`");
        key = next;
        await_value(&one, "TOKEN", CANARY);
        await_value(&two, "TOKEN", CANARY);
    }
    one.cortex(&["secrets", "rotate"]);
    assert_ne!(await_settled(&[&one, &two]), key);
}

#[test]
fn a_removed_node_is_left_with_a_key_that_opens_nothing_new() {
    let [one, two] = cluster([&[], &[]]);
    one.cortex(&["apps", "create", NAME]);
    set(&one, "TOKEN", CANARY);
    let before = await_settled(&[&one, &two]);
    let id = id_of(&two);
    let removed = one.run(&["nodes", "remove", &id, "--force"]).succeeded();
    removed.saying(&["another", "hello: TOKEN", "cortex secrets"]);
    let after = await_settled(&[&one]);
    assert_ne!(after, before);
    assert_eq!(get(&one, "TOKEN"), CANARY);
    assert!(!keys(&two).contains(&after));
}

#[test]
fn a_damaged_foreign_or_missing_key_file_is_told_and_stays() {
    let mut node = first(&[]);
    let project = node.path(NAME);
    copy_of_example(NAME, &project);
    let site = node.push(&project, NAME);
    set(&node, "TOKEN", CANARY);
    let made = await_settled(&[&node]);
    node.kill_nine();
    let path = key_file(&node);
    let whole = fs::read_to_string(&path).expect("a file");
    let mut content: Value = serde_json::from_str(&whole).expect("JSON");
    content["cluster"] = "00".repeat(16).into();
    content["node"] = "stranger".into();
    let foreign = content.to_string();
    let damaged = whole.replace(&made, "0123456789abcdef");
    for (text, why) in [(foreign, "another cluster"), (damaged, "is damaged")] {
        fs::write(&path, &text).expect("it can be written");
        let outcome = crate::node::run(node.up_command(), "cortex up").refused();
        outcome.saying(&["secrets.json", why, "Nothing was changed"]);
        assert_eq!(fs::read_to_string(&path).expect("a file"), text);
    }
    fs::remove_file(&path).expect("it is there");
    node.up();
    assert_eq!(site.get("/").status, 200, "what runs goes on");
    node.run(&["config", "get", "-a", NAME, "TOKEN"]).refused().saying(&["does not have", &made]);
    let change = ["config", "set", "-a", NAME, "NEW=1"];
    node.run(&change).refused().saying(&["does not have"]);
    node.run(&["secrets"]).succeeded();
    assert!(shown(&node)["waits"].as_str().is_some_and(|waits| waits.contains("give-up-lost")));
    fs::write(&path, &whole).expect("it can be written");
    node.kill_nine();
    node.up();
    assert_eq!(get(&node, "TOKEN"), CANARY);

    node.kill_nine();
    fs::remove_file(&path).expect("it is there");
    node.up();
    let given_up = node.run(&["secrets", "rotate", "--give-up-lost"]).succeeded();
    given_up.saying(&[&format!("app::{NAME}::config was removed")]);
    await_settled(&[&node]);
    set(&node, "TOKEN", "again");
    assert_eq!(get(&node, "TOKEN"), "again");
}
