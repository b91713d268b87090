//! One application on one node: decides what is built, started, drained and stopped here, and
//! coordinates the rollout. Pure; driven by the application's actor in the binary, which performs
//! the effects and reports what happened as events. Decides from whole state, so that any event
//! may be lost or repeated at the cost of latency alone.

use std::time::Duration;

use model::application::Health;
use model::instance::ProcessIdentity;
use model::probe::Verdict;
use model::{
    ApplicationSpec, Claim, Generation, InstanceId, ProcessType, Release, ReleaseId, Rollout,
};

/// Which process exactly: a slot's place and the incarnation in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IncarnationId {
    pub instance: InstanceId,
    pub generation: Generation,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Records as they are in the store now; none when deleted. At start the actor feeds all of
    /// them, then `Adopted`; only then does the machine decide anything.
    Spec(Option<ApplicationSpec>),
    Release(ReleaseId, Option<Release>),
    Rollout(Option<Rollout>),
    /// This node's own claims: read at start, ignored afterwards (nobody else writes them).
    Claim(InstanceId, Claim),
    /// This node's checker's verdict.
    Verdict(InstanceId, Option<Verdict>),
    /// Which processes of this application the shims on this node hold.
    Adopted(Vec<Adopted>),

    /// Answer to `Build`.
    Built {
        release: ReleaseId,
        result: Result<(), Failure>,
    },
    /// Answer to `RunReleaseSteps`.
    Released {
        release: ReleaseId,
        result: Result<(), Failure>,
    },
    /// Answer to `Start`: the process exists. `Exited` follows once, whenever that is.
    Started {
        id: IncarnationId,
        process: ProcessIdentity,
        port: Option<u16>,
    },
    /// Answer to `Start`: no process came into being.
    StartFailed {
        id: IncarnationId,
        why: String,
    },
    /// Answers to `AwaitHealthy`. `warning` names an address other than loopback that was bound.
    Healthy {
        id: IncarnationId,
        warning: Option<String>,
    },
    /// Not healthy yet; repeated when the detail changes. The machine keeps the time limit.
    NotYetHealthy {
        id: IncarnationId,
        detail: String,
    },
    /// The whole process tree is gone.
    Exited {
        id: IncarnationId,
        exit: Exit,
    },
    /// The router sends nothing there any more and nothing is in flight.
    Drained {
        id: IncarnationId,
    },
    /// Resident memory of the whole process tree.
    Memory {
        id: IncarnationId,
        bytes: u64,
    },
    /// `cortex down`: stop everything, start nothing.
    Shutdown,
}

/// What a shim says of the process it holds, or held.
#[derive(Clone, Debug, PartialEq)]
pub struct Adopted {
    pub id: IncarnationId,
    pub process: ProcessIdentity,
    pub port: Option<u16>,
    /// Set when it ended while nobody listened.
    pub exit: Option<Exit>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// For people: "exit status 1", "killed by signal 9".
    pub how: String,
    /// Exit status 0.
    pub success: bool,
    /// The end of its output.
    pub last_words: String,
}

/// Why a build or release step failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// One sentence: "Installing gems failed with exit status 1".
    pub why: String,
    /// The end of the step's output.
    pub last_words: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Unpack and run the build steps, unless that was done. Safe to repeat.
    Build {
        release: Release,
    },
    /// Run the release steps (migrations) in the built release.
    RunReleaseSteps {
        release: Release,
    },
    /// Start one process of a built release. Web processes get a free port.
    Start {
        id: IncarnationId,
        release: Release,
        process: ProcessType,
    },
    /// Probe until healthy or the process exits: the port bound by the process's tree, then the
    /// HTTP path where set. Without a port (workers): alive for a second.
    AwaitHealthy {
        id: IncarnationId,
        port: Option<u16>,
        health: Health,
    },
    /// SIGTERM to the whole tree, SIGKILL after `grace`. `Exited` follows.
    Stop {
        id: IncarnationId,
        grace: Duration,
    },
    /// The exit was taken note of: what the shim left on disk may go.
    Forget {
        id: IncarnationId,
    },
    /// Durable before the next effect.
    WriteClaim {
        instance: InstanceId,
        claim: Option<Claim>,
    },
    WriteRollout(Rollout),
    /// One line for people, into the application's own log.
    Note(String),
    /// Directories of all other releases may be removed.
    PruneReleases {
        keep: Vec<ReleaseId>,
    },
    /// After `Shutdown` or the deletion of the specification: nothing runs here any more.
    AllStopped,
}
