//! store (once Miranda): the replicated key-value machine. Owns the order of commits, who wins a
//! key, the ids of histories, the framing of the log and who must be told of a change. Must not
//! know what the values mean, nor files, sockets and clocks; driven by the binary's store shell.

pub mod clock;
pub mod commit;
pub mod expiry;
pub mod frame;
pub mod history;
pub mod machine;
pub mod record;
pub mod replica;
pub mod resp;
pub mod sum;
pub mod watch;
pub mod winners;

pub use clock::{HybridClock, Stamp};
pub use commit::{Action, Commit, Location, NodeTag, Position};
pub use expiry::Expiry;
pub use machine::{Change, Effect, Event, StoreMachine, Ticket, Write};
pub use replica::{Frozen, Horizons, Replica};
pub use sum::{CommitSum, Fingerprint};
