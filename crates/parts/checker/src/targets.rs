//! The targets of probes: which incarnation of each instance is probed, and how; derived from
//! claims and releases.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use checker_core::{Method, Target};
use model::application::Health;
use model::{ApplicationName, Claim, InstanceId, InstanceState, Release, ReleaseId};

#[derive(Debug, Default)]
pub struct Targets {
    health: BTreeMap<(ApplicationName, ReleaseId), Health>,
    watched: BTreeSet<InstanceId>,
}

impl Targets {
    pub fn release(&mut self, application: &ApplicationName, id: &ReleaseId, new: Option<Release>) {
        let key = (application.clone(), id.clone());
        match new {
            Some(release) => drop(self.health.insert(key, release.settings.health)),
            None => drop(self.health.remove(&key)),
        }
    }

    /// Records a claim; returns what is to be probed now.
    pub fn claim(&mut self, instance: &InstanceId, claim: Option<Claim>) -> Option<Target> {
        let target = claim.and_then(|claim| self.target(instance, &claim));
        match target {
            Some(_) => drop(self.watched.insert(instance.clone())),
            None => drop(self.watched.remove(instance)),
        }
        target
    }

    pub fn watches(&self, instance: &InstanceId) -> bool {
        self.watched.contains(instance)
    }

    pub fn instances(&self) -> impl Iterator<Item = &InstanceId> {
        self.watched.iter()
    }

    /// Returns how to probe the newest ready incarnation: older ones are on their way out, and a
    /// starting one is the agent's to watch.
    pub fn target(&self, instance: &InstanceId, claim: &Claim) -> Option<Target> {
        let ready =
            claim.incarnations.iter().rev().find(|one| one.state == InstanceState::Ready)?;
        let key = (instance.application.clone(), ready.release.clone());
        let health = self.health.get(&key).cloned().unwrap_or_default();
        let method = match (ready.port, health.path.clone()) {
            (Some(port), Some(path)) => {
                let (host, headers) = (health.host(&instance.application), health.headers);
                Method::Http { port, path, host, headers }
            }
            (Some(port), None) => Method::Tcp { port },
            (None, _) => {
                let process = ready.process.as_ref()?;
                Method::Process { pid: process.pid, start_ticks: process.start_ticks }
            }
        };
        Some(Target {
            generation: ready.generation,
            method,
            interval: Duration::from_millis(health.interval_ms),
            timeout: Duration::from_millis(health.timeout_ms),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{Incarnation, ProcessType, Timestamp};

    fn incarnation(generation: u64, state: InstanceState) -> Incarnation {
        Incarnation {
            generation,
            release: "v1.a".parse().unwrap(),
            restart: 0,
            state,
            port: Some(20_000 + u16::try_from(generation).unwrap()),
            ports: Default::default(),
            process: None,
            started_at: None,
            concurrency: None,
            restarts: 0,
            reason: None,
            remark: None,
        }
    }

    #[test]
    fn the_newest_ready_incarnation_is_probed() {
        let instance = InstanceId {
            application: "shop".parse().unwrap(),
            process: ProcessType::web(),
            slot: 1,
        };
        let mut targets = Targets::default();
        let mut claim = Claim::new(Timestamp(0));
        claim.incarnations.push(incarnation(1, InstanceState::Draining));
        assert_eq!(targets.claim(&instance, Some(claim.clone())), None);
        claim.incarnations.push(incarnation(2, InstanceState::Ready));
        claim.incarnations.push(incarnation(3, InstanceState::Starting));
        let target = targets.claim(&instance, Some(claim)).unwrap();
        assert_eq!(target.method, Method::Tcp { port: 20_002 });
        assert!(targets.watches(&instance));
        assert_eq!(targets.claim(&instance, None), None);
        assert!(!targets.watches(&instance));
    }
}
