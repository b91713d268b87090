//! Linux as the parts of a node need it, without a runtime: processes and what they listen on,
//! sockets that are handed on, locks, the names in a data directory, copies of the binary. Must not
//! know the store, the network's peers, or what processes are for.

pub mod activation;
pub mod allocated;
pub mod archive;
pub mod beneath;
pub mod binaries;
pub mod directory;
pub mod finishing;
pub mod footprint;
pub mod inherited;
pub mod layout;
pub mod lockfile;
pub mod loopback;
pub mod observe;
pub mod passing;
pub mod platform_log;
pub mod secret_file;
pub mod shared_port;
pub mod stamp;
pub mod unswapped;
