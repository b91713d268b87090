//! The answer on its way to the client: piece by piece, or as a tunnel. Part of one request.

use std::io;

use super::exchange::{Counts, Exchange};
use super::failed::Failed;
use super::long::{TURN_BYTES, long_rest};
use crate::buffer::Buffer;
use crate::connection::After;
use crate::limits::Limits;
use crate::pace::{Patience, WRITE_TIME_MAX};
use crate::permit::Permit;
use crate::pool::LentPipe;
use crate::stream::{fill, write_all, write_paced};
use crate::tunnel;
use crate::wire::Wire;
use router_core::http::body::Body;
use router_core::http::response::ResponseHead;
use router_core::http::trailers::Trailers;

const SHORT: &str = "it ended before as many bytes had come as its Content-Length says";
const UNFINISHED: &str = "it ended before its last chunk";
const BAD_CHUNKS: &str = "its chunks are malformed";
const RESET: &str = "its connection was reset before its end";
pub(super) const LATE: &str = "it stopped before its end, for longer than the limit 'answer'";

/// An answer that the instance has sent to its end.
pub(super) struct Relayed {
    /// Whether nothing follows it that nobody asked for.
    pub clean: bool,
    pub end: End,
}

/// The part of an answer that the client has not been sent yet, behind what is in `out`. The
/// instance is free meanwhile.
#[derive(Default)]
pub(super) struct End {
    pub piece: Buffer,
    pub pipe: Option<LentPipe>,
}

enum Spliced {
    Whole(Relayed),
    /// Bytes of the body are still to come.
    Left(u64),
}

impl Exchange<'_> {
    /// Passes on all of the answer but its end.
    pub(super) async fn relay(
        &self,
        upstream: &Wire,
        mut answer: Buffer,
        head: ResponseHead,
        out: &mut Vec<u8>,
        counts: &mut Counts,
    ) -> Result<Relayed, Failed> {
        let thread = &self.connection.thread;
        let result = self.relay_with(upstream, &mut answer, head, out, counts).await;
        thread.pool.give_back(answer);
        result
    }

    /// Passes on the answer while the rest of the request goes on: a conversation.
    pub(super) async fn relay_both_ways(
        &mut self,
        upstream: &Wire,
        answer: Buffer,
        head: ResponseHead,
        body: &mut Body,
        out: &mut Vec<u8>,
        counts: &mut Counts,
    ) -> Result<Relayed, Failed> {
        let mut rest = std::mem::take(&mut *self.buffer);
        let (limits, mut bytes_in) = (self.application.limits, 0);
        let mut anew = (!self.is_transparent())
            .then(|| (std::mem::take(&mut *self.out), std::mem::take(&mut self.trailers)));
        let result = {
            let client = &self.connection.stream;
            let asking =
                pass_request(client, &mut rest, upstream, body, &mut anew, limits, &mut bytes_in);
            let answering = async {
                let Relayed { clean, end } =
                    self.relay(upstream, answer, head, &mut *out, &mut *counts).await?;
                // Meanwhile the client may go on with its request.
                self.send_end(out, end, counts).await?;
                Ok(Relayed { clean, end: End::default() })
            };
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
    ) -> Result<Relayed, Failed> {
        let client = &self.connection.stream;
        let decode =
            matches!(head.body, Body::Chunked(_)) && !self.head.modern && !self.is_transparent();
        let (head_length, mut body) = (head.length, head.body);
        self.read_rest(upstream, answer, body).map_err(|_| Failed::Truncated(RESET))?;
        loop {
            let was_full = answer.is_full();
            let taken = match decode {
                true => body.decode(answer.filled(), out),
                false => body.accept(answer.filled()),
            };
            let taken = taken.map_err(|_| Failed::Truncated(BAD_CHUNKS))?;
            if !decode {
                if let (Wire::Plain(_), Some(left)) = (client, long_rest(body)) {
                    let begun = std::mem::take(answer);
                    return self.relay_long(upstream, out, begun, left, head_length, counts).await;
                }
                out.extend_from_slice(&answer.filled()[..taken]);
            }
            answer.consume(taken);
            if body.is_done() {
                return Ok(Relayed { clean: answer.filled().is_empty(), end: End::default() });
            }
            if (was_full || long_rest(body).is_some()) && !decode {
                return Box::pin(self.relay_copied(upstream, out, body, counts)).await;
            }
            self.send_begun(out, Buffer::default(), false, counts).await?;
            match self.more(upstream, answer).await? {
                Ok(0) if body == Body::UntilClose => {
                    return Ok(Relayed { clean: true, end: End::default() });
                }
                Ok(0) => return Err(Failed::Truncated(ended(body))),
                Err(_) => return Err(Failed::Truncated(RESET)),
                Ok(_) => {}
            }
        }
    }

    /// Reads at least one more byte of the answer, or its end, while the client waits for it.
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

    /// Passes on all that is left of the body, behind `out` and what was read already of the
    /// `answer`.
    pub(super) async fn relay_long(
        &self,
        upstream: &Wire,
        out: &mut Vec<u8>,
        answer: Buffer,
        left: u64,
        head_length: usize,
        counts: &mut Counts,
    ) -> Result<Relayed, Failed> {
        let spliced = self.relay_spliced(upstream, out, answer, left, counts).await?;
        match (spliced, upstream) {
            (Spliced::Whole(relayed), Wire::Plain(from)) if relayed.clean => {
                from.expect_long(head_length);
                Ok(relayed)
            }
            (Spliced::Whole(relayed), _) => Ok(relayed),
            (Spliced::Left(left), _) => {
                let body = Body::Length(left);
                Box::pin(self.relay_copied(upstream, out, body, counts)).await
            }
        }
    }

    /// Passes it on through pipes until there are no more of them. A pipe is held while bytes are
    /// in it, and never during a wait for the instance.
    async fn relay_spliced(
        &self,
        upstream: &Wire,
        out: &mut Vec<u8>,
        answer: Buffer,
        mut left: u64,
        counts: &mut Counts,
    ) -> Result<Spliced, Failed> {
        let thread = &self.connection.thread;
        let (mut begun, mut turn) = (answer, 0);
        loop {
            let pipe = match (upstream, &self.connection.stream) {
                (Wire::Plain(from), Wire::Plain(to)) => {
                    thread.pool.pipe().map(|pipe| (pipe.take_rest(from, left), pipe, to))
                }
                _ => None,
            };
            if matches!(&pipe, Some((Ok(count), ..)) if *count as u64 == left) {
                let pipe = pipe.map(|(_, pipe, _)| pipe);
                let end = End { piece: begun, pipe };
                return Ok(Spliced::Whole(Relayed { clean: true, end }));
            }
            let is_here = matches!(&pipe, Some((Ok(1..), ..)));
            self.send_begun(out, std::mem::take(&mut begun), is_here, counts).await?;
            let Some((taken, pipe, to)) = pipe else { return Ok(Spliced::Left(left)) };
            match taken {
                Ok(0) => return Err(Failed::Truncated(SHORT)),
                Ok(count) if count as u64 > left => {
                    let mut piece = Buffer::default();
                    pipe.read_back(&mut piece).map_err(|_| Failed::Truncated(RESET))?;
                    piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                    let end = End { piece, pipe: None };
                    return Ok(Spliced::Whole(Relayed { clean: false, end }));
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
                    let more = Box::pin(self.until_more(upstream)).await?;
                    more.map_err(late_or_reset)?;
                    turn = 0;
                }
                Err(_) => return Err(Failed::Truncated(RESET)),
            }
            // There may be more at once: others have their turn first.
            if turn >= TURN_BYTES {
                tokio::task::yield_now().await;
                turn = 0;
            }
        }
    }

    pub(super) async fn send_end(
        &self,
        out: &mut Vec<u8>,
        end: End,
        counts: &mut Counts,
    ) -> Result<(), Failed> {
        let End { piece, pipe } = end;
        self.send_begun(out, piece, pipe.is_some(), counts).await?;
        if let (Some(pipe), Wire::Plain(to)) = (pipe, &self.connection.stream) {
            let count = pipe.len() as u64;
            pipe.give(to, &counts.pace).await.map_err(|_| Failed::ClientGone)?;
            counts.bytes_out += count;
        }
        Ok(())
    }

    /// Sends what was read of an answer; in fewer segments if more of it is here already.
    async fn send_begun(
        &self,
        out: &mut Vec<u8>,
        piece: Buffer,
        more: bool,
        counts: &mut Counts,
    ) -> Result<(), Failed> {
        let pieces = [out.as_slice(), piece.filled()];
        let [head, rest] = pieces;
        counts.bytes_out += (head.len() + rest.len()) as u64;
        let written = match &self.connection.stream {
            _ if head.is_empty() && rest.is_empty() => Ok(()),
            Wire::Plain(to) if more || !rest.is_empty() => {
                let is_near = self.connection.peer.ip().is_loopback();
                let more = more && !(is_near && to.sends_head_ahead());
                to.write_pieces(pieces, more, Patience::Paced(&counts.pace)).await
            }
            client if rest.is_empty() => write_paced(client, head, &counts.pace).await,
            client => match write_paced(client, head, &counts.pace).await {
                Ok(()) => write_paced(client, rest, &counts.pace).await,
                failed => failed,
            },
        };
        out.clear();
        self.connection.thread.pool.give_back(piece);
        written.map_err(|_| Failed::ClientGone)
    }

    /// Reads more of an answer behind a long one, of which little is read at first. If it is not
    /// long as well, what has come of its body goes out together with its head.
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

    /// Passes it on in large pieces, the first one behind `out`. It holds no buffer while nothing
    /// comes.
    async fn relay_copied(
        &self,
        upstream: &Wire,
        out: &mut Vec<u8>,
        mut body: Body,
        counts: &mut Counts,
    ) -> Result<Relayed, Failed> {
        let thread = &self.connection.thread;
        loop {
            let mut piece = thread.pool.large();
            let read = upstream.read_now(&mut piece);
            let (taken, was_full) = (body.accept(piece.filled()), piece.is_full());
            if let Ok(taken) = taken
                && body.is_done()
            {
                let clean = taken == piece.filled().len();
                piece.truncate(taken);
                return Ok(Relayed { clean, end: End { piece, pipe: None } });
            }
            if taken.is_err() {
                thread.pool.give_back(piece);
                return Err(Failed::Truncated(BAD_CHUNKS));
            }
            self.send_begun(out, piece, false, counts).await?;
            match read {
                Ok(0) if body == Body::UntilClose => {
                    return Ok(Relayed { clean: true, end: End::default() });
                }
                Ok(0) => return Err(Failed::Truncated(ended(body))),
                // There is more at once: others have their turn first.
                Ok(_) if was_full => tokio::task::yield_now().await,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.until_more(upstream).await?.map_err(late_or_reset)?;
                }
                Err(_) => return Err(Failed::Truncated(RESET)),
            }
        }
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

fn ended(body: Body) -> &'static str {
    if matches!(body, Body::Chunked(_)) { UNFINISHED } else { SHORT }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn late_or_reset(error: io::Error) -> Failed {
    Failed::Truncated(if error.kind() == io::ErrorKind::TimedOut { LATE } else { RESET })
}

/// The memory for chunks that are written anew, and the trailers so far.
type Anew = (Vec<u8>, Trailers);

/// Passes the request on until its end, or until one side wants no more of it; the answer's end
/// says what became of it.
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
