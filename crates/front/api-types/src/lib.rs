//! The types that travel between client and API, as JSON under `/v1`. Fields are only ever added.

pub mod authority;
pub mod backup;
pub mod certificates;
pub mod delta;
pub mod export;
pub mod login;
pub mod maintenance;
pub mod people;
pub mod position;
pub mod secrets;
pub mod store;
pub mod undo;
pub mod upgrade;

use std::collections::BTreeMap;

use authority::OwnNameStatus;
use model::port::InstancePorts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The largest archive of a source in bytes. Heroku's limit for a slug is 500 MB compressed; larger
/// sources hold files that are not source.
pub const ARCHIVE_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;
/// The header of a change with what the person says of it: one line of UTF-8.
pub const NOTE_HEADER: &str = "cortex-note";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProblemBody {
    pub status: u16,
    /// What kind of problem it is, as a URI: `urn:cortex:problem:` and the code.
    #[serde(default, rename = "type")]
    pub kind: String,
    /// The word by which programs know the problem, which stays.
    #[schemars(extend("x-extensible-enum" = []))]
    pub code: String,
    pub title: String,
    pub detail: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct CreateApplication {
    pub name: String,
    #[serde(default, rename = "type")]
    pub framework: Option<String>,
    #[serde(default)]
    pub port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ApplicationRow {
    pub name: String,
    #[serde(rename = "type")]
    pub framework: Option<String>,
    pub release: Option<String>,
    /// `running`, `degraded`, `down`, `failed`, `scaled to zero`, `no release`, a rollout's phase,
    /// `waiting: NODE holds its data`, or `waiting: no node that is there can build its wall`.
    pub state: String,
    pub ready: u32,
    pub wanted: u32,
    pub port: Option<u16>,
    pub url: Option<String>,
    pub created_at: String,
    /// The time since which it is closed for maintenance; `None` if clients may come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance_since: Option<String>,
    /// The time since which clients are asked for a password; `None` if everybody may come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_since: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ApplicationShown {
    #[serde(flatten)]
    pub row: ApplicationRow,
    pub domains: Vec<String>,
    /// Domains and ports that another application has claimed, too.
    #[serde(default)]
    pub clashes: Vec<String>,
    /// The file that decided what the application is.
    pub decided_by: Option<String>,
    pub processes: Vec<ProcessRow>,
    /// The ports that speak something other than HTTP.
    #[serde(default)]
    pub ports: Vec<ServiceRow>,
    pub rollout: Option<RolloutShown>,
    pub releases: usize,
    pub persist: Vec<String>,
    /// The node that has its persistent files.
    #[serde(default)]
    pub holder: Option<String>,
    /// The isolation of the running release: `none`, `landlock`, `standard` or `full`.
    #[serde(default)]
    pub isolation: Option<String>,
    /// What an owner wants around it at the least, whatever its releases ask for.
    #[serde(default)]
    pub isolation_mark: Option<people::IsolationMarkShown>,
    pub notes: Vec<String>,
}

/// The domains of an application, as `cortex domains` shows them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DomainsShown {
    pub application: String,
    /// Whether commands decide the domains, and not the project's own file.
    pub chosen: bool,
    pub domains: Vec<DomainRow>,
    /// Remarks about a change, for the user.
    #[serde(default)]
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DomainRow {
    pub domain: String,
    pub since: String,
    /// A sentence about the other applications that have claimed it; `None` if there are none.
    pub clash: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DomainsChange {
    #[serde(default)]
    pub add: Vec<String>,
    #[serde(default)]
    pub remove: Vec<String>,
    /// Whether the project's own file decides the domains again, from the next push on.
    #[serde(default)]
    pub reset: bool,
}

/// A public port that leads to the instances of a process, whatever is spoken there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServiceRow {
    pub port: u16,
    /// The transport: `tcp` or `udp`.
    pub protocol: String,
    pub process: String,
    /// The variable that tells an instance where to listen.
    pub env: String,
    /// The address of the port on this node.
    pub address: String,
    /// The reason why it is not open; `None` if it is.
    pub error: Option<String>,
    /// The traffic that came to this port on this node.
    #[serde(default)]
    pub traffic: Option<PortTraffic>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessRow {
    pub process: String,
    pub command: String,
    pub wanted: u32,
    pub ready: u32,
    /// The number of ready processes by node.
    #[serde(default)]
    pub nodes: BTreeMap<String, u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutShown {
    pub serving: Option<String>,
    pub target: Option<String>,
    pub phase: String,
    pub message: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Destroyed {
    pub name: String,
    /// Whether everything that ran has ended.
    pub stopped: bool,
    /// The directory in which the application's persistent files remain.
    pub kept: Option<String>,
    /// The time until which it can be brought back; `None` if nothing of it is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

/// One process, as `ps` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InstanceRow {
    pub application: String,
    pub process: String,
    pub slot: u32,
    pub node: String,
    pub pid: Option<u32>,
    pub port: Option<u16>,
    /// The local port at which it listens for each public port that is not for HTTP.
    #[serde(default, skip_serializing_if = "InstancePorts::is_empty")]
    #[schemars(with = "BTreeMap<String, u16>")]
    pub ports: InstancePorts,
    pub release: String,
    pub state: String,
    pub started_at: Option<String>,
    pub memory_bytes: Option<u64>,
    pub restarts: u32,
    pub reason: Option<String>,
    /// What is known of a one-off command besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionRow>,
}

/// A one-off command, to which clients attach.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionRow {
    /// The id by which it is attached to.
    pub id: String,
    pub by: String,
    /// Whether somebody is attached.
    pub attached: bool,
    /// Whether it goes on when nobody is.
    pub detached: bool,
}

/// The instances that serve the names of an application now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RouteRow {
    pub application: String,
    pub hosts: Vec<String>,
    /// Ready instances of this node, on loopback.
    pub instances: Vec<RouteInstance>,
    /// Other nodes that have ready instances.
    pub nodes: Vec<String>,
    /// Paths below which the router may find a file before an instance is asked.
    pub files: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RouteInstance {
    pub slot: u32,
    pub port: u16,
    /// The number of requests that it takes at a time.
    pub concurrency: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReleaseRow {
    pub release: String,
    /// The release with the node that made it.
    pub id: String,
    pub note: String,
    /// What the person said of it who asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
    /// The commit or revision that was pushed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    pub author: String,
    pub created_at: String,
    #[serde(rename = "type")]
    pub framework: String,
    /// The build; releases of one build run the same code.
    #[serde(default)]
    pub build: String,
    pub source: String,
    pub source_bytes: u64,
    /// `serving`, `failed`, `taken back`, `building` …, or empty.
    pub state: String,
    /// The reason why it failed or was taken back, with the application's last output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Released {
    pub application: String,
    /// The release as people write it: `v3`.
    pub release: String,
    pub id: String,
    /// Whether nothing was released, since the same source serves already.
    #[serde(default)]
    pub unchanged: bool,
    #[serde(default)]
    pub created: bool,
    #[serde(default, rename = "type")]
    pub framework: String,
    #[serde(default)]
    pub decided_by: String,
    #[serde(default)]
    pub notes: Vec<String>,
    pub url: Option<String>,
    #[serde(default)]
    pub ports: Vec<ServiceRow>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Rollback {
    #[serde(default)]
    pub to: Option<String>,
}

/// One line of a progress stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Progress {
    Phase {
        phase: String,
    },
    /// A line of output of a build or release step.
    Line {
        text: String,
    },
    Done {
        url: Option<String>,
        /// The reason why it does not serve as it should; `None` if it does.
        #[serde(default)]
        warning: Option<String>,
    },
    Failed {
        message: String,
        serving: Option<String>,
    },
    /// A newer release was asked for meanwhile.
    Overtaken {
        by: String,
    },
}

pub type Scale = BTreeMap<String, u32>;

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Scaled {
    pub application: String,
    pub processes: Scale,
}

/// The answer to a change of configuration; `released` is `None` if nothing was pushed yet.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Configured {
    pub application: String,
    pub changed: Vec<String>,
    pub released: Option<Released>,
}

/// Changes by variable: a value sets it, null unsets it.
pub type ConfigChange = BTreeMap<String, Option<String>>;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogLine {
    pub time: Option<String>,
    /// The node that printed it, if nodes are told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The instance, such as `web.1`, or `cortex` for the platform's own lines.
    pub source: String,
    pub text: String,
    /// Whether the line is about the listing itself, for people: that a node is not reached, that
    /// lines are missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remark: bool,
}

impl LogLine {
    pub fn remark(text: String) -> LogLine {
        LogLine { time: None, node: None, source: String::new(), text, remark: true }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct NodeStatus {
    pub node: String,
    pub version: String,
    pub pid: u32,
    pub uptime_seconds: u64,
    pub memory_bytes: Option<u64>,
    pub data: String,
    pub http: String,
    pub load_percent: Option<u32>,
    pub ports: Vec<PortRow>,
    pub applications: Vec<ApplicationRow>,
    pub problems: Vec<String>,
    /// The names of the platform itself.
    #[serde(default)]
    pub own_names: Vec<OwnNameStatus>,
}

/// One node of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeRow {
    pub id: String,
    /// The machine's host name; several nodes may have the same.
    pub name: Option<String>,
    /// `alive`, `down`, `apart`, `draining`, `drained`, `joining`, `removed`, or `unknown` if
    /// something else replicates the store.
    pub state: String,
    /// Whether this is the node that answers.
    pub here: bool,
    pub roles: Vec<String>,
    /// The node whose store it uses; only known of the node that answers, if that keeps none
    /// itself.
    #[serde(default)]
    pub store_node: Option<String>,
    pub addresses: Vec<String>,
    pub http: Option<String>,
    pub load_percent: Option<u32>,
    pub cores: Option<u32>,
    pub memory_bytes: Option<u64>,
    pub instances: u32,
    pub ready: u32,
    pub version: Option<String>,
    /// The walls around applications that it can build: `landlock`, `standard`, `full` and
    /// `full-egress`.
    #[serde(default)]
    pub walls: Vec<String>,
    pub joined_at: Option<String>,
    pub last_seen: Option<String>,
    pub drained_since: Option<String>,
    pub note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeShown {
    #[serde(flatten)]
    pub row: NodeRow,
    /// The instances that run there.
    #[serde(rename = "running")]
    pub instances: Vec<InstanceRow>,
    /// Applications whose persistent files are on this node only.
    pub holds: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RemovedNode {
    pub id: String,
    /// Applications whose persistent files were on this node only.
    pub holds: Vec<String>,
    /// The secrets that it could read.
    #[serde(default)]
    pub knew: Vec<String>,
    /// Whether secrets get another key, as it had the one from before.
    #[serde(default)]
    pub rotates: bool,
}

/// The paths of an application that outlive its releases.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct PersistShown {
    pub application: String,
    pub paths: Vec<String>,
    /// The directory of the persistent files, on the holder.
    pub place: String,
    pub holder: Option<String>,
    /// The release that keeps a path that was added.
    pub released: Option<Released>,
}

/// The node that has an application's files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PinShown {
    pub application: String,
    /// The node that has the files; `None` if the application is not tied to a node.
    pub holder: Option<String>,
    pub moving: Option<MoveShown>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MoveShown {
    pub to: String,
    /// `asked`, `copying`, `stopped` or `failed`.
    pub phase: String,
    pub message: Option<String>,
}

/// An invitation, as `cortex nodes invite` prints it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Invitation {
    pub invitation: String,
    /// The address at which the new node finds the one that issued it.
    #[serde(default)]
    pub address: String,
    #[serde(default)]
    pub expires_at: String,
}

/// One of the router's public ports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PortRow {
    pub address: String,
    /// The application it leads to; `None` for the address at which Host decides.
    pub application: Option<String>,
    /// `http`, `tcp` or `udp`.
    #[serde(default)]
    pub protocol: String,
    /// The reason why it is not bound; `None` if it is.
    pub error: Option<String>,
    /// The traffic of the port; `None` if HTTP is spoken there.
    #[serde(default)]
    pub traffic: Option<PortTraffic>,
}

/// The traffic of an application's own port through the router of one node, counted in connections
/// or in flows of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PortTraffic {
    /// The number of those that an instance took, since the port was opened.
    pub connections: u64,
    pub open: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// The number of those that no instance took.
    pub refused: u64,
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CheckResult {
    Ok,
    Warn,
    Fail,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    pub name: String,
    pub result: CheckResult,
    pub detail: String,
    pub advice: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StoredKey {
    pub key: String,
    pub size: u64,
    pub set_at: String,
    pub node: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HistoryRow {
    pub id: String,
    pub key: String,
    pub set_at: String,
    pub node: String,
    pub deleted: bool,
    pub size: u64,
}

/// One line of a watch stream.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum StoreChange {
    Set {
        key: String,
        size: u64,
        value: Option<String>,
    },
    Deleted {
        key: String,
    },
    /// Changes were missed: the reader has to read the prefix again.
    Resync,
}

/// The totals of what an import has written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Imported {
    pub keys: u64,
    pub bytes: u64,
}

/// An answer with a single value, such as `{"hash": …}`.
pub type SingleValue = BTreeMap<String, Value>;
