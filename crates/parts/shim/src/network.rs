//! The description of a network of its own behind a wall: loopback, and what is passed on between
//! it and the machine.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What is passed on between the machine's network and one that has nothing but loopback.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// The ports of loopback at which the machine reaches what listens at the same ports within.
    #[serde(default)]
    pub tcp: Vec<u16>,
    #[serde(default)]
    pub udp: Vec<u16>,
    /// The services of the machine that are there within.
    #[serde(default)]
    pub services: Vec<Service>,
    /// The way out; `None` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<WayOut>,
}

/// The way to the internet, and to the machine's resolver of names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayOut {
    /// Addresses that are closed beside those of the machine and of private networks.
    #[serde(default)]
    pub closed: Vec<IpAddr>,
    /// The file with such addresses, one on each line, that are closed from the moment on at which
    /// they stand there. It is replaced and not written to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow: Option<PathBuf>,
}

/// A service of the machine that takes TCP connections from within.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// The address on the inner loopback.
    pub within: SocketAddr,
    pub at: SocketAddr,
}
