//! Which names want a certificate: the declared domains of applications that serve, and the public
//! addresses of nodes. Never a name that nobody declared.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{ApplicationSpec, CertificateName, Timestamp};

/// The last parts of names that no public authority knows (RFC 2606, 6761, 6762, 8375, 9476).
const RESERVED: &[&str] =
    &["test", "example", "invalid", "local", "internal", "onion", "alt", "home.arpa"];

/// Returns the names that want a certificate. Domains may come from people, so those that are no
/// names are left out. `is_public` says that the authority is one for the whole Internet.
pub fn wanted<'a>(
    serving: impl Iterator<Item = &'a ApplicationSpec>,
    addresses: impl Iterator<Item = IpAddr>,
    is_public: bool,
) -> BTreeSet<CertificateName> {
    let domains = serving.flat_map(|spec| spec.domains.iter());
    let names = domains.filter_map(|domain| domain.parse().ok());
    let all = names.chain(addresses.map(CertificateName::Address));
    all.filter(|name| can_have(name, is_public)).collect()
}

/// Returns whether an authority can give out a certificate for this name at all.
pub fn can_have(name: &CertificateName, is_public: bool) -> bool {
    let domain = match name {
        CertificateName::Domain(domain) => domain,
        CertificateName::Address(address) => return !is_public || is_global(*address),
    };
    let text = domain.as_str();
    let ends = |last: &str| {
        text.strip_suffix(last).is_some_and(|before| before.is_empty() || before.ends_with('.'))
    };
    // Names below it lead every machine to itself.
    if ends("localhost") {
        return false;
    }
    !is_public || (text.contains('.') && !RESERVED.iter().any(|last| ends(last)))
}

/// Returns whether strangers can reach this address from the Internet.
pub fn is_global(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [one, two, ..] = v4.octets();
            // Addresses behind the gates of providers (RFC 6598) and of benchmarks (RFC 2544).
            let shared = one == 100 && (64..128).contains(&two) || one == 198 && two & 0xfe == 18;
            let inside = v4.is_private() || v4.is_loopback() || v4.is_link_local() || one == 0;
            !(inside || shared || v4.is_documentation() || v4.is_multicast() || one >= 240)
        }
        // Those that are given out are all in one eighth of the space, but for the example's.
        IpAddr::V6(v6) => {
            v6.segments()[0] & 0xe000 == 0x2000 && v6.segments()[..2] != [0x2001, 0xdb8]
        }
    }
}

/// Takes out the names for which a person brought a certificate that is still good. `brought` has
/// when each of those expires.
pub fn without_brought(
    wanted: &mut BTreeSet<CertificateName>,
    brought: &BTreeMap<CertificateName, Timestamp>,
    now: Timestamp,
) {
    wanted.retain(|name| brought.get(name).is_none_or(|expires| *expires <= now));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_brought_is_not_ordered_until_it_expires() {
        let name: CertificateName = "shop.example.org".parse().unwrap();
        let brought = BTreeMap::from([(name.clone(), Timestamp(10))]);
        for (now, left) in [(9, 0), (10, 1)] {
            let mut wanted = BTreeSet::from([name.clone()]);
            without_brought(&mut wanted, &brought, Timestamp(now));
            assert_eq!(wanted.len(), left);
        }
    }

    #[test]
    fn only_names_that_an_authority_can_know() {
        let can = |text: &str, is_public| can_have(&text.parse().unwrap(), is_public);
        for name in ["shop.example.org", "*.shop.org", "1.1.1.1", "contest.org", "2606:4700::1"] {
            assert!(can(name, true) && can(name, false), "{name}");
        }
        for name in ["blog.test", "intern", "a.home.arpa", "db.internal", "printer.local"] {
            assert!(!can(name, true) && can(name, false), "{name}");
        }
        for address in ["192.0.2.7", "10.77.0.1", "100.64.0.1", "::1", "fd00::1", "2001:db8::7"] {
            assert!(!can(address, true) && can(address, false), "{address}");
        }
        for name in ["shop.localhost", "localhost"] {
            assert!(!can(name, false), "{name}");
        }
    }
}
