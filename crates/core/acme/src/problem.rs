//! What stands in the way of a certificate, in the authority's own words, and what to do about it.

use std::time::Duration;

use model::acme::AcmeError;
use model::{CertificateName, NodeId, Timestamp};

/// Bytes of an authority's words that are kept: a paragraph. They are shown to people.
pub const DETAIL_BYTES_MAX: usize = 1000;
const KIND_BYTES_MAX: usize = 64;
/// The beginning of the types that RFC 8555 defines.
const PREFIX: &str = "urn:ietf:params:acme:error:";

/// Kinds of problems that no authority reports.
pub mod kind {
    /// The authority could not be reached.
    pub const UNREACHABLE: &str = "unreachable";
    /// It took too long, and no one said why.
    pub const TIMEOUT: &str = "timeout";
    /// The hook program for DNS failed, or there is none.
    pub const HOOK: &str = "hook";
    /// The authority offers no challenge that can be answered.
    pub const NO_CHALLENGE: &str = "noChallenge";
    /// The other nodes did not get the challenge.
    pub const PEERS: &str = "peers";
    /// What the authority sent is no certificate for the name.
    pub const UNUSABLE: &str = "unusable";
    /// An order that an earlier one has already used up.
    pub const STALE: &str = "stale";
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The last word of its type, such as `rateLimited`.
    pub kind: String,
    pub detail: String,
    /// How long the authority wants to be left alone.
    pub retry_after: Option<Duration>,
}

/// What helps against a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// To try again soon: nobody did anything wrong.
    Again,
    /// To wait as long as the authority says.
    Wait,
    /// To try again more and more rarely, until the network, DNS or the node is mended.
    Mend,
    /// A person has to do something that no retry replaces.
    Person,
}

impl Problem {
    /// Words that come from elsewhere lose their control characters, as they are shown to people.
    pub fn new(kind: &str, detail: &str) -> Problem {
        let kind = kind.strip_prefix(PREFIX).unwrap_or(kind);
        Problem {
            kind: plain(kind, KIND_BYTES_MAX),
            detail: plain(detail, DETAIL_BYTES_MAX),
            retry_after: None,
        }
    }

    pub fn remedy(&self) -> Remedy {
        match self.kind.as_str() {
            "rateLimited" => Remedy::Wait,
            kind::UNREACHABLE
            | kind::TIMEOUT
            | kind::PEERS
            | kind::STALE
            | "serverInternal"
            | "badNonce"
            | "orderNotReady" => Remedy::Again,
            "rejectedIdentifier"
            | "unsupportedIdentifier"
            | "caa"
            | "externalAccountRequired"
            | "userActionRequired"
            | "invalidContact"
            | "unsupportedContact"
            | "accountDoesNotExist"
            | "invalidProfile"
            | kind::HOOK
            | kind::NO_CHALLENGE => Remedy::Person,
            _ => Remedy::Mend,
        }
    }

    /// Returns whether an order can be gone on with after this.
    pub fn keeps_order(&self) -> bool {
        self.remedy() == Remedy::Again && self.kind != kind::STALE
    }

    pub fn record(&self, node: &NodeId, at: Timestamp) -> AcmeError {
        AcmeError { kind: self.kind.clone(), detail: self.detail.clone(), at, node: node.clone() }
    }
}

fn plain(text: &str, max: usize) -> String {
    let mut plain = String::new();
    for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if plain.len() + c.len_utf8() > max {
            break;
        }
        plain.push(c);
    }
    plain.trim().into()
}

/// Returns what a person does about an error with this name; `again` is the command that has it
/// tried again.
pub fn advice(error: &AcmeError, name: &CertificateName, again: &str) -> String {
    let retry = format!("then `{again}`");
    match error.kind.as_str() {
        "rateLimited" => "it is tried again when the authority allows it; nothing to do".into(),
        "rejectedIdentifier" | "unsupportedIdentifier" => format!(
            "this authority gives no certificate for {name}: bring one of your own, or choose \
             another authority with `cortex certs agree --directory URL`"
        ),
        "caa" => format!(
            "a CAA record of {name} names other authorities: add one for this authority, {retry}"
        ),
        "dns" => format!("let {name} lead to this cluster in DNS, {retry}"),
        "connection" | "tls" => format!(
            "open port 80 (or 443) of every address that {name} has in DNS to the whole Internet, \
             {retry}"
        ),
        "unauthorized" | "incorrectResponse" => format!(
            "something else answers at {name}: let all its addresses in DNS (A and AAAA) be those \
             of this cluster, {retry}"
        ),
        "externalAccountRequired" => "this authority wants an account of its own first: give the \
             key that it shows you with `cortex certs agree --eab-key-id ID --eab-key-file \
             FILE`"
            .into(),
        "invalidContact" | "unsupportedContact" => {
            "give another address: `cortex certs agree --contact MAIL`".into()
        }
        "userActionRequired" => {
            "read what the authority says, agree with `cortex certs agree`".into()
        }
        "invalidProfile" => {
            "choose a profile that the authority offers: `cortex certs agree --profile NAME`".into()
        }
        "accountDoesNotExist" => "the account is made anew; nothing to do".into(),
        kind::UNREACHABLE => {
            "let this machine reach the authority over HTTPS; it is tried again by \
             itself"
                .into()
        }
        kind::HOOK => format!(
            "a certificate for {name} needs a record in DNS: give a program that makes it with \
             `cortex certs agree --dns-hook PROGRAM`, or mend it, {retry}"
        ),
        kind::NO_CHALLENGE => format!("bring a certificate of your own for {name}"),
        kind::PEERS => "the other nodes must be reachable from this one; it is tried again by \
             itself"
            .into(),
        _ => format!("it is tried again by itself; sooner with `{again}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_strangers_are_made_plain() {
        let problem = Problem::new(
            "urn:ietf:params:acme:error:dns",
            &format!("NXDOMAIN\u{1b}[31m{}", "ä".repeat(600)),
        );
        assert_eq!(problem.kind, "dns");
        assert!(problem.detail.starts_with("NXDOMAIN [31mä"), "{}", problem.detail);
        assert!(problem.detail.len() <= DETAIL_BYTES_MAX);
    }

    #[test]
    fn each_kind_of_rfc_8555_has_a_remedy_and_advice() {
        let name: CertificateName = "shop.example.org".parse().unwrap();
        for (kind, remedy, says) in [
            ("rateLimited", Remedy::Wait, "when the authority allows"),
            ("caa", Remedy::Person, "CAA"),
            ("dns", Remedy::Mend, "in DNS"),
            ("connection", Remedy::Mend, "port 80"),
            ("unauthorized", Remedy::Mend, "something else answers"),
            ("rejectedIdentifier", Remedy::Person, "no certificate for shop.example.org"),
            ("externalAccountRequired", Remedy::Person, "--eab-key-id"),
            ("badNonce", Remedy::Again, "by itself"),
            ("serverInternal", Remedy::Again, "by itself"),
            ("malformed", Remedy::Mend, "by itself"),
            ("somethingNew", Remedy::Mend, "by itself"),
            (kind::UNREACHABLE, Remedy::Again, "HTTPS"),
        ] {
            let problem = Problem::new(kind, "words");
            assert_eq!(problem.remedy(), remedy, "{kind}");
            let node: NodeId = "n1".parse().unwrap();
            let advice = advice(&problem.record(&node, Timestamp(1)), &name, "again");
            assert!(advice.contains(says), "{kind}: {advice}");
        }
    }
}
