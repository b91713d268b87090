//! The process between a network of its own and the machine's. It stays in the machine's network,
//! has a thread in the other (`inside`), and passes on connections and datagrams both ways. It
//! listens for the machine only while the program listens within, so that who asks sees the
//! program's own state. It knows bytes alone; driven by the shim, which starts it before the
//! program, and by the end of the program's first process.

mod flows;
mod follow;
mod inside;
mod pair;
mod routes;
mod sockets;
mod turn;
mod watch;
pub mod way_out;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, setrlimit};

use super::{OWN_BINARY, OWN_NAME, RELAY, descriptors as passing, message};
use crate::network::Network;
use crate::sandbox::give_up_privileges;

/// The maximum time until the network is there.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// The byte beside which the network comes.
const READY: u8 = b'+';
/// The maximum length of a failure in bytes.
const FAILURE_BYTES_MAX: u64 = 8 << 10;

/// A relay that was started and makes its network.
pub struct Starting {
    child: Child,
    link: UnixStream,
}

/// A relay with its network.
pub struct Relay {
    pub pid: Pid,
    /// The namespace, which the program is to enter.
    pub namespace: OwnedFd,
    /// The end of a stream that the program's first process is to hold: the relay ends with it.
    pub link: UnixStream,
}

/// Starts a relay, which makes the network for the process namespace that is made next.
pub fn start(network: &Network) -> anyhow::Result<Starting> {
    let (mut link, theirs) = UnixStream::pair()?;
    let child = Command::new(OWN_BINARY)
        .arg0(OWN_NAME)
        .arg(RELAY)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("no relay could be started")?;
    link.set_read_timeout(Some(READY_TIMEOUT))?;
    link.set_write_timeout(Some(READY_TIMEOUT))?;
    link.write_all(&message::line(network)?)?;
    Ok(Starting { child, link })
}

impl Starting {
    /// Waits for the network.
    pub fn ready(mut self) -> anyhow::Result<Relay> {
        match self.namespace() {
            Ok(namespace) => {
                let pid = Pid::from_child(&self.child);
                Ok(Relay { pid, namespace, link: self.link })
            }
            Err(error) => {
                let _ = self.child.kill();
                let _ = self.child.wait();
                Err(error.context("a network of its own cannot be made"))
            }
        }
    }

    fn namespace(&mut self) -> anyhow::Result<OwnedFd> {
        let (mut first, mut fds) = ([0], Vec::new());
        let length = loop {
            match passing::receive(&self.link, &mut first, &mut fds) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                received => break received.context("it gives no answer")?,
            }
        };
        match fds.pop() {
            Some(namespace) if first == [READY] => Ok(namespace),
            _ => {
                let mut failure = first[..length].to_vec();
                Read::by_ref(&mut self.link).take(FAILURE_BYTES_MAX).read_to_end(&mut failure)?;
                anyhow::bail!("{}", String::from_utf8_lossy(&failure))
            }
        }
    }
}

/// Runs in the new process until the program behind the wall has ended.
pub fn become_relay() -> anyhow::Result<()> {
    // Whoever is in its network would lose it with the shim, as the shim's child does.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::process::setsid()?;
    let mut link = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    match prepare(&link) {
        Ok((turn, namespace)) => {
            passing::send(&link, &[READY], &[namespace.as_fd()])?;
            drop(namespace);
            turn.run(link)
        }
        Err(error) => Ok(link.write_all(format!("{error:#}").as_bytes())?),
    }
}

fn prepare(link: &UnixStream) -> anyhow::Result<(turn::Turn, OwnedFd)> {
    let mut line = String::new();
    let limit = message::LINE_BYTES_MAX as u64;
    BufReader::new(link.take(limit)).read_line(&mut line)?;
    let network: Network = serde_json::from_str(&line)?;
    allow_descriptors();
    let mut inside = inside::make(&network)?;
    if network.egress.is_some() {
        inside.way_out = Some(way_out::open(&inside.namespace)?);
    }
    give_up_privileges()?;
    let namespace = inside.namespace.try_clone()?;
    Ok((turn::Turn::new(&network, inside)?, namespace))
}

/// Raises the limit of open files to what is allowed.
fn allow_descriptors() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
