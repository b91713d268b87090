//! Node to node: one mutual-TLS stream per peer, found by the roster, kept alive, refused to
//! strangers. A node that is alone opens no port and runs none of this until it is asked for an
//! invitation. Owns the life of the transport; the store's machine decides what is said over it.

pub mod adding;
pub mod apart;
pub mod credential;
pub mod dial;
mod doors;
pub mod frame;
pub mod handshakes;
pub mod identity;
pub mod invitation;
pub mod join;
pub mod link;
mod links;
mod listen;
mod listening;
mod liveness;
mod net;
pub mod options;
mod outbox;
pub mod peers;
pub mod prepare;
pub mod remote;
mod reports;
pub mod roster;
pub mod routers;
pub mod status;
mod store_role;
mod streams;
pub mod tls;
