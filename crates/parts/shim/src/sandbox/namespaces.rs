//! The namespaces of users and processes, which a child of the shim is born into, and what the
//! child is allowed there until its wall stands.

use super::attempt::remedy;
use anyhow::Context;
use rustix::process::{getgid, getuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, set_capabilities,
};

/// Makes the namespaces for the next child of this process, which becomes the first process in them
/// and may mount there. Nothing outside is within the reach of that privilege.
pub fn make_namespaces() -> anyhow::Result<()> {
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWPID).with_context(|| {
        format!(
            "this machine does not let ordinary users make namespaces, which isolation = \
             \"standard\" needs: {}, or set isolation = \"none\"",
            remedy()
        )
    })?;
    // Who may set groups could drop one that keeps him out of a file.
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    // A program that is executed loses all but these.
    let mut sets = capabilities(None)?;
    sets.inheritable = CapabilitySet::SYS_ADMIN;
    set_capabilities(None, sets)?;
    configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true)?;
    Ok(())
}

/// Gives up what the namespaces allow, in this process and for all that it starts.
pub fn give_up_privileges() -> anyhow::Result<()> {
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, sets)?;
    Ok(())
}

/// Makes new namespaces for this process, which has a single thread.
#[expect(deprecated, reason = "only a flag that is not asked for here makes it unsound")]
pub fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    rustix::thread::unshare(flags)
}
