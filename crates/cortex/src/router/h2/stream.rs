//! A stream of HTTP/2 as a `Wire`: who reads it reads HTTP/1.1, and what is written to it as
//! HTTP/1.1 goes out in frames. Either side's window holds up who writes; nothing is kept here but
//! the frame that is being read.

mod incoming;
mod outgoing;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{Error, ErrorKind, Result};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};

use self::incoming::Incoming;
use self::outgoing::Outgoing;
use super::head::Asked;
use crate::router::pace::Pace;
use crate::router::stream::within;

pub struct Stream {
    incoming: RefCell<Incoming>,
    outgoing: RefCell<Outgoing>,
    /// Of a client's: it came inside TLS.
    is_secure: bool,
    /// After the end of a client's request only the end of the stream may come, unless it is a
    /// tunnel. An instance's end is one.
    ends: Ends,
    /// Of a client's connection: how long it may be idle.
    idle_max: Option<Rc<Cell<Duration>>>,
    /// Of a client, whose windows may be as small as it likes.
    pace: Option<Pace>,
    _counted: Counted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    WithTheirs,
    WithOurs,
}

/// One stream less when it ends.
pub struct Counted(Rc<Cell<usize>>);

impl Counted {
    pub fn begin(count: &Rc<Cell<usize>>) -> Counted {
        count.set(count.get() + 1);
        Counted(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Stream {
    /// Of a client, behind the head of its request.
    pub fn asked(
        asked: Asked,
        body: RecvStream,
        answer: SendResponse<Bytes>,
        is_secure: bool,
        counted: Counted,
    ) -> Stream {
        Stream {
            ends: if asked.is_tunnel { Ends::WithTheirs } else { Ends::WithOurs },
            outgoing: RefCell::new(Outgoing::answer(answer, asked.is_head, asked.is_tunnel)),
            incoming: RefCell::new(Incoming::asked(asked.chunked, body)),
            is_secure,
            idle_max: None,
            pace: Some(Pace::default()),
            _counted: counted,
        }
    }

    /// To an instance, for one request.
    pub fn call(calls: SendRequest<Bytes>, counted: Counted) -> Stream {
        Stream {
            ends: Ends::WithTheirs,
            outgoing: RefCell::new(Outgoing::call(calls)),
            incoming: RefCell::new(Incoming::unasked()),
            is_secure: false,
            idle_max: None,
            pace: None,
            _counted: counted,
        }
    }

    /// Tells its connection what holds for the application that it asks.
    pub fn telling(self, idle_max: Rc<Cell<Duration>>) -> Stream {
        Stream { idle_max: Some(idle_max), ..self }
    }

    pub fn may_idle(&self, time: Duration) {
        if let Some(idle_max) = &self.idle_max {
            idle_max.set(time);
        }
    }

    pub fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// Whether the end of what comes is an end for who reads.
    fn has_ended(&self) -> bool {
        self.ends == Ends::WithTheirs || self.outgoing.borrow().is_finished()
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self.incoming.borrow_mut().poll_more(cx) {
            Poll::Ready(Ok(false)) if !self.has_ended() => {
                self.outgoing.borrow_mut().poll_reset(cx)
            }
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        }
    }

    pub fn read_now(&self, room: &mut [u8]) -> Result<usize> {
        let cx = &mut Context::from_waker(Waker::noop());
        let mut count = 0;
        loop {
            let more = {
                let mut incoming = self.incoming.borrow_mut();
                count += incoming.take(&mut room[count..]);
                if count == room.len() {
                    return Ok(count);
                }
                incoming.poll_more(cx)
            };
            match more {
                Poll::Ready(Ok(true)) => {}
                _ if count > 0 => return Ok(count),
                Poll::Ready(Ok(false)) if self.has_ended() => return Ok(0),
                Poll::Ready(Ok(false)) => {
                    let reset = self.outgoing.borrow_mut().poll_reset(cx).is_ready();
                    let kind =
                        if reset { ErrorKind::ConnectionReset } else { ErrorKind::WouldBlock };
                    return Err(kind.into());
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Err(ErrorKind::WouldBlock.into()),
            }
        }
    }

    pub async fn readable(&self) {
        poll_fn(|cx| self.poll_readable(cx)).await;
    }

    /// What is left when no more can be sent now.
    pub fn write_now<'a>(&self, mut bytes: &'a [u8]) -> Result<&'a [u8]> {
        while !bytes.is_empty() {
            let now = &mut Context::from_waker(Waker::noop());
            let Poll::Ready(taken) = self.poll_write(now, bytes) else { break };
            bytes = self.took(bytes, taken?);
        }
        Ok(bytes)
    }

    /// Each piece within `limit`; all that a client takes, with a second more for each 240 bytes.
    pub async fn write_all(&self, mut bytes: &[u8], limit: Duration) -> Result<()> {
        while !bytes.is_empty() {
            let taken = self.write_later(bytes, limit).await?;
            bytes = self.write_now(self.took(bytes, taken))?;
        }
        Ok(())
    }

    fn took<'a>(&self, bytes: &'a [u8], taken: usize) -> &'a [u8] {
        if let Some(pace) = &self.pace {
            pace.took(taken);
        }
        &bytes[taken..]
    }

    async fn write_later(&self, bytes: &[u8], limit: Duration) -> Result<usize> {
        let work = poll_fn(|cx| self.poll_write(cx, bytes));
        match &self.pace {
            Some(pace) => pace.wait(limit, work).await,
            None => within(limit, work).await,
        }
    }

    fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let mut outgoing = self.outgoing.borrow_mut();
        let result = outgoing.poll_write(cx, bytes);
        if let Some(answer) = outgoing.take_asked() {
            self.incoming.borrow_mut().await_answer(answer);
        }
        result
    }

    /// Bytes that have come and were not read; none at the end.
    pub fn peek(&self) -> Option<usize> {
        let mut incoming = self.incoming.borrow_mut();
        match incoming.poll_more(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(true)) => Some(incoming.ready_bytes()),
            Poll::Ready(_) => None,
            Poll::Pending => Some(0),
        }
    }

    /// The end of a message that ends with its connection.
    pub fn shut_down_writing(&self) {
        self.outgoing.borrow_mut().finish();
    }

    /// So that what was sent so far cannot pass for the whole.
    pub fn cut(&self) {
        self.outgoing.borrow_mut().reset(Reason::INTERNAL_ERROR);
    }
}

fn broken(error: h2::Error) -> Error {
    Error::new(ErrorKind::ConnectionReset, error)
}
