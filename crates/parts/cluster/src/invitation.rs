//! Invitations: their tokens, and the book of those that this node has issued. Only the issuer can
//! promise single use, so only it redeems them; a restart forgets them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use model::hex::{from_hex, to_hex};
use model::{NodeId, Timestamp};
use store_core::sync::message::ClusterId;
use thiserror::Error;

/// The validity of an invitation: long enough to walk to the other machine.
pub const INVITATION_AGE_MAX: Duration = Duration::from_secs(3600);
/// The number of open invitations; old ones go as they expire.
pub const INVITATIONS_MAX: usize = 256;
const PREFIX: &str = "cortex1";
/// The length of an address in bytes: a host name of 255 and a port.
const ADDRESS_BYTES_MAX: usize = 262;

#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; 16]);

/// Hides the secret, so that it is never in a log.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The token that `cortex nodes invite` prints:
/// `cortex1.NODE.CLUSTER.FINGERPRINT.SECRET.HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub issuer: NodeId,
    pub cluster: ClusterId,
    /// The fingerprint of the cluster's authority and of the issuer's own key.
    pub fingerprint: [u8; 32],
    pub secret: Secret,
    pub address: String,
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "that is no invitation: it begins with '{PREFIX}.' and is one word; make one on a member with \
     `cortex nodes invite`"
)]
pub struct TokenError;

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Token { issuer, cluster, fingerprint, secret, address } = self;
        let (cluster, fingerprint) = (to_hex(&cluster.0), to_hex(fingerprint));
        write!(f, "{PREFIX}.{issuer}.{cluster}.{fingerprint}.{}.{address}", to_hex(&secret.0))
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Token, TokenError> {
        let mut parts = text.trim().splitn(6, '.');
        let mut next = || parts.next().ok_or(TokenError);
        if next()? != PREFIX {
            return Err(TokenError);
        }
        let token = Token {
            issuer: next()?.parse().map_err(|_| TokenError)?,
            cluster: ClusterId(from_hex(next()?).ok_or(TokenError)?),
            fingerprint: from_hex(next()?).ok_or(TokenError)?,
            secret: Secret(from_hex(next()?).ok_or(TokenError)?),
            address: next()?.to_string(),
        };
        let port = token.address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        let whole = token.address.len() <= ADDRESS_BYTES_MAX && port.is_some();
        whole.then_some(token).ok_or(TokenError)
    }
}

impl Token {
    /// Returns a hash that tells this invitation from others without giving it away.
    pub fn trace(&self) -> String {
        to_hex(blake3::hash(&self.secret.0).as_bytes())
    }
}

#[derive(Debug)]
struct Issued {
    until: Timestamp,
    /// The node that used it, which may come again: its first attempt may have been cut off.
    by: Option<NodeId>,
}

/// The open invitations by the hash of the secret, so that looking one up takes no longer for a
/// better guess.
#[derive(Debug, Default)]
pub struct InvitationBook {
    issued: BTreeMap<[u8; 32], Issued>,
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvitationError {
    #[error(
        "the invitation is not known here: it was used, it is older than an hour (or than it was to \
         get), or the node that \
         issued it was started again since; make a new one with `cortex nodes invite`"
    )]
    Unknown,
    #[error("{INVITATIONS_MAX} invitations are open already; wait until some have expired")]
    Full,
}

impl InvitationBook {
    pub fn issue(
        &mut self,
        now: Timestamp,
        secret: &Secret,
        age_max: Duration,
    ) -> Result<(), InvitationError> {
        self.issued.retain(|_, issued| issued.until > now);
        if self.issued.len() >= INVITATIONS_MAX {
            return Err(InvitationError::Full);
        }
        let issued = Issued { until: now.after(age_max.min(INVITATION_AGE_MAX)), by: None };
        self.issued.insert(*blake3::hash(&secret.0).as_bytes(), issued);
        Ok(())
    }

    pub fn redeem(
        &mut self,
        now: Timestamp,
        secret: &Secret,
        node: &NodeId,
    ) -> Result<Redeemed, InvitationError> {
        self.issued.retain(|_, issued| issued.until > now);
        let issued = self.issued.get_mut(blake3::hash(&secret.0).as_bytes());
        let issued = issued.ok_or(InvitationError::Unknown)?;
        match &issued.by {
            None => {
                issued.by = Some(node.clone());
                Ok(Redeemed::First)
            }
            Some(by) if by == node => Ok(Redeemed::Again),
            Some(_) => Err(InvitationError::Unknown),
        }
    }

    /// Makes an invitation usable again, since the node could not be let in.
    pub fn restore(&mut self, secret: &Secret) {
        if let Some(issued) = self.issued.get_mut(blake3::hash(&secret.0).as_bytes()) {
            issued.by = None;
        }
    }

    pub fn has_open(&mut self, now: Timestamp) -> bool {
        self.issued.retain(|_, issued| issued.until > now);
        !self.issued.is_empty()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redeemed {
    First,
    Again,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token {
            issuer: "n1".parse().unwrap(),
            cluster: ClusterId([1; 16]),
            fingerprint: [2; 32],
            secret: Secret([3; 16]),
            address: "[::1]:8205".into(),
        }
    }

    #[test]
    fn a_token_is_read_back_and_anything_else_refused() {
        let text = token().to_string();
        assert_eq!(text.parse(), Ok(token()));
        assert!(!text.contains(char::is_whitespace));
        for wrong in ["", "cortex1", "cortex1.n1", &text[1..], &text[..text.len() - 5]] {
            assert_eq!(wrong.parse::<Token>(), Err(TokenError), "{wrong}");
        }
        assert!(!format!("{:?}", token()).contains("3, 3"));
    }

    #[test]
    fn a_short_invitation_is_short() {
        let (mut book, now) = (InvitationBook::default(), Timestamp(1_000_000));
        let (node, secret) = ("n1".parse().unwrap(), Secret([9; 16]));
        book.issue(now, &secret, Duration::from_secs(2)).unwrap();
        let late = now.after(Duration::from_secs(2));
        assert_eq!(book.redeem(late, &secret, &node), Err(InvitationError::Unknown));
        book.issue(now, &secret, Duration::from_secs(1_000_000)).unwrap();
        assert!(!book.has_open(now.after(INVITATION_AGE_MAX)), "none is longer");
    }

    #[test]
    fn an_invitation_serves_one_node_for_an_hour() {
        let (mut book, now) = (InvitationBook::default(), Timestamp(1_000_000));
        let (one, other) = ("n1".parse().unwrap(), "n2".parse().unwrap());
        let secret = Secret([9; 16]);
        assert_eq!(book.redeem(now, &secret, &one), Err(InvitationError::Unknown));
        book.issue(now, &secret, INVITATION_AGE_MAX).unwrap();
        assert_eq!(book.redeem(now, &secret, &one), Ok(Redeemed::First));
        assert_eq!(book.redeem(now, &secret, &other), Err(InvitationError::Unknown));
        assert_eq!(book.redeem(now, &secret, &one), Ok(Redeemed::Again));
        let late = now.after(INVITATION_AGE_MAX);
        assert_eq!(book.redeem(late, &secret, &one), Err(InvitationError::Unknown));
        for n in 0..INVITATIONS_MAX {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&n.to_le_bytes());
            book.issue(now, &Secret(bytes), INVITATION_AGE_MAX).unwrap();
        }
        let full = book.issue(now, &Secret([8; 16]), INVITATION_AGE_MAX);
        assert_eq!(full, Err(InvitationError::Full));
        assert!(!book.has_open(late));
    }
}
