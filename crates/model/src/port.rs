//! Ports of an application that speak something else than HTTP: what a release asks for, and how
//! one of them is named.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::id::ProcessType;

#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    #[default]
    Tcp,
    Udp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        })
    }
}

/// A public port, written `1883/tcp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortId {
    pub port: u16,
    pub transport: Transport,
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("this is no port: write for example '1883/tcp'")]
pub struct BadPort;

impl PortId {
    pub fn tcp(port: u16) -> PortId {
        PortId { port, transport: Transport::Tcp }
    }

    pub fn udp(port: u16) -> PortId {
        PortId { port, transport: Transport::Udp }
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.port, self.transport)
    }
}

impl FromStr for PortId {
    type Err = BadPort;

    fn from_str(text: &str) -> Result<PortId, BadPort> {
        let (port, transport) = text.split_once('/').ok_or(BadPort)?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or(BadPort)?;
        match transport {
            "tcp" => Ok(PortId::tcp(port)),
            "udp" => Ok(PortId::udp(port)),
            _ => Err(BadPort),
        }
    }
}

impl TryFrom<String> for PortId {
    type Error = BadPort;

    fn try_from(text: String) -> Result<PortId, BadPort> {
        text.parse()
    }
}

impl From<PortId> for String {
    fn from(id: PortId) -> String {
        id.to_string()
    }
}

/// The ports on its node's loopback at which a process listens for what comes to each public port.
pub type InstancePorts = BTreeMap<PortId, u16>;

/// The way in which an instance is told who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProxyProtocol {
    V1,
    V2,
}

/// The recipe of a public port: every router listens on `id` and passes on what comes there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRecipe {
    pub id: PortId,
    pub process: ProcessType,
    /// The variable that says where an instance is to listen.
    pub env: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<ProxyProtocol>,
    /// The milliseconds of silence after which a connection or a flow is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_read_back_and_nonsense_refused() {
        for id in [PortId::tcp(1883), PortId::udp(53)] {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for text in ["1883", "0/tcp", "70000/udp", "53/sctp", "/tcp", "tcp/53"] {
            assert_eq!(text.parse::<PortId>(), Err(BadPort), "{text}");
        }
        let ports = InstancePorts::from([(PortId::tcp(1883), 20_001)]);
        let text = serde_json::to_string(&ports).unwrap();
        assert_eq!(text, r#"{"1883/tcp":20001}"#);
        assert_eq!(serde_json::from_str::<InstancePorts>(&text).unwrap(), ports);
    }
}
