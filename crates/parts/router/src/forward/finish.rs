//! The rest of a long answer, from where the lane has left it.

use std::sync::Arc;
use std::time::Instant;

use super::exchange::{Counts, Exchange};
use super::failed::Failed;
use super::relay::{End, LATE, Relayed};
use super::rest::Rest;
use crate::buffer::Buffer;
use crate::connection::After;
use crate::endpoint::Endpoint;
use crate::permit::Permit;
use crate::wire::Wire;

impl Exchange<'_> {
    /// Goes on with an answer that the lane has begun to pass on.
    pub(super) async fn finish(
        &mut self,
        upstream: Wire,
        rest: Rest,
        permit: Permit,
        endpoint: &Arc<Endpoint>,
        counts: &mut Counts,
    ) -> Result<After, Failed> {
        let is_late = Instant::now() >= rest.until(&self.application.limits);
        let Rest { status, head_length, left, bytes_out, mut unsent, pipe, is_odd, .. } = rest;
        let in_pipe = pipe.as_ref().map_or(0, |pipe| pipe.len());
        (counts.status, counts.bytes_out) = (status, bytes_out - (unsent.len() + in_pipe) as u64);
        let (mut clean, mut end) = (!is_odd, End { piece: Buffer::default(), pipe });
        if left > 0 {
            self.send_end(&mut unsent, end, counts).await?;
            if is_late {
                return Err(Failed::Truncated(LATE));
            }
            let (out, answer) = (&mut unsent, Buffer::default());
            let relayed = self.relay_long(&upstream, out, answer, left, head_length, counts);
            Relayed { clean, end } = relayed.await?;
        }
        self.free(clean.then_some(upstream), permit);
        self.send_end(&mut unsent, end, counts).await?;
        self.record(Some(endpoint), counts);
        Ok(After::KeepAlive)
    }
}
