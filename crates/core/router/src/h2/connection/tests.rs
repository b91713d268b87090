//! Tests of streams, windows and ends of a connection, as a client sees them.

mod faults;
mod peer;
mod traffic;

use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll, Waker};

use self::peer::{Frame, Peer};
use super::*;
use crate::h2::answer::Framing;
use crate::h2::chunks::ChunkReader;
use crate::h2::frame::{ACK, END_HEADERS, END_STREAM, PADDED, PAYLOAD_BYTES_MAX};
use crate::h2::streams::HELD_MAX;

/// Returns the room, and waits for it if there is none.
fn room(peer: &mut Peer, key: StreamKey) -> Poll<Result<usize, StreamGone>> {
    peer.h2.poll_room(key, &Context::from_waker(&traffic::flag().1))
}

/// Sends the head of an answer with a body of this many bytes.
fn begin_answer(peer: &mut Peer, key: StreamKey, length: usize) {
    let text = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nX: y\r\n\r\n");
    let sent = peer.h2.send_head(key, text.as_bytes(), false, false).unwrap();
    assert_eq!((sent.framing, sent.used), (Framing::Length(length as u64), text.len()));
}

/// Sends as much of a body as there is room for, and returns how much that was.
fn send(peer: &mut Peer, key: StreamKey, content: &[u8]) -> usize {
    let Poll::Ready(Ok(room)) = room(peer, key) else { return 0 };
    let count = room.min(content.len());
    peer.h2.send_body(key, &content[..count], count == content.len()).unwrap();
    count
}

fn data(seen: &[Frame], stream: u32) -> (usize, bool) {
    let of = seen.iter().filter(|frame| frame.kind == FrameType::DATA && frame.stream == stream);
    of.fold((0, false), |(sum, _), frame| (sum + frame.payload.len(), frame.ends()))
}

fn updates(seen: &[Frame], stream: u32) -> u32 {
    let is = |frame: &&Frame| frame.kind == FrameType::WINDOW_UPDATE && frame.stream == stream;
    seen.iter().filter(is).map(|frame| frame.number(0)).sum()
}

#[test]
fn a_request_is_answered() {
    let mut peer = Peer::new();
    let key = peer.get(1);
    let (_, asked, head) = &peer.requests.begun[0];
    assert_eq!(head, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert!(!asked.chunked && !asked.is_head && peer.h2.open() == 1);
    begin_answer(&mut peer, key, 5);
    assert_eq!(send(&mut peer, key, b"hello"), 5);
    let seen = peer.seen();
    let fields = peer.fields(&seen[0]);
    assert_eq!((fields[":status"].as_str(), fields["x"].as_str()), ("200", "y"));
    assert_eq!((seen.len(), data(&seen, 1)), (2, (5, true)));
    assert_eq!(peer.h2.open(), 0);
    peer.h2.end(key);
    // An answer without a body is whole with its head, and interim ones are not.
    let key = peer.get(3);
    for (text, ends) in [("103 Early Hints", false), ("204 No Content", true)] {
        let text = format!("HTTP/1.1 {text}\r\n\r\n");
        assert_eq!(peer.h2.send_head(key, text.as_bytes(), false, false).unwrap().is_whole, ends);
        assert_eq!(peer.seen()[0].ends(), ends);
    }
    peer.h2.end(key);
    assert!(peer.seen().is_empty());
}

#[test]
fn bodies_keep_to_the_windows_of_the_client() {
    let mut peer = Peer::with(&[(setting::INITIAL_WINDOW, 10)]);
    let (first, second) = (peer.get(1), peer.get(3));
    let content = [b'x'; 200_000];
    begin_answer(&mut peer, first, content.len());
    begin_answer(&mut peer, second, content.len());
    assert_eq!(send(&mut peer, first, &content), 10);
    assert_eq!(room(&mut peer, first), Poll::Pending);
    peer.update(1, 5);
    assert_eq!(send(&mut peer, first, &content), 5);
    // Larger windows for new streams are so for those that are there, too; smaller ones may leave a
    // debt.
    peer.settings(&[(setting::INITIAL_WINDOW, 20)]);
    assert_eq!((room(&mut peer, first), room(&mut peer, second)), (ready(10), ready(20)));
    peer.settings(&[(setting::INITIAL_WINDOW, 0)]);
    peer.update(1, 10);
    assert_eq!(room(&mut peer, first), Poll::Pending);
    peer.update(1, 1);
    assert_eq!(room(&mut peer, first), ready(1));
    // The connection has a window of its own, and room for so much until it is sent.
    peer.settings(&[(setting::INITIAL_WINDOW, 1 << 20)]);
    let mut sent = 15;
    loop {
        let more = send(&mut peer, second, &content);
        sent += more;
        assert!(peer.h2.out().len() <= OUT_BYTES + 3 * frame::HEAD_BYTES);
        if more == 0 && peer.seen().is_empty() {
            break;
        }
    }
    assert_eq!(sent, 65_535);
    peer.update(0, 100);
    assert_eq!(room(&mut peer, second), ready(100));
}

fn ready(bytes: usize) -> Poll<Result<usize, StreamGone>> {
    Poll::Ready(Ok(bytes))
}

#[test]
fn streams_wait_for_common_room_in_turn() {
    let mut peer = Peer::with(&[(setting::INITIAL_WINDOW, 1 << 20)]);
    let keys = [1, 3, 5].map(|stream| peer.get(stream));
    keys.iter().for_each(|key| begin_answer(&mut peer, *key, 1 << 20));
    while send(&mut peer, keys[0], &[b'x'; 1 << 20]) > 0 || !peer.seen().is_empty() {}
    assert!(keys.iter().all(|key| room(&mut peer, *key).is_pending()));
    assert_eq!(peer.h2.queue, keys);
    // A stream that used some goes to the end; one that is gone is not waited for.
    peer.update(0, 10);
    assert_eq!(send(&mut peer, keys[0], &[b'x'; 100]), 10);
    assert_eq!(room(&mut peer, keys[0]), Poll::Pending);
    assert_eq!(peer.h2.queue, [keys[1], keys[2], keys[0]]);
    peer.h2.end(keys[2]);
    peer.frame(FrameType::RST_STREAM, 0, 3, &[0, 0, 0, 8]);
    assert_eq!(peer.h2.queue, [keys[0]]);
    // A stream that has no window of its own any more does not hold up others.
    peer.settings(&[(setting::INITIAL_WINDOW, 0)]);
    let last = peer.get(7);
    begin_answer(&mut peer, last, 100);
    peer.update(7, 100);
    let (woken, waker) = traffic::flag();
    assert!(peer.h2.poll_room(last, &Context::from_waker(&waker)).is_pending());
    assert_eq!(peer.h2.queue, [keys[0], last]);
    peer.update(0, 10);
    peer.seen();
    woken.0.store(false, SeqCst);
    assert_eq!(room(&mut peer, keys[0]), Poll::Pending);
    assert!(woken.0.load(SeqCst) && peer.h2.queue == [last]);
    assert_eq!(room(&mut peer, last), ready(10));
}

#[test]
fn a_poll_with_a_noop_waker_does_not_replace_the_waiting_task() {
    let mut peer = Peer::with(&[(setting::INITIAL_WINDOW, 0)]);
    let key = peer.post(1);
    begin_answer(&mut peer, key, 5);
    peer.seen();
    let looking = Context::from_waker(Waker::noop());
    for (frame, number) in [(FrameType::DATA, 0_u32), (FrameType::WINDOW_UPDATE, 1)] {
        let (woken, waker) = traffic::flag();
        woken.0.store(false, SeqCst);
        for cx in [Context::from_waker(&waker), Context::from_waker(Waker::noop())] {
            if frame == FrameType::DATA {
                assert!(peer.h2.poll_more(key, &cx).is_pending());
            } else {
                assert!(peer.h2.poll_room(key, &cx).is_pending());
            }
        }
        peer.frame(frame, 0, 1, &number.to_be_bytes());
        assert!(woken.0.load(SeqCst), "{frame:?}");
    }
    // No stream waits behind one that does not wait.
    peer.h2.window_out = 0;
    assert!(peer.h2.poll_room(key, &looking).is_pending() && peer.h2.queue.is_empty());
    assert!(room(&mut peer, key).is_pending() && peer.h2.queue == [key]);
}

#[test]
fn what_is_read_comes_back_to_the_windows() {
    let mut peer = Peer::new();
    let key = peer.post(1);
    assert!(peer.requests.begun[0].2.ends_with("Transfer-Encoding: chunked\r\n\r\n"));
    peer.data(1, b"hello", false);
    // Padding is no content, but it counts.
    let mut padded = vec![200];
    padded.extend_from_slice(b"padded");
    padded.resize(207, 0);
    peer.frame(FrameType::DATA, PADDED, 1, &padded);
    let mut bytes = [0; 100];
    let count = peer.h2.read_body(key, &mut bytes);
    assert_eq!(&bytes[..count], b"5\r\nhello\r\n6\r\npadded\r\n");
    assert_eq!((peer.h2.unsaid, peer.seen().len()), (212, 0));
    let piece = [b'x'; PAYLOAD_BYTES_MAX];
    peer.data(1, &piece, false);
    peer.data(1, &piece, true);
    let mut all = Vec::new();
    while let count @ 1.. = peer.h2.read_body(key, &mut bytes) {
        all.extend_from_slice(&bytes[..count]);
    }
    assert!(all.ends_with(b"\r\n0\r\n\r\n") && all.len() > 2 * PAYLOAD_BYTES_MAX);
    // The stream has ended, and the connection is told of half its window at once.
    assert_eq!(peer.seen(), []);
    assert_eq!(peer.h2.unsaid, 212 + 2 * PAYLOAD_BYTES_MAX as u32);
    let other = peer.post(3);
    for round in 0..64 {
        peer.data(3, &piece, false);
        let mut large = vec![0; 2 * PAYLOAD_BYTES_MAX];
        assert!(peer.h2.read_body(other, &mut large) > PAYLOAD_BYTES_MAX);
        let seen = peer.seen();
        let own = if round % 2 == 1 { 2 * PAYLOAD_BYTES_MAX as u32 } else { 0 };
        assert_eq!(updates(&seen, 3), own, "{round}");
        assert!(matches!(updates(&seen, 0), 0 | 524_288..550_000), "{round}");
    }
    // What nobody reads comes back, too.
    let before = peer.h2.unsaid;
    peer.data(3, b"unread", false);
    peer.h2.end(other);
    assert_eq!(peer.h2.unsaid, before + 6);
    peer.data(3, b"late", false);
    assert_eq!(peer.h2.unsaid, before + 10);
}

#[test]
fn trailers_end_a_request_and_an_answer() {
    let mut peer = Peer::new();
    let key = peer.post(1);
    let trailers = [0, 1, b'a', 1, b'b'];
    peer.frame(FrameType::HEADERS, END_STREAM | END_HEADERS, 1, &trailers);
    let mut bytes = [0; 100];
    let count = peer.h2.read_body(key, &mut bytes);
    assert_eq!(&bytes[..count], b"0\r\na: b\r\n\r\n");
    assert_eq!(peer.h2.poll_more(key, &Context::from_waker(Waker::noop())), Poll::Ready(Ok(false)));
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    peer.h2.send_head(key, head, false, false).unwrap();
    let mut chunks = ChunkReader::default();
    let mut rest = &b"0\r\nGrpc-Status: 7\r\nTE: x\r\n\r\n"[..];
    while !rest.is_empty() {
        let step = chunks.step(rest).unwrap();
        let (crate::h2::chunks::ChunkStep::Skip(count) | crate::h2::chunks::ChunkStep::End(count)) =
            step
        else {
            panic!("{step:?}")
        };
        rest = &rest[count..];
    }
    peer.h2.send_end(key, &chunks).unwrap();
    let seen = peer.seen();
    assert_eq!(seen.len(), 2);
    peer.fields(&seen[0]);
    let fields = peer.fields(&seen[1]);
    assert!(seen[1].ends() && fields.len() == 1 && fields["grpc-status"] == "7");
    // A body of known length has no trailers.
    peer.ask(3, "POST", &[("content-length", "1")], false);
    let key = peer.key(3);
    peer.data(3, b"x", false);
    peer.frame(FrameType::HEADERS, END_STREAM | END_HEADERS, 3, &trailers);
    assert_eq!((peer.h2.read_body(key, &mut bytes), bytes[0]), (1, b'x'));
}

#[test]
fn a_client_that_is_to_leave_is_told_twice() {
    let mut peer = Peer::new();
    let first = peer.get(1);
    peer.h2.leave();
    peer.h2.leave();
    let seen = peer.seen();
    assert_eq!((seen[0].number(0), seen[0].number(4), seen.len()), (0x7fff_ffff, 0, 2));
    // What the client asks before it knows is answered.
    let second = peer.get(3);
    peer.frame(FrameType::PING, ACK, 0, &seen[1].payload);
    let seen = peer.seen();
    assert_eq!((seen[0].kind, seen[0].number(0), seen[0].number(4)), (FrameType::GOAWAY, 3, 0));
    peer.ask(5, "POST", &[], false);
    peer.data(5, b"x", false);
    assert_eq!((peer.requests.begun.len(), peer.seen().len()), (2, 0));
    for key in [first, second] {
        assert!(!peer.h2.is_finished());
        peer.h2.send_head(key, b"HTTP/1.1 204 X\r\n\r\n", false, false).unwrap();
        peer.h2.end(key);
    }
    assert!(peer.h2.is_finished() && peer.h2.failure().is_none());
}

#[test]
fn no_more_streams_than_agreed_are_open_or_held() {
    let mut peer = Peer::new();
    let stream = |number: usize| 2 * u32::try_from(number).unwrap() + 1;
    for number in 0..=STREAMS_MAX {
        peer.ask(stream(number), "GET", &[], true);
    }
    let refused = (stream(STREAMS_MAX), Reason::REFUSED_STREAM);
    assert_eq!((peer.resets(), peer.requests.begun.len()), (vec![refused], STREAMS_MAX));
    // Streams that are over for the client are held while they are still served.
    for number in 0..STREAMS_MAX {
        let key = peer.key(stream(number));
        peer.h2.send_head(key, b"HTTP/1.1 204 X\r\n\r\n", false, false).unwrap();
    }
    for number in STREAMS_MAX + 1..=HELD_MAX {
        peer.ask(stream(number), "GET", &[], true);
    }
    assert_eq!((peer.resets(), peer.requests.begun.len()), (vec![], HELD_MAX));
    peer.ask(stream(HELD_MAX + 1), "GET", &[], true);
    assert_eq!(peer.resets().len(), 1);
    let keys: Vec<StreamKey> = peer.requests.begun.iter().map(|(key, ..)| *key).collect();
    keys.iter().for_each(|key| peer.h2.end(*key));
    assert_eq!(peer.resets().len(), STREAMS_MAX, "those that were not answered");
    peer.requests.is_full = true;
    peer.ask(stream(HELD_MAX + 2), "GET", &[], true);
    assert_eq!(peer.resets(), [(stream(HELD_MAX + 2), Reason::REFUSED_STREAM)]);
}

#[test]
fn a_stream_that_nobody_serves_any_more_is_ended() {
    let mut peer = Peer::new();
    for (stream, answered, whole, reason) in [
        (1, false, true, Some(Reason::INTERNAL_ERROR)),
        (3, false, false, Some(Reason::INTERNAL_ERROR)),
        (5, true, false, Some(Reason::NO_ERROR)),
        (7, true, true, None),
    ] {
        let key = if whole { peer.get(stream) } else { peer.post(stream) };
        if answered {
            peer.h2.send_head(key, b"HTTP/1.1 204 X\r\n\r\n", false, false).unwrap();
        }
        peer.h2.end(key);
        assert_eq!(
            peer.resets(),
            reason.map(|reason| (stream, reason)).into_iter().collect::<Vec<_>>()
        );
        // The stream is gone, and so is what is still done to it.
        peer.h2.end(key);
        peer.h2.cut(key, Reason::CANCEL);
        assert_eq!(peer.h2.send_body(key, b"x", false), Err(StreamGone));
        assert_eq!(room(&mut peer, key), Poll::Ready(Err(StreamGone)));
        assert!(peer.seen().is_empty());
    }
    let key = peer.get(9);
    peer.h2.cut(key, Reason::INTERNAL_ERROR);
    assert_eq!(peer.resets(), [(9, Reason::INTERNAL_ERROR)]);
    peer.h2.end(key);
    assert!(peer.seen().is_empty());
}

#[test]
fn a_head_that_is_too_large_is_answered_and_the_table_is_kept() {
    let mut peer = Peer::new();
    // The block names an entry of the table very often.
    let mut block = peer::block("GET", &[]);
    block.extend([0x40, 1, b'x', 0x7f, 0x81, 0x1e]);
    block.extend([b'v'; 127 + 1 + 30 * 128]);
    block.extend([0xbe; 100]);
    peer.frame(FrameType::HEADERS, END_HEADERS | END_STREAM, 1, &block);
    let seen = peer.seen();
    assert_eq!((peer.fields(&seen[0])[":status"].as_str(), seen[0].ends()), ("431", true));
    let mut block = peer::block("GET", &[]);
    block.push(0xbe);
    peer.frame(FrameType::HEADERS, END_HEADERS | END_STREAM, 3, &block);
    assert!(peer.requests.begun[0].2.contains("\r\nx: vvvv"));
    // The request has a body behind it, which is not wanted.
    block.extend([0xbe; 100]);
    peer.frame(FrameType::HEADERS, END_HEADERS, 5, &block);
    assert_eq!(peer.resets(), [(5, Reason::NO_ERROR)]);
    peer.data(5, b"x", true);
    assert!(peer.seen().is_empty() && peer.requests.begun.len() == 1);
}

/// However the bytes are cut, the same comes of them.
#[test]
fn frames_come_in_any_pieces() {
    let mut bytes = PREFACE.to_vec();
    frame::put(&mut bytes, FrameType::SETTINGS, 0, 0, &[]);
    let block = peer::block("POST", &[("a", "b")]);
    frame::put(&mut bytes, FrameType::HEADERS, 0, 1, &block[..5]);
    frame::put(&mut bytes, FrameType::CONTINUATION, END_HEADERS, 1, &block[5..]);
    frame::put(&mut bytes, FrameType::DATA, END_STREAM, 1, b"content");
    frame::put(&mut bytes, FrameType::PING, 0, 0, b"12345678");
    for size in 1..=bytes.len() {
        let mut peer = Peer::silent();
        bytes.chunks(size).for_each(|piece| peer.bytes(piece));
        let seen = peer.seen();
        assert_eq!((seen.len(), &seen[3].payload[..]), (4, &b"12345678"[..]), "{size}");
        let key = peer.key(1);
        let mut body = [0; 100];
        let count = peer.h2.read_body(key, &mut body);
        assert_eq!(&body[..count], b"7\r\ncontent\r\n0\r\n\r\n", "{size}");
    }
}
