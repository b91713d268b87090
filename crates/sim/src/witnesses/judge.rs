//! The judge: what must be true of what a node believes of its instances.

use super::World;

/// The time until a witness has asked again and was heard, or counts as dead: two intervals, a call
/// that is given up, a record on its way, and liveness.
const OVER_MAX_MS: u64 = 18_000;

impl World {
    /// Asserts that an instance that is well is not held to be ill for long, whichever node is cut
    /// off, stands still or is mistaken. What a witness said before it was away is believed again
    /// once it is back, until it has asked anew.
    pub(super) fn judge(&self) {
        for (host, of) in self.hosts.iter().enumerate() {
            for instance in of.instances.iter().filter(|instance| instance.well) {
                let Some(standing) = &instance.standing else { continue };
                let since = instance.changed_at.max(standing.changed_at.0);
                let long = self.now - since > OVER_MAX_MS;
                let id = &instance.id;
                assert!(!long, "{id} on node {host} is well, and not believed to be: {standing:?}");
            }
        }
    }

    /// Asserts that all is known when nothing has happened for long.
    pub fn judge_quiet(&self) {
        for (host, of) in self.hosts.iter().enumerate() {
            for instance in &of.instances {
                let (id, standing) = (&instance.id, &instance.standing);
                let known = standing.is_none() == instance.well;
                assert!(known, "{id} on node {host}: well {}, {standing:?}", instance.well);
            }
        }
    }
}
