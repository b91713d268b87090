//! The desk at which the connections of a lane are served, with buffers that all of them share.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use store_core::resp::reply::Replies;
use store_core::resp::request::Requests;

use super::place::LaneConnection;
use crate::access::Rights;
use crate::batch::{Asked, Batch};
use crate::command_loop::{CommandLoop, Wait};
use crate::context::ServerContext;
use crate::limits::READ_BYTES;
use crate::returning::Returning;
use store::Written;

/// The length in bytes of an incomplete command up to which it stays in the lane; a longer one is
/// left to a task to wait for.
const PARTIAL_BYTES_MAX: usize = 4096;

/// The name in a batch for writes that the store had no room for. They are made again, and nobody
/// is told.
const NOBODY: u32 = u32::MAX;

/// What is to become of a connection that was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It waits for its client, or for answers.
    Rest,
    /// It is to be served again after the others: it had to wait for something.
    Again,
    /// It asks for something that is not done here.
    Leave,
    Close,
}

pub struct Desk {
    context: Arc<ServerContext>,
    /// The writes of this turn; each is known by the index of its place.
    pub batch: Batch,
    scratch: Vec<u8>,
    requests: Requests,
    replies: Replies,
    returning: Returning,
}

impl Desk {
    pub fn new(context: Arc<ServerContext>, batch: Batch) -> Desk {
        Desk {
            context,
            batch,
            scratch: vec![0; READ_BYTES],
            requests: Requests::default(),
            replies: Replies::default(),
            returning: Returning::default(),
        }
    }

    /// Returns whether more is to be read before the turn ends.
    pub fn is_worth_waiting(&mut self) -> bool {
        self.returning.is_worth_waiting(Instant::now())
    }

    /// Commits what was written, on this thread or another.
    pub fn hurry(&mut self) {
        let began = Instant::now();
        self.context.store.hurry();
        self.returning.committed(began.elapsed());
    }

    /// Reads once from a connection, so that a client that sends without end takes turns with the
    /// others.
    pub fn serve(&mut self, place: &mut LaneConnection, index: usize) -> Next {
        if place.asked == 0 && std::mem::take(&mut place.stopped) {
            match self.consume(place, index, 0) {
                Next::Rest => {}
                next => return next,
            }
        }
        if place.asked > 0 || !place.readable {
            return Next::Rest;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let read = place.read(&mut scratch);
        self.scratch = scratch;
        match read {
            Ok(None) => Next::Rest,
            Ok(Some(0)) | Err(_) => Next::Close,
            Ok(Some(count)) => match self.consume(place, index, count) {
                Next::Rest if place.readable && place.asked == 0 => Next::Again,
                next => next,
            },
        }
    }

    /// Carries out the input that waited, and `count` new bytes.
    fn consume(&mut self, place: &mut LaneConnection, index: usize, count: usize) -> Next {
        let scratch = std::mem::take(&mut self.scratch);
        let mut waited = std::mem::take(&mut place.input);
        let next = if waited.is_empty() {
            let (used, next) = self.advance(&scratch[..count], place, index);
            place.input.extend_from_slice(&scratch[used..count]);
            next
        } else {
            waited.extend_from_slice(&scratch[..count]);
            let (used, next) = self.advance(&waited, place, index);
            // The rest of a large input must not keep its buffer.
            place.input = waited[used..].to_vec();
            next
        };
        self.scratch = scratch;
        match self.send(place) {
            // The place must not become another's before its writes are answered.
            Err(_) if place.asked > 0 => {
                place.broken = true;
                Next::Rest
            }
            Err(_) => Next::Close,
            Ok(()) if place.blocked && place.asked == 0 => Next::Leave,
            Ok(()) => next,
        }
    }

    /// Runs the loop over commands once; returns how many bytes were used, and what follows.
    fn advance(&mut self, input: &[u8], place: &mut LaneConnection, index: usize) -> (usize, Next) {
        self.requests.restart();
        self.replies.protocol = place.protocol;
        let before = place.asked;
        let mut commands = CommandLoop {
            context: &self.context,
            rights: Some(if place.all_rights { &Rights::All } else { &place.connection.rights }),
            requests: &mut self.requests,
            replies: &mut self.replies,
            batch: &mut self.batch,
            who: index as u32,
            asked: before,
        };
        let (used, wait) = commands.run(input);
        place.asked = commands.asked;
        if place.asked > before {
            place.turned_away = false;
            if before == 0 {
                self.returning.wrote();
            }
        }
        if let Wait::Room { answer, .. } = wait {
            // Its place among the answers is taken all the same.
            self.batch.asked.push(Asked { who: NOBODY, answer, writes: 1 });
        }
        let next = match wait {
            Wait::Bytes if input.len() - used <= PARTIAL_BYTES_MAX => return (used, Next::Rest),
            _ if place.asked > 0 => Next::Rest,
            Wait::Room { .. } if std::mem::replace(&mut place.turned_away, true) => Next::Leave,
            Wait::Room { .. } | Wait::Replies => Next::Again,
            _ => Next::Leave,
        };
        place.stopped = next != Next::Leave;
        (used, next)
    }

    /// Replies to all that a connection wrote in one turn.
    pub fn answer(
        &mut self,
        place: &mut LaneConnection,
        asked: &[Asked],
        answers: &mut dyn Iterator<Item = Written>,
    ) -> Next {
        asked.iter().for_each(|asked| asked.reply(answers, &mut self.replies));
        place.asked -= asked.len();
        if place.asked == 0 {
            self.returning.answered();
        }
        match self.send(place) {
            Ok(()) if place.asked > 0 => Next::Rest,
            Ok(()) if place.broken => Next::Close,
            Err(_) => Next::Close,
            Ok(()) if place.blocked => Next::Leave,
            Ok(()) if place.stopped || place.readable => Next::Again,
            Ok(()) => Next::Rest,
        }
    }

    /// Sends the replies; what the client does not take is left with its connection.
    fn send(&mut self, place: &mut LaneConnection) -> io::Result<()> {
        if place.broken {
            self.replies.bytes.clear();
        }
        if self.replies.bytes.is_empty() {
            return Ok(());
        }
        let sent = if place.blocked { Ok(0) } else { place.write(&self.replies.bytes) };
        if let Ok(sent) = sent
            && sent < self.replies.bytes.len()
        {
            place.blocked = true;
            place.connection.replies.bytes.extend_from_slice(&self.replies.bytes[sent..]);
        }
        self.replies.bytes.clear();
        sent.map(drop)
    }
}
