//! Vocabulary and contract shared by every part of Cortex: identifiers, time, the records kept in
//! the store under typed keys, hashes that all nodes agree on, and the contract of a state machine.
//! Data only: nothing here decides and nothing here does I/O.

pub mod access;
pub mod acme;
pub mod application;
pub mod audit;
pub mod backup;
pub mod build;
pub mod certificate;
pub mod change;
pub mod cron;
pub mod hash;
pub mod hex;
pub mod id;
pub mod instance;
pub mod key;
pub mod machine;
pub mod mutants;
pub mod never_public;
pub mod node;
pub mod people;
pub mod platform_address;
pub mod port;
pub mod probe;
pub mod record;
pub mod release;
pub mod request;
pub mod role;
pub mod rollout;
pub mod secrets;
pub mod time;
pub mod upgrade;
pub mod value;
pub mod wall;

pub use application::{ApplicationSpec, ProcessSpec};
pub use build::BuildId;
pub use certificate::{Certificate, CertificateName, DomainName};
pub use id::{
    ApplicationName, Generation, InstanceId, NodeId, ProcessType, ReleaseId, Slot, TeamName,
    TokenName, UserName,
};
pub use instance::{Claim, Incarnation, InstanceState};
pub use key::{Key, Prefix, TypedKey};
pub use machine::Machine;
pub use platform_address::PlatformAddress;
pub use port::PortId;
pub use release::{Recipe, Release};
pub use rollout::{Fate, Outcome, Rollout, RolloutPhase};
pub use time::Timestamp;
pub use value::ValueRef;
pub use wall::{AskedIsolation, Egress, Isolation, IsolationDefault, IsolationMark, Wall, Walls};
