//! Tests of several parts of a node together.

#[cfg(feature = "store-etcd")]
// The tests of the store itself use more of it.
#[allow(dead_code)]
#[path = "../../parts/store-etcd/src/tests/server.rs"]
mod etcd_server;
mod transfer;
