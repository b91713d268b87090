//! Tests that what breaks the rules ends the stream or the connection, as RFC 9113 has it.

use super::peer::{Peer, block};
use crate::h2::frame::{
    ACK, END_HEADERS, END_STREAM, FrameType, PADDED, PREFACE, PRIORITY, Reason, setting,
};

const WHOLE: u8 = END_HEADERS | END_STREAM;

/// Frames behind the client's settings: kind, flags, stream, payload.
type Frames<'a> = &'a [(FrameType, u8, u32, &'a [u8])];

#[track_caller]
fn ends_connection(frames: Frames<'_>, reason: Reason) {
    let mut peer = Peer::new();
    for (kind, flags, stream, payload) in frames {
        peer.frame(*kind, *flags, *stream, payload);
    }
    assert_eq!(peer.went_away(), Some(reason));
    assert!(peer.h2.is_finished() && peer.h2.failure() == Some(reason));
    // Nothing is read any more.
    peer.frame(FrameType::PING, 0, 0, &[0; 8]);
    assert!(peer.seen().is_empty());
}

#[track_caller]
fn ends_stream(frames: Frames<'_>, reason: Reason) {
    let mut peer = Peer::new();
    for (kind, flags, stream, payload) in frames {
        peer.frame(*kind, *flags, *stream, payload);
    }
    assert_eq!(peer.resets(), [(1, reason)]);
}

#[test]
fn a_connection_without_preface_or_settings_is_ended() {
    let mut peer = Peer::silent();
    peer.bytes(b"GET / HTTP/1.1\r\n");
    assert_eq!(peer.went_away(), Some(Reason::PROTOCOL_ERROR));
    for flags in [0, ACK] {
        let mut peer = Peer::silent();
        peer.bytes(PREFACE);
        let kind = if flags == 0 { FrameType::PING } else { FrameType::SETTINGS };
        peer.frame(kind, flags, 0, if flags == 0 { &[0; 8] } else { &[] });
        assert_eq!(peer.went_away(), Some(Reason::PROTOCOL_ERROR));
    }
}

#[test]
fn frames_of_a_wrong_size_or_on_a_wrong_stream_end_the_connection() {
    let (protocol, size) = (Reason::PROTOCOL_ERROR, Reason::FRAME_SIZE_ERROR);
    ends_connection(&[(FrameType(99), 0, 0, &[0; 16 * 1024 + 1])], size);
    for (kind, flags, payload) in [
        (FrameType::PING, 0, &[0; 7][..]),
        (FrameType::SETTINGS, 0, &[0; 5]),
        (FrameType::SETTINGS, ACK, &[0; 6]),
        (FrameType::GOAWAY, 0, &[0; 7]),
        (FrameType::WINDOW_UPDATE, 0, &[0; 5]),
    ] {
        ends_connection(&[(kind, flags, 0, payload)], size);
    }
    let get = block("GET", &[]);
    ends_connection(
        &[(FrameType::HEADERS, WHOLE, 1, &get), (FrameType::RST_STREAM, 0, 1, &[0; 3])],
        size,
    );
    ends_connection(&[(FrameType::HEADERS, WHOLE | PRIORITY, 1, &[0; 4])], size);
    for kind in [FrameType::PING, FrameType::SETTINGS, FrameType::GOAWAY] {
        ends_connection(&[(kind, 0, 1, &[0; 8])], protocol);
    }
    for kind in [
        FrameType::DATA,
        FrameType::HEADERS,
        FrameType::PRIORITY,
        FrameType::RST_STREAM,
        FrameType::CONTINUATION,
    ] {
        ends_connection(&[(kind, 0, 0, &[0; 5])], protocol);
    }
    ends_connection(&[(FrameType::HEADERS, WHOLE, 2, &get)], protocol);
    ends_connection(&[(FrameType::PRIORITY, 0, 1, &[0; 4])], size);
    ends_connection(&[(FrameType::PRIORITY, 0, 1, &[0, 0, 0, 1, 0])], protocol);
    ends_connection(&[(FrameType::PUSH_PROMISE, END_HEADERS, 1, &[0; 8])], protocol);
    ends_connection(&[(FrameType::HEADERS, WHOLE | PADDED, 1, &[9, 0, 0])], protocol);
    ends_stream(
        &[(FrameType::HEADERS, WHOLE, 1, &get), (FrameType::PRIORITY, 0, 1, &[0; 4])],
        Reason::FRAME_SIZE_ERROR,
    );
}

#[test]
fn invalid_settings_end_the_connection() {
    for (name, value, reason) in [
        (setting::ENABLE_PUSH, 2, Reason::PROTOCOL_ERROR),
        (setting::CONNECT_PROTOCOL, 2, Reason::PROTOCOL_ERROR),
        (setting::FRAME_BYTES_MAX, 16_383, Reason::PROTOCOL_ERROR),
        (setting::FRAME_BYTES_MAX, 1 << 24, Reason::PROTOCOL_ERROR),
        (setting::INITIAL_WINDOW, 1 << 31, Reason::FLOW_CONTROL_ERROR),
    ] {
        let mut peer = Peer::new();
        peer.settings(&[(name, value)]);
        assert_eq!(peer.went_away(), Some(reason), "{name} {value}");
    }
    // A window grows too large by it.
    let mut peer = Peer::new();
    peer.get(1);
    peer.update(1, 0x7fff_0000);
    peer.settings(&[(setting::INITIAL_WINDOW, 0x7fff_ffff)]);
    assert_eq!(peer.went_away(), Some(Reason::FLOW_CONTROL_ERROR));
}

#[test]
fn window_updates_of_nothing_or_too_much_are_refused() {
    let get = block("GET", &[]);
    let (none, all) = ([0; 4], [0x7f, 0xff, 0xff, 0xff]);
    ends_connection(&[(FrameType::WINDOW_UPDATE, 0, 0, &none)], Reason::PROTOCOL_ERROR);
    ends_connection(&[(FrameType::WINDOW_UPDATE, 0, 0, &all)], Reason::FLOW_CONTROL_ERROR);
    let asked = (FrameType::HEADERS, WHOLE, 1, &get[..]);
    ends_stream(&[asked, (FrameType::WINDOW_UPDATE, 0, 1, &none)], Reason::PROTOCOL_ERROR);
    ends_stream(&[asked, (FrameType::WINDOW_UPDATE, 0, 1, &all)], Reason::FLOW_CONTROL_ERROR);
    // The client sends more than it may, in a stream and in all.
    let piece = [0; 16 * 1024];
    let mut peer = Peer::new();
    peer.post(1);
    (0..4).for_each(|_| peer.data(1, &piece, false));
    assert_eq!(peer.resets(), []);
    peer.data(1, b"x", false);
    assert_eq!(peer.resets(), [(1, Reason::FLOW_CONTROL_ERROR)]);
    let mut peer = Peer::new();
    for number in 0..16 {
        peer.post(2 * number + 1);
        (0..4).for_each(|_| peer.data(2 * number + 1, &piece, false));
    }
    assert_eq!(peer.resets(), []);
    peer.post(33);
    peer.data(33, b"x", false);
    assert_eq!(peer.went_away(), Some(Reason::FLOW_CONTROL_ERROR));
}

#[test]
fn no_other_frame_may_come_within_a_head() {
    let get = block("GET", &[]);
    let begun = (FrameType::HEADERS, END_STREAM, 1, &get[..3]);
    for other in [
        (FrameType::PING, 0, 0, &[0; 8][..]),
        (FrameType(99), 0, 0, &[]),
        (FrameType::CONTINUATION, END_HEADERS, 3, &get[3..]),
        (FrameType::HEADERS, WHOLE, 3, &get),
    ] {
        ends_connection(&[begun, other], Reason::PROTOCOL_ERROR);
    }
    let more = (FrameType::CONTINUATION, END_HEADERS, 1, &get[3..]);
    ends_connection(&[more], Reason::PROTOCOL_ERROR);
    ends_connection(&[begun, more, more], Reason::PROTOCOL_ERROR);
    // The block never ends.
    let piece = [0; 16 * 1024];
    let mut frames = vec![begun];
    frames.extend([(FrameType::CONTINUATION, 0, 1, &piece[..]); 8]);
    ends_connection(&frames, Reason::ENHANCE_YOUR_CALM);
    ends_connection(&[(FrameType::HEADERS, WHOLE, 1, &[0x80])], Reason::COMPRESSION_ERROR);
}

#[test]
fn frames_on_streams_that_are_idle_or_closed_are_refused() {
    let (get, post) = (block("GET", &[]), block("POST", &[]));
    let (asked, posted) =
        ((FrameType::HEADERS, WHOLE, 1, &get[..]), (FrameType::HEADERS, 4, 1, &post[..]));
    let (protocol, closed) = (Reason::PROTOCOL_ERROR, Reason::STREAM_CLOSED);
    for kind in [FrameType::DATA, FrameType::RST_STREAM, FrameType::WINDOW_UPDATE] {
        ends_connection(&[(kind, 0, 1, &[0; 4])], protocol);
    }
    ends_connection(
        &[(FrameType::HEADERS, WHOLE, 5, &get), (FrameType::HEADERS, WHOLE, 3, &get)],
        protocol,
    );
    // The request is whole.
    ends_stream(&[asked, (FrameType::DATA, 0, 1, b"x")], closed);
    ends_stream(&[asked, asked], closed);
    // The client ended it.
    let reset = (FrameType::RST_STREAM, 0, 1, &[0; 4][..]);
    ends_stream(&[posted, reset, (FrameType::DATA, 0, 1, b"x")], closed);
    ends_stream(&[posted, reset, asked], closed);
    // The stream is over for both.
    for late in [asked, (FrameType::DATA, 0, 1, &b"x"[..])] {
        for is_held in [true, false] {
            let mut peer = Peer::new();
            let key = peer.get(1);
            peer.h2.send_head(key, b"HTTP/1.1 204 X\r\n\r\n", false, false).unwrap();
            if !is_held {
                peer.h2.end(key);
            }
            peer.frame(late.0, late.1, late.2, late.3);
            assert_eq!(peer.went_away(), Some(closed));
        }
    }
    // We ended it: what was under way means nothing, and neither does what ends it.
    let mut peer = Peer::new();
    let key = peer.post(1);
    peer.h2.end(key);
    assert_eq!(peer.resets().len(), 1);
    peer.data(1, b"x", false);
    peer.update(1, 5);
    peer.frame(FrameType::HEADERS, WHOLE, 1, &[0, 1, b'a', 0]);
    peer.frame(FrameType::RST_STREAM, 0, 1, &[0; 4]);
    assert!(peer.seen().is_empty());
}

#[test]
fn a_body_of_another_length_than_declared_ends_the_stream() {
    let three = block("POST", &[("content-length", "3")]);
    let posted = (FrameType::HEADERS, END_HEADERS, 1, &three[..]);
    let malformed = Reason::PROTOCOL_ERROR;
    ends_stream(&[(FrameType::HEADERS, WHOLE, 1, &three)], malformed);
    ends_stream(&[posted, (FrameType::DATA, 0, 1, b"four")], malformed);
    ends_stream(&[posted, (FrameType::DATA, END_STREAM, 1, b"2b")], malformed);
    ends_stream(&[posted, (FrameType::HEADERS, WHOLE, 1, &[0, 1, b'a', 0])], malformed);
    // The trailers are malformed.
    let post = block("POST", &[]);
    let posted = (FrameType::HEADERS, END_HEADERS, 1, &post[..]);
    ends_stream(&[posted, (FrameType::HEADERS, END_HEADERS, 1, &[0, 1, b'a', 0])], malformed);
    ends_stream(&[posted, (FrameType::HEADERS, WHOLE, 1, &[0x84])], malformed);
}

#[test]
fn malformed_requests_end_their_stream() {
    for fields in [&[("connection", "close")][..], &[(":path", "/b")], &[("te", "x")]] {
        let bad = block("GET", fields);
        ends_stream(&[(FrameType::HEADERS, WHOLE, 1, &bad)], Reason::PROTOCOL_ERROR);
    }
    let get = block("GET", &[]);
    let mut itself = vec![0, 0, 0, 1, 0];
    ends_stream(
        &[(FrameType::HEADERS, WHOLE, 1, &get), (FrameType::PRIORITY, 0, 1, &itself)],
        Reason::PROTOCOL_ERROR,
    );
    itself.extend_from_slice(&get);
    // Nothing comes of it either if its head is in pieces.
    let mut peer = Peer::new();
    peer.frame(FrameType::HEADERS, END_STREAM | PRIORITY, 1, &itself[..8]);
    peer.frame(FrameType::CONTINUATION, END_HEADERS, 1, &itself[8..]);
    assert_eq!(peer.resets(), [(1, Reason::PROTOCOL_ERROR)]);
    assert!(peer.requests.begun.is_empty());
    ends_stream(&[(FrameType::HEADERS, WHOLE | PRIORITY, 1, &itself)], Reason::PROTOCOL_ERROR);
}

/// Errors in streams cost as much as streams that are given up.
#[test]
fn too_many_stream_errors_end_the_connection() {
    let mut peer = Peer::new();
    let bad = block("GET", &[("connection", "close")]);
    let mut count = 0;
    while !peer.h2.is_finished() {
        peer.frame(FrameType::HEADERS, WHOLE, 2 * count + 1, &bad);
        count += 1;
    }
    assert_eq!((count, peer.h2.failure()), (200, Some(Reason::ENHANCE_YOUR_CALM)));
}
