//! What is still to happen.

use agent::application::{Event, IncarnationId};
use model::{ApplicationName, ReleaseId};

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
    /// A process comes into being.
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
    Sample,
}
