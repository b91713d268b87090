//! The conditions of a request: what a client has already, and which part in which form it wants.

use std::mem::MaybeUninit;
use std::time::{Duration, SystemTime};

use router_core::http::{HEADERS_ADDED_MAX, HEADERS_MAX};
use time::format_description::FormatItem;
use time::macros::format_description;
use time::{OffsetDateTime, PrimitiveDateTime};

use super::found::Found;

const HTTP_DATE: &[FormatItem<'_>] = format_description!(
    "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
);

#[derive(Default)]
pub struct Conditions {
    if_match: Option<String>,
    unmodified_since: Option<String>,
    none_match: Option<String>,
    modified_since: Option<String>,
    if_range: Option<String>,
    range: Option<String>,
    /// The value of `Accept`.
    pub kinds: Option<String>,
    /// The value of `Accept-Encoding`.
    pub accepted: Option<String>,
}

/// The answer that is due, as RFC 9110, section 13.2.2, decides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DueAnswer {
    /// The file, or the range that was asked for.
    Content {
        ranged: bool,
    },
    NotModified,
    PreconditionFailed,
}

impl Conditions {
    pub fn read(head: &[u8]) -> Box<Conditions> {
        const COUNT_MAX: usize = HEADERS_MAX + HEADERS_ADDED_MAX;
        let mut headers = [const { MaybeUninit::uninit() }; COUNT_MAX];
        let mut request = httparse::Request::new(&mut []);
        let mut conditions = Box::<Conditions>::default();
        if request.parse_with_uninit_headers(head, &mut headers).is_err() {
            return conditions;
        }
        for header in request.headers {
            let name = header.name;
            let is = |known: &str| name.eq_ignore_ascii_case(known);
            let field = match name.len() {
                5 if is("range") => &mut conditions.range,
                6 if is("accept") => &mut conditions.kinds,
                8 if is("if-match") => &mut conditions.if_match,
                8 if is("if-range") => &mut conditions.if_range,
                13 if is("if-none-match") => &mut conditions.none_match,
                15 if is("accept-encoding") => &mut conditions.accepted,
                17 if is("if-modified-since") => &mut conditions.modified_since,
                19 if is("if-unmodified-since") => &mut conditions.unmodified_since,
                _ => continue,
            };
            let Ok(value) = std::str::from_utf8(header.value) else { continue };
            match field {
                // Lists may come in several fields.
                Some(earlier) => *earlier = format!("{earlier},{value}"),
                None => *field = Some(value.into()),
            }
        }
        conditions
    }

    pub fn range(&self) -> Option<&[u8]> {
        self.range.as_deref().map(str::as_bytes)
    }

    pub(super) fn wanted(&self, found: &Found) -> DueAnswer {
        let failed = match (&self.if_match, &self.unmodified_since) {
            // A weak tag never matches here.
            (Some(tags), _) => !lists(tags, &found.etag),
            (None, Some(since)) => date(since).is_some_and(|since| found.changed_at > since),
            (None, None) => false,
        };
        if failed {
            return DueAnswer::PreconditionFailed;
        }
        let unchanged = match (&self.none_match, &self.modified_since) {
            (Some(tags), _) => lists(&tags.replace("W/", ""), &found.etag),
            (None, Some(since)) => date(since).is_some_and(|since| found.changed_at <= since),
            (None, None) => false,
        };
        if unchanged {
            return DueAnswer::NotModified;
        }
        let same = self.if_range.as_ref().is_none_or(|same| {
            // A date must be the very one, as nothing tells how strong it is.
            *same == found.etag || *same == found.modified
        });
        DueAnswer::Content { ranged: same }
    }
}

fn lists(tags: &str, etag: &str) -> bool {
    tags.split(',').map(str::trim).any(|tag| tag == "*" || tag == etag)
}

/// Reads a date as seconds since 1970. Other forms of dates are a quarter of a century out of use.
fn date(text: &str) -> Option<i64> {
    let read = PrimitiveDateTime::parse(text.trim(), HTTP_DATE).ok()?;
    Some(read.assume_utc().unix_timestamp())
}

/// Returns a time as text, and in seconds since 1970, as clients send it back.
pub fn modified(since_epoch: Duration) -> (String, i64) {
    let time = OffsetDateTime::from(SystemTime::UNIX_EPOCH + since_epoch);
    (time.format(HTTP_DATE).unwrap_or_default(), time.unix_timestamp())
}

#[cfg(test)]
mod tests;
