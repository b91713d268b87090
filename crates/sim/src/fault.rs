//! The faults of the world of one node, and counts of them: a fault that never happens tests
//! nothing.

use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    Crash,
    CrashLoop,
    Hang,
    IgnoredTerm,
    Memory,
    SlowDrain,
    NodeCrash,
    Shutdown,
    ActorPanic,
    LostAnswer,
    LostNotice,
    RepeatedNotice,
    DelayedNotice,
    LostDrained,
    LostClaim,
    Destroyed,
    Kept,
    Restored,
    BadBuild,
    BadReleaseStep,
    ExitAtStart,
    NeverReady,
    StartFailed,
    Dies,
    TakenBack,
}

impl Fault {
    pub const ALL: [Fault; 25] = [
        Fault::Crash,
        Fault::CrashLoop,
        Fault::Hang,
        Fault::IgnoredTerm,
        Fault::Memory,
        Fault::SlowDrain,
        Fault::NodeCrash,
        Fault::Shutdown,
        Fault::ActorPanic,
        Fault::LostAnswer,
        Fault::LostNotice,
        Fault::RepeatedNotice,
        Fault::DelayedNotice,
        Fault::LostDrained,
        Fault::LostClaim,
        Fault::Destroyed,
        Fault::Kept,
        Fault::Restored,
        Fault::BadBuild,
        Fault::BadReleaseStep,
        Fault::ExitAtStart,
        Fault::NeverReady,
        Fault::StartFailed,
        Fault::Dies,
        Fault::TakenBack,
    ];
}

pub type Counts = BTreeMap<Fault, u64>;

/// How bad the world is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// Everything takes the same short time and nothing goes wrong by itself.
    Still,
    /// Times vary, the node dies and notices are lost, but no process fails by itself: then no
    /// request may fail either.
    Fair,
    /// All faults happen.
    Storm,
}
