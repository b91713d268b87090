//! The rules of Landlock: what may be written, where it may listen, and that signals and abstract
//! sockets stay behind the wall. A kernel that knows fewer rules gets those that it knows; the view
//! and the filter of calls do not depend on them.

use landlock::{
    ABI, Access, AccessFs, AccessNet, NetPort, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
    path_beneath_rules,
};

use super::Sandbox;

/// The newest version whose rules are all meant here.
const NEWEST: ABI = ABI::V6;
/// The places that processes write to beside their own directories. What `/proc` and `/dev` have is
/// this namespace's own.
const WRITABLE: &[&str] = &["/tmp", "/var/tmp", "/dev", "/proc"];

pub fn restrict(sandbox: &Sandbox) -> anyhow::Result<()> {
    let all = AccessFs::from_all(NEWEST);
    // The kernel chooses a free port for 0, so nobody is kept out by that.
    let ports = sandbox.ports.iter().copied().chain([0]);
    let mut rules = Ruleset::default().handle_access(all)?;
    if sandbox.network.is_none() {
        rules = rules.handle_access(AccessNet::BindTcp)?;
    }
    let ports = ports.filter(|_| sandbox.network.is_none());
    rules
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?
        .create()?
        .add_rules(path_beneath_rules(["/"], AccessFs::from_read(NEWEST)))?
        .add_rules(path_beneath_rules(WRITABLE, all))?
        .add_rules(path_beneath_rules(&sandbox.writable, all))?
        .add_rules(ports.map(|port| anyhow::Ok(NetPort::new(port, AccessNet::BindTcp))))?
        .restrict_self()?;
    Ok(())
}
