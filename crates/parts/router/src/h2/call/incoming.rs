//! The answer of an instance, as HTTP/1.1.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::RecvStream;
use h2::client::ResponseFuture;

use super::error::broken;
use super::head;

pub struct IncomingAnswer {
    /// The pieces to be read next: an answer's head, or a frame with its framing as a chunk.
    ready: VecDeque<Bytes>,
    /// Bytes of the sender's window that come back to it once `ready` is read.
    owed: usize,
    chunked: bool,
    source: Source,
}

enum Source {
    /// The request is not sent yet.
    Unasked,
    Answer {
        future: ResponseFuture,
        is_head: bool,
    },
    Body(RecvStream),
    /// The stream has ended; it is kept until all was read, as its window belongs to the others on
    /// the connection, too.
    Ended(Option<RecvStream>),
    Broken,
}

impl IncomingAnswer {
    pub fn unasked() -> IncomingAnswer {
        IncomingAnswer { ready: VecDeque::new(), owed: 0, chunked: false, source: Source::Unasked }
    }

    pub fn await_answer(&mut self, (future, is_head): (ResponseFuture, bool)) {
        self.source = Source::Answer { future, is_head };
    }

    pub fn ready_bytes(&self) -> usize {
        self.ready.iter().map(Bytes::len).sum()
    }

    /// Reads what is ready, as far as there is room.
    pub fn take(&mut self, room: &mut [u8]) -> usize {
        let mut count = 0;
        while let Some(piece) = self.ready.front_mut() {
            let taken = piece.len().min(room.len() - count);
            room[count..count + taken].copy_from_slice(&piece[..taken]);
            count += taken;
            piece.advance(taken);
            if !piece.is_empty() {
                return count;
            }
            self.ready.pop_front();
        }
        let owed = std::mem::take(&mut self.owed);
        if owed > 0
            && let Source::Body(body) | Source::Ended(Some(body)) = &mut self.source
        {
            // This fails if the stream is over, and with it its window.
            body.flow_control().release_capacity(owed).ok();
        }
        count
    }

    /// Resolves to whether something is ready; false at the end.
    pub fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool>> {
        while self.ready.is_empty() {
            match &mut self.source {
                Source::Unasked => return Poll::Pending,
                Source::Ended(_) => return Poll::Ready(Ok(false)),
                Source::Broken => return self.fail(ErrorKind::ConnectionReset.into()),
                Source::Answer { future, is_head } => {
                    let is_head = *is_head;
                    match ready!(Pin::new(future).poll(cx)) {
                        Ok(answer) => self.answered(answer, is_head),
                        Err(error) => return self.fail(broken(error)),
                    }
                }
                Source::Body(body) => match ready!(body.poll_data(cx)) {
                    Some(Ok(data)) => self.put(data),
                    Some(Err(error)) => return self.fail(broken(error)),
                    None => match ready!(body.poll_trailers(cx)) {
                        Ok(trailers) => {
                            if self.chunked {
                                self.ready.push_back(head::last_chunk(trailers));
                            }
                            self.end();
                        }
                        Err(error) => return self.fail(broken(error)),
                    },
                },
            }
        }
        Poll::Ready(Ok(true))
    }

    fn fail(&mut self, error: Error) -> Poll<Result<bool>> {
        self.source = Source::Broken;
        Poll::Ready(Err(error))
    }

    fn answered(&mut self, answer: hyper::Response<RecvStream>, is_head: bool) {
        let (parts, body) = answer.into_parts();
        let ended = body.is_end_stream();
        let (head, chunked) = head::called(&parts, ended, is_head);
        self.ready.push_back(head);
        self.chunked = chunked;
        self.source = Source::Body(body);
        if ended {
            if chunked {
                self.ready.push_back(head::last_chunk(None));
            }
            self.end();
        }
    }

    fn end(&mut self) {
        let ended = std::mem::replace(&mut self.source, Source::Ended(None));
        if let Source::Body(body) = ended {
            self.source = Source::Ended(Some(body));
        }
    }

    fn put(&mut self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        self.owed += data.len();
        if self.chunked {
            self.ready.push_back(format!("{:x}\r\n", data.len()).into());
            self.ready.push_back(data);
            self.ready.push_back(Bytes::from_static(b"\r\n"));
        } else {
            self.ready.push_back(data);
        }
    }
}
