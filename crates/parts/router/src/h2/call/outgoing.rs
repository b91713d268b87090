//! The request that an instance is asked: HTTP/1.1, taken apart into frames.

use std::io::{Error, ErrorKind, Result};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, SendStream};

use super::error::broken;
use super::head;
use router_core::h2::answer::Framing;
use router_core::h2::text::{BodyText, HeadText, TextPiece, Took};

/// Bytes copied at once; frames are smaller.
const PIECE_BYTES_MAX: usize = 32 * 1024;

pub struct OutgoingRequest {
    sender: Sender,
    head: HeadText,
    body: BodyText,
    /// The answer to a request that was sent just now, for its reader.
    asked: Option<(ResponseFuture, bool)>,
}

enum Sender {
    Call(SendRequest<Bytes>),
    Body(SendStream<Bytes>),
    /// All is sent.
    Finished,
    Broken,
}

impl OutgoingRequest {
    pub fn new(calls: SendRequest<Bytes>) -> OutgoingRequest {
        OutgoingRequest {
            sender: Sender::Call(calls),
            head: HeadText::default(),
            body: BodyText::new(Framing::Empty),
            asked: None,
        }
    }

    pub fn take_asked(&mut self) -> Option<(ResponseFuture, bool)> {
        self.asked.take()
    }

    /// Resolves when the other side wants nothing more.
    pub fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.sender {
            Sender::Body(body) => body.poll_reset(cx).map(drop),
            Sender::Call(_) => Poll::Pending,
            Sender::Finished | Sender::Broken => Poll::Ready(()),
        }
    }

    /// Writes bytes, and returns how many were used: at least one.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        match &mut self.sender {
            Sender::Call(_) => Poll::Ready(self.head(bytes)),
            Sender::Body(_) => self.poll_body(cx, bytes),
            // Nothing belongs behind the end.
            Sender::Finished => Poll::Ready(Ok(bytes.len())),
            Sender::Broken => Poll::Ready(Err(ErrorKind::BrokenPipe.into())),
        }
    }

    fn head(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut head = std::mem::take(&mut self.head);
        let used = head.put(bytes, |text| self.whole_head(text))?;
        self.head = head;
        Ok(used)
    }

    /// Sends the head and what came of its body; returns how long they were.
    fn whole_head(&mut self, bytes: &[u8]) -> Result<Option<usize>> {
        let Sender::Call(sender) = &mut self.sender else { return Ok(None) };
        let Some(read) = head::call(bytes)? else { return Ok(None) };
        let (used, ended) = read.framing.end(bytes, read.length);
        let is_head = read.request.method() == hyper::Method::HEAD;
        match sender.send_request(read.request, ended) {
            Ok((answer, body)) => {
                self.asked = Some((answer, is_head));
                self.begin(body, read.framing, ended);
            }
            Err(error) => return Err(self.fail(error)),
        }
        Ok(Some(used + self.send_now(read.content)?))
    }

    fn begin(&mut self, body: SendStream<Bytes>, framing: Framing, ended: bool) {
        self.body = BodyText::new(framing);
        self.sender = if ended { Sender::Finished } else { Sender::Body(body) };
    }

    /// Sends as much of a body of known length as the windows admit.
    fn send_now(&mut self, content: Bytes) -> Result<usize> {
        if content.is_empty() {
            return Ok(0);
        }
        let now = &mut Context::from_waker(Waker::noop());
        let Poll::Ready(room) = self.poll_room(now, content.len()) else { return Ok(0) };
        let count = room?.min(content.len());
        let Took { used, ended } = self.body.took(&content, count);
        self.send_content(content.slice(..count), ended)?;
        Ok(used)
    }

    fn send_content(&mut self, piece: Bytes, ended: bool) -> Result<()> {
        self.send(|body| body.send_data(piece, ended))?;
        if ended {
            self.sender = Sender::Finished;
        }
        Ok(())
    }

    fn fail(&mut self, error: h2::Error) -> Error {
        self.sender = Sender::Broken;
        broken(error)
    }

    fn poll_body(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let wanted = match self.body.next(bytes)? {
            TextPiece::Framing(count) => return Poll::Ready(Ok(count)),
            TextPiece::Content(count) => count,
            TextPiece::End(count) => {
                let trailers = head::trailers(self.body.chunks())?;
                let result = self.send(|body| match trailers.is_empty() {
                    true => body.send_data(Bytes::new(), true),
                    false => body.send_trailers(trailers),
                });
                self.sender = Sender::Finished;
                return Poll::Ready(result.map(|()| count));
            }
        };
        let room = match ready!(self.poll_room(cx, wanted.min(PIECE_BYTES_MAX))) {
            Ok(room) => room,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let count = wanted.min(room).min(PIECE_BYTES_MAX);
        let Took { used, ended } = self.body.took(bytes, count);
        let piece = Bytes::copy_from_slice(&bytes[..count]);
        Poll::Ready(self.send_content(piece, ended).map(|()| used))
    }

    fn send(
        &mut self,
        what: impl FnOnce(&mut SendStream<Bytes>) -> std::result::Result<(), h2::Error>,
    ) -> Result<()> {
        let Sender::Body(body) = &mut self.sender else {
            return Err(ErrorKind::BrokenPipe.into());
        };
        what(body).map_err(|error| self.fail(error))
    }

    /// Returns how many bytes the other side's windows admit, at least one.
    fn poll_room(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<Result<usize>> {
        let Sender::Body(body) = &mut self.sender else {
            return Poll::Ready(Err(ErrorKind::BrokenPipe.into()));
        };
        body.reserve_capacity(wanted);
        let room = body.capacity();
        if room > 0 {
            return Poll::Ready(Ok(room));
        }
        match ready!(body.poll_capacity(cx)) {
            Some(Ok(room)) => Poll::Ready(Ok(room)),
            Some(Err(error)) => Poll::Ready(Err(self.fail(error))),
            None => {
                self.sender = Sender::Broken;
                Poll::Ready(Err(ErrorKind::BrokenPipe.into()))
            }
        }
    }

    pub fn reset(&mut self, reason: Reason) {
        match &mut self.sender {
            Sender::Body(body) => body.send_reset(reason),
            Sender::Call(_) | Sender::Finished | Sender::Broken => {}
        }
        self.sender = Sender::Broken;
    }
}
