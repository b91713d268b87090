//! The file of contexts: platforms elsewhere with the token for each, readable by its owner alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use cluster::identity::write_private;
use serde::{Deserialize, Serialize};

use api_types::login::{ClusterUrl, NodeReach};
use os::directory::private_directory;

const FORMAT: u32 = 1;
/// The most contexts, each a platform and a user there.
const CONTEXTS_MAX: usize = 100;

/// A platform and who this account is there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlatformContext {
    pub user: String,
    /// The text of the token.
    pub token: String,
    pub token_name: String,
    pub expires_at: String,
    /// The id of the cluster.
    pub cluster: String,
    /// What tells these nodes from others.
    pub roster: String,
    pub nodes: Vec<NodeReach>,
    /// The addresses that the invitation named, which may lead through a gate that the nodes do
    /// not know of, and the key of the node there.
    pub invited_at: Vec<String>,
    pub invited_by: String,
}

impl PlatformContext {
    /// Takes the nodes that the platform has now; the node of the invitation comes first and keeps
    /// its addresses.
    pub fn learn(&mut self, nodes: Vec<NodeReach>, roster: String) {
        self.roster = roster;
        self.nodes = nodes;
        let issuer = self.nodes.iter().position(|node| node.fingerprint == self.invited_by);
        if let Some(at) = issuer {
            let mut node = self.nodes.remove(at);
            node.addresses.retain(|at| !self.invited_at.contains(at));
            node.addresses.splice(..0, self.invited_at.iter().cloned());
            self.nodes.insert(0, node);
        } else if self.nodes.is_empty() {
            self.nodes = nodes_of(&ClusterUrl {
                addresses: self.invited_at.clone(),
                fingerprint: self.invited_by.clone(),
            });
        }
    }
}

/// Returns the one node that a URL names.
pub fn nodes_of(url: &ClusterUrl) -> Vec<NodeReach> {
    let (addresses, fingerprint) = (url.addresses.clone(), url.fingerprint.clone());
    vec![NodeReach { id: String::new(), addresses, fingerprint }]
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContextBook {
    pub v: u32,
    /// The context of commands that name none; `None` for the node on this machine.
    pub current: Option<String>,
    pub contexts: BTreeMap<String, PlatformContext>,
}

impl Default for ContextBook {
    fn default() -> ContextBook {
        ContextBook { v: FORMAT, current: None, contexts: BTreeMap::new() }
    }
}

impl ContextBook {
    pub fn load(path: &Path) -> anyhow::Result<ContextBook> {
        let shown = path.display();
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(ContextBook::default());
            }
            Err(error) => return Err(error).with_context(|| format!("{shown} cannot be read")),
        };
        let book: ContextBook = serde_json::from_slice(&bytes).with_context(|| {
            format!("{shown} is damaged: mend it, or remove it and log in again")
        })?;
        anyhow::ensure!(book.v <= FORMAT, "a newer version of Cortex wrote {shown}: use that");
        Ok(book)
    }

    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        if let Some(directory) = path.parent() {
            private_directory(directory).with_context(|| directory.display().to_string())?;
        }
        write_private(path, &serde_json::to_vec_pretty(self)?)
    }

    /// Puts a context in, under this name or that with a number if another platform or user has it
    /// already; returns the name. One of the same user there is replaced, whatever its name.
    pub fn add(&mut self, wanted: &str, context: PlatformContext) -> anyhow::Result<String> {
        let is_same =
            |one: &PlatformContext| one.cluster == context.cluster && one.user == context.user;
        let same = self.contexts.iter().find(|(_, one)| is_same(one)).map(|(name, _)| name.clone());
        let numbered = (2..).map(|number| format!("{wanted}-{number}"));
        let mut names = std::iter::once(wanted.to_string()).chain(numbered);
        let free = || names.find(|name| !self.contexts.contains_key(name));
        let name = same.or_else(free).unwrap_or_default();
        anyhow::ensure!(
            self.contexts.len() < CONTEXTS_MAX || self.contexts.contains_key(&name),
            "there are {CONTEXTS_MAX} contexts, which is the most: `cortex logout NAME` ends one"
        );
        self.contexts.insert(name.clone(), context);
        self.current = Some(name.clone());
        Ok(name)
    }

    /// Takes a context out; returns it.
    pub fn remove(&mut self, name: &str) -> Option<PlatformContext> {
        if self.current.as_deref() == Some(name) {
            self.current = None;
        }
        self.contexts.remove(name)
    }

    /// Returns the context of the platform that has a node at `HOST:PORT`.
    pub fn of_node(&self, address: &str) -> Option<&str> {
        let has = |context: &PlatformContext| {
            let known = context.nodes.iter().flat_map(|node| &node.addresses);
            known.chain(&context.invited_at).any(|known| known.eq_ignore_ascii_case(address))
        };
        self.contexts.iter().find(|(_, one)| has(one)).map(|(name, _)| name.as_str())
    }

    pub fn no_context(&self, name: &str) -> String {
        let names: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
        match names.is_empty() {
            true => {
                format!("there is no context '{name}', nor any other: log in with `cortex login`")
            }
            false => format!("there is no context '{name}'; there are: {}", names.join(", ")),
        }
    }
}

/// Returns the path of the file, below the configuration directory of this account.
pub fn path(configuration: Option<&Path>, home: Option<&Path>) -> anyhow::Result<PathBuf> {
    let directory = match (configuration, home) {
        (Some(configuration), _) if configuration.is_absolute() => configuration.to_path_buf(),
        (_, Some(home)) => home.join(".config"),
        _ => anyhow::bail!("your home directory cannot be found: set XDG_CONFIG_HOME"),
    };
    Ok(directory.join("cortex/contexts.json"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn context(cluster: &str, user: &str) -> PlatformContext {
        PlatformContext {
            user: user.into(),
            token: "cortex_x".into(),
            token_name: "laptop".into(),
            expires_at: String::new(),
            cluster: cluster.into(),
            roster: String::new(),
            nodes: Vec::new(),
            invited_at: vec!["gate:1".into()],
            invited_by: "aa".into(),
        }
    }

    #[test]
    fn a_book_is_private_and_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = path(Some(&directory.path().join("config")), None).unwrap();
        assert_eq!(ContextBook::load(&path).unwrap(), ContextBook::default());
        let mut book = ContextBook::default();
        assert_eq!(book.add("shop", context("c1", "ana")).unwrap(), "shop");
        book.save(&path).unwrap();
        assert_eq!(ContextBook::load(&path).unwrap(), book);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "{").unwrap();
        assert!(format!("{:#}", ContextBook::load(&path).unwrap_err()).contains("log in again"));
    }

    #[test]
    fn one_user_of_a_platform_has_one_context() {
        let mut book = ContextBook::default();
        assert_eq!(book.add("shop", context("c1", "ana")).unwrap(), "shop");
        assert_eq!(book.add("shop", context("c2", "ana")).unwrap(), "shop-2");
        assert_eq!(book.add("other", context("c1", "ana")).unwrap(), "shop");
        assert_eq!((book.contexts.len(), book.current.as_deref()), (2, Some("shop")));
        assert_eq!(book.of_node("GATE:1"), Some("shop"));
        assert_eq!(book.of_node("gate:2"), None);
        assert!(book.remove("shop").is_some() && book.current.is_none());
        assert!(book.no_context("x").contains("shop-2"));
    }

    #[test]
    fn nodes_come_and_go_and_the_gate_stays() {
        let node = |id: &str, pin: &str| NodeReach {
            id: id.into(),
            addresses: vec![format!("{id}:8205")],
            fingerprint: pin.into(),
        };
        let mut learning = context("c1", "ana");
        learning.learn(vec![node("n2", "bb"), node("n1", "aa")], "r1".into());
        assert_eq!(learning.nodes[0].addresses, ["gate:1", "n1:8205"]);
        learning.learn(vec![node("n2", "bb")], "r2".into());
        assert_eq!((learning.nodes.len(), learning.roster.as_str()), (1, "r2"));
        learning.learn(Vec::new(), "r3".into());
        assert_eq!(learning.nodes[0].addresses, ["gate:1"]);
    }
}
