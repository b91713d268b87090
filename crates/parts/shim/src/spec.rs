//! The description of what a shim is to run: the program, its surroundings, and the most that it
//! may take.

use std::collections::BTreeMap;
use std::path::PathBuf;

use model::port::InstancePorts;
use model::{ApplicationName, BuildId, Generation, InstanceId, ReleaseId};
use serde::{Deserialize, Serialize};
use session_core::frame::Size;

use crate::sandbox::Sandbox;

/// The description of a process to run. Sent to the shim through its socket: secrets are never in
/// argv or on disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaunchSpec {
    pub purpose: Purpose,
    /// The program and its arguments.
    pub argv: Vec<String>,
    pub directory: PathBuf,
    /// The whole environment: nothing is inherited.
    pub environment: BTreeMap<String, String>,
    /// The file that the output goes to, with a time before each line; rotated by the shim.
    pub log: PathBuf,
    pub port: Option<u16>,
    #[serde(default, skip_serializing_if = "InstancePorts::is_empty")]
    pub ports: InstancePorts,
    /// The limits on what it may take; `None` for as much as the machine has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<Cap>,
    /// The wall around it; `None` for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
}

/// A command that somebody is connected to, in place of a log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionSpec {
    /// What it is attached to by; no other session has it.
    pub id: String,
    /// The number in its name, such as `run.1`.
    pub number: u32,
    /// The person who asked for it.
    pub by: String,
    /// The command as one line for people.
    pub command: String,
    pub release: ReleaseId,
    pub build: BuildId,
    /// The size of its terminal; `None` if it has pipes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<Size>,
    /// The application's number of restarts when it began, which says whether it is behind a wall
    /// that an owner wants since.
    #[serde(default)]
    pub restart: u32,
    /// Whether it goes on when nobody is attached.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detached: bool,
}

/// The most that a process and everything below it may take of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cap {
    /// The memory above which the whole tree is stopped.
    pub memory_bytes: u64,
    /// The number of processes above which the whole tree is stopped.
    pub processes: u32,
    /// The maximum number of cores that the processes run on.
    pub cores: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    Instance {
        instance: InstanceId,
        generation: Generation,
    },
    /// A build or release step, a scheduled command, or a user's one-off command: niced and in the
    /// idle I/O class, unless somebody is connected to it.
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

    /// Returns an id that is unique on this node while it runs: `hello/web.1.7`,
    /// `hello/task.build-v3`.
    pub fn id(&self) -> String {
        match self {
            Purpose::Instance { instance, generation } => {
                format!("{}/{}.{generation}", instance.application, instance.label())
            }
            Purpose::Task { application, name } => format!("{application}/task.{name}"),
        }
    }
}
