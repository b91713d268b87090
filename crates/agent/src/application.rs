//! One application on one node: decides what is built, started, drained and stopped here, and
//! coordinates the rollout. Pure; driven by the application's actor in the binary, which performs
//! the effects and reports what happened as events. Decides from whole state, so that any event
//! may be lost or repeated at the cost of latency alone.

use model::{Claim, Generation, InstanceId, ReleaseId, Rollout};

/// Which process exactly: a slot's place and the incarnation in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IncarnationId {
    pub instance: InstanceId,
    pub generation: Generation,
}
