//! The upgrade of a running node to another binary: found out about, tried, kept or given back.
//! Owns what one node does about it and what it says of itself meanwhile; `agent_core::upgrade`
//! decides, `node.rs` stops the parts when it is time, and `cli::up` keeps the process from before
//! at hand.

pub mod attend;
pub mod candidate;
pub mod formats;
pub mod leaving;
pub mod rolling;
pub mod succession;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use agent_core::upgrade::trial::Vitals;
use model::value::ContentHash;
use model::{Claim, InstanceState, Key, NodeId, Prefix, TypedKey};
use tokio::sync::Notify;

use self::succession::{Heir, Testament};
use os::layout::DataDirectory;
use runtime::members::Members;
use store::{SharedStore, readable};

/// The way in which this process came to run the node.
#[derive(Debug, Default)]
pub enum ProcessOrigin {
    #[default]
    Fresh,
    /// It ran the node before, and does again after a trial that failed.
    Returned { roll: String, why: String },
    /// It is tried by the process from before, which may still end it.
    OnTrial(Heir),
}

/// The binary that this process runs.
#[derive(Clone, Debug)]
pub struct Own {
    pub hash: ContentHash,
    /// The path of its copy in `DATA/bin`.
    pub path: PathBuf,
}

/// A function that returns the public addresses that are served at the moment.
pub type OpenPorts = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// What the parts of a node share about upgrades.
pub struct Upgrading {
    pub layout: DataDirectory,
    pub node: NodeId,
    pub store: SharedStore,
    pub peers: Option<Arc<dyn Members>>,
    /// Whether what ran before is held; set by the agent.
    pub adopted: Arc<AtomicBool>,
    own: OnceLock<Own>,
    origin: Mutex<Option<ProcessOrigin>>,
    testament: Mutex<Option<Testament>>,
    decided: Notify,
}

impl Upgrading {
    pub fn new(
        layout: DataDirectory,
        node: NodeId,
        store: SharedStore,
        peers: Option<Arc<dyn Members>>,
        adopted: Arc<AtomicBool>,
        origin: ProcessOrigin,
    ) -> Upgrading {
        Upgrading {
            layout,
            node,
            store,
            peers,
            adopted,
            own: OnceLock::new(),
            origin: Mutex::new(Some(origin)),
            testament: Mutex::default(),
            decided: Notify::new(),
        }
    }

    pub fn own(&self) -> Option<&Own> {
        self.own.get()
    }

    /// Resolves once it is decided here that another process is to run this node.
    pub async fn handed_over(&self) -> Testament {
        loop {
            self.decided.notified().await;
            let mut left = self.testament.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(testament) = left.take() {
                return testament;
            }
        }
    }

    fn hand_over(&self, testament: Testament) {
        *self.testament.lock().unwrap_or_else(PoisonError::into_inner) = Some(testament);
        self.decided.notify_one();
    }

    /// Reports that this node ends because somebody asked for it: the process from before is not to
    /// bring it back.
    pub fn says_farewell(&self) {
        let mut origin = self.origin.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ProcessOrigin::OnTrial(heir)) = origin.take() {
            heir.says_farewell();
        }
    }

    /// Returns how this node is, from its own view; `ports` are the addresses that it serves.
    pub async fn vitals(&self, ports: Vec<String>) -> anyhow::Result<Vitals> {
        let mut vitals = Vitals {
            binary: self.own().map(|own| own.hash),
            adopted: self.adopted.load(Ordering::Relaxed),
            ports: ports.into_iter().collect(),
            peers: self.peers.as_ref().map_or(0, |peers| peers.alive().borrow().len()),
            ..Vitals::default()
        };
        for entry in self.store.prefix(&Prefix::from("instance".parse::<Key>()?)).await? {
            let Some(TypedKey::Claim(id, node)) = TypedKey::parse(&entry.key) else { continue };
            let claim: Option<Claim> = readable(&entry.key, Some(&entry.value));
            let Some(claim) = claim.filter(|_| node == self.node) else { continue };
            let name = format!("{}/{}", id.application, id.label());
            if claim.incarnations.iter().any(|one| one.state == InstanceState::Ready) {
                vitals.ready.insert(name.clone());
            }
            vitals.claimed.insert(name);
        }
        Ok(vitals)
    }
}
