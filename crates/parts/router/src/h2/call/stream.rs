//! One request to an instance.

use std::cell::RefCell;
use std::io::Result;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::Reason;
use h2::client::SendRequest;

use super::incoming::IncomingAnswer;
use super::outgoing::OutgoingRequest;
use crate::h2::stream::{CountedStream, Ways};

pub struct Call {
    incoming: RefCell<IncomingAnswer>,
    outgoing: RefCell<OutgoingRequest>,
    _counted: CountedStream,
}

impl Call {
    pub fn new(calls: SendRequest<Bytes>, counted: CountedStream) -> Call {
        Call {
            incoming: RefCell::new(IncomingAnswer::unasked()),
            outgoing: RefCell::new(OutgoingRequest::new(calls)),
            _counted: counted,
        }
    }
}

impl Ways for Call {
    fn take(&self, room: &mut [u8]) -> usize {
        self.incoming.borrow_mut().take(room)
    }

    fn ready_bytes(&self) -> usize {
        self.incoming.borrow().ready_bytes()
    }

    fn poll_more(&self, cx: &mut Context<'_>) -> Poll<Result<bool>> {
        self.incoming.borrow_mut().poll_more(cx)
    }

    /// Returns true: the end of an instance's answer is one for the reader.
    fn has_ended(&self) -> bool {
        true
    }

    fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.outgoing.borrow_mut().poll_reset(cx)
    }

    fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let mut outgoing = self.outgoing.borrow_mut();
        let result = outgoing.poll_write(cx, bytes);
        if let Some(answer) = outgoing.take_asked() {
            self.incoming.borrow_mut().await_answer(answer);
        }
        result
    }

    /// Does nothing: the message says by itself where it ends.
    fn finish(&self) {}

    fn cut(&self) {
        self.outgoing.borrow_mut().reset(Reason::INTERNAL_ERROR);
    }
}
