//! How processes come into being: the extension point between the agent and the operating system.
//! `plain` starts them under a shim that outlives this node process; a sandboxed launcher comes
//! beside it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use agent::application::Exit;
use async_trait::async_trait;
use model::instance::ProcessIdentity;
use model::port::InstancePorts;
use model::{ApplicationName, Generation, InstanceId};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// What is to be run. Sent to the shim through its socket: secrets are never in argv or on disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaunchSpec {
    pub purpose: Purpose,
    /// Program and arguments.
    pub argv: Vec<String>,
    pub directory: PathBuf,
    /// The whole environment: nothing is inherited.
    pub environment: BTreeMap<String, String>,
    /// Output goes here, a time before each line; rotated by the shim.
    pub log: PathBuf,
    pub port: Option<u16>,
    #[serde(default, skip_serializing_if = "InstancePorts::is_empty")]
    pub ports: InstancePorts,
    /// None: as much as the machine has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<Cap>,
}

/// What a command reads and writes in place of its log: somebody is connected to it.
#[derive(Debug)]
pub struct Attached {
    /// Whether these are a terminal, which is to be its own.
    pub terminal: bool,
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

/// The most that a process and everything below it may take of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cap {
    /// Above it the whole tree is stopped.
    pub memory_bytes: u64,
    /// Likewise.
    pub processes: u32,
    /// They run on no more than so many.
    pub cores: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    Instance {
        instance: InstanceId,
        generation: Generation,
    },
    /// A build or release step, or a user's one-off command: niced, idle I/O class.
    Task {
        application: ApplicationName,
        name: String,
    },
}

impl Purpose {
    pub fn application(&self) -> &ApplicationName {
        match self {
            Purpose::Instance { instance, .. } => &instance.application,
            Purpose::Task { application, .. } => application,
        }
    }

    /// Unique on this node while it runs: `hello/web.1.7`, `hello/task.build-v3`.
    pub fn id(&self) -> String {
        match self {
            Purpose::Instance { instance, generation } => {
                format!("{}/{}.{generation}", instance.application, instance.label())
            }
            Purpose::Task { application, name } => format!("{application}/task.{name}"),
        }
    }
}

/// A process held by a shim. Dropping this lets go of the shim and leaves the process running.
#[async_trait]
pub trait Held: Send + Sync {
    fn purpose(&self) -> &Purpose;
    fn process(&self) -> &ProcessIdentity;
    fn port(&self) -> Option<u16>;
    fn ports(&self) -> &InstancePorts;
    /// Some once the whole process tree is gone. A shim that vanished counts as an exit too.
    fn exit(&self) -> watch::Receiver<Option<Exit>>;
    /// SIGTERM to the whole tree, SIGKILL after `grace`; returns when that is under way. May be
    /// called again with a shorter grace.
    async fn stop(&self, grace: Duration) -> anyhow::Result<()>;
    /// A signal to the main process's group; nothing once that has ended.
    async fn signal(&self, signal: i32) -> anyhow::Result<()>;
    /// Removes what the shim left on disk, once the exit was taken note of.
    async fn forget(&self) -> anyhow::Result<()>;
}

#[async_trait]
pub trait Launcher: Send + Sync {
    /// Returns once the process exists (or could not be made: that is an error that says why).
    async fn launch(&self, spec: LaunchSpec) -> anyhow::Result<Box<dyn Held>>;
    /// As above, with these in place of a log.
    async fn launch_attached(
        &self,
        spec: LaunchSpec,
        attached: Attached,
    ) -> anyhow::Result<Box<dyn Held>>;
    /// From now on processes are stopped once no node process was there for so long; never where
    /// there is no limit. Until this was said they keep the limit that an earlier node gave them.
    fn lease(&self, limit: Option<Duration>);
    /// All that earlier node processes left running, or ended and not yet forgotten.
    async fn adopt(&self) -> anyhow::Result<Vec<Box<dyn Held>>>;
}

#[cfg(test)]
pub mod fake;
