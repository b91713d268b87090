//! The senders from which such headers come, and are believed.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use thiserror::Error;

/// The word by which people say that they come from everybody.
pub const ANYBODY: &str = "any";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Senders {
    Anybody,
    /// They come from these networks; all others connect for themselves.
    These(Vec<Network>),
}

/// All addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "'{0}' is no address and no network: write for example 10.0.0.5 or 10.1.0.0/16, several with \
     commas, or {ANYBODY}"
)]
pub struct NoNetwork(String);

impl Senders {
    pub fn includes(&self, address: IpAddr) -> bool {
        match self {
            Senders::Anybody => true,
            Senders::These(networks) => networks.iter().any(|network| network.includes(address)),
        }
    }
}

impl Network {
    fn includes(self, address: IpAddr) -> bool {
        // Where no bits count, a plain shift by all of them would leave all.
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.checked_shr(32 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.checked_shr(128 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

fn bits_max(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl FromStr for Network {
    type Err = NoNetwork;

    fn from_str(text: &str) -> Result<Network, NoNetwork> {
        let wrong = || NoNetwork(text.into());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits = bits.unwrap_or(bits_max(address));
        if bits > bits_max(address) { Err(wrong()) } else { Ok(Network { address, bits }) }
    }
}

impl FromStr for Senders {
    type Err = NoNetwork;

    fn from_str(text: &str) -> Result<Senders, NoNetwork> {
        match text {
            ANYBODY => Ok(Senders::Anybody),
            list => list.split(',').map(str::parse).collect::<Result<_, _>>().map(Senders::These),
        }
    }
}

impl fmt::Display for Senders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Senders::Anybody => f.write_str(ANYBODY),
            Senders::These(networks) => {
                let texts = networks.iter().map(|one| format!("{}/{}", one.address, one.bits));
                f.write_str(&texts.collect::<Vec<_>>().join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn includes(senders: &str, address: &str) -> bool {
        senders.parse::<Senders>().unwrap().includes(address.parse().unwrap())
    }

    #[test]
    fn networks_are_those_with_the_same_first_bits() {
        assert!(includes("10.0.0.5", "10.0.0.5") && !includes("10.0.0.5", "10.0.0.4"));
        assert!(includes("10.0.0.5", "::ffff:10.0.0.5"), "as a socket of both families says it");
        assert!(includes("10.1.0.0/16", "10.1.255.1") && !includes("10.1.0.0/16", "10.2.0.1"));
        assert!(includes("192.0.2.1,10.1.0.0/16", "10.1.0.1"));
        assert!(includes("0.0.0.0/0", "203.0.113.9") && !includes("0.0.0.0/0", "2001:db8::1"));
        assert!(includes("2001:db8::/32", "2001:db8:1::1") && !includes("2001:db8::/32", "::1"));
        assert!(includes("::/0", "2001:db8::1") && !includes("::1", "127.0.0.1"));
        assert!(includes("any", "203.0.113.9") && includes("any", "::1"));
    }

    #[test]
    fn networks_are_read_back_and_nonsense_is_refused() {
        for text in ["any", "10.0.0.5/32", "10.1.0.0/16,2001:db8::/32"] {
            assert_eq!(text.parse::<Senders>().unwrap().to_string(), text);
        }
        for bad in ["", "10.0.0", "10.0.0.5,", "10.0.0.5/33", "::/129", "a/8", "1.2.3.4/x", "all"] {
            assert!(bad.parse::<Senders>().is_err(), "{bad}");
        }
    }
}
