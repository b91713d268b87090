//! store (once Miranda): the replicated key-value machine. Owns the order of commits, who wins a
//! key, the ids of histories, the framing of the log and who must be told of a change. Must not
//! know what the values mean, nor files, sockets and clocks; driven by the binary's store shell.

pub mod clock;
pub mod commit;
pub mod event;
pub mod expiry;
pub mod frame;
pub mod history;
pub mod machine;
pub mod mutants;
pub mod past;
pub mod record;
pub mod replica;
pub mod resp;
pub mod sum;
pub mod sync;
pub mod watch;
pub mod winners;

pub use clock::{HybridClock, Stamp};
pub use commit::{Commit, CommitAction, Location, NodeTag, Position};
pub use event::{BatchEntry, Change, Effect, Event, Ticket, Write};
pub use expiry::Expiry;
pub use machine::StoreMachine;
pub use machine::stamps::ClockDoubt;
pub use past::Past;
pub use replica::{Frozen, Horizons, Replica};
pub use sum::{CommitSum, Fingerprint};
