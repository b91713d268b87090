//! The trailers of a request that an instance gets. Some servers add them to the fields of the
//! head, which was looked at before: what decides how a request is read, or who asks, does not
//! trail.

use super::request::{is_for_proxies, is_pretence};
use super::{HEADERS_MAX, is_hop_by_hop};

/// The fields of RFC 9110, section 6.5.1: framing, routing, modifiers, authentication, the form of
/// the content.
const NEVER: [&str; 21] = [
    "authorization",
    "cache-control",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "cookie",
    "expect",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "max-forwards",
    "pragma",
    "proxy-authorization",
    "range",
    "set-cookie",
    "trailer",
    "x-request-id",
];

/// The trailers as far as they have come. Small if there are none, as nearly always.
#[derive(Clone, Debug, Default)]
pub struct Trailers(Option<Box<TrailerLines>>);

#[derive(Clone, Debug, Default)]
struct TrailerLines {
    bytes: Vec<u8>,
}

impl Trailers {
    /// Adds a byte; the lines are well-formed.
    pub(super) fn push(&mut self, byte: u8) {
        self.0.get_or_insert_default().bytes.push(byte);
    }

    pub fn clear(&mut self) {
        self.0 = None;
    }

    /// Writes those that may pass; `None` if there are too many.
    pub(super) fn put_allowed(&self, out: &mut Vec<u8>) -> Option<()> {
        let Some(lines) = &self.0 else { return Some(()) };
        let mut count = 0;
        for line in lines.bytes.split_inclusive(|byte| *byte == b'\n') {
            count += 1;
            if count > HEADERS_MAX {
                return None;
            }
            let end = line.iter().position(|byte| *byte == b':')?;
            let name = std::str::from_utf8(&line[..end]).ok()?;
            if may_trail(name) {
                // It is no longer than it came, so that the next router takes it, too.
                out.extend_from_slice(line);
            }
        }
        Some(())
    }
}

fn may_trail(name: &str) -> bool {
    let is_never = NEVER.iter().any(|known| name.eq_ignore_ascii_case(known));
    !(is_never || is_hop_by_hop(name) || is_pretence(name) || is_for_proxies(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_belong_in_the_head_are_dropped_from_trailers() {
        for name in ["Digest", "x-sum", "grpc-status", "Server-Timing", "x-forward", "a"] {
            assert!(may_trail(name), "{name}");
        }
        for name in [
            "HOST",
            "Content-length",
            "te",
            "Connection",
            "X-Forwarded-For",
            "x-forwarded-user",
            "Forwarded",
            "X-Real-IP",
            "proxy",
            "X_Sum",
            "Transfer-Encoding",
            "Cookie",
            "If-Match",
            "X-Request-Id",
            "Upgrade",
        ] {
            assert!(!may_trail(name), "{name}");
        }
    }
}
