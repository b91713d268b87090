//! Tokens: what their text looks like, and whether one is good at a time.
//!
//! The text ends with a checksum, so that a token that was cut or mistyped is told from one that is
//! unknown, and so that scanners of source code find it: GitHub's format, CRC-32 in six digits of
//! base 62 ("Behind GitHub's new authentication token formats", 2021).

use std::fmt;
use std::time::Duration;

use model::Timestamp;
use model::people::{Token, User};
use model::value::ContentHash;

const PREFIX: &str = "cortex_";
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// The digits that nobody can guess: 178 bits.
const SECRET_LENGTH: usize = 30;
/// The digits of the checksum: 62 to the sixth is just above 2 to the 32nd.
const CHECKSUM_LENGTH: usize = 6;
/// Random bytes for one token. One in 32 is dropped, so that too few are left once in more than
/// 10 to the 40th times; then more are drawn.
pub const TOKEN_RANDOM_BYTES: usize = 64;
/// The largest random byte that counts, so that all digits are equally likely.
const BYTE_MAX: u8 = 247;

/// The time for which a token is good unless somebody says otherwise: a forgotten one ends within
/// a season.
pub const TOKEN_AGE_DEFAULT: Duration = Duration::from_secs(90 * 24 * 3600);
/// The longest time for which a token is good.
pub const TOKEN_AGE_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// The time for which a token that is good no more stays on record, so that whoever comes with it
/// is told why.
pub const TOKEN_KEPT: Duration = Duration::from_secs(90 * 24 * 3600);
/// The least time between two notes of a token's use: enough to find forgotten ones, and one write
/// an hour at most.
pub const LAST_USE_STEP: Duration = Duration::from_secs(3600);

/// The text of a token, which is a secret: it is shown once and never printed otherwise.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenText(String);

impl fmt::Debug for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenText(…)")
    }
}

/// What is wrong with the text of a token, whatever tokens there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenFault {
    WhiteSpace,
    Prefix,
    Length,
    Characters,
    Checksum,
}

impl fmt::Display for TokenFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TokenFault::WhiteSpace => {
                "the token has white space in it: it was pasted with a line break or a space"
            }
            TokenFault::Prefix => "this is no token of Cortex: those begin with 'cortex_'",
            TokenFault::Length => "the token was cut or has something added: its length is wrong",
            TokenFault::Characters => "the token has characters that no token has",
            TokenFault::Checksum => "the token was mistyped: its checksum is wrong",
        })
    }
}

impl std::error::Error for TokenFault {}

impl TokenText {
    /// Makes a token of random bytes; `None` if more of them are needed.
    pub fn from_random(bytes: &[u8; TOKEN_RANDOM_BYTES]) -> Option<TokenText> {
        let digits = bytes.iter().filter(|byte| **byte <= BYTE_MAX);
        let digits = digits.map(|byte| char::from(DIGITS[usize::from(*byte) % DIGITS.len()]));
        let secret: String = digits.take(SECRET_LENGTH).collect();
        let checksum = checksum(secret.as_bytes());
        (secret.len() == SECRET_LENGTH).then(|| TokenText(format!("{PREFIX}{secret}{checksum}")))
    }

    pub fn parse(text: &str) -> Result<TokenText, TokenFault> {
        if text.contains(char::is_whitespace) {
            return Err(TokenFault::WhiteSpace);
        }
        let rest = text.strip_prefix(PREFIX).ok_or(TokenFault::Prefix)?;
        if !rest.bytes().all(|byte| DIGITS.contains(&byte)) {
            return Err(TokenFault::Characters);
        }
        if rest.len() != SECRET_LENGTH + CHECKSUM_LENGTH {
            return Err(TokenFault::Length);
        }
        let (secret, stated) = rest.split_at(SECRET_LENGTH);
        if checksum(secret.as_bytes()) != stated {
            return Err(TokenFault::Checksum);
        }
        Ok(TokenText(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name under which the token is on record. A token cannot be guessed, so a fast
    /// hash of it tells nobody anything.
    pub fn hash(&self) -> ContentHash {
        ContentHash(blake3::derive_key("cortex api token v1", self.0.as_bytes()))
    }
}

/// Returns the CRC-32 of the bytes (ISO 3309) in digits of base 62.
fn checksum(bytes: &[u8]) -> String {
    let mut rest = crc32fast::hash(bytes) as usize;
    let mut digits = [b'0'; CHECKSUM_LENGTH];
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[rest % DIGITS.len()];
        rest /= DIGITS.len();
    }
    digits.map(char::from).iter().collect()
}

/// What a token is worth that somebody came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenState {
    Valid,
    Expired,
    /// It was revoked, or its user was removed.
    Revoked,
    Unknown,
}

impl TokenState {
    /// Returns the state of a token on record, and of its user if there is one of that name.
    pub fn of(token: Option<&Token>, user: Option<&User>, now: Timestamp) -> TokenState {
        let Some(token) = token else { return TokenState::Unknown };
        let is_its_user = |user: &User| user.created_at == token.user_created_at;
        if token.revoked_at.is_some() || !user.is_some_and(is_its_user) {
            TokenState::Revoked
        } else if token.expires_at <= now {
            TokenState::Expired
        } else {
            TokenState::Valid
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            TokenState::Valid => "valid",
            TokenState::Expired => "expired",
            TokenState::Revoked => "revoked",
            TokenState::Unknown => "unknown",
        }
    }
}

/// Returns whether a use of a token is to be noted, if one was noted at that time.
pub fn is_use_due(last: Option<Timestamp>, now: Timestamp) -> bool {
    last.is_none_or(|last| now.since(last) >= LAST_USE_STEP)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use model::record::Unknown;
    use proptest::prelude::*;

    use super::*;

    fn text() -> TokenText {
        TokenText::from_random(&std::array::from_fn(|n| n as u8)).unwrap()
    }

    #[test]
    fn a_token_is_read_back() {
        let token = text();
        assert_eq!(TokenText::parse(token.as_str()), Ok(token.clone()));
        assert_eq!(token.as_str().len(), 43);
        assert!(!format!("{token:?}").contains("cortex_"));
        assert_eq!(TokenText::from_random(&[255; TOKEN_RANDOM_BYTES]), None);
    }

    /// The check value of CRC-32 is CBF43926, which is 3421780262.
    #[test]
    fn the_checksum_is_crc32_in_base_62() {
        let digits = checksum(b"123456789");
        let value = digits
            .bytes()
            .fold(0, |sum, digit| sum * 62 + DIGITS.iter().position(|one| *one == digit).unwrap());
        assert_eq!(value, 0xcbf4_3926);
    }

    #[test]
    fn a_pasted_token_says_what_is_wrong_with_it() {
        let good = text().as_str().to_owned();
        let check = |text: &str, fault| assert_eq!(TokenText::parse(text), Err(fault), "{text:?}");
        check(&format!("{good}\n"), TokenFault::WhiteSpace);
        check(&format!(" {good}"), TokenFault::WhiteSpace);
        check(&good.replace('4', "\r\n4"), TokenFault::WhiteSpace);
        check(&good[1..], TokenFault::Prefix);
        check("", TokenFault::Prefix);
        check("ghp_0123", TokenFault::Prefix);
        check(&good[..good.len() - 1], TokenFault::Length);
        check(&format!("{good}0"), TokenFault::Length);
        check(&format!("{}-", &good[..good.len() - 1]), TokenFault::Characters);
        check(&format!("{good}ä"), TokenFault::Characters);
    }

    proptest! {
        #[test]
        fn one_wrong_digit_is_noticed(at in 7..43_usize, digit in 0..62_usize) {
            let mut wrong = text().as_str().as_bytes().to_vec();
            prop_assume!(wrong[at] != DIGITS[digit]);
            wrong[at] = DIGITS[digit];
            let wrong = String::from_utf8(wrong).unwrap();
            prop_assert_eq!(TokenText::parse(&wrong), Err(TokenFault::Checksum));
        }

        #[test]
        fn any_text_is_read_without_a_fault(text in ".*") {
            prop_assert!(TokenText::parse(&text).is_err());
        }
    }

    #[test]
    fn a_token_is_good_until_it_ends_or_its_user_does() {
        let at = Timestamp;
        let user = |created_at| User {
            v: 1,
            created_at: at(created_at),
            created_by: String::new(),
            grants: BTreeSet::new(),
            unknown: Unknown::new(),
        };
        let mut token = Token {
            v: 1,
            name: "ci".parse().unwrap(),
            user: "ana".parse().unwrap(),
            user_created_at: at(1),
            created_at: at(1),
            expires_at: at(10),
            limit: None,
            revoked_at: None,
            invites: None,
            unknown: Unknown::new(),
        };
        let (ana, later_ana) = (user(1), user(2));
        let state = |token: &Token, user, now| TokenState::of(Some(token), user, at(now));
        assert_eq!(state(&token, Some(&ana), 9), TokenState::Valid);
        assert_eq!(state(&token, Some(&ana), 10), TokenState::Expired);
        assert_eq!(state(&token, None, 9), TokenState::Revoked);
        assert_eq!(state(&token, Some(&later_ana), 9), TokenState::Revoked);
        token.revoked_at = Some(at(5));
        assert_eq!(state(&token, Some(&ana), 9), TokenState::Revoked);
        assert_eq!(TokenState::of(None, Some(&ana), at(9)), TokenState::Unknown);
    }

    #[test]
    fn uses_are_noted_once_an_hour() {
        let hour = LAST_USE_STEP.as_millis() as u64;
        assert!(is_use_due(None, Timestamp(5)));
        assert!(!is_use_due(Some(Timestamp(5)), Timestamp(4 + hour)));
        assert!(is_use_due(Some(Timestamp(5)), Timestamp(5 + hour)));
    }
}
