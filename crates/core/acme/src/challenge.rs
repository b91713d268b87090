//! How this cluster proves that a name is its own.

use std::fmt;
use std::str::FromStr;

use model::CertificateName;

use crate::orderer::{Arrival, Offered};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChallengeKind {
    /// Any node answers on port 80 from the account's thumbprint alone.
    Http01,
    /// Any node answers on port 443 with a certificate that all of them were given before.
    TlsAlpn01,
    /// A hook program makes a record in DNS.
    Dns01,
}

impl ChallengeKind {
    pub fn word(self) -> &'static str {
        match self {
            ChallengeKind::Http01 => "http-01",
            ChallengeKind::TlsAlpn01 => "tls-alpn-01",
            ChallengeKind::Dns01 => "dns-01",
        }
    }
}

impl fmt::Display for ChallengeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl FromStr for ChallengeKind {
    type Err = ();
    fn from_str(text: &str) -> Result<ChallengeKind, ()> {
        let all = [ChallengeKind::Http01, ChallengeKind::TlsAlpn01, ChallengeKind::Dns01];
        all.into_iter().find(|kind| kind.word() == text).ok_or(())
    }
}

/// What this node can do for a challenge, and what its authority offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Means {
    /// Whether public HTTPS is served somewhere in the cluster.
    pub https: bool,
    /// Whether there is a program that makes records in DNS.
    pub dns_hook: bool,
    /// Whether the authority suggests when to renew.
    pub renewal_info: bool,
}

/// Returns whether the name is proven by a record in DNS alone.
pub fn needs_dns(name: &CertificateName) -> bool {
    name.domain().is_some_and(|domain| domain.is_wild())
}

/// Returns the challenge to answer. `last` is the one that failed before; then another one is tried
/// if there is one.
pub fn choose(
    name: &CertificateName,
    offered: &[Offered],
    means: Means,
    arrival: Option<&Arrival>,
    last: Option<ChallengeKind>,
) -> Option<ChallengeKind> {
    let is_offered = |kind| offered.iter().any(|one| one.kind == kind);
    if needs_dns(name) {
        let kind = ChallengeKind::Dns01;
        return (means.dns_hook && is_offered(kind)).then_some(kind);
    }
    let http_arrives = !matches!(arrival, Some(Arrival::Arrives { http: false, .. }));
    let mut kinds = Vec::new();
    if http_arrives {
        kinds.push(ChallengeKind::Http01);
    }
    if means.https {
        kinds.push(ChallengeKind::TlsAlpn01);
    }
    if means.dns_hook && name.domain().is_some() {
        kinds.push(ChallengeKind::Dns01);
    }
    kinds.retain(|kind| is_offered(*kind));
    let failed = last.and_then(|last| kinds.iter().position(|kind| *kind == last));
    let next = failed.map_or(0, |index| (index + 1) % kinds.len());
    kinds.get(next).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ChallengeKind::{Dns01, Http01, TlsAlpn01};

    fn chosen(name: &str, means: Means, last: Option<ChallengeKind>) -> Option<ChallengeKind> {
        let offered = [Dns01, TlsAlpn01, Http01].map(|kind| Offered { kind, told: false });
        choose(&name.parse().unwrap(), &offered, means, None, last)
    }

    #[test]
    fn http_comes_first_and_after_a_failure_another_one() {
        let all = Means { https: true, dns_hook: true, renewal_info: false };
        for (last, next) in [
            (None, Http01),
            (Some(Http01), TlsAlpn01),
            (Some(TlsAlpn01), Dns01),
            (Some(Dns01), Http01),
        ] {
            assert_eq!(chosen("a.example", all, last), Some(next));
        }
        assert_eq!(chosen("a.example", Means::default(), Some(Http01)), Some(Http01));
        // A record in DNS proves nothing about an address (RFC 8738, section 7).
        assert_eq!(chosen("192.0.2.7", all, Some(TlsAlpn01)), Some(Http01));
    }

    #[test]
    fn a_star_is_proven_in_dns_alone() {
        let hook = Means { dns_hook: true, ..Means::default() };
        assert_eq!(chosen("*.a.example", hook, Some(Dns01)), Some(Dns01));
        assert_eq!(chosen("*.a.example", Means { https: true, ..Means::default() }, None), None);
    }

    #[test]
    fn what_does_not_arrive_over_http_is_proven_over_tls() {
        let offered = [Http01, TlsAlpn01].map(|kind| Offered { kind, told: false });
        let means = Means { https: true, ..Means::default() };
        let arrival = Arrival::Arrives { http: false, https: true };
        let name = "a.example".parse().unwrap();
        assert_eq!(choose(&name, &offered, means, Some(&arrival), None), Some(TlsAlpn01));
    }
}
