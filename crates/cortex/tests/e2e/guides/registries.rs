//! Package registries for a machine of a guide, which has no network of its own to the outside:
//! an HTTP proxy on its loopback, as many companies have one.

use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::node::Running;
use crate::wait::wait_until;

const RELAY: &str = include_str!("relay.py");

pub struct Registries {
    _relays: [Running; 2],
    _directory: TempDir,
}

impl Registries {
    /// Starts the proxy on a host.
    pub fn on(enter: &[String]) -> Registries {
        let directory = TempDir::with_prefix("cortex-relay-").expect("a temporary directory");
        let socket = directory.path().join("socket");
        let relay = |mut command: Command, mode: &str| {
            command.args(["-c", RELAY, mode]).arg(&socket).stdin(Stdio::null());
            Running(command.spawn().expect("python3 starts"))
        };
        let out = relay(Command::new("/usr/bin/python3"), "out");
        wait_until("the relay to listen", || socket.exists());
        let mut inside = Command::new(&enter[0]);
        inside.args(&enter[1..]).arg("/usr/bin/python3");
        Registries { _relays: [relay(inside, "in"), out], _directory: directory }
    }

    /// Returns the variables by which tools find the proxy.
    pub fn variables() -> [(&'static str, String); 1] {
        [("https_proxy", "http://127.0.0.1:3128".to_owned())]
    }
}
