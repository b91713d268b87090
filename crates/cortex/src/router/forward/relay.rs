//! The answer on its way to the client: piece by piece, or as a tunnel. Part of one request.

use std::io;

use super::{Counts, Exchange, Failed};
use crate::router::connection::{After, WRITE_TIME_MAX};
use crate::router::endpoint::Permit;
use crate::router::limits::Limits;
use crate::router::pace::Patience;
use crate::router::plain::Plain;
use crate::router::pool::{BUFFER_BYTES, Buffer};
use crate::router::stream::{fill, write_all, write_paced};
use crate::router::tunnel;
use crate::router::wire::Wire;
use router::http::body::Body;
use router::http::response::ResponseHead;
use router::http::trailers::Trailers;

/// A quick server and a quick client would keep the thread to themselves.
pub const TURN_BYTES: usize = 1 << 20;

enum Spliced {
    /// Clean where nothing follows it that nobody asked for.
    Whole { clean: bool },
    /// So much is to come.
    Left(u64),
}

impl Exchange<'_> {
    /// True when the instance's connection can be used again.
    pub(super) async fn relay(
        &self,
        upstream: &Wire,
        mut answer: Buffer,
        head: ResponseHead,
        out: &mut Vec<u8>,
        counts: &mut Counts,
    ) -> Result<bool, Failed> {
        let thread = &self.connection.thread;
        let result = self.relay_with(upstream, &mut answer, head, out, counts).await;
        thread.pool.give_back(answer);
        result
    }

    /// The same, while the rest of the request goes on: a conversation.
    pub(super) async fn relay_both_ways(
        &mut self,
        upstream: &Wire,
        answer: Buffer,
        head: ResponseHead,
        body: &mut Body,
        out: &mut Vec<u8>,
        counts: &mut Counts,
    ) -> Result<bool, Failed> {
        let mut rest = std::mem::take(&mut *self.buffer);
        let (limits, mut bytes_in) = (self.application.limits, 0);
        let mut anew = (!self.is_transparent())
            .then(|| (std::mem::take(&mut *self.out), std::mem::take(&mut self.trailers)));
        let result = {
            let client = &self.connection.stream;
            let asking =
                pass_request(client, &mut rest, upstream, body, &mut anew, limits, &mut bytes_in);
            let answering = self.relay(upstream, answer, head, out, counts);
            tokio::pin!(asking, answering);
            let mut asks = true;
            loop {
                tokio::select! {
                    biased;
                    result = &mut answering => break result,
                    () = &mut asking, if asks => asks = false,
                }
            }
        };
        counts.bytes_in += bytes_in;
        *self.buffer = rest;
        result
    }

    async fn relay_with(
        &self,
        upstream: &Wire,
        answer: &mut Buffer,
        head: ResponseHead,
        out: &mut Vec<u8>,
        counts: &mut Counts,
    ) -> Result<bool, Failed> {
        let client = &self.connection.stream;
        let decode =
            matches!(head.body, Body::Chunked(_)) && !self.head.modern && !self.is_transparent();
        let (head_length, mut body) = (head.length, head.body);
        let mut first = true;
        self.read_rest(upstream, answer, body).map_err(|_| Failed::Truncated)?;
        loop {
            let was_full = answer.is_full();
            if decode {
                let taken = body.decode(answer.filled(), out).map_err(|_| Failed::Truncated)?;
                answer.consume(taken);
            } else {
                let taken = body.accept(answer.filled()).map_err(|_| Failed::Truncated)?;
                if first && let (Wire::Plain(to), Some(left)) = (client, long_rest(body)) {
                    let begun = [out.as_slice(), &answer.filled()[..taken]];
                    return self.relay_long(upstream, to, begun, left, head_length, counts).await;
                }
                if first {
                    out.extend_from_slice(&answer.filled()[..taken]);
                } else {
                    counts.bytes_out += taken as u64;
                    let bytes = &answer.filled()[..taken];
                    let written = write_paced(client, bytes, &counts.pace).await;
                    written.map_err(|_| Failed::ClientGone)?;
                }
                answer.consume(taken);
            }
            if !out.is_empty() {
                counts.bytes_out += out.len() as u64;
                let written = write_paced(client, out, &counts.pace).await;
                written.map_err(|_| Failed::ClientGone)?;
                out.clear();
            }
            first = false;
            if body.is_done() {
                return Ok(answer.filled().is_empty());
            }
            if (was_full || long_rest(body).is_some()) && !decode {
                return Box::pin(self.relay_copied(upstream, body, counts)).await;
            }
            match self.more(upstream, answer).await? {
                Ok(0) if body == Body::UntilClose => return Ok(true),
                Ok(0) | Err(_) => return Err(Failed::Truncated),
                Ok(_) => {}
            }
        }
    }

    /// At least one more byte of the answer, or its end, while the client waits for it.
    async fn more(
        &self,
        upstream: &Wire,
        answer: &mut Buffer,
    ) -> Result<io::Result<usize>, Failed> {
        let thread = &self.connection.thread;
        loop {
            match thread.read_now(upstream, answer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Err(error) = Box::pin(self.until_more(upstream)).await? {
                        return Ok(Err(error));
                    }
                }
                result => return Ok(result),
            }
        }
    }

    async fn until_more(&self, upstream: &Wire) -> Result<io::Result<()>, Failed> {
        tokio::select! {
            biased;
            waited = upstream.readable_within(self.application.limits.answer_idle) => Ok(waited),
            () = self.client_left() => Err(Failed::ClientGone),
        }
    }

    /// All of the body that is left, behind what of the answer was read already.
    pub(super) async fn relay_long(
        &self,
        upstream: &Wire,
        to: &Plain,
        begun: [&[u8]; 2],
        left: u64,
        head_length: usize,
        counts: &mut Counts,
    ) -> Result<bool, Failed> {
        let passed = self.relay_spliced(upstream, to, begun, left, counts).await?;
        match (passed, upstream) {
            (Spliced::Whole { clean: true }, Wire::Plain(from)) => {
                from.expect_long(head_length);
                Ok(true)
            }
            (Spliced::Whole { clean }, _) => Ok(clean),
            (Spliced::Left(left), _) => {
                let body = Body::Length(left);
                Box::pin(self.relay_copied(upstream, body, counts)).await
            }
        }
    }

    /// Until there are no more pipes. One is held while bytes are in it, and by nobody who waits
    /// for the instance.
    async fn relay_spliced(
        &self,
        upstream: &Wire,
        to: &Plain,
        begun: [&[u8]; 2],
        mut left: u64,
        counts: &mut Counts,
    ) -> Result<Spliced, Failed> {
        counts.bytes_out += begun.iter().map(|piece| piece.len() as u64).sum::<u64>();
        let (mut begun, mut turn) = (Some(begun), 0);
        while left > 0 {
            let pipe = match upstream {
                Wire::Plain(from) => self.connection.thread.pool.pipe().map(|pipe| (pipe, from)),
                _ => None,
            };
            let taken = pipe.as_ref().map(|(pipe, from)| pipe.take_rest(from, left));
            if let Some(begun) = begun.take() {
                // In fewer segments, where more of it is here already.
                let is_here = matches!(taken, Some(Ok(1..)));
                let is_near = self.connection.peer.ip().is_loopback();
                let more = is_here && !(is_near && to.sends_head_ahead());
                let written = to.write_pieces(begun, more, Patience::Paced(&counts.pace)).await;
                written.map_err(|_| Failed::ClientGone)?;
            }
            let (Some((pipe, _)), Some(taken)) = (pipe, taken) else {
                return Ok(Spliced::Left(left));
            };
            match taken {
                Ok(0) => return Err(Failed::Truncated),
                Ok(count) if count as u64 > left => {
                    let mut piece = Buffer::default();
                    pipe.read_back(&mut piece).map_err(|_| Failed::Truncated)?;
                    let mut body = Body::Length(left);
                    let clean = Box::pin(self.pass(piece.filled(), &mut body, counts)).await?;
                    return Ok(Spliced::Whole { clean });
                }
                Ok(count) => {
                    let given = pipe.give(to, &counts.pace).await;
                    given.map_err(|_| Failed::ClientGone)?;
                    left -= count as u64;
                    counts.bytes_out += count as u64;
                    turn += count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    drop(pipe);
                    Box::pin(self.until_more(upstream)).await?.map_err(|_| Failed::Truncated)?;
                    turn = 0;
                }
                Err(_) => return Err(Failed::Truncated),
            }
            // There may be more at once: others have their turn first.
            if turn >= TURN_BYTES {
                tokio::task::yield_now().await;
                turn = 0;
            }
        }
        Ok(Spliced::Whole { clean: true })
    }

    /// After a long answer little is read of the next at first. Where that is no long one as well,
    /// what has come of its body goes out together with its head.
    fn read_rest(&self, upstream: &Wire, answer: &mut Buffer, mut body: Body) -> io::Result<()> {
        match upstream {
            Wire::Plain(from) if from.expect_any() => {}
            _ => return Ok(()),
        }
        let valid = body.accept(answer.filled()).is_ok();
        if !valid || body.is_done() || long_rest(body).is_some() {
            return Ok(());
        }
        match self.connection.thread.read_now(upstream, answer) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// In large pieces. While nothing comes it holds no buffer.
    async fn relay_copied(
        &self,
        upstream: &Wire,
        mut body: Body,
        counts: &mut Counts,
    ) -> Result<bool, Failed> {
        let thread = &self.connection.thread;
        loop {
            let mut piece = thread.pool.large();
            let read = upstream.read_now(&mut piece);
            let (passed, was_full) =
                (self.pass(piece.filled(), &mut body, counts).await, piece.is_full());
            thread.pool.give_back(piece);
            let clean = passed?;
            match read {
                Ok(_) if body.is_done() => return Ok(clean),
                Ok(0) if body == Body::UntilClose => return Ok(true),
                Ok(0) => return Err(Failed::Truncated),
                // There is more at once: others have their turn first.
                Ok(_) if was_full => tokio::task::yield_now().await,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.until_more(upstream).await?.map_err(|_| Failed::Truncated)?;
                }
                Err(_) => return Err(Failed::Truncated),
            }
        }
    }

    /// True where all of the piece was of the body.
    async fn pass(
        &self,
        piece: &[u8],
        body: &mut Body,
        counts: &mut Counts,
    ) -> Result<bool, Failed> {
        let taken = body.accept(piece).map_err(|_| Failed::Truncated)?;
        let written = write_paced(&self.connection.stream, &piece[..taken], &counts.pace).await;
        written.map_err(|_| Failed::ClientGone)?;
        counts.bytes_out += taken as u64;
        Ok(taken == piece.len())
    }

    pub(super) async fn upgrade(
        &mut self,
        permit: Permit,
        upstream: Wire,
        mut answer: Buffer,
        out: &mut Vec<u8>,
        counts: &mut Counts,
    ) -> Result<After, Failed> {
        if let Wire::Plain(from) = &upstream {
            from.expect_any();
        }
        out.extend_from_slice(answer.filled());
        answer.consume(answer.filled().len());
        let client = &self.connection.stream;
        let thread = &self.connection.thread;
        thread.pool.give_back(answer);
        let written = write_all(client, out, WRITE_TIME_MAX).await;
        written.map_err(|_| Failed::ClientGone)?;
        let early = write_all(&upstream, self.buffer.filled(), WRITE_TIME_MAX).await;
        self.buffer.consume(self.buffer.filled().len());
        self.record(Some(&permit.endpoint), counts);
        if early.is_ok() {
            tunnel::run(&thread.pool, client, &upstream, permit).await;
        }
        Ok(After::Close)
    }
}

/// Of a body, where more is to come than one read takes.
pub(super) fn long_rest(body: Body) -> Option<u64> {
    match body {
        Body::Length(left) if left > BUFFER_BYTES as u64 => Some(left),
        _ => None,
    }
}

/// Where chunks are written anew, and the trailers so far.
type Anew = (Vec<u8>, Trailers);

/// Until its end, or until one side wants no more of it: the answer's end says what became of it.
async fn pass_request(
    client: &Wire,
    buffer: &mut Buffer,
    upstream: &Wire,
    body: &mut Body,
    anew: &mut Option<Anew>,
    limits: Limits,
    bytes: &mut u64,
) {
    while !body.is_done() {
        if buffer.filled().is_empty() {
            match fill(client, buffer, limits.body).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return,
            }
        }
        let taken = match anew {
            Some((out, trailers)) => {
                out.clear();
                body.reframe(buffer.filled(), out, trailers)
            }
            None => body.accept(buffer.filled()),
        };
        let Ok(taken) = taken else { return };
        if body.content() > limits.body_bytes_max {
            return;
        }
        let passed = match anew {
            Some((out, _)) => out.as_slice(),
            None => &buffer.filled()[..taken],
        };
        let sent = write_all(upstream, passed, limits.body).await;
        buffer.consume(taken);
        *bytes += taken as u64;
        if sent.is_err() {
            return;
        }
    }
}
