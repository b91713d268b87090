//! The answer that a file makes: its head by the client's conditions, then its content.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use router_core::files::coding::Coding;
use router_core::files::{ByteRange, range};
use tokio::runtime::Handle;

use super::conditions::{Conditions, DueAnswer};
use super::found::{Content, Found};
use super::large::FilePart;
use crate::connection::platform::HSTS;
use crate::pace::Pace;
use crate::stream::write_paced;
use crate::wire::Wire;
use router_core::pages::phrase;

/// A year, after which RFC 9111 has nothing more to say. Not `public`: what was asked for with a
/// password is nothing for a cache that others use (section 3.5).
const FOR_EVER: &str = "max-age=31536000, immutable";
/// The file is asked for again each time, and answered with 304: so a new release is seen at once.
const ASK_AGAIN: &str = "no-cache";

pub struct FileAnswer {
    /// The file in the form that is sent.
    pub(super) found: Arc<Found>,
    /// The file as it is, which says what kind it is.
    pub(super) plain: Arc<Found>,
    pub(super) coding: Option<Coding>,
    /// The client's conditions; most make none.
    pub(super) conditions: Option<Box<Conditions>>,
    pub(super) kind: FileAnswerKind,
}

/// What of an answer a client gets, and how it goes on.
#[derive(Clone, Copy, Debug)]
pub struct WantedForm {
    pub head_only: bool,
    pub keep_alive: bool,
    /// The seconds for which browsers are to come with TLS alone.
    pub hsts: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileAnswerKind {
    Content,
    /// The address is the same, but for its end.
    Redirect(Slash),
    /// The file says that there is nothing.
    NotFound,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slash {
    With,
    Without,
}

struct FileHead {
    status: u16,
    start: u64,
    length: u64,
}

/// The file whose head is written.
struct Form<'a> {
    found: &'a Found,
    plain: &'a Found,
    coding: Option<Coding>,
    /// The address where the client is to ask instead.
    target: Option<&'a str>,
    /// The seconds for which browsers are to come with TLS alone.
    hsts: Option<u64>,
}

/// Adds the answer to a client that wants the whole file as it is and goes on asking.
pub(super) fn prepare(mut found: Found) -> Found {
    let Content::Small(content) = &found.content else { return found };
    let head = FileHead { status: 200, start: 0, length: found.size };
    let form = Form { found: &found, plain: &found, coding: None, target: None, hsts: None };
    let mut answer = Vec::new();
    form.write_head(&mut answer, &head, true);
    let head_bytes = answer.len();
    answer.extend_from_slice(content);
    let answer = Bytes::from(answer);
    found.content = Content::Small(answer.slice(head_bytes..));
    Found { answer, ..found }
}

impl FileAnswer {
    pub(super) fn whole(found: Arc<Found>) -> FileAnswer {
        let plain = found.clone();
        FileAnswer { found, plain, coding: None, conditions: None, kind: FileAnswerKind::Content }
    }

    /// Returns what a client that goes on asking gets of it: head and content as they are kept.
    pub fn prepared(&self) -> Option<&[u8]> {
        let plain = self.conditions.is_none()
            && self.coding.is_none()
            && self.kind == FileAnswerKind::Content;
        Some(&*self.found.answer).filter(|answer| plain && !answer.is_empty())
    }

    pub fn content_bytes(&self) -> u64 {
        self.found.size
    }

    /// Sends the answer; returns the status, and how many bytes were sent if all were. Large files
    /// are read by `disk`.
    pub async fn send(
        &self,
        disk: &Handle,
        client: &Wire,
        wanted: WantedForm,
        out: &mut Vec<u8>,
    ) -> (u16, Option<u64>) {
        let WantedForm { head_only, keep_alive, hsts } = wanted;
        let (head, pace) = (self.head(), Pace::default());
        let target = match self.kind {
            FileAnswerKind::Redirect(slash) => Some(elsewhere(out, slash)),
            FileAnswerKind::Content | FileAnswerKind::NotFound => None,
        };
        let (found, plain) = (&*self.found, &*self.plain);
        let form = Form { found, plain, coding: self.coding, target: target.as_deref(), hsts };
        form.write_head(out, &head, keep_alive);
        let FileHead { status, start, length } = head;
        let body = if head_only { 0 } else { length };
        let sent = match &self.found.content {
            _ if body == 0 => write_paced(client, out, &pace).await.is_ok(),
            Content::Small(bytes) => {
                let start = usize::try_from(start).unwrap_or(usize::MAX).min(bytes.len());
                let end = start.saturating_add(usize::try_from(body).unwrap_or(usize::MAX));
                out.extend_from_slice(&bytes[start..end.min(bytes.len())]);
                write_paced(client, out, &pace).await.is_ok()
            }
            Content::Large(file) => {
                let part = FilePart { file: file.clone(), start, length: body };
                write_paced(client, out, &pace).await.is_ok()
                    && Box::pin(part.send(disk, client, &pace)).await.is_ok()
            }
            Content::Missing | Content::Directory => false,
        };
        (status, sent.then_some(body))
    }

    fn head(&self) -> FileHead {
        let conditions = self.conditions.as_deref();
        let whole = DueAnswer::Content { ranged: false };
        let wanted = conditions.map_or(whole, |conditions| conditions.wanted(&self.found));
        let (status, start, length) = match (self.kind, wanted) {
            (FileAnswerKind::Redirect(_), _) => (308, 0, 0),
            (FileAnswerKind::NotFound, _) => (404, 0, self.found.size),
            (_, DueAnswer::NotModified) => (304, 0, 0),
            (_, DueAnswer::PreconditionFailed) => (412, 0, 0),
            (_, DueAnswer::Content { ranged }) => {
                let asked = conditions.and_then(Conditions::range).filter(|_| ranged);
                match range(asked, self.found.size) {
                    ByteRange::Whole => (200, 0, self.found.size),
                    ByteRange::Part { start, length } => (206, start, length),
                    ByteRange::Unsatisfiable => (416, 0, 0),
                }
            }
        };
        FileHead { status, start, length }
    }
}

impl Form<'_> {
    fn write_head(&self, out: &mut Vec<u8>, head: &FileHead, keep_alive: bool) {
        let FileHead { status, start, length } = head;
        let Form { found, plain, .. } = self;
        out.clear();
        // Writing to memory cannot fail.
        let _ = write!(out, "HTTP/1.1 {status} {}\r\n", phrase(*status));
        if let Some(target) = self.target {
            let _ = write!(out, "Location: {target}\r\n");
        } else if *status == 404 {
            // It has no state of its own that a browser could ask about.
            let _ = write!(out, "Cache-Control: {ASK_AGAIN}\r\n");
        } else {
            let _ = write!(
                out,
                "ETag: {}\r\nLast-Modified: {}\r\nAccept-Ranges: bytes\r\nCache-Control: {}\r\n",
                found.etag,
                found.modified,
                if plain.lasts { FOR_EVER } else { ASK_AGAIN }
            );
        }
        if !plain.codings.is_empty() {
            out.extend_from_slice(b"Vary: Accept-Encoding\r\n");
        }
        if matches!(status, 200 | 206 | 404) {
            let _ = write!(out, "Content-Type: {}\r\n", plain.content_type);
            if let Some(coding) = self.coding {
                let _ = write!(out, "Content-Encoding: {}\r\n", coding.name());
            }
        }
        if *status == 206 {
            let last = start + length - 1;
            let _ = write!(out, "Content-Range: bytes {start}-{last}/{}\r\n", found.size);
        } else if *status == 416 {
            let _ = write!(out, "Content-Range: bytes */{}\r\n", found.size);
        }
        if *status != 304 {
            let _ = write!(out, "Content-Length: {length}\r\n");
        }
        if let Some(seconds) = self.hsts {
            let _ = write!(out, "{HSTS}: max-age={seconds}\r\n");
        }
        let connection = if keep_alive { "keep-alive" } else { "close" };
        let _ = write!(out, "Connection: {connection}\r\n\r\n");
    }
}

/// Returns the address that was asked for, from the head as it was written for an instance, with
/// another end.
fn elsewhere(out: &[u8], slash: Slash) -> String {
    let target = out.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    let target = String::from_utf8_lossy(target);
    let (path, query) = target.split_at(target.find('?').unwrap_or(target.len()));
    let mut path = path.trim_matches('/');
    // Written otherwise it is the same, and would lead here again.
    while let Some(rest) = path.strip_suffix("%2f").or_else(|| path.strip_suffix("%2F")) {
        path = rest.trim_end_matches('/');
    }
    let end = if slash == Slash::With { "/" } else { "" };
    // One `/` stands in front: `//host` would lead elsewhere.
    format!("/{path}{end}{query}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_stays_on_the_site_and_keeps_the_query() {
        for (target, slash, expected) in [
            ("/docs", Slash::With, "/docs/"),
            ("/docs?a=/b/", Slash::With, "/docs/?a=/b/"),
            ("//evil.example", Slash::With, "/evil.example/"),
            ("/about/", Slash::Without, "/about"),
            ("//evil.example//", Slash::Without, "/evil.example"),
            ("/about%2F/%2f?x", Slash::Without, "/about?x"),
        ] {
            let head = format!("GET {target} HTTP/1.1\r\n");
            assert_eq!(elsewhere(head.as_bytes(), slash), expected, "{target}");
        }
    }
}
