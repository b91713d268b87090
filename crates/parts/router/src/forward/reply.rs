//! The reply of another node's router to a request, before its answer. Part of one request.

use std::io;

use router_core::far::{FarReply, REPLY_BYTES};
use router_core::retry::AttemptProgress;

use super::exchange::Exchange;
use super::failed::Failed;
use crate::buffer::Buffer;
use crate::stream::fill;
use crate::wire::Wire;

impl Exchange<'_> {
    /// Reads what the router of another node makes of the request; returns what came behind that,
    /// too.
    pub(super) async fn reply(&mut self, upstream: &Wire) -> Result<(FarReply, Buffer), Failed> {
        let thread = self.connection.thread.clone();
        let mut answer = thread.pool.buffer();
        let result = self.reply_into(upstream, &mut answer).await;
        match result {
            Ok(reply) => Ok((reply, answer)),
            Err(failed) => {
                thread.pool.give_back(answer);
                Err(failed)
            }
        }
    }

    async fn reply_into(
        &mut self,
        upstream: &Wire,
        answer: &mut Buffer,
    ) -> Result<FarReply, Failed> {
        let none = |why| Failed::Instance(AttemptProgress::NoAnswer { body_consumed: false }, why);
        let deadline = tokio::time::Instant::now() + self.application.limits.answer;
        loop {
            let parsed =
                FarReply::parse(answer.filled()).map_err(|_| none("its router misspoke"))?;
            if let Some(reply) = parsed {
                answer.consume(REPLY_BYTES);
                return Ok(reply);
            }
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            let filled = tokio::select! {
                biased;
                filled = fill(upstream, answer, left) => filled,
                gone = self.client_gone() => {
                    if gone { return Err(Failed::ClientGone) }
                    continue;
                }
            };
            match filled {
                Ok(1..) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    return Err(Failed::TimedOut);
                }
                Ok(0) | Err(_) => return Err(none("its router is gone")),
            }
        }
    }
}
