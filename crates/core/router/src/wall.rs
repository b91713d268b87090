//! The wall in front of an application that asks its clients for a password (HTTP Basic, RFC 7617):
//! which password is good, which were looked at before, and how often an address may guess. Decides
//! and remembers; to hash a password is slow, so routers do that elsewhere, one at a time, between
//! `look` and `learn`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::num::NonZeroU32;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use model::Timestamp;
use model::application::Password;
use ring::{hmac, pbkdf2};

/// Rounds of PBKDF2 with HMAC-SHA256: what OWASP asks for passwords that people choose.
const ROUNDS: NonZeroU32 = NonZeroU32::new(600_000).unwrap();
/// Rounds that a record may ask for: no record keeps a core busy for longer than some seconds.
const ROUNDS_MAX: u32 = 10_000_000;
pub const SALT_BYTES: usize = 16;
const HASH_BYTES: usize = 32;
/// Bytes of a password: below, it is guessed in spite of all limits; above, it is no password.
pub const PASSWORD_BYTES_MIN: usize = 8;
pub const PASSWORD_BYTES_MAX: usize = 128;
/// Bytes of the field with it, with a name as long as anybody's.
const FIELD_BYTES_MAX: usize = 1024;
/// Passwords that were looked at before: of those that are good there are few, and a browser with
/// an old one asks for many things at once.
const GOOD_MAX: usize = 1024;
const BAD_MAX: usize = 1024;
/// Guesses that an address has at once: typing mistakes, and an old password in several programs.
const GUESSES_MAX: u64 = 10;
/// The milliseconds after which it has one more.
const GUESS_MS: u64 = 10_000;
/// Addresses whose guesses are counted.
const CLIENTS_MAX: usize = 4096;

/// Returns what is kept of a password; slow.
pub fn protect(password: &str, salt: &[u8; SALT_BYTES], since: Timestamp) -> Password {
    let mut hash = [0; HASH_BYTES];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, ROUNDS, salt, password.as_bytes(), &mut hash);
    Password {
        since,
        salt: BASE64_STANDARD.encode(salt),
        hash: BASE64_STANDARD.encode(hash),
        rounds: ROUNDS.get(),
    }
}

/// A password that a client said, and that nobody has looked at yet.
#[derive(Clone)]
pub struct Guess {
    said: Vec<u8>,
    digest: Digest,
    client: IpAddr,
}

impl Guess {
    /// Returns whether it is right; slow, and as slow where it is wrong.
    pub fn is_right(&self, password: &Password) -> bool {
        let decoded = |text: &str| BASE64_STANDARD.decode(text).ok();
        let rounds = NonZeroU32::new(password.rounds).filter(|rounds| rounds.get() <= ROUNDS_MAX);
        let kept = decoded(&password.salt).zip(decoded(&password.hash)).zip(rounds);
        kept.is_some_and(|((salt, hash), rounds)| {
            let algorithm = pbkdf2::PBKDF2_HMAC_SHA256;
            hash.len() == HASH_BYTES
                && pbkdf2::verify(algorithm, rounds, &salt, &self.said, &hash).is_ok()
        })
    }
}

/// What becomes of a request at the wall.
pub enum Verdict {
    Passes,
    /// It has no good password, and is asked for one.
    Asked,
    /// Its address has guessed too often.
    TooMany,
    /// The password was not looked at yet.
    Unknown(Guess),
}

type Digest = [u8; 32];

/// What one router remembers of all walls.
pub struct Walls {
    /// The key of this process alone, by which passwords are remembered without being kept.
    key: hmac::Key,
    good: Remembered,
    bad: Remembered,
    /// The times at which addresses have all of their guesses again.
    clients: BTreeMap<IpAddr, u64>,
}

impl Walls {
    /// Creates the memory; `random` is nobody else's.
    pub fn new(random: &[u8; 32]) -> Walls {
        Walls {
            key: hmac::Key::new(hmac::HMAC_SHA256, random),
            good: Remembered::new(GOOD_MAX),
            bad: Remembered::new(BAD_MAX),
            clients: BTreeMap::new(),
        }
    }

    /// Decides about a request with this field `Authorization`.
    pub fn look(
        &self,
        now: Timestamp,
        password: &Password,
        client: IpAddr,
        field: Option<&[u8]>,
    ) -> Verdict {
        match field.and_then(password_of) {
            None => Verdict::Asked,
            Some(said) => {
                let digest = self.digest(password, &said);
                self.verdict(now, Guess { said, digest, client: client_of(client) })
            }
        }
    }

    /// Decides once more, when it is this guess's turn to be looked at; it counts if it still is.
    pub fn begin(&mut self, now: Timestamp, guess: Guess) -> Verdict {
        let verdict = self.verdict(now, guess);
        if let Verdict::Unknown(guess) = &verdict {
            self.count(now, guess.client);
        }
        verdict
    }

    /// Takes note of a guess that was looked at. A right one was no guess.
    pub fn learn(&mut self, now: Timestamp, guess: Guess, is_right: bool) {
        if is_right {
            self.good.add(guess.digest);
            if let Some(full_at) = self.clients.get_mut(&guess.client) {
                *full_at = full_at.saturating_sub(GUESS_MS);
            }
            self.clients.retain(|_, full_at| *full_at > now.0);
        } else {
            self.bad.add(guess.digest);
        }
    }

    fn verdict(&self, now: Timestamp, guess: Guess) -> Verdict {
        if self.good.has(&guess.digest) {
            Verdict::Passes
        } else if self.bad.has(&guess.digest) {
            // It is wrong whoever says it, so whoever says it again learns nothing.
            Verdict::Asked
        } else if self.is_spent(now, guess.client) {
            Verdict::TooMany
        } else {
            Verdict::Unknown(guess)
        }
    }

    /// Returns the name of a password under which it is remembered, for this wall alone.
    fn digest(&self, password: &Password, said: &[u8]) -> Digest {
        let mut context = hmac::Context::with_key(&self.key);
        for part in [password.salt.as_bytes(), password.hash.as_bytes()] {
            context.update(part);
            context.update(&[0]);
        }
        context.update(&password.rounds.to_be_bytes());
        context.update(said);
        let mut digest = [0; 32];
        digest.copy_from_slice(context.sign().as_ref());
        digest
    }

    fn is_spent(&self, now: Timestamp, client: IpAddr) -> bool {
        let owed = self.clients.get(&client).map_or(0, |full_at| full_at.saturating_sub(now.0));
        owed > (GUESSES_MAX - 1) * GUESS_MS
    }

    fn count(&mut self, now: Timestamp, client: IpAddr) {
        if self.clients.len() >= CLIENTS_MAX && !self.clients.contains_key(&client) {
            self.clients.retain(|_, full_at| *full_at > now.0);
            // Those that guess most are remembered longest.
            let least = self.clients.iter().min_by_key(|(_, full_at)| **full_at);
            if self.clients.len() >= CLIENTS_MAX
                && let Some(client) = least.map(|(client, _)| *client)
            {
                self.clients.remove(&client);
            }
        }
        let full_at = self.clients.entry(client).or_insert(now.0);
        *full_at = (*full_at).max(now.0) + GUESS_MS;
    }
}

/// Some passwords, the oldest of which are forgotten.
struct Remembered {
    all: BTreeSet<Digest>,
    in_order: VecDeque<Digest>,
    max: usize,
}

impl Remembered {
    fn new(max: usize) -> Remembered {
        Remembered { all: BTreeSet::new(), in_order: VecDeque::new(), max }
    }

    fn has(&self, digest: &Digest) -> bool {
        self.all.contains(digest)
    }

    fn add(&mut self, digest: Digest) {
        if self.all.insert(digest) {
            self.in_order.push_back(digest);
        }
        if self.in_order.len() > self.max
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.all.remove(&oldest);
        }
    }
}

/// Returns the password in a field of HTTP Basic; the name before it is not looked at.
fn password_of(field: &[u8]) -> Option<Vec<u8>> {
    let (scheme, rest) = field.split_at_checked(b"Basic ".len())?;
    if !scheme.eq_ignore_ascii_case(b"Basic ") || field.len() > FIELD_BYTES_MAX {
        return None;
    }
    let decoded = BASE64_STANDARD.decode(rest.trim_ascii()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    let said = &decoded[colon + 1..];
    (!said.is_empty() && said.len() <= PASSWORD_BYTES_MAX).then(|| said.to_vec())
}

/// Returns what counts as one client: of IPv6, what one subscriber has.
fn client_of(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V4(v4) => IpAddr::V4(v4),
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
    }
}

/// Takes a field out of a head: what opened the wall is not the application's.
pub fn without_field(head: &mut Vec<u8>, name: &str) {
    let is_it = |line: &[u8]| {
        let rest = line.get(name.len()..).filter(|rest| rest.starts_with(b":"));
        rest.is_some() && line[..name.len()].eq_ignore_ascii_case(name.as_bytes())
    };
    let lines = head.split_inclusive(|byte| *byte == b'\n').filter(|line| !is_it(line));
    *head = lines.collect::<Vec<_>>().concat();
}

#[cfg(test)]
mod tests;
