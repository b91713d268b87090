//! The formats and protocols that a build reads and writes. `self-check` prints them, so that a
//! binary can be refused before it touches anything.

use serde::{Deserialize, Serialize};

use os::passing;
use runtime::members;

/// The oldest format of the store's log that is still read.
const LOG_LOWEST: u32 = 1;

/// The lowest and the highest version that are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    pub lowest: u32,
    pub highest: u32,
}

impl Span {
    fn has(self, version: u32) -> bool {
        (self.lowest..=self.highest).contains(&version)
    }

    fn meets(self, other: Span) -> bool {
        self.lowest <= other.highest && other.lowest <= self.highest
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Formats {
    pub version: String,
    pub handover: Span,
    /// The protocol between nodes.
    pub wire: Span,
    /// The formats of the store's log that are read; the highest is written.
    pub log: Span,
    pub shim: Span,
    /// The newest format of sealed secrets that it opens; 0 from a build that opens none.
    #[serde(default)]
    pub secrets: u32,
}

impl Formats {
    pub fn own() -> Formats {
        let only = |version| Span { lowest: version, highest: version };
        Formats {
            version: env!("CARGO_PKG_VERSION").into(),
            handover: only(passing::FORMAT),
            wire: Span {
                lowest: members::VERSION_LOWEST.into(),
                highest: members::VERSION_HIGHEST.into(),
            },
            log: Span { lowest: LOG_LOWEST, highest: store_core::record::FORMAT },
            shim: only(shim::message::VERSION),
            secrets: secret_core::sealed::FORMAT,
        }
    }

    /// Checks that this build can take over from one with the formats of `running`, and give back
    /// to it.
    pub fn suits(&self, running: &Formats) -> Result<(), String> {
        let Formats { log, .. } = running;
        if !self.log.has(log.highest) {
            return Err(format!(
                "it reads formats {} to {} of the store's log, and this node has format {}",
                self.log.lowest, self.log.highest, log.highest
            ));
        }
        if !log.has(self.log.highest) {
            return Err(format!(
                "it writes format {} of the store's log, which what runs now could not read if it \
                 had to come back: stop each node with SIGTERM and start it with the new binary \
                 instead",
                self.log.highest
            ));
        }
        if self.secrets < running.secrets {
            return Err("it cannot open the secrets that what runs now seals; see \
                        docs/secrets.md before you go back"
                .into());
        }
        let pairs = [
            ("the nodes' protocol", self.wire, running.wire),
            ("the shims' protocol", self.shim, running.shim),
            ("handing over", self.handover, running.handover),
        ];
        for (what, theirs, ours) in pairs {
            if !theirs.meets(ours) {
                return Err(format!(
                    "it speaks versions {} to {} of {what}, and this node {} to {}: go by a \
                     version of Cortex in between",
                    theirs.lowest, theirs.highest, ours.lowest, ours.highest
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut Formats), needle: &str) {
        let (own, mut other) = (Formats::own(), Formats::own());
        change(&mut other);
        match other.suits(&own) {
            Ok(()) => assert_eq!(needle, ""),
            Err(why) => assert!(!needle.is_empty() && why.contains(needle), "{why}"),
        }
    }

    #[test]
    fn a_newer_wire_that_still_speaks_the_older_one_suits() {
        check(|_| {}, "");
        check(|newer| newer.wire.highest += 1, "");
    }

    #[test]
    fn what_shares_no_version_is_refused() {
        let apart = |span: &mut Span| {
            *span = Span { lowest: span.highest + 1, highest: span.highest + 1 };
        };
        check(|newer| apart(&mut newer.wire), "nodes' protocol");
        check(|newer| apart(&mut newer.shim), "shims' protocol");
        check(|newer| apart(&mut newer.handover), "handing over");
        check(|newer| apart(&mut newer.log), "reads formats");
        check(|newer| newer.log.highest += 1, "could not read");
        check(|older| older.secrets -= 1, "cannot open the secrets");
    }
}
