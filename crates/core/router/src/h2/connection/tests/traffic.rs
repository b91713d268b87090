//! Tests with clients and servers that act at random, each within the rules: bodies come through
//! whole, in order and within all windows, nobody sleeps for ever, and nothing is left behind.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

use super::peer::{Frame, Peer};
use crate::h2::connection::{StreamGone, StreamKey, WINDOW_AT_FIRST, WINDOW_BYTES_ALL};
use crate::h2::frame::{FrameType, setting};
use crate::h2::streams::WINDOW_BYTES;

const SEEDS: u64 = 400;
const STREAMS: u32 = 12;
/// Steps of a run, far more than any of them takes.
const STEPS_MAX: usize = 200_000;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

pub struct Flag(pub AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Flag>) {
        self.0.store(true, SeqCst);
    }
}

pub fn flag() -> (Arc<Flag>, Waker) {
    let flag = Arc::new(Flag(AtomicBool::new(true)));
    (flag.clone(), Waker::from(flag))
}

/// Returns the byte of a body at this place.
fn byte(stream: u32, at: usize) -> u8 {
    (at as u32).wrapping_mul(31).wrapping_add(stream * 7) as u8
}

fn body(stream: u32, from: usize, to: usize) -> Vec<u8> {
    (from..to).map(|at| byte(stream, at)).collect()
}

/// A stream as its client sees it.
struct Asking {
    length: usize,
    sent: usize,
    room: i64,
    /// The bytes that the answer may still bring.
    granted: i64,
    came: usize,
    is_over: bool,
    may_give_up: bool,
    is_given_up: bool,
}

/// The server of a stream: it reads all of it, and then answers, or ends it before its time.
struct Serving {
    key: StreamKey,
    woken: Arc<Flag>,
    waker: Waker,
    read: usize,
    length: usize,
    sent: usize,
    has_head: bool,
    gives_up_at: Option<usize>,
}

struct World {
    random: Random,
    peer: Peer,
    asking: BTreeMap<u32, Asking>,
    serving: Vec<Serving>,
    driver: (Arc<Flag>, Waker),
    begun: usize,
    room: i64,
    granted: i64,
    first_window: i64,
    /// The changes of it that the server may not know of: by how much, and for which streams.
    changes: VecDeque<(i64, u32)>,
    changes_left: usize,
    /// The most of each window that the client opens.
    most: i64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let first_window = [0, 1, 1000, 65_535, 1 << 20][random.below(5) as usize];
        let most = [1000, 65_535, 200_000][random.below(3) as usize];
        let window = (setting::INITIAL_WINDOW, u32::try_from(first_window).unwrap());
        World {
            peer: Peer::with(&[window]),
            random,
            asking: BTreeMap::new(),
            serving: Vec::new(),
            driver: flag(),
            begun: 0,
            room: i64::from(WINDOW_BYTES_ALL),
            granted: i64::from(WINDOW_AT_FIRST),
            first_window,
            changes: VecDeque::new(),
            changes_left: 2,
            most,
        }
    }

    fn length(&mut self) -> usize {
        let scale = [1, 100, 20_000, 300_000][self.random.below(4) as usize];
        self.random.below(scale) as usize
    }

    fn step(&mut self) {
        let before = self.peer.came;
        match self.random.below(8) {
            0 => self.ask(),
            1 => self.send(),
            2 => self.grant(),
            3 if self.random.one_in(50) => self.change_window(),
            3 if self.random.one_in(20) => self.give_up(),
            3 | 4 => return self.turn(),
            _ => return self.serve(),
        }
        if self.peer.came > before {
            // The task that reads what the client sent also sends.
            self.driver.0.0.store(true, SeqCst);
        }
    }

    fn ask(&mut self) {
        let count = self.asking.len() as u32;
        if count == STREAMS {
            return;
        }
        let (stream, length) = (2 * count + 1, self.length());
        let said = length.to_string();
        let fields = [("content-length", said.as_str())];
        let fields = if self.random.one_in(2) { &fields[..] } else { &[] };
        self.peer.ask(stream, "POST", fields, length == 0);
        let room = i64::from(WINDOW_BYTES);
        let granted = self.first_window;
        let may_give_up = self.random.one_in(5);
        let (came, sent, is_over, is_given_up) = (0, 0, false, false);
        let asking =
            Asking { length, sent, room, granted, came, is_over, may_give_up, is_given_up };
        self.asking.insert(stream, asking);
        for (key, ..) in self.peer.requests.begun.split_off(self.begun) {
            let (woken, waker) = flag();
            let length = self.length();
            let gives_up = self.random.one_in(10);
            let gives_up_at = gives_up.then(|| self.random.below(length as u64 + 1) as usize);
            let (read, sent, has_head) = (0, 0, false);
            let serving = Serving { key, woken, waker, read, length, sent, has_head, gives_up_at };
            self.serving.push(serving);
        }
        self.begun = self.peer.requests.begun.len();
    }

    fn any(&mut self, is: impl Fn(&Asking) -> bool) -> Option<u32> {
        let known = self.asking.iter().filter(|(_, one)| is(one));
        let streams: Vec<u32> = known.map(|(stream, _)| *stream).collect();
        let count = streams.len() as u64;
        (count > 0).then(|| streams[self.random.below(count) as usize])
    }

    /// Sends a part of a body.
    fn send(&mut self) {
        let expects = |one: &Asking| !one.is_given_up && one.sent < one.length && one.room > 0;
        let Some(stream) = self.any(expects) else { return };
        let asking = self.asking.get_mut(&stream).unwrap();
        let most = (asking.length - asking.sent).min(16_384);
        let most = most.min(asking.room.min(self.room).max(0) as usize);
        if most == 0 {
            return;
        }
        let count = 1 + self.random.below(most as u64) as usize;
        let piece = body(stream, asking.sent, asking.sent + count);
        asking.sent += count;
        asking.room -= count as i64;
        self.room -= count as i64;
        let ended = asking.sent == asking.length;
        self.peer.data(stream, &piece, ended);
    }

    /// Gives room for answers, up to what the client holds at the most: then it says nothing more,
    /// and a task that was not woken sleeps for ever.
    fn grant(&mut self) {
        let more = 1 + self.random.below([1, 1000, 100_000][self.random.0 as usize % 3]) as i64;
        if self.random.one_in(2) {
            let more = more.min(self.most - self.granted);
            if more > 0 {
                self.granted += more;
                self.peer.update(0, more as u32);
            }
            return;
        }
        if let Some(stream) = self.any(|one| !one.is_over && !one.is_given_up) {
            let asking = self.asking.get_mut(&stream).unwrap();
            let more = more.min(self.most - asking.granted);
            if more > 0 {
                asking.granted += more;
                self.peer.update(stream, more as u32);
            }
        }
    }

    fn change_window(&mut self) {
        if self.changes_left == 0 {
            return;
        }
        self.changes_left -= 1;
        let window = self.random.below(200_000) as i64;
        let more = window - self.first_window;
        self.first_window = window;
        self.changes.push_back((more, 2 * self.asking.len() as u32));
        self.peer.settings(&[(setting::INITIAL_WINDOW, u32::try_from(window).unwrap())]);
    }

    fn give_up(&mut self) {
        if let Some(stream) = self.any(|one| !one.is_over && one.may_give_up) {
            let asking = self.asking.get_mut(&stream).unwrap();
            (asking.is_given_up, asking.is_over) = (true, true);
            self.peer.frame(FrameType::RST_STREAM, 0, stream, &[0, 0, 0, 8]);
        }
    }

    /// Sends what there is, once a task said that there is something.
    fn turn(&mut self) {
        if !self.driver.0.0.swap(false, SeqCst) {
            return;
        }
        self.peer.h2.watch(&Context::from_waker(&self.driver.1));
        for frame in self.peer.seen() {
            self.see(&frame);
        }
    }

    fn see(&mut self, frame: &Frame) {
        let stream = frame.stream;
        match frame.kind {
            FrameType::WINDOW_UPDATE if stream == 0 => self.room += i64::from(frame.number(0)),
            FrameType::SETTINGS => {
                let (more, before) = self.changes.pop_front().unwrap();
                let known = self.asking.iter_mut().filter(|(stream, _)| **stream < before);
                known.for_each(|(_, one)| one.granted += more);
            }
            FrameType::WINDOW_UPDATE => {
                self.asking.get_mut(&stream).unwrap().room += i64::from(frame.number(0));
            }
            FrameType::HEADERS => {
                self.asking.get_mut(&stream).unwrap().is_over |= frame.ends();
                let fields = self.peer.fields(frame);
                assert_eq!(fields[":status"], "200");
            }
            FrameType::DATA => {
                let asking = self.asking.get_mut(&stream).unwrap();
                let count = frame.payload.len();
                assert!(!asking.is_over || asking.is_given_up, "nothing behind the end");
                assert!(frame.payload == body(stream, asking.came, asking.came + count));
                asking.came += count;
                asking.granted -= count as i64;
                self.granted -= count as i64;
                assert!(self.granted >= 0 && (count == 0 || asking.granted >= 0), "a window");
                asking.is_over |= frame.ends();
            }
            FrameType::RST_STREAM => {
                let asking = self.asking.get_mut(&stream).unwrap();
                (asking.is_given_up, asking.is_over) = (true, true);
            }
            kind => panic!("{kind:?}"),
        }
    }

    /// Lets a server that was woken go on until it has to wait.
    fn serve(&mut self) {
        let count = self.serving.len() as u64;
        if count == 0 {
            return;
        }
        let at = self.random.below(count) as usize;
        if !self.serving[at].woken.0.swap(false, SeqCst) {
            return;
        }
        while !self.goes_on(at) {}
    }

    /// Returns true if it waits, or is no more.
    fn goes_on(&mut self, at: usize) -> bool {
        let Serving { key, read, length, sent, gives_up_at, .. } = self.serving[at];
        let waker = self.serving[at].waker.clone();
        let cx = Context::from_waker(&waker);
        let looks_first = self.random.one_in(2);
        let h2 = &mut self.peer.h2;
        if gives_up_at.is_some_and(|limit| sent >= limit) || sent == length + 1 {
            h2.end(key);
            self.serving.swap_remove(at);
            return true;
        }
        let serving = &mut self.serving[at];
        if looks_first {
            // This is what a server does that writes at once what there is room for.
            let looking = Context::from_waker(Waker::noop());
            let _ = (h2.poll_more(key, &looking), h2.poll_room(key, &looking));
        }
        if !serving.has_head {
            match h2.poll_more(key, &cx) {
                Poll::Pending => return true,
                Poll::Ready(Ok(true)) => {
                    let mut room = vec![0; 1 + self.random.below(40_000) as usize];
                    serving.read = read + h2.read_body(key, &mut room);
                }
                Poll::Ready(Ok(false)) => {
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
                    let whole = h2.send_head(key, head.as_bytes(), false, false).unwrap();
                    assert_eq!(whole.is_whole, length == 0);
                    serving.has_head = true;
                    serving.sent = if length == 0 { 1 } else { 0 };
                }
                Poll::Ready(Err(StreamGone)) => serving.gives_up_at = Some(0),
            }
            return false;
        }
        match h2.poll_room(key, &cx) {
            Poll::Pending => return true,
            Poll::Ready(Ok(room)) => {
                let most = room.min(length - sent) as u64;
                let count = 1 + self.random.below(most) as usize;
                let ended = sent + count == length;
                h2.send_body(key, &body(key.id, sent, sent + count), ended).unwrap();
                // One more than all of it is the end.
                serving.sent = sent + count + usize::from(ended);
            }
            Poll::Ready(Err(StreamGone)) => serving.gives_up_at = Some(0),
        }
        false
    }

    /// Has the client take all, and send all.
    fn finish(&mut self) {
        for _ in 0..STEPS_MAX {
            let is_done = self.asking.len() as u32 == STREAMS
                && self.serving.is_empty()
                && self.asking.values().all(|one| one.is_over);
            if is_done {
                return;
            }
            self.step();
        }
        let left: Vec<u32> =
            self.asking.iter().filter(|(_, one)| !one.is_over).map(|(id, _)| *id).collect();
        panic!("streams {left:?} wait for ever; {} are served", self.serving.len());
    }
}

#[test]
fn all_that_is_asked_is_answered() {
    let (mut whole, mut given_up) = (0, 0);
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        world.finish();
        world.driver.0.0.store(true, SeqCst);
        world.turn();
        let h2 = &world.peer.h2;
        assert_eq!((h2.open(), h2.queue.len(), h2.failure()), (0, 0, None), "{seed}");
        let window = h2.window_in + i64::from(h2.unsaid);
        assert_eq!(window, i64::from(WINDOW_BYTES_ALL), "{seed}");
        for asking in world.asking.values() {
            if asking.is_given_up {
                given_up += 1;
            } else {
                whole += 1;
                assert_eq!(asking.sent, asking.length, "{seed}");
            }
        }
    }
    assert!(whole > given_up && given_up > 100, "{whole} whole, {given_up} given up");
}
