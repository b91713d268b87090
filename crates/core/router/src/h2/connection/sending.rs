//! What is written to streams. Bodies wait for the client's windows, and for room on their way.

use std::task::{Context, Poll};

use super::{H2Connection, OUT_BYTES};
use crate::h2::answer::{self, Framing};
use crate::h2::chunks::ChunkReader;
use crate::h2::frame::{self, FrameType, PAYLOAD_BYTES_MAX, Reason};
use crate::h2::streams::{StreamKey, StreamState, looks_only};

/// The stream is over: the client cut it, or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamGone;

/// The reason why a head was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsent {
    Gone,
    /// The head has not come whole.
    Partial,
    Unreadable,
}

/// A head that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    pub framing: Framing,
    /// The number of bytes of the text that were used.
    pub used: usize,
    /// Whether another head follows.
    pub is_interim: bool,
    /// Whether the answer has no body, or one that is empty and all there.
    pub is_whole: bool,
}

impl Sent {
    fn of(head: &answer::AnswerHead, text: &[u8]) -> Sent {
        let answer::AnswerHead { framing, length, is_interim } = *head;
        let (used, is_whole) = framing.end(text, length);
        Sent { framing, used, is_interim, is_whole: is_whole && !is_interim }
    }
}

impl H2Connection {
    /// Sends the head of an answer, given in the text of HTTP/1.1.
    pub fn send_head(
        &mut self,
        key: StreamKey,
        text: &[u8],
        is_head: bool,
        is_tunnel: bool,
    ) -> Result<Sent, Unsent> {
        let stream = self.streams.get(key).filter(|stream| stream.cut.is_none());
        let stream = stream.ok_or(Unsent::Gone)?;
        let encoder = &mut self.encoder;
        let sent = frame::put_block(&mut self.out, key.id, |out| {
            match answer::write(text, is_head, is_tunnel, encoder, out) {
                Ok(Some(head)) => {
                    let sent = Sent::of(&head, text);
                    Ok((sent, sent.is_whole))
                }
                Ok(None) => Err(Unsent::Partial),
                Err(answer::Unreadable) => Err(Unsent::Unreadable),
            }
        })?;
        stream.is_sent = sent.is_whole;
        self.streams.settle(key);
        self.driver.wake();
        Ok(sent)
    }

    /// Writes a whole answer that is only a status.
    pub(super) fn put_status(&mut self, id: u32, status: u16) {
        let encoder = &mut self.encoder;
        let written = frame::put_block(&mut self.out, id, |out| {
            encoder.begin(out);
            encoder.put_status(out, status);
            Ok::<_, ()>(((), true))
        });
        debug_assert_eq!(written, Ok(()));
    }

    /// Resolves with how much of a body may be sent now: at least a byte.
    pub fn poll_room(
        &mut self,
        key: StreamKey,
        cx: &Context<'_>,
    ) -> Poll<Result<usize, StreamGone>> {
        let shared = self.shared_room();
        let Some(stream) = self.streams.get(key).filter(|stream| stream.cut.is_none()) else {
            return Poll::Ready(Err(StreamGone));
        };
        let own = usize::try_from(stream.window_out).unwrap_or(0);
        let room = own.min(shared);
        if room > 0 {
            self.leave_queue(key);
            return Poll::Ready(Ok(room));
        }
        stream.writer.wait(cx);
        if own == 0 {
            // The stream sends nothing, so no other would be woken.
            self.leave_queue(key);
            self.wake_next();
        } else if !looks_only(cx) && !self.queue.contains(&key) {
            self.queue.push_back(key);
        }
        Poll::Pending
    }

    /// Returns the room that all streams share, on the way and in the client's window.
    fn shared_room(&self) -> usize {
        let window = usize::try_from(self.window_out).unwrap_or(0);
        window.min(OUT_BYTES.saturating_sub(self.out.len() + frame::HEAD_BYTES))
    }

    /// Sends a part of a body, for which there is room.
    pub fn send_body(
        &mut self,
        key: StreamKey,
        content: &[u8],
        ended: bool,
    ) -> Result<(), StreamGone> {
        let stream =
            self.streams.get(key).filter(|stream| stream.cut.is_none()).ok_or(StreamGone)?;
        stream.window_out -= content.len() as i64;
        self.window_out -= content.len() as i64;
        stream.is_sent = ended;
        let mut pieces = content.chunks(PAYLOAD_BYTES_MAX).peekable();
        while let Some(piece) = pieces.next() {
            let is_last = ended && pieces.peek().is_none();
            let flags = if is_last { frame::END_STREAM } else { 0 };
            frame::put(&mut self.out, FrameType::DATA, flags, key.id, piece);
        }
        if content.is_empty() && ended {
            frame::put(&mut self.out, FrameType::DATA, frame::END_STREAM, key.id, &[]);
        }
        self.streams.settle(key);
        self.driver.wake();
        Ok(())
    }

    /// Sends the end of a body that came in chunks.
    pub fn send_end(&mut self, key: StreamKey, chunks: &ChunkReader) -> Result<(), Unsent> {
        let stream = self.streams.get(key).filter(|stream| stream.cut.is_none());
        let stream = stream.ok_or(Unsent::Gone)?;
        let encoder = &mut self.encoder;
        let mut has_any = false;
        let written = frame::put_block(&mut self.out, key.id, |out| {
            let put = |name: &str, value: &[u8]| {
                if !std::mem::replace(&mut has_any, true) {
                    encoder.begin(out);
                }
                encoder.put(out, name.as_bytes(), value);
            };
            match chunks.trailers(put) {
                Err(_) => Err(Some(Unsent::Unreadable)),
                // Without trailers there is no block.
                Ok(()) if !has_any => Err(None),
                Ok(()) => Ok(((), true)),
            }
        });
        match written {
            Ok(()) => stream.is_sent = true,
            Err(None) => {
                return self.send_body(key, &[], true).map_err(|StreamGone| Unsent::Gone);
            }
            Err(Some(error)) => return Err(error),
        }
        self.streams.settle(key);
        self.driver.wake();
        Ok(())
    }

    /// Ends a stream before its end, so that what was sent so far cannot pass for the whole.
    pub fn cut(&mut self, key: StreamKey, reason: Reason) {
        let is_sent = |stream: &mut StreamState| stream.is_sent || stream.cut.is_some();
        if !self.streams.get(key).is_none_or(is_sent) {
            self.refuse(key.id, reason);
        }
    }

    /// Ends a stream that nothing serves any more.
    pub fn end(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get(key) else { return };
        let unread = std::mem::take(&mut stream.owed);
        let (is_cut, is_sent, has_come) = (stream.cut.is_some(), stream.is_sent, stream.has_come);
        if !is_cut && !is_sent {
            self.refuse(key.id, Reason::INTERNAL_ERROR);
        } else if !is_cut && !has_come {
            // Nobody reads the rest of what was asked.
            self.refuse(key.id, Reason::NO_ERROR);
        }
        self.give_back_all(unread);
        self.streams.end(key);
        if self.is_finished() {
            self.driver.wake();
        }
    }

    pub(super) fn leave_queue(&mut self, key: StreamKey) {
        if let Some(at) = self.queue.iter().position(|queued| *queued == key) {
            self.queue.remove(at);
        }
    }

    /// Wakes the first that waits, if there is room. It leaves the queue when it has used some.
    pub(super) fn wake_next(&mut self) {
        if let Some(key) = self.queue.front().copied()
            && self.shared_room() > 0
            && let Some(stream) = self.streams.get(key)
        {
            stream.writer.wake();
        }
    }
}
