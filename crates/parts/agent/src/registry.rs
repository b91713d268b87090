//! The processes of this node that a shim holds, by incarnation. Survives the panic of an
//! application's actor: the next one finds here what runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_core::application::IncarnationId;
use model::ApplicationName;

use super::launcher::Held;

#[derive(Clone, Default)]
pub struct Registry {
    entries: Arc<Mutex<BTreeMap<IncarnationId, RegistryEntry>>>,
}

enum RegistryEntry {
    /// A process that is being launched; a stop that came meanwhile is remembered.
    Launching {
        stop: Option<Duration>,
    },
    Held(Arc<dyn Held>),
}

/// The outcome of a request to stop a process.
pub enum StopOutcome {
    Now(Arc<dyn Held>),
    OnceLaunched,
    /// Nothing of that name is held: it is gone.
    Unknown,
}

impl Registry {
    /// Records that a launch begins; false when this incarnation is known already.
    pub fn launching(&self, id: &IncarnationId) -> bool {
        let mut entries = self.lock();
        if entries.contains_key(id) {
            return false;
        }
        entries.insert(id.clone(), RegistryEntry::Launching { stop: None });
        true
    }

    pub fn is_launching(&self, application: &ApplicationName) -> bool {
        let entries = self.lock();
        let mut ours = entries.iter().filter(|(id, _)| id.instance.application == *application);
        ours.any(|(_, entry)| matches!(entry, RegistryEntry::Launching { .. }))
    }

    /// Records what was launched; returns the grace of a stop that was asked for meanwhile.
    pub fn launched(&self, id: &IncarnationId, held: Arc<dyn Held>) -> Option<Duration> {
        match self.lock().insert(id.clone(), RegistryEntry::Held(held)) {
            Some(RegistryEntry::Launching { stop }) => stop,
            _ => None,
        }
    }

    pub fn get(&self, id: &IncarnationId) -> Option<Arc<dyn Held>> {
        match self.lock().get(id) {
            Some(RegistryEntry::Held(held)) => Some(held.clone()),
            _ => None,
        }
    }

    /// Stops a process; one that is being launched is stopped as soon as it exists.
    pub fn stop(&self, id: &IncarnationId, grace: Duration) -> StopOutcome {
        match self.lock().get_mut(id) {
            Some(RegistryEntry::Held(held)) => StopOutcome::Now(held.clone()),
            Some(RegistryEntry::Launching { stop }) => {
                *stop = Some(stop.map_or(grace, |earlier| earlier.min(grace)));
                StopOutcome::OnceLaunched
            }
            None => StopOutcome::Unknown,
        }
    }

    pub fn remove(&self, id: &IncarnationId) -> Option<Arc<dyn Held>> {
        match self.lock().remove(id) {
            Some(RegistryEntry::Held(held)) => Some(held),
            _ => None,
        }
    }

    pub fn of(&self, application: &ApplicationName) -> Vec<(IncarnationId, Arc<dyn Held>)> {
        let belongs = |id: &IncarnationId| id.instance.application == *application;
        self.all().into_iter().filter(|(id, _)| belongs(id)).collect()
    }

    pub fn all(&self) -> Vec<(IncarnationId, Arc<dyn Held>)> {
        let entries = self.lock();
        let held = entries.iter().filter_map(|(id, entry)| match entry {
            RegistryEntry::Held(held) => Some((id.clone(), held.clone())),
            RegistryEntry::Launching { .. } => None,
        });
        held.collect()
    }

    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<IncarnationId, RegistryEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
