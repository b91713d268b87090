//! Tests of streams of HTTP/2 as a connection's wire.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::ready;

use tokio::time::{Sleep, sleep};

use super::*;

/// A stream that takes a few bytes at a time, and then nothing for a while.
struct Slow {
    bytes: usize,
    pause: RefCell<Pin<Box<Sleep>>>,
}

impl Ways for Slow {
    fn take(&self, _: &mut [u8]) -> usize {
        0
    }

    fn ready_bytes(&self) -> usize {
        0
    }

    fn poll_more(&self, _: &mut Context<'_>) -> Poll<Result<bool>> {
        Poll::Pending
    }

    fn has_ended(&self) -> bool {
        false
    }

    fn poll_reset(&self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let mut pause = self.pause.borrow_mut();
        ready!(pause.as_mut().poll(cx));
        pause.set(sleep(Duration::from_millis(200)));
        Poll::Ready(Ok(self.bytes.min(bytes.len())))
    }

    fn finish(&self) {}

    fn cut(&self) {}
}

/// Each piece comes in time, but byte by byte it would take for ever.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_taken_by_the_byte_is_not_held_to_its_end() {
    for (bytes, ends) in [(1, false), (100, true)] {
        let pause = RefCell::new(Box::pin(sleep(Duration::ZERO)));
        let stream = H2Stream::of_client(Slow { bytes, pause });
        let sent = stream.write_all(&[b'x'; 2000], Duration::from_millis(300)).await;
        assert_eq!(
            sent.map_err(|error| error.kind()),
            match ends {
                true => Ok(()),
                false => Err(ErrorKind::TimedOut),
            }
        );
    }
}
