//! An application that may reach the internet and nothing else, in a network in which others answer
//! at every address.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{Outcomes, PROCFILE, SERVER, TRIES, assert_none_escaped, assert_real, outcomes};
use crate::fixtures::cluster::{id_of, row};
use crate::netns::lab::{Host, Lab};
use crate::node::{Node, command_within, run};
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for};

/// The variable that promises a way out: with it, a test that has none fails.
const PROMISED: &str = "CORTEX_EGRESS";
const INTERNET: &str = "203.0.113.7";
/// A machine of the internet that becomes a member.
const LATER: &str = "203.0.113.8";
/// Other machines, and where providers tell a machine's secrets.
const CLOSED: &[&str] =
    &["10.77.0.2", "169.254.169.254", "192.168.5.5", "172.16.5.5", "100.64.5.5", "198.18.0.1"];
const PORT: u16 = 7000;
const EGRESS: (&str, &str) = ("cortex.toml", "isolation = \"full\"\negress = \"all\"\n");

/// A program that answers on a host.
struct Services(Child);

impl Services {
    fn start(host: &Host, script: &Path, names: Ipv4Addr) -> Services {
        let enter = host.enter();
        let mut command = Command::new(&enter[0]);
        command.args(&enter[1..]).arg("python3").arg(script);
        command.args([&PORT.to_string(), INTERNET, &names.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut services = Services(command.spawn().expect("python3"));
        let mut line = String::new();
        let output = services.0.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("its first line");
        assert_eq!(line, "ready\n");
        services
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Returns the address of this machine's resolver, if another host can have it.
fn resolver() -> Option<Ipv4Addr> {
    let settings = std::fs::read_to_string("/etc/resolv.conf").ok()?;
    let named = settings.lines().filter_map(|line| line.strip_prefix("nameserver "));
    named.filter_map(|word| word.trim().parse::<IpAddr>().ok()).find_map(|address| match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    })
}

/// Has an application make attempts in a command of its own, which stands behind the same wall.
fn attempts(node: &Node, name: &str, which: &str, facts: &serde_json::Value) -> Outcomes {
    let facts = facts.to_string();
    let said = node.cortex(&["run", "-a", name, "--", "python3", "tries.py", which, &facts]);
    outcomes(&said, if which == "outside" { 3 } else { 40 })
}

#[test]
fn the_internet_is_reached_and_nothing_else() {
    let Some(lab) = Lab::of(2) else { return };
    let (machine, outside) = (lab.host(0), lab.host(1));
    let resolver = resolver();
    for address in
        CLOSED.iter().copied().chain([INTERNET, LATER]).filter(|one| *one != outside.address)
    {
        outside.within(&["ip", "address", "add", &format!("{address}/32"), "dev", "eth0"]);
    }
    if let Some(resolver) = resolver.filter(|address| !address.is_loopback()) {
        outside.within(&["ip", "address", "add", &format!("{resolver}/32"), "dev", "eth0"]);
    }
    machine.within(&["ip", "route", "add", "default", "via", &outside.address]);
    let node = Node::start_at(machine, &[]);
    let row = row(&node, &id_of(&node)).expect("its row");
    if !row["walls"].as_array().is_some_and(|walls| walls.contains(&"full-egress".into())) {
        let doctor = node.run(&["doctor"]).stdout;
        let promised = std::env::var_os(PROMISED).is_some_and(|value| value == "1");
        assert!(!promised, "{PROMISED}=1 promises a way out of such a network: {doctor}");
        let said = format!("\nNOT TESTED: no way out of a network of its own here. {doctor}\n");
        // It is written past the harness, which does not show what passing tests print.
        std::io::stderr().write_all(said.as_bytes()).ok();
        return;
    }
    let script = node.path("services.py");
    std::fs::write(&script, include_str!("services.py")).expect("it is ours");
    let names = resolver.filter(|address| !address.is_loopback());
    let own = resolver.filter(Ipv4Addr::is_loopback).unwrap_or(Ipv4Addr::LOCALHOST);
    let _running = (
        Services::start(machine, &script, own),
        Services::start(outside, &script, names.unwrap_or(Ipv4Addr::LOCALHOST)),
    );
    let files = [
        PROCFILE,
        ("server.py", SERVER),
        TRIES,
        super::full::ATTEMPTS,
        ("outside.py", include_str!("outside.py")),
        ("later.py", LATER_REACHED),
    ];
    let [plain, own, none] = ["plain", "own", "none"].map(|name| node.path(name));
    for (project, settings) in
        [(&plain, None), (&own, Some(EGRESS)), (&none, Some(super::full::FULL))]
    {
        of_files(project, &files);
        settings.iter().for_each(|settings| of_files(project, &[*settings]));
    }
    node.push(&plain, "plain");
    let mut facts = serde_json::json!({
        "node": node.pid(),
        "node_port": [machine.address, 8205],
        "http_port": node.http_port,
        "victim_port": node.await_ready("plain", "web", 1)[0].port.expect("it listens"),
        "tcp_port": PORT,
        "tcp6_port": PORT,
        "udp_port": PORT,
        "free_port": 7001,
        "machine": machine.address,
        "routed": true,
        "own_network": false,
        "abstract": "cortex-e2e-nobody",
        "closed": CLOSED,
        "outside_port": PORT,
        "internet": INTERNET,
    });
    let mut without = attempts(&node, "plain", "network", &facts);
    // The abstract one is nobody's, and the router is not on loopback here. Within the lab the node
    // is root, so what takes rights is no proof.
    without.retain(|name, (kind, _)| {
        kind == "real" && !name.contains("abstract") && name != "connects_to_the_router"
    });
    assert_real(&without);
    let resolves = resolver.is_some();
    let reached = |name, all: bool| {
        let mut outcomes = attempts(&node, name, "outside", &facts);
        outcomes.retain(|name, _| resolves || name != "resolves");
        let succeeded = outcomes.values().filter(|(_, outcome)| outcome == "succeeded").count();
        assert_eq!(succeeded, if all { outcomes.len() } else { 0 }, "{outcomes:#?}");
    };
    reached("plain", true);
    node.push(&own, "own");
    node.push(&none, "none");
    reached("own", true);
    reached("none", false);
    facts["own_network"] = true.into();
    for name in ["own", "none"] {
        assert_none_escaped(&attempts(&node, name, "network", &facts));
    }
    assert_later_member_is_closed(&node);
}

/// A program that reaches two machines, until it reaches one of them no longer.
const LATER_REACHED: &str = r#"
import os, pathlib, socket, sys, time

stays, goes, port = sys.argv[1], sys.argv[2], int(sys.argv[3])

def reaches(host):
    try:
        with socket.create_connection((host, port), timeout=5) as end:
            return end.recv(16) == b"outside"
    except OSError:
        return False

assert reaches(stays) and reaches(goes), "both are reached at first"
pathlib.Path(os.environ["CORTEX_PERSIST"], "reached").touch()
end = time.monotonic() + 30
while reaches(goes):
    assert time.monotonic() < end, "it is reached as before"
    time.sleep(0.02)
print("closed", "and the other is reached" if reaches(stays) else "like the other")
"#;

/// Asserts that what runs reaches a member no longer once it has become one.
fn assert_later_member_is_closed(node: &Node) {
    let reached = node.data().join("apps/own/persist/reached");
    let port = PORT.to_string();
    let arguments = ["run", "-a", "own", "--", "python3", "later.py", INTERNET, LATER, &port];
    let data = node.data();
    let joining = std::thread::spawn(move || {
        wait_for("both to be reached", STATE_DEADLINE, || match reached.exists() {
            true => Ok(()),
            false => Err("they are not".to_owned()),
        });
        let address = serde_json::json!({ "v": 1, "addresses": [format!("{LATER}:8205")] });
        let mut command = command_within(&[]);
        command.arg("--data-dir").arg(data).args(["store", "set", "node::later::address"]);
        command.arg(address.to_string());
        run(command, "store set").succeeded();
    });
    let said = node.run(&arguments).succeeded().stdout;
    assert!(said.contains("closed and the other is reached"), "{said}");
    joining.join().expect("it has become a member");
}
