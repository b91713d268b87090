//! What travels when a person's client meets a cluster: the line of an invitation, where the nodes
//! are, and who somebody is there.

use std::fmt;
use std::str::FromStr;

use model::hex::from_hex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::people::{GrantRow, TokenRow};

/// The host that clients ask for, whatever the address of the node.
pub const HOST: &str = "cortex";
/// The header of each answer that tells the roster of nodes from others.
pub const ROSTER_HEADER: &str = "cortex-roster";
/// The beginning of a code, as of each token.
const CODE_BEGINS: &str = "cortex_";
/// The port of a platform with a name of its own, unless another one is named.
const HTTPS_PORT: u16 = 443;
/// The length of an address in bytes: a host name of 255 and a port.
const ADDRESS_BYTES_MAX: usize = 262;
/// The most addresses of a line; each costs a moment if nobody is there.
const ADDRESSES_MAX: usize = 8;

/// The addresses at which clients find a node, and the key that it shows there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeReach {
    pub id: String,
    /// `HOST:PORT` each, the best first.
    pub addresses: Vec<String>,
    /// The BLAKE3 of the public key of its certificate, in hexadecimal digits; empty where an
    /// authority of the web vouches for the host, which is the platform's own name.
    pub fingerprint: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InviteUser {
    /// The hours for which it is good; 24 if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hours: Option<u32>,
    /// The addresses at which the client will find this node, as `HOST:PORT`; those at which other
    /// nodes find it if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

/// An invitation; its line is in this answer and nowhere else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UserInvitation {
    pub user: String,
    /// What `cortex login` takes.
    pub line: String,
    pub addresses: Vec<String>,
    pub fingerprint: String,
    pub expires_at: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogIn {
    /// The name that the token is to have, such as that of the machine.
    pub name: String,
}

/// The answer to a login; the text of its token is in it and nowhere else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoggedIn {
    pub token: String,
    #[serde(flatten)]
    pub row: TokenRow,
    pub cluster: String,
    pub roster: String,
    pub nodes: Vec<NodeReach>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Whoami {
    pub user: String,
    /// Whether it is the owner of the machine, who needs no token.
    pub machine: bool,
    pub roles: Vec<GrantRow>,
    pub token: Option<TokenRow>,
    /// The node that answered.
    pub node: String,
    pub cluster: String,
    /// What tells these nodes from others, as the header of each answer does.
    pub roster: String,
    pub nodes: Vec<NodeReach>,
}

/// How a node is found by those who have no context yet: `HOST:PORT,HOST:PORT#FINGERPRINT`, as the
/// value of CORTEX_URL with `https://` before it. `https://NAME` alone is a platform with a name of
/// its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterUrl {
    pub addresses: Vec<String>,
    /// Empty where the web vouches for the one address, whose host is a name.
    pub fingerprint: String,
}

/// The word that `cortex login` takes: `HOST:PORT,HOST:PORT#FINGERPRINT.CODE`, or
/// `https://NAME#CODE`.
#[derive(Clone, PartialEq, Eq)]
pub struct LoginLine {
    pub url: ClusterUrl,
    /// A token for one use.
    pub code: String,
}

/// Hides the code, so that it is never in a log.
impl fmt::Debug for LoginLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoginLine").field("url", &self.url).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ReachError {
    #[error("it has a line break or a space in it: paste it as one word")]
    WhiteSpace,
    #[error("it has no '#': it was cut")]
    NoFingerprint,
    #[error("its fingerprint is not of 64 hexadecimal digits: it was cut")]
    Fingerprint,
    #[error("there is no code at its end: it was cut")]
    NoCode,
    #[error("'{0}' is no address: write HOST:PORT, for example 192.0.2.7:8205")]
    Address(String),
    #[error("it has {0} addresses, and {ADDRESSES_MAX} are the most")]
    Addresses(usize),
}

impl fmt::Display for ClusterUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self.addresses.join(",");
        match self.fingerprint.is_empty() {
            true => write!(f, "https://{}", addresses.strip_suffix(":443").unwrap_or(&addresses)),
            false => write!(f, "{addresses}#{}", self.fingerprint),
        }
    }
}

impl fmt::Display for LoginLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = if self.url.fingerprint.is_empty() { '#' } else { '.' };
        write!(f, "{}{before}{}", self.url, self.code)
    }
}

impl FromStr for ClusterUrl {
    type Err = ReachError;

    fn from_str(text: &str) -> Result<ClusterUrl, ReachError> {
        let text = text.trim();
        if text.contains(char::is_whitespace) {
            return Err(ReachError::WhiteSpace);
        }
        let is_url = text.starts_with("https://");
        let text = text.strip_prefix("https://").unwrap_or(text);
        let Some((addresses, fingerprint)) = text.split_once('#') else {
            let address = is_url.then(|| named_address(text)).flatten();
            let addresses = vec![address.ok_or(ReachError::NoFingerprint)?];
            return Ok(ClusterUrl { addresses, fingerprint: String::new() });
        };
        let addresses = addresses.strip_suffix('/').unwrap_or(addresses);
        let addresses: Vec<String> = addresses.split(',').map(String::from).collect();
        check_addresses(&addresses)?;
        from_hex::<32>(fingerprint).ok_or(ReachError::Fingerprint)?;
        Ok(ClusterUrl { addresses, fingerprint: fingerprint.into() })
    }
}

impl FromStr for LoginLine {
    type Err = ReachError;

    fn from_str(text: &str) -> Result<LoginLine, ReachError> {
        let text = text.trim();
        if text.contains(char::is_whitespace) {
            return Err(ReachError::WhiteSpace);
        }
        let (before, after) = text.split_once('#').ok_or(ReachError::NoFingerprint)?;
        if before.starts_with("https://") && !after.contains('.') && after.starts_with(CODE_BEGINS)
        {
            return Ok(LoginLine { url: before.parse()?, code: after.into() });
        }
        let (_, code) = after.split_once('.').ok_or(ReachError::NoCode)?;
        let url = text[..text.len() - code.len() - 1].parse()?;
        Ok(LoginLine { url, code: code.into() })
    }
}

/// Returns the address of a platform with a name of its own, for which the web vouches: a name with
/// a dot in it, and not an address, of which a fingerprint was cut.
fn named_address(text: &str) -> Option<String> {
    let text = text.strip_suffix('/').unwrap_or(text);
    let (address, host) = match text.rsplit_once(':') {
        Some((host, _)) => (text.to_string(), host),
        None => (format!("{text}:{HTTPS_PORT}"), text),
    };
    let is_name = host.contains('.') && host.parse::<std::net::Ipv4Addr>().is_err();
    (is_name && is_address(&address)).then_some(address)
}

/// Checks addresses that somebody wrote, and that there are not too many.
pub fn check_addresses(addresses: &[String]) -> Result<(), ReachError> {
    if addresses.len() > ADDRESSES_MAX {
        return Err(ReachError::Addresses(addresses.len()));
    }
    match addresses.iter().find(|address| !is_address(address)) {
        None if !addresses.is_empty() => Ok(()),
        found => Err(ReachError::Address(found.cloned().unwrap_or_default())),
    }
}

fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(ip) => ip.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            !host.is_empty() && host.bytes().all(is_letter)
        }
    };
    is_host && text.len() <= ADDRESS_BYTES_MAX && port.parse::<u16>().is_ok_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIN: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

    #[test]
    fn a_line_is_read_back() {
        let text = format!("192.0.2.7:8205,[2001:db8::1]:8205,one.example.org:1#{PIN}.cortex_a1");
        let line: LoginLine = text.parse().unwrap();
        assert_eq!(line.to_string(), text);
        assert_eq!((line.url.addresses.len(), line.code.as_str()), (3, "cortex_a1"));
        assert!(!format!("{line:?}").contains("cortex_a1"));
        assert_eq!(
            format!(" https://a:1/#{PIN}\n").parse::<ClusterUrl>().unwrap().addresses,
            ["a:1"]
        );
    }

    #[test]
    fn a_platform_with_a_name_needs_no_fingerprint() {
        for text in
            ["https://cortex.example.org#cortex_a1", "https://cortex.example.org:8443#cortex_a1"]
        {
            let line: LoginLine = text.parse().unwrap();
            assert_eq!(line.to_string(), text);
            assert_eq!((line.url.fingerprint.as_str(), line.code.as_str()), ("", "cortex_a1"));
        }
        let url: ClusterUrl = "https://cortex.example.org/".parse().unwrap();
        assert_eq!(url.addresses, ["cortex.example.org:443"]);
        for cut in ["https://192.0.2.7:8205", "https://192.0.2.7", "https://host", "a.example.org"]
        {
            assert_eq!(cut.parse::<ClusterUrl>(), Err(ReachError::NoFingerprint), "{cut}");
        }
    }

    #[test]
    fn a_line_that_was_cut_or_mistyped_says_so() {
        let check = |text: &str, error| assert_eq!(text.parse::<LoginLine>(), Err(error), "{text}");
        check("", ReachError::NoFingerprint);
        check("192.0.2.7:82", ReachError::NoFingerprint);
        check(&format!("a:1#{PIN}"), ReachError::NoCode);
        check(&format!("a:1#{}.c", &PIN[1..]), ReachError::Fingerprint);
        check(&format!("a:1#{PIN}.co\nde"), ReachError::WhiteSpace);
        for wrong in ["a", "a:0", "a:99999", ":1", "a b:1", "a/b:1", "[x]:1", "::1:5"] {
            let text = format!("{wrong}#{PIN}.c");
            let error = text.parse::<LoginLine>().unwrap_err();
            let expected = matches!(error, ReachError::Address(_) | ReachError::WhiteSpace);
            assert!(expected, "{wrong}: {error}");
        }
        let many = ["a:1"; 9].join(",");
        check(&format!("{many}#{PIN}.c"), ReachError::Addresses(9));
    }
}
