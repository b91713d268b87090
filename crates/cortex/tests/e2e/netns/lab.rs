//! A network in network namespaces: each host has its own address, and all are on one bridge. It
//! needs `unshare` and `nsenter` of util-linux, `ip` of iproute2, `iptables`, and no rights but
//! those of an ordinary user, if the kernel lets one make a user namespace.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use crate::node::run;
use crate::wait::wait_until;

/// The variable that promises namespaces: with it, a test that cannot have them fails.
const PROMISED: &str = "CORTEX_NETNS";
pub const NETWORK: &str = "10.77.0";

/// A process that holds namespaces open until its input ends.
struct Holder(Child);

impl Holder {
    fn start(arguments: &[String]) -> Holder {
        let mut command = Command::new(&arguments[0]);
        command.args(&arguments[1..]).arg("cat").stdin(Stdio::piped()).stdout(Stdio::null());
        let child = command.spawn().unwrap_or_else(|e| panic!("{arguments:?}: {e}"));
        let mut holder = Holder(child);
        wait_until("a namespace", || {
            if let Ok(Some(status)) = holder.0.try_wait() {
                panic!("{arguments:?} ended with {status}");
            }
            let name = std::fs::read_to_string(format!("/proc/{}/comm", holder.0.id()));
            name.is_ok_and(|name| name.trim() == "cat")
        });
        holder
    }

    /// Returns the words with which a command line begins that is to run in there.
    fn enter(&self) -> Vec<String> {
        let target = self.0.id().to_string();
        words(&["nsenter", "--target", &target, "--user", "--net", "--preserve-credentials", "--"])
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn words(text: &[&str]) -> Vec<String> {
    text.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn within(enter: &[String], arguments: &[&str]) {
    let mut command = Command::new(&enter[0]);
    command.args(&enter[1..]).args(arguments);
    run(command, &arguments.join(" ")).succeeded();
}

pub struct Lab {
    hosts: Vec<Host>,
    _bridge: Holder,
}

pub struct Host {
    holder: Holder,
    pub address: String,
}

impl Lab {
    /// Creates hosts. Returns `None`, with a message, if namespaces cannot be had and nobody
    /// promised them.
    pub fn of(hosts: usize) -> Option<Lab> {
        let new = words(&["unshare", "--user", "--map-root-user", "--net"]);
        if let Err(why) = try_namespaces(&new) {
            let promised = std::env::var_os(PROMISED).is_some_and(|value| value == "1");
            assert!(!promised, "{PROMISED}=1 promises namespaces, but: {why}");
            let said = format!(
                "\nNOT TESTED: no network namespaces here ({why}). As root allow them: `sysctl -w \
                 kernel.unprivileged_userns_clone=1` or `sysctl -w \
                 kernel.apparmor_restrict_unprivileged_userns=0`, whichever this kernel has; \
                 packages iproute2 and iptables. {PROMISED}=1 makes this a failure.\n"
            );
            // It is written past the harness, which does not show what passing tests print.
            std::io::stderr().write_all(said.as_bytes()).ok();
            return None;
        }
        let bridge = Holder::start(&new);
        let inside = bridge.enter();
        within(&inside, &["ip", "link", "add", "bridge", "type", "bridge"]);
        within(&inside, &["ip", "link", "set", "bridge", "up"]);
        let hosts = (1..=hosts).map(|n| Host::attach(&inside, n)).collect();
        Some(Lab { hosts, _bridge: bridge })
    }

    pub fn host(&self, n: usize) -> &Host {
        &self.hosts[n]
    }
}

fn try_namespaces(new: &[String]) -> Result<(), String> {
    let script = "ip link add probe type veth && iptables -w -A INPUT -s 192.0.2.1 -j DROP";
    let mut child = Command::new(&new[0])
        .args(&new[1..])
        .args(["sh", "-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{}: {error}", new[0]))?;
    let mut said = String::new();
    child.stderr.take().expect("it is piped").read_to_string(&mut said).ok();
    let status = child.wait().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(said.trim().to_string()) }
}

impl Host {
    fn attach(bridge: &[String], n: usize) -> Host {
        let holder = Holder::start(&[bridge, &words(&["unshare", "--net"])].concat());
        let (port, peer) = (format!("host{n}"), holder.0.id().to_string());
        let veth = ["type", "veth", "peer", "name", "eth0", "netns", &peer];
        within(bridge, &[&["ip", "link", "add", &port], &veth[..]].concat());
        within(bridge, &["ip", "link", "set", &port, "master", "bridge", "up"]);
        let host = Host { holder, address: format!("{NETWORK}.{n}") };
        host.within(&["ip", "link", "set", "lo", "up"]);
        host.within(&["ip", "address", "add", &format!("{}/24", host.address), "dev", "eth0"]);
        host.within(&["ip", "link", "set", "eth0", "up"]);
        host
    }

    pub fn enter(&self) -> Vec<String> {
        self.holder.enter()
    }

    #[track_caller]
    pub fn within(&self, arguments: &[&str]) {
        within(&self.enter(), arguments);
    }

    /// From now on this host hears nothing of the others; they may still hear it.
    pub fn stop_hearing(&self, others: &[&Host]) {
        for other in others {
            self.within(&["iptables", "-w", "-A", "INPUT", "-s", &other.address, "-j", "DROP"]);
        }
    }

    /// From now on neither side hears the other.
    pub fn cut_off(&self, others: &[&Host]) {
        self.stop_hearing(others);
        others.iter().for_each(|other| other.stop_hearing(&[self]));
    }

    /// From now on nobody reaches this port, not from this host either.
    pub fn refuse_port(&self, port: u16) {
        let port = port.to_string();
        let rule = ["-p", "tcp", "--dport", &port, "-j", "REJECT", "--reject-with", "tcp-reset"];
        self.within(&[&["iptables", "-w", "-A", "INPUT"], &rule[..]].concat());
    }

    pub fn hear_all(&self) {
        self.within(&["iptables", "-w", "-F", "INPUT"]);
    }
}
