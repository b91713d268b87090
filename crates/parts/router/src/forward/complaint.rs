//! The faults of an instance, told to the application's owner: in the application's log, and on the
//! page if the client is on this machine. Others get a number that stands in the log, too.

use std::sync::Arc;

use router_core::http::response::BadResponse;

use super::exchange::{Counts, Exchange};
use crate::connection::After;
use crate::endpoint::{Endpoint, Reach};
use crate::field::field;
use router_core::pages;

/// The characters of a target that are told: enough to find it by.
const TARGET_CHARS_MAX: usize = 80;

/// The fault of an answer.
pub(super) enum Fault<'a> {
    Malformed(&'a BadResponse),
    /// There was no answer.
    None(&'static str),
}

impl Fault<'_> {
    fn rule(&self) -> &'static str {
        match self {
            Fault::Malformed(bad) => bad.rule,
            Fault::None(why) => why,
        }
    }
}

impl Exchange<'_> {
    /// Complains of a fault once in a while. Faults on other nodes are left to their own routers.
    pub(super) fn complain(&self, endpoint: &Arc<Endpoint>, fault: &Fault<'_>) {
        if endpoint.site().is_some() {
            return;
        }
        let shared = &self.connection.thread.shared;
        let Some(more) = shared.heard(&self.application.name, fault.rule()) else { return };
        let (instance, method) = (&endpoint.instance, self.head.method);
        let (process, slot) = (&instance.process, instance.slot);
        let what = match fault {
            Fault::Malformed(bad) => {
                format!("gave a malformed answer to {method} {}: {bad}", self.path())
            }
            Fault::None(why) => format!("gave no answer to {method} {}: {why}", self.path()),
        };
        let mut line = format!("{process}.{slot} {what}");
        if let Some(id) = self.request_id() {
            line.push_str(&format!(" (request {id})"));
        }
        if more > 0 {
            line.push_str(&format!("; {more} more of this kind since the last such line"));
        }
        shared.log(&self.application.name, line);
    }

    /// Sends a page in place of an answer that did not come.
    pub(super) async fn no_answer(
        &mut self,
        endpoint: &Arc<Endpoint>,
        detail: &str,
        counts: &mut Counts,
    ) -> Option<After> {
        let page = match endpoint.reach {
            Reach::Near(_) => pages::BAD_ANSWER,
            Reach::Far(_) => pages::NODE_LOST,
        };
        let detail = match self.request_id() {
            _ if self.is_asked_from_here() => Some(format!("Seen from this machine: {detail}.")),
            Some(id) => Some(format!("Its owner finds this as request {id}.")),
            None => None,
        };
        self.fail_with(page, detail.as_deref(), Some(endpoint), counts).await
    }

    /// Returns whether somebody at this machine asks, not a proxy here on behalf of a stranger.
    fn is_asked_from_here(&self) -> bool {
        let is_direct = self.field("X-Forwarded-For").is_some_and(|list| !list.contains(','));
        !self.connection.asker.is_router() && self.connection.peer.ip().is_loopback() && is_direct
    }

    fn request_id(&self) -> Option<&str> {
        self.field("X-Request-Id")
    }

    /// Returns a field of the head as an instance gets it.
    fn field(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(field(self.out, name)?).ok()
    }

    /// Returns the path that was asked for, without what may be nobody's business behind `?`.
    fn path(&self) -> String {
        let target = self.out.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
        String::from_utf8_lossy(path).chars().take(TARGET_CHARS_MAX).collect()
    }
}
