//! Applications: what users ask for.

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
use crate::wall::IsolationMark;

/// `app::NAME::spec`: written by users' commands only. What a release brings along (its settings)
/// is in the release, so that a broken release cannot change how the old one runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApplicationSpec {
    pub v: u32,
    pub created_at: Timestamp,
    /// A framework's name, if the user chose it; otherwise it is detected.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub framework: Option<String>,
    /// The process types that the user scaled or set a command of; others follow the release.
    #[serde(default)]
    pub processes: BTreeMap<ProcessType, ProcessSpec>,
    /// The application's own public port: what was asked for or given last. A release that serves
    /// keeps the one that it was made with, see `port_with`.
    #[serde(default)]
    pub port: Option<u16>,
    /// Whether a command chose it: then the project's own file does not change it.
    #[serde(default)]
    pub port_chosen: bool,
    /// The host names beside `NAME.localhost`.
    #[serde(default)]
    pub domains: Vec<String>,
    /// Whether commands chose them: then the project's own file does not change them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub domains_chosen: bool,
    /// The time since which it has each of them; one that is not there, since it was created.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub domains_since: BTreeMap<String, Timestamp>,
    /// The paths that a command added to what releases keep; as in `Recipe::persist`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub persist: Vec<String>,
    /// A number that `restart` raises: instances started for a lower one are replaced.
    #[serde(default)]
    pub restart: u32,
    /// The time since which it is closed for maintenance; `None` if clients may come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<Timestamp>,
    /// The password that its clients are asked for; `None` if everybody may come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<Password>,
    /// The one from before the last change, so that this can be taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_before: Option<Password>,
    /// The wall that an owner wants around it, whatever its releases ask for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<IsolationMark>,
    /// Its end, if it was destroyed: it counts as absent then, and all that is stored of it is kept
    /// for a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<KeptEnd>,
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
            maintenance: None,
            password: None,
            password_before: None,
            isolation: None,
            end: None,
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

    /// Returns it, unless it was destroyed.
    pub fn unless_ended(self) -> Option<ApplicationSpec> {
        Some(self).filter(|spec| spec.end.is_none())
    }

    /// Returns the port at which HTTP is answered while a release with these settings serves.
    pub fn port_with(&self, settings: Option<&Settings>) -> Option<u16> {
        let own = settings.and_then(|settings| settings.port);
        own.filter(|_| !self.port_chosen).or(self.port)
    }

    /// Returns whether a release was pushed to this application, not to another one of its name.
    pub fn owns(&self, release: &Release) -> bool {
        release.settings.application_created_at.is_none_or(|created| created == self.created_at)
    }

    pub fn has_domain_since(&self, domain: &str) -> Timestamp {
        self.domains_since.get(domain).copied().unwrap_or(self.created_at)
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

/// What is kept of a password: PBKDF2 with HMAC-SHA256 of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Password {
    pub since: Timestamp,
    /// The salt and the hash in base64.
    pub salt: String,
    pub hash: String,
    pub rounds: u32,
}

/// The end of an application that can be brought back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptEnd {
    pub at: Timestamp,
    /// The time after which nothing of it is kept.
    pub until: Timestamp,
    pub by: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessSpec {
    /// The wanted instances in the whole cluster.
    pub count: u32,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `cluster::destroyed::NAME::CREATED`: the end of the application of that name that was created
/// then. What a node that was cut off wrote of it meanwhile is newer than its removal, and counts
/// for nothing all the same. Written by the command that destroys it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Destruction {
    pub v: u32,
    pub at: Timestamp,
    /// Whether the files that it kept go as well, on every node.
    #[serde(default)]
    pub with_files: bool,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `app::NAME::holder`: the node that has the files of the application's persistent paths. Written
/// by the coordinator of the first release that has such paths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Holder {
    pub v: u32,
    pub node: NodeId,
    pub since: Timestamp,
    /// The time when the application was created whose files these are, as in `Rollout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Holder {
    /// Returns whether these are not known to be files of another application than the one that was
    /// created then.
    pub fn is_of(&self, created_at: Timestamp) -> bool {
        self.created_at.is_none_or(|created| created == created_at)
    }
}

/// `app::NAME::move`: the order to move its files to another node. Written by the command that asks
/// for it, then by that node, which deletes it when the files are its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Move {
    pub v: u32,
    pub to: NodeId,
    /// The time of the request, which tells one from the next.
    pub asked_at: Timestamp,
    /// The time when the application was created whose files are to be moved, as in `Rollout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    pub phase: MovePhase,
    /// The reason why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MovePhase {
    Asked,
    /// The files are copied while it runs.
    Copying,
    /// It is stopped, and what changed meanwhile is copied.
    Stopped,
    /// The move failed: it is where it was.
    Failed,
}

/// The protocol that the router speaks to an instance.
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

/// The way in which an application has its clients come by HTTPS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpsSettings {
    /// Whether clients that come without are sent there, where there is a certificate for the host.
    #[serde(default = "yes")]
    pub redirect: bool,
    /// The seconds for which browsers are told to come with TLS alone (RFC 6797). Nobody can take
    /// that back, so nobody is told unless the application asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hsts_seconds: Option<u64>,
}

fn yes() -> bool {
    true
}

impl Default for HttpsSettings {
    fn default() -> HttpsSettings {
        HttpsSettings { redirect: true, hsts_seconds: None }
    }
}

impl HttpsSettings {
    fn is_default(&self) -> bool {
        *self == HttpsSettings::default()
    }
}

/// The way in which a release wants to be run: from its `cortex.toml` or the like, frozen with the
/// release.
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
    /// The protocol that its web instances speak.
    #[serde(default, skip_serializing_if = "InstanceProtocol::is_default")]
    pub protocol: InstanceProtocol,
    /// What clients get that come without TLS, and those that come with it.
    #[serde(default, skip_serializing_if = "HttpsSettings::is_default")]
    pub https: HttpsSettings,
    /// What keeps requests together on one instance, for strategies that do so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sticky: Option<RequestKey>,
    /// What tells clients apart when requests wait. Never a cookie: a client that sends none would
    /// be many.
    #[serde(default, skip_serializing_if = "RequestKey::is_address")]
    pub fair: RequestKey,
    /// The milliseconds for which a new instance takes less than its part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_start_ms: Option<u64>,
    /// The milliseconds without an answer after which another instance is asked too, if that does
    /// no harm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hedge_after_ms: Option<u64>,
    /// The public port of HTTP while the release serves, unless a command chose one. `None` in
    /// records from before that was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    pub stop_grace_ms: u64,
    /// The time when the application that this was pushed to was created: one of the same name that
    /// was destroyed is another. `None` in records from before that was kept.
    #[serde(default, rename = "pushed_to", skip_serializing_if = "Option::is_none")]
    pub application_created_at: Option<Timestamp>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The milliseconds between SIGTERM and SIGKILL, as many as Heroku and Kubernetes give.
pub const STOP_GRACE_MS_DEFAULT: u64 = 30_000;
/// The milliseconds that a web process has to bind its port: what Heroku and Kamal give, and Rails
/// with many gems may need.
pub const START_TIMEOUT_MS_DEFAULT: u64 = 60_000;

/// The milliseconds in which, as a rule, a master whose workers cannot start and a server that
/// cannot reach its database fail.
pub const SETTLE_MS_DEFAULT: u64 = 4_000;

fn settle_ms_default() -> u64 {
    SETTLE_MS_DEFAULT
}

/// The strategy that keeps requests together if nothing else is said: a name from
/// `router_core::balance`.
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
            https: HttpsSettings::default(),
            sticky: None,
            fair: RequestKey::Address,
            slow_start_ms: None,
            hedge_after_ms: None,
            stop_grace_ms: STOP_GRACE_MS_DEFAULT,
            application_created_at: None,
            port: None,
            unknown: Unknown::new(),
        }
    }
}

/// The part of a request that says which client or session it belongs to. Written `address`,
/// `address/V4`, `address/V4/V6`, `header:NAME` or `cookie:NAME`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RequestKey {
    #[default]
    Address,
    /// The leading bits of the address, this many of it.
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

/// Bytes of a header's or cookie's name; longer ones are typing mistakes.
const REQUEST_KEY_LENGTH_MAX: usize = 64;
/// Bits of an IPv4 address: all of it.
pub const PREFIX_V4_MAX: u8 = 32;
/// Bits of an IPv6 address that count: a subscriber has as many addresses as he likes beyond them.
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

/// Returns the prefix of `24` or `24/56`. Whole addresses have only one form: `address`.
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
    /// The path that a healthy instance answers with 200 to 399; without it a bound port is enough.
    #[serde(default)]
    pub path: Option<String>,
    /// The name that the project's own files have it asked by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The application's first domain when the release was made: if no other name is given, it is
    /// asked by this one, as many applications only answer to their own names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The headers that are sent beside `Host`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The milliseconds from the start of the process until it must be ready.
    pub start_timeout_ms: u64,
    /// The milliseconds that an instance that answers nothing, or nothing but errors of its own,
    /// has to live and to hold its port before it counts as ready.
    #[serde(default = "settle_ms_default")]
    pub settle_ms: u64,
    /// The time limit of one probe, in milliseconds.
    pub timeout_ms: u64,
    /// The milliseconds between two probes by the checker.
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
    /// Returns what a probe of that application sends as `Host`.
    pub fn host(&self, application: &ApplicationName) -> String {
        let said = self.host.as_ref().or(self.domain.as_ref());
        said.cloned().unwrap_or_else(|| format!("{application}.localhost"))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// The resident memory of an instance's whole process tree, in bytes; above it the instance is
    /// replaced.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// The requests at a time per instance; overrides what the framework's recipe says.
    #[serde(default)]
    pub concurrency: Option<u32>,
    /// The bytes of memory that the steps of a build, or those of a release, may take: of the whole
    /// tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_memory_bytes: Option<u64>,
    /// The cores that they may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_cores: Option<u32>,
    /// The milliseconds that all of them together may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_time_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RolloutMode {
    /// New instances start beside the old ones; traffic switches when they are ready.
    #[default]
    StartFirst,
    /// The old instances stop before the new ones start, for applications whose versions cannot
    /// overlap.
    StopFirst,
}
