//! One request of a client. What is written to it as HTTP/1.1 is taken apart into frames.

use std::cell::RefCell;
use std::io::{Error, ErrorKind, Result};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use router_core::h2::answer::Framing;
use router_core::h2::connection::{H2Connection as H2, StreamGone, StreamKey, Unsent};
use router_core::h2::frame::Reason;
use router_core::h2::request::RequestForm;
use router_core::h2::text::{BodyText, HeadText, TextPiece, Took};

use super::H2Client;
use crate::h2::stream::{CountedStream, Ways};

pub struct ClientStream {
    client: Rc<H2Client>,
    key: StreamKey,
    asked: RequestForm,
    answer: RefCell<AnswerText>,
    _counted: CountedStream,
}

struct AnswerText {
    state: State,
    head: HeadText,
    body: BodyText,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Body,
    /// All is sent.
    Finished,
    Broken,
}

impl ClientStream {
    pub fn new(client: Rc<H2Client>, key: StreamKey, asked: RequestForm) -> ClientStream {
        let counted = CountedStream::begin(&client.thread.streams);
        let answer = RefCell::new(AnswerText {
            state: State::Head,
            head: HeadText::default(),
            body: BodyText::new(Framing::Empty),
        });
        ClientStream { client, key, asked, answer, _counted: counted }
    }
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        self.client.h2.borrow_mut().end(self.key);
    }
}

impl Ways for ClientStream {
    fn take(&self, room: &mut [u8]) -> usize {
        self.client.h2.borrow_mut().read_body(self.key, room)
    }

    fn ready_bytes(&self) -> usize {
        self.client.h2.borrow_mut().ready_bytes(self.key)
    }

    fn poll_more(&self, cx: &mut Context<'_>) -> Poll<Result<bool>> {
        let more = self.client.h2.borrow_mut().poll_more(self.key, cx);
        more.map_err(|StreamGone| ErrorKind::ConnectionReset.into())
    }

    fn has_ended(&self) -> bool {
        let state = self.answer.borrow().state;
        self.asked.is_tunnel || matches!(state, State::Finished | State::Broken)
    }

    fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.client.h2.borrow_mut().poll_cut(self.key, cx)
    }

    fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let mut h2 = self.client.h2.borrow_mut();
        self.client.lend(&mut h2);
        let mut answer = self.answer.borrow_mut();
        let result = match answer.state {
            State::Head => Poll::Ready(answer.head(self, &mut h2, bytes)),
            State::Body => answer.poll_body(self.key, &mut h2, cx, bytes),
            // Nothing belongs behind the end.
            State::Finished => Poll::Ready(Ok(bytes.len())),
            State::Broken => Poll::Ready(Err(ErrorKind::BrokenPipe.into())),
        };
        if matches!(result, Poll::Ready(Err(_))) {
            answer.state = State::Broken;
        }
        result
    }

    fn finish(&self) {
        let mut answer = self.answer.borrow_mut();
        if answer.state == State::Body && answer.body.is_until_close() {
            // A client that is gone needs no end.
            self.client.h2.borrow_mut().send_body(self.key, &[], true).ok();
            answer.state = State::Finished;
        }
    }

    fn cut(&self) {
        self.client.h2.borrow_mut().cut(self.key, Reason::INTERNAL_ERROR);
        self.answer.borrow_mut().state = State::Broken;
    }

    fn is_secure(&self) -> bool {
        self.client.is_secure
    }

    fn may_idle(&self, time: Duration) {
        self.client.idle_max.set(time);
    }
}

impl AnswerText {
    fn head(&mut self, stream: &ClientStream, h2: &mut H2, bytes: &[u8]) -> Result<usize> {
        let mut head = std::mem::take(&mut self.head);
        let used = head.put(bytes, |text| self.whole_head(stream, h2, text))?;
        self.head = head;
        Ok(used)
    }

    /// Sends the head and what came of its body; returns how long they were.
    fn whole_head(
        &mut self,
        stream: &ClientStream,
        h2: &mut H2,
        bytes: &[u8],
    ) -> Result<Option<usize>> {
        let RequestForm { is_head, is_tunnel, .. } = stream.asked;
        let sent = match h2.send_head(stream.key, bytes, is_head, is_tunnel) {
            Ok(sent) => sent,
            Err(Unsent::Partial) => return Ok(None),
            Err(unsent) => return Err(broken(unsent)),
        };
        if sent.is_interim {
            return Ok(Some(sent.used));
        }
        self.body = BodyText::new(sent.framing);
        self.state = if sent.is_whole { State::Finished } else { State::Body };
        let mut used = sent.used;
        if self.state == State::Body && used < bytes.len() {
            let now = &mut Context::from_waker(Waker::noop());
            if let Poll::Ready(more) = self.poll_body(stream.key, h2, now, &bytes[used..]) {
                used += more?;
            }
        }
        Ok(Some(used))
    }

    fn poll_body(
        &mut self,
        key: StreamKey,
        h2: &mut H2,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let wanted = match self.body.next(bytes)? {
            TextPiece::Framing(count) => return Poll::Ready(Ok(count)),
            TextPiece::Content(count) => count,
            TextPiece::End(count) => {
                self.state = State::Finished;
                let sent = h2.send_end(key, self.body.chunks());
                return Poll::Ready(sent.map(|()| count).map_err(broken));
            }
        };
        let gone = |StreamGone| Error::from(ErrorKind::BrokenPipe);
        let room = ready!(h2.poll_room(key, cx)).map_err(gone)?;
        let count = wanted.min(room);
        let Took { used, ended } = self.body.took(bytes, count);
        h2.send_body(key, &bytes[..count], ended).map_err(gone)?;
        if ended {
            self.state = State::Finished;
        }
        Poll::Ready(Ok(used))
    }
}

fn broken(unsent: Unsent) -> Error {
    match unsent {
        Unsent::Gone => ErrorKind::BrokenPipe.into(),
        Unsent::Partial | Unsent::Unreadable => {
            Error::new(ErrorKind::InvalidData, "the answer cannot be read")
        }
    }
}
