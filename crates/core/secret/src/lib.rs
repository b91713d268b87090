//! Secrets at rest: how a value is sealed for its key of the store, which keys seal and open, and
//! how a cluster goes from one key to the next; the format of files that a pass-phrase opens
//! (`age`). Must not know files, the network or the store; randomness comes in. The part `secrets`
//! drives it.

pub mod age;
pub mod keyring;
pub mod rotation;
pub mod sealed;

pub use keyring::KeyRing;
pub use rotation::{Next, Picture, Step};
pub use sealed::{OpenError, SealingKey};
