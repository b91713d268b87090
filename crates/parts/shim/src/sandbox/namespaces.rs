//! The namespaces of users and processes, which a child of the shim is born into, the one of
//! networks, which it enters, and what it is allowed there until its wall stands.

use super::attempt::remedy;
use anyhow::Context;
use model::Wall;
use rustix::process::{getgid, getuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, LinkNameSpaceType, UnshareFlags, capabilities,
    clear_ambient_capability_set, configure_capability_in_ambient_set, move_into_link_name_space,
    set_capabilities,
};
use std::os::fd::BorrowedFd;

/// What a child may do in the namespaces: mount and enter others; set up its own network.
const PRIVILEGES: &[CapabilitySet] =
    &[CapabilitySet::SYS_ADMIN, CapabilitySet::NET_ADMIN, CapabilitySet::NET_BIND_SERVICE];

/// Moves this process into a namespace of users, in which its children may make and enter others.
/// Nothing outside is within the reach of that privilege.
pub fn make_user_namespace() -> anyhow::Result<()> {
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    unshare(UnshareFlags::NEWUSER).with_context(|| {
        format!(
            "this machine does not let ordinary users make namespaces, which isolation = \
             \"standard\" needs: {}, or set isolation = \"none\"",
            remedy(Wall::Standard)
        )
    })?;
    // Who may set groups could drop one that keeps him out of a file.
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    // A program that is executed loses all but these.
    let mut sets = capabilities(None)?;
    sets.inheritable = PRIVILEGES.iter().fold(CapabilitySet::empty(), |all, one| all | *one);
    set_capabilities(None, sets)?;
    for one in PRIVILEGES {
        configure_capability_in_ambient_set(*one, true)?;
    }
    Ok(())
}

/// Makes the namespace of processes for the next child of this process, which becomes the first
/// process in it.
pub fn make_process_namespace() -> anyhow::Result<()> {
    unshare(UnshareFlags::NEWPID).context("no namespace of processes")
}

/// Moves this process into a network.
pub fn enter_network(namespace: BorrowedFd<'_>) -> anyhow::Result<()> {
    let kind = Some(LinkNameSpaceType::Network);
    move_into_link_name_space(namespace, kind).context("its network cannot be entered")
}

/// Gives up what the namespaces allow, in this process and for all that it starts.
pub fn give_up_privileges() -> anyhow::Result<()> {
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, sets)?;
    Ok(())
}

/// Gives up in this thread what the namespaces allow, but for changing the network that it is in.
pub fn keep_network_privilege() -> anyhow::Result<()> {
    clear_ambient_capability_set()?;
    let (one, none) = (CapabilitySet::NET_ADMIN, CapabilitySet::empty());
    set_capabilities(None, CapabilitySets { effective: one, permitted: one, inheritable: none })?;
    Ok(())
}

/// Makes new namespaces for this process, which has a single thread.
#[expect(deprecated, reason = "only a flag that is not asked for here makes it unsound")]
pub fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    rustix::thread::unshare(flags)
}
