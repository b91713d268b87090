//! The events and effects of the application's machine. Data alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::application::{Health, Holder, InstanceProtocol};
use model::instance::ProcessIdentity;
use model::port::InstancePorts;
use model::probe::Verdict;
use model::{
    ApplicationSpec, BuildId, Claim, Generation, InstanceId, NodeId, Outcome, ProcessType, Release,
    ReleaseId, Rollout, Timestamp,
};

use super::building::BuildCandidate;
use crate::placement::Hold;

/// The exact process: a slot's place and the incarnation in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IncarnationId {
    pub instance: InstanceId,
    pub generation: Generation,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Records as they are in the store now; `None` if deleted. At start the actor feeds all of
    /// them, then `Adopted`; only then does the machine decide anything.
    Spec(Option<ApplicationSpec>),
    /// Whether the application of this name that was created then is on record as destroyed.
    Destroyed {
        created_at: Timestamp,
        destroyed: bool,
    },
    Release(ReleaseId, Option<Release>),
    Outcome(ReleaseId, Option<Outcome>),
    Rollout(Option<Rollout>),
    /// This node's own claims: read at start, ignored afterwards (nobody else writes them).
    Claim(InstanceId, Claim),
    /// Another node's claim on one of the application's slots.
    Other(InstanceId, NodeId, Option<Claim>),
    /// The nodes that count as alive, this one included.
    Live(BTreeSet<NodeId>),
    /// The places that this node runs, from placement. A node that never hears of any runs all.
    Places(BTreeMap<(ProcessType, model::Slot), Hold>),
    /// The node that has the files of the persistent paths.
    Holder(Option<Holder>),
    /// This node's checker's verdict.
    Verdict(InstanceId, Option<Verdict>),
    /// The processes of this application that the shims on this node hold.
    Adopted(Vec<Adopted>),

    /// The answer to `Build`.
    Built {
        release: ReleaseId,
        result: Result<(), StepFailure>,
    },
    /// The answer to `Fetch`; an error says why it could not be had.
    Fetched {
        release: ReleaseId,
        result: Result<(), String>,
    },
    /// The answer to `Share`.
    Shared {
        release: ReleaseId,
        result: Result<(), String>,
    },
    /// The answer to `FindBuilders`: all nodes with an agent that may be given something.
    Builders {
        release: ReleaseId,
        candidates: Vec<BuildCandidate>,
    },
    /// What `builder` built can be fetched, and whether it runs here; `None` if it is gone.
    Artefact {
        build: BuildId,
        builder: NodeId,
        fits: Option<bool>,
    },
    /// The answer to `RunReleaseSteps`.
    Released {
        release: ReleaseId,
        result: Result<(), StepFailure>,
    },
    /// The answer to `Start` where the process exists. `Exited` follows once, whenever that is.
    Started {
        id: IncarnationId,
        process: ProcessIdentity,
        port: Option<u16>,
        ports: InstancePorts,
    },
    /// The answer to `Start` where no process came into being.
    StartFailed {
        id: IncarnationId,
        why: String,
    },
    /// The answer to `AwaitHealthy`. `warning` names an address other than loopback that was bound;
    /// `remark` says what is odd about its first answer.
    Healthy {
        id: IncarnationId,
        warning: Option<String>,
        remark: Option<String>,
    },
    /// It is not healthy yet; repeated when the detail changes. The machine keeps the time limit.
    NotYetHealthy {
        id: IncarnationId,
        detail: String,
        mistake: Option<Mistake>,
    },
    /// It will not become healthy: that lasted too long.
    Hopeless {
        id: IncarnationId,
        detail: String,
        mistake: Mistake,
    },
    /// The whole process tree is gone.
    Exited {
        id: IncarnationId,
        exit: Exit,
    },
    /// The router no longer sends anything there and nothing is in flight.
    Drained {
        id: IncarnationId,
    },
    /// The resident memory of the whole process tree.
    Memory {
        id: IncarnationId,
        bytes: u64,
    },
    /// `cortex down`: everything is stopped, nothing started.
    Shutdown,
}

/// What an application does that keeps it from becoming ready, and that it has to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// It listens on another port than `$PORT`.
    Port,
    /// It listens on `$PORT`, where `$HOST` does not reach it.
    Address,
    /// Its worker processes end one after the other.
    Workers,
}

/// What a shim says of the process it holds, or held.
#[derive(Clone, Debug, PartialEq)]
pub struct Adopted {
    pub id: IncarnationId,
    pub process: ProcessIdentity,
    pub port: Option<u16>,
    pub ports: InstancePorts,
    /// The end of the process, if that came while nobody listened.
    pub exit: Option<Exit>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// The end in words for people: "exit status 1", "killed by signal 9".
    pub how: String,
    /// Whether it was exit status 0.
    pub success: bool,
    /// The status as a shell counts it: 128 and the number of the signal that killed it.
    pub code: Option<u8>,
    /// The end of its output.
    pub last_words: String,
    /// Whether its shim stopped it, as no node process spoke to it for longer than the lease.
    pub lease_over: bool,
    /// What it exceeded, if its shim stopped it for taking more than it may: "used more than 512
    /// MB".
    pub over_cap: Option<String>,
    /// Whether its first process ended by itself with exit status 0 while others of its tree went
    /// on.
    pub background: bool,
}

/// The reason why a build or release step failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepFailure {
    /// The reason in one sentence: "Installing gems failed with exit status 1".
    pub why: String,
    /// The end of the step's output.
    pub last_words: String,
    /// Whether a program is missing on this machine: another one may have it.
    pub lacks_tool: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Unpack and run the build steps, unless that was done. Safe to repeat.
    Build {
        release: Release,
    },
    /// Unpack what another node has built, unless that or a build was done.
    Fetch {
        release: Release,
        builder: NodeId,
    },
    /// Make what was built here available to other nodes, unless that was done.
    Share {
        release: Release,
    },
    /// Find out which nodes could build it, and how busy they are.
    FindBuilders {
        release: ReleaseId,
    },
    /// Run the release steps (migrations) in the built release.
    RunReleaseSteps {
        release: Release,
    },
    /// Start one process of a built release. Each web process gets a free port, and each process
    /// those that the release names for it.
    Start {
        id: IncarnationId,
        release: Release,
        process: ProcessType,
    },
    /// Probe until healthy or the process exits: the ports bound by the process's tree, then the
    /// HTTP path if set, otherwise any answer over HTTP or a settling time. Without a port
    /// (workers): alive for a second.
    AwaitHealthy {
        id: IncarnationId,
        port: Option<u16>,
        ports: InstancePorts,
        health: Health,
        protocol: InstanceProtocol,
    },
    /// Send SIGTERM to the whole tree, SIGKILL after `grace`. `Exited` follows.
    Stop {
        id: IncarnationId,
        grace: Duration,
    },
    /// Remove what the shim left on disk, as the exit was taken note of.
    Forget {
        id: IncarnationId,
    },
    /// Write the claim, durably before the next effect.
    WriteClaim {
        instance: InstanceId,
        claim: Option<Claim>,
    },
    WriteRollout(Rollout),
    WriteHolder(Holder),
    /// Write the specification again, unless the store has this application's meanwhile.
    WriteSpec(ApplicationSpec),
    /// Remove what is stored of applications of this name that were destroyed, as `remains` says.
    ClearRemains,
    /// Write the outcome, which is kept as long as the release, whatever is rolled out later;
    /// remove it if there is none.
    WriteOutcome {
        release: ReleaseId,
        outcome: Option<Outcome>,
    },
    /// Make a release that is `to` again, and ask for it, unless that was done. `taken_back` says
    /// what is to be written.
    TakeBack {
        from: ReleaseId,
        to: ReleaseId,
    },
    /// Say that what was to run here cannot be prepared or started here.
    Unfit,
    /// Say that what was unfit is no longer wanted.
    Fit,
    /// Write one line for people into the application's own log.
    Note(String),
    /// Say in the application's log what `old` wrote into the tree of its build, as `new` has
    /// another one.
    NameWritten {
        old: Release,
        new: Release,
    },
    /// Remove all other builds, if needed. The first `needed` of those to keep run or are about to,
    /// the others are for rollbacks as far as there is room, the likeliest first.
    PruneBuilds {
        keep: Vec<BuildId>,
        needed: usize,
    },
    /// Say, after `Shutdown` or the deletion of the specification, that nothing runs here any more.
    AllStopped,
}
