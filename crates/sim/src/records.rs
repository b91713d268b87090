//! The store as the machines see it: what is in it now. Each record passes through its stored form.

use std::collections::BTreeMap;

use model::probe::Verdict;
use model::record::{decode, encode};
use model::{ApplicationName, ApplicationSpec, Claim, InstanceId, Release, ReleaseId, Rollout};
use serde::Serialize;
use serde::de::DeserializeOwned;

#[derive(Debug, Default)]
pub struct Records {
    pub specs: BTreeMap<ApplicationName, ApplicationSpec>,
    /// The specifications of those that were destroyed and are kept, with their end.
    pub kept: BTreeMap<ApplicationName, ApplicationSpec>,
    pub releases: BTreeMap<(ApplicationName, ReleaseId), Release>,
    pub rollouts: BTreeMap<ApplicationName, Rollout>,
    pub claims: BTreeMap<InstanceId, Claim>,
    pub verdicts: BTreeMap<InstanceId, Verdict>,
}

/// The record that a watcher is told to look at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Notice {
    Spec(ApplicationName),
    Release(ApplicationName, ReleaseId),
    Rollout(ApplicationName),
    Claim(InstanceId),
    Verdict(InstanceId),
}

impl Records {
    /// Returns what is stored as the specification of that name.
    pub fn spec(&self, name: &ApplicationName) -> Option<ApplicationSpec> {
        self.specs.get(name).or(self.kept.get(name)).cloned()
    }

    pub fn claims_of<'a>(
        &'a self,
        name: &'a ApplicationName,
    ) -> impl Iterator<Item = (&'a InstanceId, &'a Claim)> {
        self.claims.iter().filter(move |(id, _)| id.application == *name)
    }
}

/// Returns a record as it is read back, which is what was written.
pub fn stored<T: Serialize + DeserializeOwned>(record: &T) -> T {
    decode(&encode(record)).expect("a record that was written can be read")
}
