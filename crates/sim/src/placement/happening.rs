//! The events that are still to happen.

use agent_core::application::{Event, IncarnationId};
use checker_core::{ProbeOutcome, Witnessed};
use model::{ApplicationName, Generation, InstanceId, ReleaseId};

use super::checking::Part;
use super::replica::{Key, Record, Stamp};

#[derive(Clone, Debug)]
pub(super) enum Happening {
    /// A record arrives.
    Arrives {
        at: usize,
        key: Key,
        stamp: Stamp,
        record: Option<Record>,
    },
    PlacementTick {
        at: usize,
        life: u64,
    },
    ApplicationTick {
        at: usize,
        life: u64,
        name: ApplicationName,
    },
    ToApplication {
        at: usize,
        life: u64,
        actor: u64,
        name: ApplicationName,
        event: Event,
    },
    /// A command that read the numbers of releases a while ago writes its own.
    Push {
        at: usize,
        name: ApplicationName,
        number: u64,
    },
    /// A process starts.
    Launch {
        at: usize,
        life: u64,
        id: IncarnationId,
        release: ReleaseId,
    },
    Exit {
        at: usize,
        id: IncarnationId,
        lease_over: bool,
    },
    /// An actor that faulted starts again.
    ActorUp {
        at: usize,
        life: u64,
        name: ApplicationName,
    },
    /// One node looks whether another one answers.
    Look {
        at: usize,
        of: usize,
    },
    Up {
        at: usize,
    },
    Thaw {
        at: usize,
    },
    /// A node process that hung goes on.
    Wake {
        at: usize,
    },
    DiskFree {
        at: usize,
    },
    /// Shims stop what runs, if the node is still away.
    LeaseEnds {
        at: usize,
    },
    /// The checker with this number is driven.
    CheckerTick {
        at: usize,
        number: u64,
    },
    /// A probe looks at an instance of its own node.
    Probe {
        at: usize,
        number: u64,
        instance: InstanceId,
        generation: Generation,
    },
    /// The question of a witness arrives.
    Asked {
        from: usize,
        number: u64,
        of: Witnessed,
        generation: Generation,
    },
    /// A witness has its answer, or none.
    Answered {
        at: usize,
        number: u64,
        of: Witnessed,
        generation: Generation,
        outcome: ProbeOutcome,
    },
    /// A write that a full disk refused is tried once more.
    WriteAgain {
        at: usize,
        life: u64,
    },
    /// A part that failed starts again.
    PartUp {
        at: usize,
        life: u64,
        part: Part,
    },
    /// A checker that hung is driven again.
    CheckerGoesOn {
        at: usize,
        life: u64,
    },
    /// Nothing was heard of a checker for too long.
    CheckerSilent {
        at: usize,
        life: u64,
    },
    /// A checker that was taken off is tried again.
    CheckerTried {
        at: usize,
        life: u64,
    },
    /// A checker has worked for a while.
    CheckerProven {
        at: usize,
        life: u64,
    },
    /// An ill instance is well again.
    Recovers {
        at: usize,
        id: IncarnationId,
    },
    Sample,
}
