//! The faults among nodes, and counts of them: a fault that never happens tests nothing.

use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A connection was cut, and what was on its way is gone.
    Cut,
    /// A message of a connection that was cut came after all, behind those of the next one.
    Late,
    /// A message took seconds.
    Delay,
    /// An old message came again.
    Replay,
    Partition,
    /// One direction is dead, the other works.
    OneWay,
    Crash,
    /// A crash left at most a part of a batch behind; `WrittenUnheard`: all of it, though nobody
    /// was told.
    TornWrite,
    WrittenUnheard,
    Shutdown,
    FullDisk,
    SlowDisk,
    /// An older copy of the disk was put back.
    Rollback,
    LostDisk,
    ClockForth,
    ClockBack,
    /// A clock is wrong by more than nodes accept, but by less than a minute.
    ClockSkew,
    TrustedClock,
    Join,
    /// A node joined that had written by itself before.
    JoinWithPast,
    Eviction,
    Rejoin,
    Squash,
    WrongLiveness,
    LargeValue,
    CutFetch,
    Expiry,
}

impl Fault {
    pub const ALL: [Fault; 27] = [
        Fault::Cut,
        Fault::Late,
        Fault::Delay,
        Fault::Replay,
        Fault::Partition,
        Fault::OneWay,
        Fault::Crash,
        Fault::TornWrite,
        Fault::WrittenUnheard,
        Fault::Shutdown,
        Fault::FullDisk,
        Fault::SlowDisk,
        Fault::Rollback,
        Fault::LostDisk,
        Fault::ClockForth,
        Fault::ClockBack,
        Fault::ClockSkew,
        Fault::TrustedClock,
        Fault::Join,
        Fault::JoinWithPast,
        Fault::Eviction,
        Fault::Rejoin,
        Fault::Squash,
        Fault::WrongLiveness,
        Fault::LargeValue,
        Fault::CutFetch,
        Fault::Expiry,
    ];
}

pub type Counts = BTreeMap<Fault, u64>;
