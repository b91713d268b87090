//! The wall around a process, built from what the kernel gives ordinary users: namespaces with a
//! view of the file system of its own, Landlock, and a filter of system calls. The order is that of
//! bubblewrap: the shim makes the namespaces that its child is born into, the child builds the
//! view, gives up every privilege and becomes the first process of the namespace (`init`).

pub mod attempt;
mod calls;
mod init;
mod namespaces;
mod rules;
mod view;

use anyhow::Context;
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

use crate::network::Network;

pub use init::{Ending, become_init, ending};
pub use namespaces::{
    enter_network, give_up_privileges, keep_network_privilege, make_process_namespace,
    make_user_namespace, unshare,
};
pub use rules::restrict_files;

/// The maximum number of processes and threads behind one wall: several times what a large Java
/// server has, and a small part of what a machine has.
const PROCESSES_MAX: u64 = 4096;

/// The description of what a process behind a wall sees of the file system. The system's own
/// directories are there for reading, and nothing else but what is named here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Directories of which nothing is there but what follows.
    pub hidden: Vec<PathBuf>,
    pub readable: Vec<PathBuf>,
    pub writable: Vec<PathBuf>,
    /// The directory that stands at `/tmp`.
    pub temporary: PathBuf,
    /// The TCP ports that it may listen at, beside those that the kernel chooses.
    pub ports: Vec<u16>,
    /// Whether Landlock and the filter of calls are all of it: nothing is hidden then but what may
    /// not be opened.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub landlock_alone: bool,
    /// The network of its own; `None` if it is in the machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
}

/// Builds the wall around the calling process and all that it starts. The process is the first one
/// of the namespaces that the shim made.
pub fn enter(sandbox: &Sandbox) -> anyhow::Result<()> {
    // What is behind the wall ends with its shim: nobody else would end it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if !sandbox.landlock_alone {
        view::build(sandbox).context("its view of the file system cannot be made")?;
    }
    limit_resources()?;
    if sandbox.landlock_alone {
        rules::restrict_alone(sandbox).context("Landlock cannot be set up")?;
    } else {
        give_up_privileges()?;
        rules::restrict(sandbox).context("Landlock cannot be set up")?;
    }
    calls::restrict().context("system calls cannot be restricted")
}

fn limit_resources() -> anyhow::Result<()> {
    let at_most = |limit| Rlimit { current: Some(limit), maximum: Some(limit) };
    // A dump would show secrets to whoever reads it.
    setrlimit(Resource::Core, at_most(0))?;
    let before = rustix::process::getrlimit(Resource::Nproc).maximum;
    setrlimit(Resource::Nproc, at_most(before.unwrap_or(u64::MAX).min(PROCESSES_MAX)))?;
    Ok(())
}
