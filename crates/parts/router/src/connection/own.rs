//! Answers of the router's own: static files, and pages instead of an answer of the application's.

use std::sync::Arc;
use std::time::Instant;

use model::release::StaticMount;
use router_core::http::request::RequestHead;

use super::{After, Connection};
use crate::buffer::Buffer;
use crate::files::answer::WantedForm;
use crate::files::conditions::Conditions;
use crate::files::{Looked, find};
use crate::lane::entrant;
use crate::pace::{Pace, WRITE_TIME_MAX};
use crate::stream::{write_all, write_paced};
use crate::table::RoutedApplication;
use router_core::pages::Page;

impl Connection {
    /// Answers with a static file, or the page for its absence; `None` if neither is the answer.
    pub async fn file(
        &self,
        application: &Arc<RoutedApplication>,
        head: &RequestHead,
        buffer: &mut Buffer,
        out: &mut Vec<u8>,
        started: Instant,
    ) -> Option<Option<After>> {
        let recent = &self.thread.recent;
        let answer = match recent.find(application, &buffer.filled()[head.target.clone()], started)
        {
            Some(None) => return None,
            Some(Some(answer)) if !head.has_conditions => answer,
            _ => {
                let bytes = buffer.filled();
                let target = &bytes[head.target.clone()];
                let looked = Box::pin(self.look_up(application, head, bytes)).await;
                let Looked { answer, varies } = looked.unwrap_or_default();
                if !varies {
                    recent.learn(application, target, answer.as_ref(), started);
                }
                answer?
            }
        };
        if self.admit(application).is_err() {
            return Some(None);
        }
        let (keep_alive, mut after) = self.own_answer(head, buffer);
        let head_only = head.is_head();
        let hsts = self.hsts(application);
        let wanted = WantedForm { head_only, keep_alive, hsts };
        let is_usual = keep_alive && !head_only && hsts.is_none();
        let (status, sent) = match answer.prepared().filter(|_| is_usual) {
            Some(bytes) => {
                if entrant::takes(self, bytes) {
                    after = After::Quick;
                }
                let sent = write_paced(&self.stream, bytes, &Pace::default()).await;
                (200, sent.is_ok().then_some(answer.content_bytes()))
            }
            // The rest is boxed, so that what is asked for the most needs little room.
            None => {
                let disk = self.thread.shared.files.pool();
                Box::pin(answer.send(disk, &self.stream, wanted, out)).await
            }
        };
        let now = Instant::now();
        self.record_own(application, head, status, sent.unwrap_or(0), started, now);
        Some(match sent {
            Some(_) => Some(after),
            None => Some(After::Cut),
        })
    }

    async fn look_up(
        &self,
        application: &Arc<RoutedApplication>,
        head: &RequestHead,
        bytes: &[u8],
    ) -> Option<Looked> {
        let roots = application.roots.as_ref()?;
        let mounts: &[StaticMount] = &application.statics;
        let found = router_core::files::resolve(mounts, &bytes[head.target.clone()])?;
        let conditions = Conditions::read(&bytes[..head.length]);
        let rules = application.file_rules();
        Some(find(&self.thread.shared.files, roots, rules, &found, conditions).await)
    }

    /// Takes the request off the buffer; keeps the connection only if all of it was there.
    pub fn own_answer(&self, head: &RequestHead, buffer: &mut Buffer) -> (bool, After) {
        buffer.consume(head.length);
        let mut body = head.body;
        let whole = body.accept(buffer.filled()).is_ok_and(|taken| {
            buffer.consume(taken);
            body.is_done()
        });
        let keep_alive = whole && head.keep_alive && !self.thread.is_stopping();
        (keep_alive, if keep_alive { After::KeepAlive } else { After::close(head, buffer) })
    }

    pub async fn page(
        &self,
        page: Page,
        out: &mut Vec<u8>,
        head_only: bool,
        keep_alive: bool,
    ) -> Option<After> {
        self.page_with(page, None, out, head_only, keep_alive).await
    }

    pub async fn page_with(
        &self,
        page: Page,
        detail: Option<&str>,
        out: &mut Vec<u8>,
        head_only: bool,
        keep_alive: bool,
    ) -> Option<After> {
        let has_node = self.thread.shared.only.is_none();
        let page = if has_node { page } else { page.without_hint() };
        page.write_with(detail, out, head_only, keep_alive);
        write_all(&self.stream, out, WRITE_TIME_MAX).await.ok()?;
        Some(if keep_alive { After::KeepAlive } else { After::Close })
    }
}
