//! The rules of Landlock: what may be written, where it may listen, and that signals and abstract
//! sockets stay behind the wall. A kernel that knows fewer rules gets those that it knows; the view
//! and the filter of calls do not depend on them. Where there is no view, they also say what may be
//! read, and without them there would be nothing.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use landlock::{
    ABI, Access, AccessFs, AccessNet, NetPort, RestrictionStatus, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope, path_beneath_rules,
};

use super::Sandbox;
use super::view::{DEVICES, RESOLVERS, SYSTEM, SYSTEM_WIDE};

/// The newest version whose rules are all meant here.
const NEWEST: ABI = ABI::V6;
/// The places that processes write to beside their own directories. What `/proc` and `/dev` have is
/// this namespace's own.
const WRITABLE: &[&str] = &["/tmp", "/var/tmp", "/dev", "/proc"];

pub fn restrict(sandbox: &Sandbox) -> anyhow::Result<()> {
    let root = [PathBuf::from("/")];
    let writable = WRITABLE.iter().map(PathBuf::from).chain(sandbox.writable.iter().cloned());
    apply(sandbox, &root, &writable.collect::<Vec<_>>())?;
    Ok(())
}

/// The same where nothing else decides what can be named.
pub fn restrict_alone(sandbox: &Sandbox) -> anyhow::Result<()> {
    let system = SYSTEM.iter().chain(SYSTEM_WIDE).chain(RESOLVERS);
    let system = system.map(|name| Path::new("/").join(name));
    let system = system.flat_map(|path| without(&path, &sandbox.hidden));
    let readable = system.chain(sandbox.readable.iter().cloned()).chain(["/proc".into()]);
    let devices = DEVICES.iter().chain(&["pts", "ptmx"]).map(|name| Path::new("/dev").join(name));
    let writable = sandbox.writable.iter().cloned().chain(devices);
    let status = apply(sandbox, &readable.collect::<Vec<_>>(), &writable.collect::<Vec<_>>())?;
    ensure!(status.ruleset != RulesetStatus::NotEnforced, "this kernel has no Landlock");
    Ok(())
}

/// Restricts this process to some of the system's files, and keeps it from signals and abstract
/// sockets.
pub fn restrict_files(readable: &[&str], writable: &[&str]) -> anyhow::Result<()> {
    let all = AccessFs::from_all(NEWEST);
    Ruleset::default()
        .handle_access(all)?
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?
        .create()?
        .add_rules(path_beneath_rules(readable, AccessFs::from_read(NEWEST)))?
        .add_rules(path_beneath_rules(writable, all))?
        .restrict_self()?;
    Ok(())
}

fn apply(
    sandbox: &Sandbox,
    readable: &[PathBuf],
    writable: &[PathBuf],
) -> anyhow::Result<RestrictionStatus> {
    let all = AccessFs::from_all(NEWEST);
    // The kernel chooses a free port for 0, so nobody is kept out by that.
    let ports = sandbox.ports.iter().copied().chain([0]);
    let status = Ruleset::default()
        .handle_access(all)?
        .handle_access(AccessNet::BindTcp)?
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?
        .create()?
        .add_rules(path_beneath_rules(readable, AccessFs::from_read(NEWEST)))?
        .add_rules(path_beneath_rules(writable, all))?
        .add_rules(ports.map(|port| anyhow::Ok(NetPort::new(port, AccessNet::BindTcp))))?
        .restrict_self()?;
    Ok(status)
}

/// Returns a directory, or what is in it where something is hidden there: what is allowed of a
/// directory is allowed of all below.
fn without(path: &Path, hidden: &[PathBuf]) -> Vec<PathBuf> {
    if hidden.iter().any(|hidden| path.starts_with(hidden)) {
        return Vec::new();
    }
    if !hidden.iter().any(|hidden| hidden.starts_with(path)) {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.flat_map(|entry| without(&entry.path(), hidden)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_in_a_directory_is_left_out_of_it() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for name in ["one", "two/data/secret", "two/other"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        let mut shown = without(root.path(), &[at("two/data")]);
        shown.sort();
        assert_eq!(shown, [at("one"), at("two/other")]);
        assert_eq!(without(&at("one"), &[at("two/data")]), [at("one")]);
        assert!(without(&at("two/data/secret"), &[at("two/data")]).is_empty());
    }
}
