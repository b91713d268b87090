//! Simulated processes under their shims: they live on when the node's process ends.

use agent_core::application::{Exit, IncarnationId};
use model::ReleaseId;
use model::instance::ProcessIdentity;

/// What a release is like, once pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quality {
    Good,
    BadBuild,
    BadReleaseStep,
    ExitsAtStart,
    NeverReady,
    StartFails,
    /// It becomes ready, and ends a while later.
    Dies,
}

impl Quality {
    pub fn named(name: &str) -> Option<Quality> {
        Some(match name {
            "good" => Quality::Good,
            "bad-build" => Quality::BadBuild,
            "bad-release-step" => Quality::BadReleaseStep,
            "exits-at-start" => Quality::ExitsAtStart,
            "never-ready" => Quality::NeverReady,
            "start-fails" => Quality::StartFails,
            "dies" => Quality::Dies,
            _ => return None,
        })
    }
}

#[derive(Clone, Debug)]
pub struct Process {
    pub id: IncarnationId,
    pub release: ReleaseId,
    pub identity: ProcessIdentity,
    pub port: Option<u16>,
    /// The time from which it is healthy; `None` if it never will be.
    pub healthy_at: Option<u64>,
    pub hung: bool,
    pub fat: bool,
    /// Whether it ignores SIGTERM.
    pub deaf: bool,
    pub stopping: bool,
    pub exit: Option<Exit>,
}

impl Process {
    pub fn is_alive(&self) -> bool {
        self.exit.is_none()
    }

    /// Returns whether it would answer a request.
    pub fn is_well(&self) -> bool {
        self.is_alive() && !self.hung && !self.fat
    }
}

pub fn exit(how: &str, last_words: &str) -> Exit {
    Exit { how: how.into(), last_words: last_words.into(), ..Exit::default() }
}
