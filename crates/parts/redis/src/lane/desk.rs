//! The desk at which the connections of a lane are served, with buffers that all of them share.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use store_core::resp::reply::Replies;
use store_core::resp::request::{Parsed, Requests};

use super::place::Place;
use crate::access::Rights;
use crate::context::FaceContext;
use crate::gathering::{Bell, Gathering};
use crate::limits::{PENDING_MAX, READ_BYTES, SEND_BYTES};
use crate::ordinary::{Answer, Ordinary, reply_at_once};
use crate::returning::Returning;
use crate::words::Words;
use store::Written;

/// The length in bytes of an incomplete command up to which it stays in the lane; a longer one is
/// left to a task to wait for.
const PARTIAL_BYTES_MAX: usize = 4096;

/// The writes of one batch, and the places they belong to.
pub struct Turn {
    pub gathering: Arc<Gathering>,
    pub asked: Vec<(u32, Option<Answer>)>,
}

impl Turn {
    pub fn new(bell: Arc<Bell>) -> Turn {
        Turn { gathering: Gathering::new(bell), asked: Vec::new() }
    }
}

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

enum Step {
    Done,
    /// The command is done once what was written before is answered.
    Later,
    NoRoom,
    Leave,
}

pub struct Desk {
    context: Arc<FaceContext>,
    pub turn: Turn,
    scratch: Vec<u8>,
    requests: Requests,
    replies: Replies,
    answers: Vec<Option<Written>>,
    returning: Returning,
}

impl Desk {
    pub fn new(context: Arc<FaceContext>, turn: Turn) -> Desk {
        Desk {
            context,
            turn,
            scratch: vec![0; READ_BYTES],
            requests: Requests::default(),
            replies: Replies::default(),
            answers: Vec::new(),
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
    pub fn serve(&mut self, place: &mut Place, index: usize) -> Next {
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
    fn consume(&mut self, place: &mut Place, index: usize, count: usize) -> Next {
        let scratch = std::mem::take(&mut self.scratch);
        let mut waited = std::mem::take(&mut place.input);
        let next = if waited.is_empty() {
            let (used, next) = self.carry_out_all(&scratch[..count], place, index);
            place.input.extend_from_slice(&scratch[used..count]);
            next
        } else {
            waited.extend_from_slice(&scratch[..count]);
            let (used, next) = self.carry_out_all(&waited, place, index);
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

    /// Carries out commands; returns how many bytes were used, and what follows.
    fn carry_out_all(&mut self, input: &[u8], place: &mut Place, index: usize) -> (usize, Next) {
        let mut requests = std::mem::take(&mut self.requests);
        requests.restart();
        self.replies.protocol = place.protocol;
        let (mut at, mut done) = (0, 0);
        let step = loop {
            if place.asked as usize >= PENDING_MAX || self.replies.bytes.len() >= SEND_BYTES {
                break Step::Later;
            }
            match requests.parse(&input[at..]) {
                Ok(Parsed::Incomplete) if input.len() - at <= PARTIAL_BYTES_MAX => {
                    break Step::Done;
                }
                Ok(Parsed::Command { used }) => {
                    let words = Words { requests: &requests, input: &input[at..] };
                    match self.carry_out(words, place, index) {
                        Step::Done => (at, done) = (at + used, done + 1),
                        step => break step,
                    }
                }
                Ok(Parsed::Incomplete | Parsed::Streamed { .. }) | Err(_) => break Step::Leave,
            }
        };
        self.requests = requests;
        self.context.clients.commands.fetch_add(done, Ordering::Relaxed);
        let next = match step {
            Step::Done => Next::Rest,
            _ if place.asked > 0 => {
                place.stopped = true;
                Next::Rest
            }
            Step::Leave => Next::Leave,
            Step::NoRoom if std::mem::replace(&mut place.turned_away, true) => Next::Leave,
            Step::NoRoom | Step::Later => {
                place.stopped = true;
                Next::Again
            }
        };
        (at, next)
    }

    fn carry_out(&mut self, words: Words<'_>, place: &mut Place, index: usize) -> Step {
        let rights = if place.all_rights { &Rights::All } else { &place.connection.rights };
        match Ordinary::read(words, rights, &self.context) {
            None => Step::Leave,
            Some(Ordinary::Get(_)) if place.asked > 0 => Step::Later,
            Some(Ordinary::Get(key)) => {
                if !reply_at_once(&key, &self.context, &mut self.replies) {
                    return Step::Leave;
                }
                Step::Done
            }
            Some(Ordinary::Write(write, answer)) => {
                let reply = self.turn.gathering.reply();
                let refused = self.context.store.submit_at_once(write, reply);
                // The place among the answers is taken all the same.
                let answer = refused.is_none().then_some(answer);
                self.turn.asked.push((index as u32, answer));
                if answer.is_none() {
                    return Step::NoRoom;
                }
                place.turned_away = false;
                if place.asked == 0 {
                    self.returning.wrote();
                }
                place.asked += 1;
                Step::Done
            }
        }
    }

    /// Takes a turn's answers, which are emptied by `answer` and given back with `keep`.
    pub fn answers(&mut self, turn: &Turn) -> Vec<Option<Written>> {
        let mut answers = std::mem::take(&mut self.answers);
        turn.gathering.swap(&mut answers);
        answers
    }

    pub fn keep(&mut self, mut answers: Vec<Option<Written>>) {
        answers.clear();
        self.answers = answers;
    }

    /// Replies to all that a connection wrote in one turn.
    pub fn answer<'a>(
        &mut self,
        place: &mut Place,
        answers: impl Iterator<Item = (Option<Answer>, &'a mut Option<Written>)>,
    ) -> Next {
        for (answer, written) in answers {
            if let (Some(answer), Some(written)) = (answer, written.take()) {
                answer.reply(written, &mut self.replies);
                place.asked -= 1;
            }
        }
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
    fn send(&mut self, place: &mut Place) -> io::Result<()> {
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
