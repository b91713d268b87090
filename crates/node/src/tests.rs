//! Tests of several parts of a node together.

#[cfg(feature = "store-etcd")]
#[expect(dead_code, reason = "the tests of the store itself use more of it")]
#[path = "../../parts/store-etcd/src/tests/server.rs"]
mod etcd_server;
mod transfer;
