//! Requests that the platform answers before any application sees them: the challenges of an
//! authority, those that are sent on to HTTPS, and those on a connection for another name.

use std::sync::Arc;
use std::time::Instant;

use router_core::gate::Passage;
use router_core::http::request::RequestHead;
use router_core::routes;

use super::{After, Connection};
use crate::buffer::Buffer;
use crate::field::field;
use crate::pace::WRITE_TIME_MAX;
use crate::scope::Scope;
use crate::stream::write_all;
use crate::table::RoutedApplication;
use crate::thread::Redirect;
use router_core::pages::{self, Page};
use tls::book::CHALLENGE_PATH;

/// The field by which something in front that ended TLS says so. Where it is there, a redirect
/// would lead here again.
const FORWARDED_PROTO: &str = "X-Forwarded-Proto";
/// The port that is not written in an address of HTTPS.
const HTTPS_PORT: u16 = 443;

/// The field that tells browsers to come with TLS alone.
pub const HSTS: &str = "Strict-Transport-Security";

/// The answer to a request that no application gets.
pub enum OwnAnswer {
    Page(Page),
    /// The address where it is to be asked.
    Redirect(String),
}

impl Connection {
    /// Returns for how many seconds a client is told that, if it is.
    pub fn hsts(&self, application: &RoutedApplication) -> Option<u64> {
        let is_asked = self.scope == Scope::Secure && !self.asker.is_router();
        application.https.hsts_seconds.filter(|_| is_asked && self.stream.is_secure())
    }

    /// Returns whether it may be an authority that asks whose a name is.
    pub fn may_be_challenge(&self, head: &RequestHead, bytes: &[u8]) -> bool {
        bytes[head.target.clone()].starts_with(CHALLENGE_PATH)
    }

    /// Returns what the authority is answered, for a name that leads here, or an address.
    pub fn challenge_answer(&self, head: &RequestHead, bytes: &[u8]) -> Option<String> {
        let shared = &self.thread.shared;
        if self.asker.is_router() || shared.only.is_some() || !matches!(head.method, "GET" | "HEAD")
        {
            return None;
        }
        let host = &bytes[head.host.clone()];
        let mut buffer = [0; routes::HOST_LENGTH_MAX];
        let name = routes::normalize(host, &mut buffer)?;
        let is_address = model::certificate::address_of(name).is_some();
        let table = shared.table.load();
        let is_own = table.own_name.as_ref().is_some_and(|own| own.is(name));
        if !is_address && !is_own && table.by_host(host).is_none() {
            return None;
        }
        shared.certificates.load().answer(&bytes[head.target.clone()])
    }

    /// Returns the address inside TLS that a client without is sent to.
    pub fn redirect(
        &self,
        application: &RoutedApplication,
        head: &RequestHead,
        bytes: &[u8],
        redirect: Redirect,
    ) -> Option<String> {
        let shared = &self.thread.shared;
        let secure = shared.secure.as_ref().filter(|_| !self.stream.is_secure())?;
        let mut buffer = [0; routes::HOST_LENGTH_MAX];
        let host = routes::normalize(&bytes[head.host.clone()], &mut buffer)?;
        if redirect == Redirect::IfCovered && !secure.tls.covers(host, shared.clock.now()) {
            return None;
        }
        let target = &bytes[head.target.clone()];
        let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
        let is_probe = application.health_path.as_deref().map(str::as_bytes) == Some(path);
        if is_probe || path.starts_with(CHALLENGE_PATH) || comes_from_tls(&bytes[..head.length]) {
            return None;
        }
        // A target such as `*` is no address.
        let target = std::str::from_utf8(target).ok().filter(|target| target.starts_with('/'))?;
        Some(match secure.public_port() {
            HTTPS_PORT => format!("https://{host}{target}"),
            port => format!("https://{host}:{port}{target}"),
        })
    }

    /// Returns the answer for a host that is the platform itself, where no application is: the API
    /// is inside TLS, on connections that were made for it.
    pub fn at_platform(&self, head: &RequestHead, bytes: &[u8]) -> Option<OwnAnswer> {
        let own = self.thread.shared.table.load().own_name.clone()?;
        let mut buffer = [0; routes::HOST_LENGTH_MAX];
        let host = routes::normalize(&bytes[head.host.clone()], &mut buffer)?;
        if !own.is(host) {
            return None;
        }
        if self.stream.is_secure() || comes_from_tls(&bytes[..head.length]) {
            return Some(OwnAnswer::Page(pages::MISDIRECTED));
        }
        let target = std::str::from_utf8(&bytes[head.target.clone()]).ok()?;
        let target = if target.starts_with('/') { target } else { "/" };
        Some(OwnAnswer::Redirect(match own.port {
            HTTPS_PORT => format!("https://{host}{target}"),
            port => format!("https://{host}:{port}{target}"),
        }))
    }

    /// Returns whether the connection was made for another name, and the client may not ask for
    /// this one on it: the certificate is not for it, or the names belong to different teams. A
    /// client that asked for no name, or for this one, knows what it does.
    pub fn is_misdirected(&self, application: &RoutedApplication, host: &[u8]) -> bool {
        let Some(shown) = self.shown.as_ref().filter(|_| self.scope == Scope::Secure) else {
            return false;
        };
        let Some(asked) = &shown.asked else { return false };
        let mut buffer = [0; routes::HOST_LENGTH_MAX];
        let Some(host) = routes::normalize(host, &mut buffer) else { return false };
        if host == asked || self.thread.shared.only.is_some() {
            return false;
        }
        let is_covered = shown.certificate.as_ref().is_some_and(|shown| shown.covers(host));
        let table = self.thread.shared.table.load();
        let is_of_other_team = table
            .by_host(asked.as_bytes())
            .is_some_and(|other| other.name != application.name && other.team != application.team);
        !is_covered || is_of_other_team
    }

    /// Answers a request that does not pass the application's gate; `None` if it does.
    pub async fn at_gate(
        &self,
        application: &Arc<RoutedApplication>,
        head: &RequestHead,
        buffer: &mut Buffer,
        out: &mut Vec<u8>,
        started: Instant,
    ) -> Option<Option<After>> {
        let page = match self.at_wall(application, &buffer.filled()[..head.length], out).await {
            Some(page) => page,
            None => {
                let target = &buffer.filled()[head.target.clone()];
                let health = application.health_path.as_deref();
                match application.gate.passage(head.method, target, health) {
                    Passage::Open => return None,
                    Passage::Closed => pages::MAINTENANCE,
                }
            }
        };
        let own = application.closed_page.as_deref().filter(|_| page == pages::MAINTENANCE);
        self.record_own(application, head, page.status, 0, started, Instant::now());
        let (keep_alive, _) = self.own_answer(head, buffer);
        page.write_own(own, out, head.is_head(), keep_alive);
        if write_all(&self.stream, out, WRITE_TIME_MAX).await.is_err() {
            return Some(None);
        }
        Some(Some(if keep_alive { After::KeepAlive } else { After::Close }))
    }

    pub async fn redirected(
        &self,
        page: Page,
        to: &str,
        out: &mut Vec<u8>,
        head_only: bool,
        keep_alive: bool,
    ) -> Option<After> {
        page.write_to(Some(to), None, out, head_only, keep_alive);
        write_all(&self.stream, out, WRITE_TIME_MAX).await.ok()?;
        Some(if keep_alive { After::KeepAlive } else { After::Close })
    }

    /// Answers with a line of text.
    pub async fn text(
        &self,
        text: &str,
        out: &mut Vec<u8>,
        head_only: bool,
        keep_alive: bool,
    ) -> Option<After> {
        use std::io::Write;
        let connection = if keep_alive { "keep-alive" } else { "close" };
        out.clear();
        // Writing to memory cannot fail.
        let _ = write!(
            out,
            "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {}\r\n\
             Cache-Control: no-store\r\nConnection: {connection}\r\n\r\n",
            text.len()
        );
        if !head_only {
            out.extend_from_slice(text.as_bytes());
        }
        write_all(&self.stream, out, WRITE_TIME_MAX).await.ok()?;
        Some(if keep_alive { After::KeepAlive } else { After::Close })
    }
}

/// Returns whether something in front says that its client came with TLS.
fn comes_from_tls(head: &[u8]) -> bool {
    field(head, FORWARDED_PROTO).is_some_and(|value| value.eq_ignore_ascii_case(b"https"))
}

#[cfg(test)]
mod tests;
