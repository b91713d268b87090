//! Upgrades: how far the nodes are with another binary, and what one that is tried is judged by.

use std::collections::BTreeSet;

use agent_core::upgrade::trial::Vitals;
use model::value::ContentHash;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The answer to `GET /v1/upgrade`: how far the nodes are with another binary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UpgradeShown {
    /// `none`, `rolling`, `waiting`, `finished` or `stopped`.
    pub state: String,
    /// The state in words for people.
    pub says: String,
    #[serde(default)]
    pub binary: Option<String>,
    #[serde(default)]
    pub version: Option<String>,
    /// The nodes in the order of their turns.
    pub nodes: Vec<UpgradeRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UpgradeRow {
    pub node: String,
    /// The BLAKE3 of the binary it runs.
    #[serde(default)]
    pub binary: Option<String>,
    pub alive: bool,
    /// `pending`, `trying`, `done`, `returned` or `refused`; `running` if no upgrade was asked for.
    pub state: String,
    #[serde(default)]
    pub why: Option<String>,
    #[serde(default)]
    pub since: Option<String>,
}

/// The answer to `GET /v1/upgrade/vitals`: what a node that is being tried reports of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeVitals {
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub binary: Option<ContentHash>,
    pub adopted: bool,
    pub claimed: BTreeSet<String>,
    pub ready: BTreeSet<String>,
    pub ports: BTreeSet<String>,
    pub peers: usize,
}

impl From<Vitals> for NodeVitals {
    fn from(vitals: Vitals) -> NodeVitals {
        let Vitals { binary, adopted, claimed, ready, ports, peers } = vitals;
        NodeVitals { binary, adopted, claimed, ready, ports, peers }
    }
}

impl From<NodeVitals> for Vitals {
    fn from(vitals: NodeVitals) -> Vitals {
        let NodeVitals { binary, adopted, claimed, ready, ports, peers } = vitals;
        Vitals { binary, adopted, claimed, ready, ports, peers }
    }
}
