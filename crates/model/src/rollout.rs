//! The rollout of a release: how far it has got.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::{NodeId, ReleaseId};
use crate::record::{RECORD_VERSION, Unknown};
use crate::time::Timestamp;

/// `app::NAME::rollout`: written by the coordinator, and by the command that asks for a release.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    pub v: u32,
    /// The release that takes traffic. Routers use ready instances of this release alone, so that
    /// one write switches all of them.
    pub serving: Option<ReleaseId>,
    /// The release that was asked for last.
    pub target: Option<ReleaseId>,
    pub phase: RolloutPhase,
    pub coordinator: NodeId,
    /// The reason why the phase is `failed`, with the application's last output; of one that is
    /// `done`, what the user who pushed it should know.
    #[serde(default)]
    pub message: Option<String>,
    /// The release that served before `serving`, to which an automatic return goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<ReleaseId>,
    /// The node that built `target` and offers what came of it to the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built_on: Option<NodeId>,
    /// The nodes on which `target` cannot be built for want of a tool, and what each said.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unable: BTreeMap<NodeId, String>,
    pub changed_at: Timestamp,
    /// The time when the application was created that the coordinator wrote this of: one of the
    /// same name that was destroyed is another. `None` in a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Rollout {
    pub fn new(coordinator: NodeId, now: Timestamp) -> Rollout {
        Rollout {
            v: RECORD_VERSION,
            serving: None,
            target: None,
            phase: RolloutPhase::Done,
            coordinator,
            message: None,
            before: None,
            built_on: None,
            unable: BTreeMap::new(),
            changed_at: now,
            created_at: None,
            unknown: Unknown::new(),
        }
    }

    /// Returns whether both are known to be of applications, and not of the same one.
    pub fn is_of_another(&self, created_at: Option<Timestamp>) -> bool {
        self.created_at.zip(created_at).is_some_and(|(one, other)| one != other)
    }

    /// Asks for another release; what was said of the attempt before it is forgotten.
    pub fn request(&mut self, target: ReleaseId, coordinator: NodeId, now: Timestamp) {
        self.target = Some(target);
        self.phase = RolloutPhase::Requested;
        self.coordinator = coordinator;
        self.message = None;
        self.built_on = None;
        self.unable.clear();
        self.changed_at = now;
        self.created_at = None;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RolloutPhase {
    /// The command wrote `target`; nobody acted yet.
    Requested,
    /// Sources are unpacked, build steps run.
    Building,
    /// Release steps (migrations) run.
    Releasing,
    /// New instances start beside the old ones (or after them).
    Starting,
    /// `serving` is `target`; old instances are draining.
    Done,
    /// `serving` is what it was before.
    Failed,
}

/// `app::NAME::outcome::N::NODE`: what became of a release that does not serve as it was to.
/// Written by the coordinator of its rollout, and kept as long as the release; removed if that
/// comes to serve after all, as where one side of a cut network gave it up and the other did not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    pub v: u32,
    pub fate: Fate,
    /// The reason for people, with the application's last output.
    pub why: String,
    pub at: Timestamp,
    #[serde(flatten)]
    pub unknown: Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// The release never served.
    Failed,
    /// The release served, and the one before it was brought back.
    TakenBack,
}
