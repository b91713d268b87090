//! The platform's own name, under which its API stands beside the applications.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::certificate::DomainName;
use crate::record::Unknown;

/// The port of HTTPS, which nobody has to write.
const HTTPS_PORT: u16 = 443;

/// `cluster::address`: the name at which clients of the API find the platform, on any node that
/// serves HTTPS. Written by `cortex up`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlatformAddress {
    pub v: u32,
    pub name: DomainName,
    /// The port at which clients find it.
    pub port: u16,
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl PlatformAddress {
    /// Returns whether a host, in lower case and without a port, is this one.
    pub fn is(&self, host: &str) -> bool {
        self.name.as_str() == host
    }
}

impl fmt::Display for PlatformAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.port)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no name of a platform: write one such as cortex.example.org, or with a port")]
pub struct PlatformAddressError(String);

impl FromStr for PlatformAddress {
    type Err = PlatformAddressError;

    fn from_str(text: &str) -> Result<PlatformAddress, PlatformAddressError> {
        let error = || PlatformAddressError(text.escape_debug().take(80).collect());
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) => (name, port.parse().map_err(|_| error())?),
            None => (text, HTTPS_PORT),
        };
        let name: DomainName = name.to_ascii_lowercase().parse().map_err(|_| error())?;
        let is_public = !name.is_wild() && name.as_str().contains('.') && port > 0;
        // Names below it lead every machine to itself, and to an application here.
        if !is_public || name.as_str().ends_with(".localhost") {
            return Err(error());
        }
        Ok(PlatformAddress {
            v: crate::record::RECORD_VERSION,
            name,
            port,
            unknown: Unknown::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_platform_is_found_by_a_name_and_usually_the_port_of_https() {
        let read = |text: &str| text.parse::<PlatformAddress>().map(|address| address.to_string());
        assert_eq!(read("Cortex.Example.org").unwrap(), "cortex.example.org:443");
        assert_eq!(read("cortex.example.org:8443").unwrap(), "cortex.example.org:8443");
        for wrong in
            ["", "cortex", "192.0.2.7", "*.example.org", "a.localhost", "a.b:0", "a.b:x", "a b.c"]
        {
            read(wrong).unwrap_err();
        }
    }
}
