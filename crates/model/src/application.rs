//! What users ask for.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::id::{ApplicationName, NodeId, ProcessType};
use crate::record::{RECORD_VERSION, Unknown};
use crate::release::Release;
use crate::request::RequestLimits;
use crate::time::Timestamp;

/// `app::NAME::spec`: written by users' commands only. What a release brings along (its settings)
/// is in the release, so that a broken release cannot change how the old one runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApplicationSpec {
    pub v: u32,
    pub created_at: Timestamp,
    /// A framework's name, where the user chose it; otherwise it is detected.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub framework: Option<String>,
    /// Where the user scaled or set a command; other process types follow the release.
    #[serde(default)]
    pub processes: BTreeMap<ProcessType, ProcessSpec>,
    /// The application's own public port.
    #[serde(default)]
    pub port: Option<u16>,
    /// Chosen by a command: the project's own file does not change it.
    #[serde(default)]
    pub port_chosen: bool,
    /// Host names beside `NAME.localhost`.
    #[serde(default)]
    pub domains: Vec<String>,
    /// Chosen by commands: the project's own file does not change them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub domains_chosen: bool,
    /// Since when it has each of them; one that is not there, since it was created.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub domains_since: BTreeMap<String, Timestamp>,
    /// Added by a command to what releases keep; as in `Recipe::persist`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub persist: Vec<String>,
    /// Raised by `restart`: instances started for a lower number are replaced.
    #[serde(default)]
    pub restart: u32,
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl ApplicationSpec {
    pub fn new(created_at: Timestamp) -> ApplicationSpec {
        ApplicationSpec {
            v: RECORD_VERSION,
            created_at,
            framework: None,
            processes: BTreeMap::new(),
            port: None,
            port_chosen: false,
            domains: Vec::new(),
            domains_chosen: false,
            domains_since: BTreeMap::new(),
            persist: Vec::new(),
            restart: 0,
            unknown: Unknown::new(),
        }
    }

    pub fn set_domains(&mut self, domains: Vec<String>, now: Timestamp) {
        let known = std::mem::replace(&mut self.domains, domains);
        let created = self.created_at;
        let before = std::mem::take(&mut self.domains_since);
        let since = |domain: &String| match before.get(domain) {
            Some(since) => *since,
            None if known.contains(domain) => created,
            None => now,
        };
        self.domains_since =
            self.domains.iter().map(|domain| (domain.clone(), since(domain))).collect();
    }

    /// Whether a release was pushed to this application, not to another one of its name.
    pub fn owns(&self, release: &Release) -> bool {
        release.settings.pushed_to.is_none_or(|created| created == self.created_at)
    }

    pub fn has_domain_since(&self, domain: &str) -> Timestamp {
        self.domains_since.get(domain).copied().unwrap_or(self.created_at)
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessSpec {
    /// Wanted instances in the whole cluster.
    pub count: u32,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `app::NAME::holder`: which node has the files of the application's persistent paths. Written by
/// the coordinator of the first release that has such paths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Holder {
    pub v: u32,
    pub node: NodeId,
    pub since: Timestamp,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `app::NAME::move`: its files are to go to another node. Written by the command that asks for
/// it, then by that node, which deletes it when the files are its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Move {
    pub v: u32,
    pub to: NodeId,
    /// Tells one request from the next.
    pub asked_at: Timestamp,
    pub phase: MovePhase,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MovePhase {
    Asked,
    /// While it runs.
    Copying,
    /// It is stopped, and what changed meanwhile is copied.
    Stopped,
    /// It is where it was.
    Failed,
}

/// How the router speaks to an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InstanceProtocol {
    #[default]
    Http1,
    /// HTTP/2 in clear text, as gRPC has it.
    H2c,
}

impl InstanceProtocol {
    fn is_default(&self) -> bool {
        *self == InstanceProtocol::default()
    }
}

/// How a release wants to be run: from its `cortex.toml` or the like, frozen with the release.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    #[serde(default)]
    pub health: Health,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default, skip_serializing_if = "RequestLimits::is_default")]
    pub requests: RequestLimits,
    #[serde(default)]
    pub rollout: RolloutMode,
    /// A name from `router_core::balance`.
    pub balance: String,
    /// What its web instances speak.
    #[serde(default, skip_serializing_if = "InstanceProtocol::is_default")]
    pub protocol: InstanceProtocol,
    /// What keeps requests together on one instance, for strategies that do so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sticky: Option<RequestKey>,
    /// What tells clients apart when requests wait. Never a cookie: who sends none would be many.
    #[serde(default, skip_serializing_if = "RequestKey::is_address")]
    pub fair: RequestKey,
    /// So long a new instance takes less than its part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_start_ms: Option<u64>,
    /// After so long without an answer, another instance is asked too, if that does no harm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hedge_after_ms: Option<u64>,
    pub stop_grace_ms: u64,
    /// When the application was created that this was pushed to: one of the same name that was
    /// destroyed is another. None in records of before that was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pushed_to: Option<Timestamp>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What Heroku and Kubernetes give a process between SIGTERM and SIGKILL.
pub const STOP_GRACE_MS_DEFAULT: u64 = 30_000;
/// What Heroku and Kamal give a web process to bind its port, and Rails with many gems may need.
pub const START_TIMEOUT_MS_DEFAULT: u64 = 60_000;

/// A master whose workers cannot start, and a server that cannot reach its database, fail within
/// this as a rule.
pub const SETTLE_MS_DEFAULT: u64 = 4_000;

fn settle_ms_default() -> u64 {
    SETTLE_MS_DEFAULT
}

/// How requests are kept together where nothing else is said: a name from `router_core::balance`.
pub const STICKY_BALANCE: &str = "rendezvous";

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            health: Health::default(),
            limits: Limits::default(),
            requests: RequestLimits::default(),
            rollout: RolloutMode::default(),
            balance: "least-loaded".into(),
            protocol: InstanceProtocol::default(),
            sticky: None,
            fair: RequestKey::Address,
            slow_start_ms: None,
            hedge_after_ms: None,
            stop_grace_ms: STOP_GRACE_MS_DEFAULT,
            pushed_to: None,
            unknown: Unknown::new(),
        }
    }
}

/// What of a request says which client or session it belongs to. Written `address`, `address/V4`,
/// `address/V4/V6`, `header:NAME` or `cookie:NAME`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RequestKey {
    #[default]
    Address,
    /// So many leading bits of it.
    Prefix {
        v4: u8,
        v6: u8,
    },
    Header(String),
    Cookie(String),
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "'{}' is none of 'address', 'address/24' (bits of IPv4, 1 to 32), 'address/24/56' (and of \
     IPv6, 1 to 64), 'header:NAME' and 'cookie:NAME'",
    .0.escape_debug()
)]
pub struct BadRequestKey(String);

/// Longer names of headers and cookies are typing mistakes.
const REQUEST_KEY_LENGTH_MAX: usize = 64;
/// All of an IPv4 address.
pub const PREFIX_V4_MAX: u8 = 32;
/// A subscriber has as many IPv6 addresses as he likes beyond these bits.
pub const PREFIX_V6_MAX: u8 = 64;

impl RequestKey {
    pub fn is_address(&self) -> bool {
        *self == RequestKey::Address
    }
}

impl FromStr for RequestKey {
    type Err = BadRequestKey;

    fn from_str(text: &str) -> Result<RequestKey, BadRequestKey> {
        let bad = || BadRequestKey(text.chars().take(2 * REQUEST_KEY_LENGTH_MAX).collect());
        if text == "address" {
            return Ok(RequestKey::Address);
        }
        if let Some(bits) = text.strip_prefix("address/") {
            return prefix(bits).ok_or_else(bad);
        }
        let (kind, name) = text.split_once(':').ok_or_else(bad)?;
        // RFC 9110, section 5.6.2: a token.
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if !(1..=REQUEST_KEY_LENGTH_MAX).contains(&name.len()) || !name.bytes().all(token) {
            return Err(bad());
        }
        match kind {
            "header" => Ok(RequestKey::Header(name.into())),
            "cookie" => Ok(RequestKey::Cookie(name.into())),
            _ => Err(bad()),
        }
    }
}

/// As in `24` or `24/56`. Whole addresses have one form alone: `address`.
fn prefix(bits: &str) -> Option<RequestKey> {
    let number = |text: &str, max: u8| {
        let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
        text.parse().ok().filter(|bits| plain && (1..=max).contains(bits))
    };
    let (v4, v6) = bits.split_once('/').map_or((bits, None), |(v4, v6)| (v4, Some(v6)));
    let v4 = number(v4, PREFIX_V4_MAX)?;
    let v6 = v6.map_or(Some(PREFIX_V6_MAX), |v6| number(v6, PREFIX_V6_MAX))?;
    let whole = (v4, v6) == (PREFIX_V4_MAX, PREFIX_V6_MAX);
    Some(if whole { RequestKey::Address } else { RequestKey::Prefix { v4, v6 } })
}

impl TryFrom<String> for RequestKey {
    type Error = BadRequestKey;

    fn try_from(text: String) -> Result<RequestKey, BadRequestKey> {
        text.parse()
    }
}

impl From<RequestKey> for String {
    fn from(key: RequestKey) -> String {
        key.to_string()
    }
}

impl fmt::Display for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestKey::Address => f.write_str("address"),
            RequestKey::Prefix { v4, v6: PREFIX_V6_MAX } => write!(f, "address/{v4}"),
            RequestKey::Prefix { v4, v6 } => write!(f, "address/{v4}/{v6}"),
            RequestKey::Header(name) => write!(f, "header:{name}"),
            RequestKey::Cookie(name) => write!(f, "cookie:{name}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// Answered with 200 to 399 by a healthy instance; without it a bound port is enough.
    #[serde(default)]
    pub path: Option<String>,
    /// The name that the project's own files have it asked by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The application's first domain when the release was made: where no other name is said, it is
    /// asked by this one, as many applications answer to their own names alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// What is sent beside `Host`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// From the start of the process until it must be ready.
    pub start_timeout_ms: u64,
    /// So long an instance that answers nothing, or nothing but errors of its own, has to live and
    /// to hold its port before it counts as ready.
    #[serde(default = "settle_ms_default")]
    pub settle_ms: u64,
    /// One probe's time limit.
    pub timeout_ms: u64,
    /// Between two probes by the checker.
    pub interval_ms: u64,
}

impl Default for Health {
    fn default() -> Health {
        Health {
            path: None,
            host: None,
            domain: None,
            headers: BTreeMap::new(),
            start_timeout_ms: START_TIMEOUT_MS_DEFAULT,
            settle_ms: SETTLE_MS_DEFAULT,
            timeout_ms: 5_000,
            interval_ms: 1_000,
        }
    }
}

impl Health {
    /// What a probe of that application sends as `Host`.
    pub fn host(&self, application: &ApplicationName) -> String {
        let said = self.host.as_ref().or(self.domain.as_ref());
        said.cloned().unwrap_or_else(|| format!("{application}.localhost"))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Resident memory of an instance's whole process tree; above it the instance is replaced.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Requests at a time per instance; overrides what the framework's recipe says.
    #[serde(default)]
    pub concurrency: Option<u32>,
    /// What the steps of a build, or those of a release, may take: memory of the whole tree ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_memory_bytes: Option<u64>,
    /// ... cores ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_cores: Option<u32>,
    /// ... and time, for all of them together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_time_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RolloutMode {
    /// New instances start beside the old ones; traffic switches when they are ready.
    #[default]
    StartFirst,
    /// For applications whose versions cannot overlap: the old ones stop before the new ones start.
    StopFirst,
}
