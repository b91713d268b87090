//! The attempt to build a wall and to do nothing behind it: whether a machine can is found out and
//! not guessed from its settings. It takes a process with one thread, and a child for the
//! namespaces.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use model::Wall;

use super::{
    Sandbox, enter, enter_network, give_up_privileges, make_process_namespace, make_user_namespace,
};
use crate::network::{Network, WayOut};
use crate::{OWN_BINARY, TRY_WALL, TRY_WITHIN, relay};

/// The directory that stands at `/tmp` behind the wall; nothing is written there.
const TEMPORARY: &str = "/tmp";

/// The settings of the kernel that keep ordinary users from making namespaces: the file, what it
/// says then, and the command that changes it.
const SETTINGS: &[(&str, &str, &str)] = &[
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "sudo sysctl -w kernel.unprivileged_userns_clone=1",
    ),
    ("/proc/sys/user/max_user_namespaces", "0", "sudo sysctl -w user.max_user_namespaces=15000"),
];

/// The same for namespaces of networks alone.
const SETTINGS_OF_NETWORKS: &[(&str, &str, &str)] =
    &[("/proc/sys/user/max_net_namespaces", "0", "sudo sysctl -w user.max_net_namespaces=15000")];

/// Tries it in a process of its own, which `binary` is started as. Blocking; the error says what
/// the kernel refused.
pub fn run(binary: &Path, wall: Wall) -> anyhow::Result<()> {
    let mut command = Command::new(binary);
    command.env_clear().current_dir("/").stdin(Stdio::null());
    command.arg(TRY_WALL).arg(wall.word()).stdout(Stdio::null()).stderr(Stdio::piped());
    let done = os::binaries::spawn(&mut command)?.wait_with_output()?;
    let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    ensure!(done.status.success(), "{}", if said.is_empty() { "it gave no reason" } else { &said });
    Ok(())
}

/// Returns the one command that lets ordinary users make the namespaces of a wall, or what to do
/// where no setting of the kernel is in the way.
pub fn remedy(wall: Wall) -> String {
    if wall == Wall::Landlock {
        return "use a kernel with Landlock (Linux 5.13 or later, `lsm=landlock` at boot)".into();
    }
    let is_so = |file: &str, value: &str| {
        std::fs::read_to_string(file).is_ok_and(|text| text.trim() == value)
    };
    let networks = SETTINGS_OF_NETWORKS.iter().filter(|_| wall >= Wall::Full);
    let found = SETTINGS.iter().chain(networks).find(|(file, value, _)| is_so(file, value));
    let setting = found.map(|(_, _, command)| format!("run `{command}`"));
    let way_out = || (wall == Wall::FullEgress).then(relay::way_out::remedy).flatten();
    setting.or_else(way_out).unwrap_or_else(|| match wall {
        Wall::FullEgress => "see to what it says".into(),
        _ => "run the node outside of the container that keeps it from making namespaces".into(),
    })
}

/// Makes the namespaces and waits for what is tried in them.
pub fn outside(word: &OsStr) -> anyhow::Result<()> {
    let wall = Wall::ALL.into_iter().find(|wall| word == wall.word());
    let wall = wall.context("there is no such wall")?;
    if wall == Wall::Landlock {
        return enter(&Sandbox { landlock_alone: true, ..Sandbox::default() });
    }
    make_user_namespace()?;
    let egress = (wall == Wall::FullEgress).then(WayOut::default);
    let network = Network { egress, ..Network::default() };
    let relay = (wall >= Wall::Full).then(|| relay::start(&network)).transpose()?;
    make_process_namespace()?;
    let relay = relay.map(relay::Starting::ready).transpose()?;
    let mut command = Command::new(OWN_BINARY);
    if let Some(relay) = &relay {
        command.stdin(relay.namespace.try_clone()?);
    }
    let mut child = command.arg(TRY_WITHIN).arg(wall.word()).spawn()?;
    give_up_privileges()?;
    ensure!(child.wait()?.success(), "the wall could not be built");
    Ok(())
}

/// Builds the wall around this process, which ends then.
pub fn within(word: &OsStr) -> anyhow::Result<()> {
    let mut sandbox = Sandbox { temporary: TEMPORARY.into(), ..Sandbox::default() };
    if [Wall::Full, Wall::FullEgress].iter().any(|wall| word == wall.word()) {
        enter_network(std::io::stdin().as_fd())?;
        sandbox.network = Some(Network::default());
    }
    enter(&sandbox)
}
