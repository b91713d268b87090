//! The attempt to build a wall and to do nothing behind it: whether a machine can is found out and
//! not guessed from its settings. It takes a process with one thread, and a child for the
//! namespaces.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::ensure;

use super::{Sandbox, enter, give_up_privileges, make_namespaces};
use crate::{OWN_BINARY, TRY_WALL, TRY_WITHIN};

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

/// Tries it in a process of its own, which `binary` is started as. Blocking; the error says what
/// the kernel refused.
pub fn run(binary: &Path) -> anyhow::Result<()> {
    let mut command = Command::new(binary);
    command.env_clear().current_dir("/").stdin(Stdio::null());
    let done =
        os::binaries::spawn(command.arg(TRY_WALL).stdout(Stdio::null()).stderr(Stdio::piped()))?
            .wait_with_output()?;
    let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    ensure!(done.status.success(), "{}", if said.is_empty() { "it gave no reason" } else { &said });
    Ok(())
}

/// Returns the one command that lets ordinary users make namespaces, or what to do where no
/// setting of the kernel is in the way.
pub fn remedy() -> String {
    let is_so = |file: &str, value: &str| {
        std::fs::read_to_string(file).is_ok_and(|text| text.trim() == value)
    };
    let found = SETTINGS.iter().find(|(file, value, _)| is_so(file, value));
    found.map_or_else(
        || "run the node outside of the container that keeps it from making namespaces".into(),
        |(_, _, command)| format!("`{command}`"),
    )
}

/// Makes the namespaces and waits for what is tried in them.
pub fn outside() -> anyhow::Result<()> {
    make_namespaces()?;
    let mut child = Command::new(OWN_BINARY).arg(TRY_WITHIN).spawn()?;
    give_up_privileges()?;
    ensure!(child.wait()?.success(), "the wall could not be built");
    Ok(())
}

/// Builds the wall around this process, which ends then.
pub fn within() -> anyhow::Result<()> {
    enter(&Sandbox { temporary: TEMPORARY.into(), ..Sandbox::default() })
}
