//! Keys of the store: `::`-separated tokens, and the typed keys that Cortex itself uses.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::audit::AuditId;
use crate::backup::BackupKey;
use crate::build::BuildId;
use crate::certificate::CertificateName;
use crate::id::{ApplicationName, InstanceId, NodeId, ReleaseId, TeamName, UserName};
use crate::time::Timestamp;
use crate::value::ContentHash;

pub const SEPARATOR: &str = "::";
/// Bytes of a key; keys live in memory on every node and travel in every commit.
pub const KEY_LENGTH_MAX: usize = 1024;

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum KeyError {
    #[error("a key has at most {KEY_LENGTH_MAX} bytes; this one has {0}")]
    TooLong(usize),
    #[error(
        "'{0}' is no key: tokens between '::' must not be empty; write for example 'app::hello'"
    )]
    EmptyToken(String),
    #[error("'{0}' is no key: control characters are not allowed")]
    Control(String),
}

fn validate(text: &str) -> Result<(), KeyError> {
    if text.len() > KEY_LENGTH_MAX {
        return Err(KeyError::TooLong(text.len()));
    }
    let shown = || text.escape_debug().take(80).collect();
    let (mut token, mut control) = (0, false);
    let mut rest = text.as_bytes();
    // Every write and lookup comes this way: one pass over the bytes takes a third of what
    // iterating over tokens and characters takes.
    while let [byte, after @ ..] = rest {
        if rest.starts_with(SEPARATOR.as_bytes()) {
            if token == 0 {
                return Err(KeyError::EmptyToken(shown()));
            }
            token = 0;
            rest = &rest[SEPARATOR.len()..];
            continue;
        }
        // U+0080 to U+009F are C2 80 to C2 9F.
        let c1 = *byte == 0xc2 && matches!(after, [0x80..=0x9f, ..]);
        control |= byte.is_ascii_control() || c1;
        token += 1;
        rest = after;
    }
    if token == 0 {
        return Err(KeyError::EmptyToken(shown()));
    }
    if control { Err(KeyError::Control(shown())) } else { Ok(()) }
}

/// A well-formed key. Tokens compare as text; `Ord` is by the whole text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key(Arc<str>);

impl Key {
    /// The first token of this node's board, whose keys are in memory only and never replicated.
    pub const LOCAL: &str = "local";

    /// Returns whether the text could be parsed, without taking a copy of it.
    pub fn is_valid(text: &str) -> bool {
        validate(text).is_ok()
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn tokens(&self) -> impl Iterator<Item = &str> {
        self.0.split(SEPARATOR)
    }

    pub fn is_local(&self) -> bool {
        let below = self.0.strip_prefix(Self::LOCAL);
        below.is_some_and(|below| below.is_empty() || below.starts_with(SEPARATOR))
    }
}

impl FromStr for Key {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        validate(text)?;
        Ok(Key(text.into()))
    }
}

impl TryFrom<String> for Key {
    type Error = KeyError;
    fn try_from(text: String) -> Result<Self, KeyError> {
        validate(&text)?;
        Ok(Key(text.into()))
    }
}

/// The key shares the text.
impl TryFrom<Arc<str>> for Key {
    type Error = KeyError;
    fn try_from(text: Arc<str>) -> Result<Self, KeyError> {
        validate(&text)?;
        Ok(Key(text))
    }
}

impl From<Key> for Arc<str> {
    fn from(key: Key) -> Arc<str> {
        key.0
    }
}

impl From<Key> for String {
    fn from(key: Key) -> String {
        key.as_str().into()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A prefix of keys. It matches the key itself and everything below it, by whole tokens: `foo::bar`
/// matches `foo::bar::baz`, never `foo::barbaz`. The empty prefix matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix(String);

impl Prefix {
    pub fn all() -> Prefix {
        Prefix::default()
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn tokens(&self) -> impl Iterator<Item = &str> {
        self.0.split(SEPARATOR).filter(|token| !token.is_empty())
    }

    pub fn matches(&self, key: &Key) -> bool {
        match key.0.strip_prefix(self.as_str()) {
            Some(rest) => self.0.is_empty() || rest.is_empty() || rest.starts_with(SEPARATOR),
            None => false,
        }
    }
}

impl FromStr for Prefix {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        if !text.is_empty() {
            validate(text)?;
        }
        Ok(Prefix(text.into()))
    }
}

impl From<Key> for Prefix {
    fn from(key: Key) -> Prefix {
        Prefix(key.into())
    }
}

/// Every key that Cortex itself writes, in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypedKey {
    Spec(ApplicationName),
    Config(ApplicationName),
    /// The variables as they were when a release was made, so that a rollback restores them.
    ConfigAt(ApplicationName, ReleaseId),
    Release(ApplicationName, ReleaseId),
    /// The tar archive that was pushed.
    Source(ApplicationName, ContentHash),
    /// The result of a build on a node, as a tar archive; for nodes of this platform.
    Artefact(ApplicationName, BuildId, NodeId, String),
    /// The fate of a release that does not serve as it was to.
    Outcome(ApplicationName, ReleaseId),
    Rollout(ApplicationName),
    /// The node that has the files of its persistent paths.
    Holder(ApplicationName),
    /// The order to move those files to another node.
    Move(ApplicationName),
    /// The last run of a scheduled command.
    Cron(ApplicationName, String),
    /// The end of the application of this name that was created at this time.
    Destroyed(ApplicationName, Timestamp),
    Claim(InstanceId, NodeId),
    Probe(NodeId, InstanceId),
    /// The verdict of the first node's checker on an instance that the second node runs.
    Testimony(NodeId, InstanceId, NodeId),
    Member(NodeId),
    /// A node of the cluster that keeps no store, and so is no member of it.
    Guest(NodeId),
    Drained(NodeId),
    NodeInfo(NodeId),
    NodeLoad(NodeId),
    NodeDisk(NodeId),
    /// The binary that all nodes are to run.
    Roll,
    /// The bytes of that binary.
    Binary(ContentHash),
    /// The progress of one node with that.
    NodeUpgrade(NodeId),
    /// The key that seals secrets, by its id.
    Sealing,
    /// The order to seal them with another one.
    RotationOrder,
    /// The keys that a node has for that.
    NodeSecrets(NodeId),
    /// The import of an exported cluster, until it is through.
    ImportUnderWay,
    /// A record about the copies of the cluster that are made by themselves.
    Backup(BackupKey),
    /// What applications get that say nothing of their isolation.
    IsolationDefault,
    /// The name of the platform itself.
    PlatformAddress,
    /// A person with rights. The names of the users of the Redis listener are one token shorter.
    User(UserName),
    Team(TeamName),
    /// A token, by the hash of its text.
    Token(ContentHash),
    /// The last time that a node saw a token used, about.
    TokenUse(ContentHash, NodeId),
    /// A change that somebody asked a node for.
    Audit(NodeId, AuditId),
    /// The end of that change.
    AuditOutcome(NodeId, AuditId),
    /// The certificate for a name.
    Certificate(CertificateName),
    /// The cluster's account at an authority that issues certificates.
    AcmeAccount,
    /// The certificate that such an authority is shown when it asks whose a name is.
    AcmeChallenge(CertificateName),
    /// The authority that a person agreed to use.
    AcmeSettings,
    /// The reason why there is no account there yet.
    AcmeRegistration,
    /// The order for a certificate of this name.
    AcmeOrder(CertificateName),
    /// The addresses at which strangers reach this node.
    PublicAddresses(NodeId),
    Board(BoardKey),
}

/// `local::…`: what parts of one node tell each other; in memory only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoardKey {
    /// The router has taken this incarnation out and nothing is in flight on it.
    Drained(InstanceId, u64),
    /// The resident memory of an incarnation in bytes, as text.
    Memory(InstanceId, u64),
    /// The router met a connection refused, reset or cut on this incarnation; the value says what.
    Suspect(InstanceId, u64),
    /// The claim of another node as that node states it, which this node's disk has no room for;
    /// empty if it was deleted.
    Unkept(InstanceId, NodeId),
}

/// Returns the key at which the board of `own` shows a claim of another node that its disk had no
/// room for: it must know who else runs what it runs.
pub fn note_unkept(own: &NodeId, key: &Key) -> Option<Key> {
    match TypedKey::parse(key)? {
        TypedKey::Claim(instance, node) if node != *own => {
            Some(TypedKey::Board(BoardKey::Unkept(instance, node)).key())
        }
        _ => None,
    }
}

impl TypedKey {
    pub fn key(&self) -> Key {
        let text = match self {
            TypedKey::Spec(app) => format!("app::{app}::spec"),
            TypedKey::Config(app) => format!("app::{app}::config"),
            TypedKey::ConfigAt(app, id) => {
                format!("app::{app}::config::{}::{}", id.number, id.node)
            }
            TypedKey::Release(app, id) => {
                format!("app::{app}::release::{}::{}", id.number, id.node)
            }
            TypedKey::Source(app, hash) => format!("app::{app}::source::{hash}"),
            TypedKey::Artefact(app, BuildId::Of(id), builder, platform) => {
                format!("app::{app}::artefact::{}::{}::{builder}::{platform}", id.number, id.node)
            }
            TypedKey::Artefact(app, build, builder, platform) => {
                format!("app::{app}::artefact::{build}::{builder}::{platform}")
            }
            TypedKey::Outcome(app, id) => {
                format!("app::{app}::outcome::{}::{}", id.number, id.node)
            }
            TypedKey::Rollout(app) => format!("app::{app}::rollout"),
            TypedKey::Holder(app) => format!("app::{app}::holder"),
            TypedKey::Move(app) => format!("app::{app}::move"),
            TypedKey::Cron(app, entry) => format!("app::{app}::cron::{entry}"),
            TypedKey::Destroyed(app, created_at) => {
                format!("cluster::destroyed::{app}::{}", created_at.0)
            }
            TypedKey::Claim(id, node) => {
                format!("instance::{}::{}::{}::{node}", id.application, id.process, id.slot)
            }
            TypedKey::Probe(node, id) => {
                format!("probe::{node}::{}::{}::{}", id.application, id.process, id.slot)
            }
            TypedKey::Testimony(node, id, owner) => {
                format!("probe::{node}::{}::{}::{}::{owner}", id.application, id.process, id.slot)
            }
            TypedKey::Member(node) => format!("cluster::nodes::{node}"),
            TypedKey::Guest(node) => format!("cluster::nodes::{node}::guest"),
            TypedKey::Drained(node) => format!("cluster::drained::{node}"),
            TypedKey::NodeInfo(node) => format!("node::{node}::info"),
            TypedKey::NodeLoad(node) => format!("node::{node}::load"),
            TypedKey::NodeDisk(node) => format!("node::{node}::disk"),
            TypedKey::Roll => "cluster::upgrade".into(),
            TypedKey::Binary(hash) => format!("cluster::binary::{hash}"),
            TypedKey::NodeUpgrade(node) => format!("node::{node}::upgrade"),
            TypedKey::Sealing => "cluster::secrets".into(),
            TypedKey::RotationOrder => "cluster::secrets::rotate".into(),
            TypedKey::NodeSecrets(node) => format!("node::{node}::secrets"),
            TypedKey::ImportUnderWay => "cluster::import".into(),
            TypedKey::Backup(record) => format!("backup::{}", record.word()),
            TypedKey::IsolationDefault => "cluster::isolation".into(),
            TypedKey::PlatformAddress => "cluster::address".into(),
            TypedKey::User(user) => format!("access::users::{user}"),
            TypedKey::Team(team) => format!("access::teams::{team}"),
            TypedKey::Token(hash) => format!("access::tokens::{hash}"),
            TypedKey::TokenUse(hash, node) => format!("access::used::{hash}::{node}"),
            TypedKey::Audit(node, id) => format!("audit::{node}::{id}"),
            TypedKey::AuditOutcome(node, id) => format!("audit::{node}::{id}::outcome"),
            TypedKey::Certificate(name) => format!("cert::{}", name.token()),
            TypedKey::AcmeAccount => "acme::account".into(),
            TypedKey::AcmeChallenge(name) => format!("acme::challenge::{}", name.token()),
            TypedKey::AcmeSettings => "acme::settings".into(),
            TypedKey::AcmeRegistration => "acme::registration".into(),
            TypedKey::AcmeOrder(name) => format!("acme::order::{}", name.token()),
            TypedKey::PublicAddresses(node) => format!("node::{node}::public"),
            TypedKey::Board(board) => {
                let (word, id, last) = match board {
                    BoardKey::Drained(id, generation) => ("drained", id, generation.to_string()),
                    BoardKey::Memory(id, generation) => ("memory", id, generation.to_string()),
                    BoardKey::Suspect(id, generation) => ("suspect", id, generation.to_string()),
                    BoardKey::Unkept(id, node) => ("unkept", id, node.to_string()),
                };
                let InstanceId { application, process, slot } = id;
                format!("local::{word}::{application}::{process}::{slot}::{last}")
            }
        };
        Key(text.into())
    }

    /// Parses a key; `None` for keys of users and of newer versions.
    pub fn parse(key: &Key) -> Option<TypedKey> {
        let tokens: Vec<&str> = key.tokens().collect();
        let instance = |app: &str, process: &str, slot: &str| {
            Some(InstanceId {
                application: app.parse().ok()?,
                process: process.parse().ok()?,
                slot: slot.parse().ok()?,
            })
        };
        Some(match tokens[..] {
            ["app", app, "spec"] => TypedKey::Spec(app.parse().ok()?),
            ["app", app, "config"] => TypedKey::Config(app.parse().ok()?),
            ["app", app, word @ ("release" | "config" | "outcome"), number, node] => {
                let id = ReleaseId { number: number.parse().ok()?, node: node.parse().ok()? };
                match word {
                    "release" => TypedKey::Release(app.parse().ok()?, id),
                    "outcome" => TypedKey::Outcome(app.parse().ok()?, id),
                    _ => TypedKey::ConfigAt(app.parse().ok()?, id),
                }
            }
            ["app", app, "source", hash] => TypedKey::Source(app.parse().ok()?, hash.parse().ok()?),
            ["app", app, "artefact", number, node, builder, platform] => {
                let id = ReleaseId { number: number.parse().ok()?, node: node.parse().ok()? };
                let (builder, platform) = (builder.parse().ok()?, platform.to_owned());
                TypedKey::Artefact(app.parse().ok()?, BuildId::Of(id), builder, platform)
            }
            ["app", app, "artefact", build, builder, platform] => {
                let (build, builder) = (build.parse().ok()?, builder.parse().ok()?);
                TypedKey::Artefact(app.parse().ok()?, build, builder, platform.to_owned())
            }
            ["app", app, "rollout"] => TypedKey::Rollout(app.parse().ok()?),
            ["app", app, "holder"] => TypedKey::Holder(app.parse().ok()?),
            ["app", app, "move"] => TypedKey::Move(app.parse().ok()?),
            ["app", app, "cron", entry] => TypedKey::Cron(app.parse().ok()?, entry.into()),
            ["instance", app, process, slot, node] => {
                TypedKey::Claim(instance(app, process, slot)?, node.parse().ok()?)
            }
            ["probe", node, app, process, slot] => {
                TypedKey::Probe(node.parse().ok()?, instance(app, process, slot)?)
            }
            ["probe", node, app, process, slot, owner] => TypedKey::Testimony(
                node.parse().ok()?,
                instance(app, process, slot)?,
                owner.parse().ok()?,
            ),
            ["cluster", "nodes", node] => TypedKey::Member(node.parse().ok()?),
            ["cluster", "nodes", node, "guest"] => TypedKey::Guest(node.parse().ok()?),
            ["cluster", "drained", node] => TypedKey::Drained(node.parse().ok()?),
            ["node", node, "info"] => TypedKey::NodeInfo(node.parse().ok()?),
            ["node", node, "load"] => TypedKey::NodeLoad(node.parse().ok()?),
            ["node", node, "disk"] => TypedKey::NodeDisk(node.parse().ok()?),
            ["cluster", "destroyed", app, created_at] => {
                let created_at = Timestamp(created_at.parse().ok()?);
                TypedKey::Destroyed(app.parse().ok()?, created_at)
            }
            ["cluster", "upgrade"] => TypedKey::Roll,
            ["cluster", "binary", hash] => TypedKey::Binary(hash.parse().ok()?),
            ["node", node, "upgrade"] => TypedKey::NodeUpgrade(node.parse().ok()?),
            ["cluster", "secrets"] => TypedKey::Sealing,
            ["cluster", "secrets", "rotate"] => TypedKey::RotationOrder,
            ["node", node, "secrets"] => TypedKey::NodeSecrets(node.parse().ok()?),
            ["cluster", "import"] => TypedKey::ImportUnderWay,
            ["backup", word] => TypedKey::Backup(BackupKey::of(word)?),
            ["cluster", "isolation"] => TypedKey::IsolationDefault,
            ["cluster", "address"] => TypedKey::PlatformAddress,
            ["access", "users", user] => TypedKey::User(user.parse().ok()?),
            ["access", "teams", team] => TypedKey::Team(team.parse().ok()?),
            ["access", "tokens", hash] => TypedKey::Token(hash.parse().ok()?),
            ["access", "used", hash, node] => {
                TypedKey::TokenUse(hash.parse().ok()?, node.parse().ok()?)
            }
            ["audit", node, id] => TypedKey::Audit(node.parse().ok()?, id.parse().ok()?),
            ["audit", node, id, "outcome"] => {
                TypedKey::AuditOutcome(node.parse().ok()?, id.parse().ok()?)
            }
            ["cert", name] => TypedKey::Certificate(name.parse().ok()?),
            ["acme", "account"] => TypedKey::AcmeAccount,
            ["acme", "challenge", name] => TypedKey::AcmeChallenge(name.parse().ok()?),
            ["acme", "settings"] => TypedKey::AcmeSettings,
            ["acme", "registration"] => TypedKey::AcmeRegistration,
            ["acme", "order", name] => TypedKey::AcmeOrder(name.parse().ok()?),
            ["node", node, "public"] => TypedKey::PublicAddresses(node.parse().ok()?),
            ["local", "unkept", app, process, slot, node] => {
                let node = node.parse().ok()?;
                TypedKey::Board(BoardKey::Unkept(instance(app, process, slot)?, node))
            }
            ["local", word, app, process, slot, generation] => {
                let id = instance(app, process, slot)?;
                let generation = generation.parse().ok()?;
                TypedKey::Board(match word {
                    "drained" => BoardKey::Drained(id, generation),
                    "memory" => BoardKey::Memory(id, generation),
                    "suspect" => BoardKey::Suspect(id, generation),
                    _ => return None,
                })
            }
            _ => return None,
        })
    }

    /// Returns the application that this key belongs to.
    pub fn application(&self) -> Option<&ApplicationName> {
        match self {
            TypedKey::Spec(app)
            | TypedKey::Config(app)
            | TypedKey::ConfigAt(app, _)
            | TypedKey::Release(app, _)
            | TypedKey::Source(app, _)
            | TypedKey::Artefact(app, ..)
            | TypedKey::Outcome(app, _)
            | TypedKey::Rollout(app)
            | TypedKey::Holder(app)
            | TypedKey::Move(app)
            | TypedKey::Cron(app, _)
            | TypedKey::Destroyed(app, _) => Some(app),
            TypedKey::Claim(id, _) | TypedKey::Probe(_, id) | TypedKey::Testimony(_, id, _) => {
                Some(&id.application)
            }
            TypedKey::Board(
                BoardKey::Drained(id, _)
                | BoardKey::Memory(id, _)
                | BoardKey::Suspect(id, _)
                | BoardKey::Unkept(id, _),
            ) => Some(&id.application),
            TypedKey::Member(_)
            | TypedKey::Guest(_)
            | TypedKey::Drained(_)
            | TypedKey::NodeInfo(_)
            | TypedKey::NodeLoad(_)
            | TypedKey::NodeDisk(_)
            | TypedKey::Roll
            | TypedKey::Binary(_)
            | TypedKey::NodeUpgrade(_)
            | TypedKey::Sealing
            | TypedKey::RotationOrder
            | TypedKey::NodeSecrets(_)
            | TypedKey::ImportUnderWay
            | TypedKey::Backup(_)
            | TypedKey::IsolationDefault
            | TypedKey::PlatformAddress
            | TypedKey::User(_)
            | TypedKey::Team(_)
            | TypedKey::Token(_)
            | TypedKey::TokenUse(..)
            | TypedKey::Audit(..)
            | TypedKey::AuditOutcome(..)
            | TypedKey::Certificate(_)
            | TypedKey::AcmeAccount
            | TypedKey::AcmeChallenge(_)
            | TypedKey::AcmeSettings
            | TypedKey::AcmeRegistration
            | TypedKey::AcmeOrder(_)
            | TypedKey::PublicAddresses(_) => None,
        }
    }
}

/// Returns the prefixes of all that is an application's: what is known of it, and its own keys.
pub fn prefixes_of(application: &ApplicationName) -> [Prefix; 2] {
    [application_prefix(application), bus_prefix(application)]
}

/// Returns the prefix of the keys that an application itself has on the bus.
pub fn bus_prefix(application: &ApplicationName) -> Prefix {
    Prefix(format!("bus{SEPARATOR}{application}"))
}

/// Returns the prefix of everything users said about one application, and of all its releases.
pub fn application_prefix(app: &ApplicationName) -> Prefix {
    Prefix(format!("app::{app}"))
}

/// Returns the prefix of all that says who may do what.
pub fn access_prefix() -> Prefix {
    Prefix("access".into())
}

/// Returns the prefix of what all nodes have in common.
pub fn cluster_prefix() -> Prefix {
    Prefix("cluster".into())
}

/// Returns the prefix of all users.
pub fn users_prefix() -> Prefix {
    Prefix("access::users".into())
}

/// Returns the prefix of all teams.
pub fn teams_prefix() -> Prefix {
    Prefix("access::teams".into())
}

/// Returns the prefix of all tokens.
pub fn tokens_prefix() -> Prefix {
    Prefix("access::tokens".into())
}

/// Returns the prefix of what nodes noted about the use of one token.
pub fn token_uses_prefix(token: &ContentHash) -> Prefix {
    Prefix(format!("access::used::{token}"))
}

/// Returns the prefix of what was recorded of changes, on all nodes.
pub fn audit_prefix() -> Prefix {
    Prefix("audit".into())
}

/// Returns the prefix of all certificates.
pub fn certificates_prefix() -> Prefix {
    Prefix("cert".into())
}

/// Returns the prefix of the account at an authority, and of what is under way there.
pub fn acme_prefix() -> Prefix {
    Prefix("acme".into())
}

/// Returns the prefix of what says which applications of this name were destroyed.
pub fn destroyed_prefix(app: &ApplicationName) -> Prefix {
    Prefix(format!("cluster::destroyed::{app}"))
}

/// Returns the prefix of what is known of other nodes' claims that this one has no room for: of one
/// application, or all.
pub fn unkept_prefix(application: Option<&ApplicationName>) -> Prefix {
    let all = "local::unkept".to_string();
    Prefix(application.map_or(all.clone(), |application| format!("{all}::{application}")))
}

/// Returns the prefix of all claims on one application's slots.
pub fn instances_prefix(app: &ApplicationName) -> Prefix {
    Prefix(format!("instance::{app}"))
}

#[cfg(test)]
mod tests;
