//! The other end of a connection, as the connection itself tells it and not as a request says.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use model::value::ContentHash;
use runtime::lock::locked;
use tokio::sync::watch;

/// The bits of an IPv6 address that tell one customer of a network from another.
const NETWORK_BITS: u32 = 64;

#[derive(Clone, Debug)]
pub enum Peer {
    /// An account of this machine.
    Socket { uid: u32 },
    /// A client somewhere, about whom only its token says something.
    Network(Arc<Connection>),
}

/// One connection of a client over the network.
#[derive(Debug)]
pub struct Connection {
    pub from: IpAddr,
    /// The tokens that were shown on it. It ends with any of them.
    tokens: Mutex<BTreeSet<ContentHash>>,
    ended: watch::Sender<bool>,
}

impl Connection {
    pub fn new(from: IpAddr) -> Connection {
        let ended = watch::channel(false).0;
        Connection { from: from.to_canonical(), tokens: Mutex::default(), ended }
    }

    /// Returns the address, or for IPv6 the network, by which somebody is known who asks too often.
    pub fn network(&self) -> IpAddr {
        match self.from {
            IpAddr::V4(_) => self.from,
            IpAddr::V6(ip) => {
                let mask = u128::MAX << (u128::BITS - NETWORK_BITS);
                IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & mask))
            }
        }
    }

    pub fn note(&self, token: ContentHash) {
        locked(&self.tokens).insert(token);
    }

    pub fn tokens(&self) -> BTreeSet<ContentHash> {
        locked(&self.tokens).clone()
    }

    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Waits until the connection is ended from this side.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.subscribe();
        async move {
            if ended.wait_for(|ended| *ended).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Socket { uid } => write!(f, "socket, uid {uid}"),
            Peer::Network(connection) => write!(f, "{}", connection.from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_customer_has_one_network() {
        let network = |from: &str| Connection::new(from.parse().unwrap()).network().to_string();
        assert_eq!(network("192.0.2.7"), "192.0.2.7");
        assert_eq!(network("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    }
}
