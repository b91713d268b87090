//! One node: the only file that knows every part. It opens the store, starts the parts, watches
//! over them and stops them in order.

pub mod identity;
pub mod parts;

use std::net::SocketAddr;

use crate::layout::DataDirectory;

/// How one node runs. Validated where the command line is read.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    pub layout: DataDirectory,
    /// Public HTTP: requests are told apart by their Host.
    pub http: SocketAddr,
    /// Router threads; none for one per core.
    pub threads: Option<usize>,
    /// Tests may arm fail points through the API.
    pub fail_points: bool,
}
