//! The way to the internet: `slirp4netns` makes an interface within, and connections of its own for
//! what comes there. It runs in the machine's network with the rights of the node's user, so what
//! it may not be asked for is closed within, by routes. It answers no ARP request but for itself,
//! so that nobody gets around those by naming the interface.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use anyhow::{Context, ensure};

use super::inside::STACK_BYTES;
use crate::{OWN_BINARY, WAY_OUT, sandbox};

const PROGRAM: &str = "slirp4netns";
const DIRECTORIES: &[&str] =
    &["/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin", "/usr/local/sbin", "/sbin"];
/// What it needs of the system: the device that makes interfaces.
const TUNNELS: &str = "/dev/net/tun";
/// The files that it reads.
const READABLE: &[&str] = &["/usr", "/bin", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache"];
/// Its standard output: a path of the relay's would be closed to it, as the relay is none of its
/// own.
const NAMESPACE: &str = "/proc/self/fd/1";
const INTERFACE: &str = "tap0";
/// No host loopback, no resolver of its own, which would be another door to loopback, and no more
/// calls than it needs. Standard error says when it is ready, and its end comes with
/// that of standard input.
const ARGUMENTS: &[&str] = &[
    "--configure",
    "--mtu=65520",
    "--disable-host-loopback",
    "--disable-dns",
    "--enable-seccomp",
    "--netns-type=path",
    "--exit-fd=0",
    "--ready-fd=2",
];
/// The byte by which it says so.
const READY: u8 = b'1';
const FAILURE_BYTES_MAX: u64 = 4 << 10;
const RESOLVERS: &str = "/etc/resolv.conf";
const RESOLVER_PORT: u16 = 53;

/// The running program. Its input is held open by it: without it, it ends.
pub struct WayOutProcess {
    _child: Child,
}

/// Opens the way out of a namespace.
pub fn open(namespace: &OwnedFd) -> anyhow::Result<WayOutProcess> {
    let mut child = Command::new(OWN_BINARY)
        .arg(WAY_OUT)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(namespace.try_clone()?)
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{PROGRAM} cannot be started"))?;
    let mut said = child.stderr.take().context("it is piped")?;
    let (mut text, mut byte) = (Vec::new(), [0]);
    // Warnings may come before it.
    while (text.len() as u64) < FAILURE_BYTES_MAX && said.read(&mut byte)? > 0 {
        if byte == [READY] && text.last().is_none_or(|last| *last == b'\n') {
            keep_reading(said);
            return Ok(WayOutProcess { _child: child });
        }
        text.extend(byte);
    }
    let _ = child.kill();
    let _ = child.wait();
    ensure!(!text.is_empty(), "{PROGRAM} ended and gave no reason");
    anyhow::bail!("{PROGRAM} says: {}", String::from_utf8_lossy(&text).trim())
}

/// Becomes the program, which sees as little of the system's files as it can do with.
pub fn become_program() -> anyhow::Result<()> {
    let program = program().with_context(|| {
        format!("egress = \"all\" needs the program {PROGRAM}, and it is not installed")
    })?;
    sandbox::restrict_files(READABLE, &[TUNNELS])?;
    let error = Command::new(program).args(ARGUMENTS).args([NAMESPACE, INTERFACE]).exec();
    Err(error).with_context(|| format!("{PROGRAM} cannot be started"))
}

/// Reads what it says from now on, or a warning would end it.
fn keep_reading(mut said: ChildStderr) {
    let reading = move || std::io::copy(&mut said, &mut std::io::sink());
    let _ = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(reading);
}

fn program() -> Option<PathBuf> {
    let all = DIRECTORIES.iter().map(|directory| Path::new(directory).join(PROGRAM));
    all.into_iter().find(|path| path.exists())
}

/// Returns the address of the machine's resolver, as its settings are now.
pub fn resolver() -> Option<SocketAddr> {
    first_resolver(&std::fs::read_to_string(RESOLVERS).ok()?)
}

fn first_resolver(settings: &str) -> Option<SocketAddr> {
    let named = settings.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let addresses = named.filter_map(|rest| rest.trim().parse::<IpAddr>().ok());
    let address = addresses.into_iter().find(IpAddr::is_ipv4)?;
    Some(SocketAddr::new(address, RESOLVER_PORT))
}

/// The commands that install it, by the tool of the system.
const INSTALL: &[(&str, &str)] = &[
    ("apt-get", "sudo apt-get install slirp4netns"),
    ("dnf", "sudo dnf install slirp4netns"),
    ("zypper", "sudo zypper install slirp4netns"),
    ("pacman", "sudo pacman -S slirp4netns"),
    ("apk", "sudo apk add slirp4netns"),
];

/// Returns the command that provides what is missing; `None` if nothing seems to be.
pub fn remedy() -> Option<String> {
    let is_there =
        |name: &str| DIRECTORIES.iter().any(|place| Path::new(place).join(name).exists());
    if program().is_none() {
        let known = INSTALL.iter().find(|(tool, _)| is_there(tool));
        return Some(known.map_or("install slirp4netns".into(), |(_, how)| format!("run `{how}`")));
    }
    let opened = std::fs::File::options().read(true).write(true).open(TUNNELS);
    match opened.err()?.kind() {
        std::io::ErrorKind::PermissionDenied => Some(format!("run `sudo chmod 666 {TUNNELS}`")),
        _ => Some("run `sudo modprobe tun`".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_resolver_that_can_be_asked_is() {
        let settings = "# nameserver 9.9.9.9\nsearch example\nnameserver ::1\n nameserver 10.0.0.53\n\
                        nameserver 10.0.0.54\n";
        assert_eq!(first_resolver(settings).unwrap().to_string(), "10.0.0.53:53");
        assert_eq!(first_resolver("options edns0\nnameserver nobody\n"), None);
    }
}
