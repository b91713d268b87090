//! Clients that mean harm, by frames that they write themselves.

use std::sync::atomic::Ordering;
use std::time::Duration;

use model::InstanceState::Ready;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::world::{Backend, DEADLINE, World, ok};
use super::{Calls, in_front_of, in_time};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ENHANCE_YOUR_CALM: u32 = 11;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Returns `GET PATH` of the shop, as literals that no table holds.
fn get(path: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x86];
    for (index, value) in [(4, path), (1, "shop.localhost")] {
        block.extend([index, u8::try_from(value.len()).unwrap()]);
        block.extend_from_slice(value.as_bytes());
    }
    block
}

struct Raw(TcpStream);

/// The part of what the router sent that says how things end.
#[derive(Debug, Default)]
struct Seen {
    went_away: Option<u32>,
    resets: usize,
    answers: usize,
    data: usize,
    closed: bool,
}

impl Raw {
    async fn to(world: &World, settings: &[u8]) -> Raw {
        let mut raw = Raw(TcpStream::connect(world.router.public().unwrap()).await.unwrap());
        let mut first = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        first.extend(frame(SETTINGS, 0, 0, settings));
        raw.0.write_all(&first).await.unwrap();
        raw
    }

    /// Reads until the other side has closed, or `is_enough`.
    async fn see(&mut self, seen: &mut Seen, is_enough: impl Fn(&Seen) -> bool) {
        while !is_enough(seen) {
            let mut head = [0; 9];
            if self.0.read_exact(&mut head).await.is_err() {
                seen.closed = true;
                return;
            }
            let length =
                usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            let mut payload = vec![0; length];
            if self.0.read_exact(&mut payload).await.is_err() {
                seen.closed = true;
                return;
            }
            match head[3] {
                GOAWAY => {
                    seen.went_away = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
                }
                RST_STREAM => seen.resets += 1,
                HEADERS => seen.answers += 1,
                DATA => seen.data += length,
                _ => {}
            }
        }
    }

    /// Sends these again and again; returns what the router makes of it in the end.
    async fn flood(self, mut next: impl FnMut(u32) -> Vec<u8>) -> Seen {
        let (mut reading, mut writing) = self.0.into_split();
        let sending = async move {
            for number in 0..1_000_000 {
                if writing.write_all(&next(number)).await.is_err() {
                    return;
                }
            }
            panic!("nobody stopped it");
        };
        let mut bytes = Vec::new();
        let reading = async {
            // A reset that overtakes what was said last is an end, too.
            reading.read_to_end(&mut bytes).await.ok();
        };
        in_time(async { tokio::join!(sending, reading) }).await;
        let mut seen = Seen { closed: true, ..Seen::default() };
        let mut rest = &bytes[..];
        while rest.len() >= 9 {
            let length =
                usize::from(rest[0]) << 16 | usize::from(rest[1]) << 8 | usize::from(rest[2]);
            if rest[3] == GOAWAY && rest.len() >= 17 {
                seen.went_away = Some(u32::from_be_bytes(rest[13..17].try_into().unwrap()));
            }
            rest = rest.get(9 + length..).unwrap_or_default();
        }
        seen
    }
}

/// Checks that the others are served as if nothing was.
async fn serves(world: &World) {
    let mut calls = Calls::to(world).await;
    assert_eq!(calls.get("/").await.status, 200);
    assert_eq!(world.get("/").await.status, 200);
}

async fn place() -> (Backend, World) {
    let backend = Backend::answering(|_| ok("fine")).await;
    let world = in_front_of(&backend).await;
    (backend, world)
}

#[tokio::test]
async fn requests_that_are_given_up_at_once_are_too_many_soon() {
    let (backend, world) = place().await;
    let raw = Raw::to(&world, &[]).await;
    let seen = raw
        .flood(|number| {
            let stream = 2 * number + 1;
            let mut both = frame(HEADERS, END_HEADERS | END_STREAM, stream, &get("/"));
            both.extend(frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
            both
        })
        .await;
    // If the goodbye was lost with the connection, its end remains.
    assert!(matches!(seen.went_away, None | Some(ENHANCE_YOUR_CALM)), "{seen:?}");
    assert!(backend.connections.load(Ordering::SeqCst) < 2_000);
    serves(&world).await;
}

#[tokio::test]
async fn floods_of_frames_without_progress_are_stopped() {
    let (_backend, world) = place().await;
    let floods: [(&str, Vec<u8>); 4] = [
        ("settings", frame(SETTINGS, 0, 0, &[])),
        ("pings", frame(PING, 0, 0, &[0; 8])),
        ("priorities", frame(2, 0, 1, &[0, 0, 0, 0, 0])),
        ("unknown", frame(99, 0, 0, &[])),
    ];
    for (name, one) in floods {
        let many = one.repeat(100);
        let seen = Raw::to(&world, &[]).await.flood(|_| many.clone()).await;
        assert!(seen.closed, "{name}: {seen:?}");
        assert!(matches!(seen.went_away, None | Some(ENHANCE_YOUR_CALM)), "{name}: {seen:?}");
    }
    serves(&world).await;
}

#[tokio::test]
async fn a_head_that_never_ends_is_not_kept() {
    let (_backend, world) = place().await;
    // Small pieces come first, then pieces as large as a frame may be.
    for size in [1, 16 * 1024] {
        let mut raw = Raw::to(&world, &[]).await;
        raw.0.write_all(&frame(HEADERS, END_STREAM, 1, &get("/"))).await.unwrap();
        // This is a literal of a name and a value that are new each time.
        let mut field = vec![0x00, 0x01, b'a', 0x7f, 0x80, 0x7d];
        field.resize(size.max(field.len()), b'v');
        let piece = frame(CONTINUATION, 0, 1, &field);
        let seen = raw.flood(|_| piece.clone()).await;
        assert!(seen.closed, "{size}: {seen:?}");
    }
    serves(&world).await;
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let (backend, world) = place().await;
    let mut raw = Raw::to(&world, &[]).await;
    let mut block = get("/");
    // This is index 62 of the table, which is put there once and named many times.
    block.extend([0x40, 1, b'x', 0x7f, 0x81, 0x1e]);
    block.extend([b'v'; 127 + 0x81 - 0x80 + 0x1e * 128]);
    block.extend([0xbe; 2000]);
    raw.0.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)).await.unwrap();
    let mut seen = Seen::default();
    in_time(raw.see(&mut seen, |seen| seen.resets + seen.answers > 0 || seen.went_away.is_some()))
        .await;
    assert!(seen.answers + seen.resets > 0 || seen.went_away.is_some(), "{seen:?}");
    assert_eq!(backend.connections.load(Ordering::SeqCst), 0, "nothing of it was passed on");
    serves(&world).await;
}

/// It wants large answers and opens no window: each stream holds as much as one buffer.
#[tokio::test]
async fn a_client_that_takes_nothing_holds_little() {
    const STREAMS: u32 = 100;
    let body = "x".repeat(4 * 1024 * 1024);
    let backend = Backend::answering(move |_| ok(&body)).await;
    let world = in_front_of(&backend).await;
    // This is INITIAL_WINDOW_SIZE of zero.
    let mut raw = Raw::to(&world, &[0, 4, 0, 0, 0, 0]).await;
    for number in 0..STREAMS {
        let request = frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, &get("/"));
        raw.0.write_all(&request).await.unwrap();
    }
    let mut seen = Seen::default();
    in_time(raw.see(&mut seen, |seen| seen.answers == STREAMS as usize)).await;
    assert_eq!(seen.data, 0, "{seen:?}");
    // Each gets a byte, and then one of them all the rest.
    for number in 0..STREAMS {
        let update = frame(WINDOW_UPDATE, 0, 2 * number + 1, &1_u32.to_be_bytes());
        raw.0.write_all(&update).await.unwrap();
    }
    in_time(raw.see(&mut seen, |seen| seen.data == STREAMS as usize)).await;
    let update = frame(WINDOW_UPDATE, 0, 1, &50_000_u32.to_be_bytes());
    raw.0.write_all(&update).await.unwrap();
    in_time(raw.see(&mut seen, |seen| seen.data == STREAMS as usize + 50_000)).await;
    serves_others(&world).await;
}

/// The instance's answer waits here, and the instance takes one request at a time. What an instance
/// says at once is read at once; on a busy machine a long answer comes in pieces now and then.
#[tokio::test]
async fn a_client_that_takes_nothing_keeps_no_instance() {
    for _ in 0..4 {
        if tokio::time::timeout(DEADLINE / 4, all_answered()).await.is_ok() {
            return;
        }
    }
    in_time(all_answered()).await;
}

async fn all_answered() {
    const PATHS: [&str; 5] = ["/short", "/long", "/long", "/short", "/short"];
    let length = |request: &str| if request.contains("/long") { 100_000 } else { 10_000 };
    let backend = Backend::answering(move |request| ok(&"x".repeat(length(request)))).await;
    let world = World::new();
    world.application(|_| (), Vec::new());
    world.claim(1, Some(1), &[(1, Ready, backend.port)]);
    world.routed().await;
    let mut raw = Raw::to(&world, &[0, 4, 0, 0, 0, 0]).await;
    for (path, stream) in PATHS.iter().zip((1..).step_by(2)) {
        let request = frame(HEADERS, END_HEADERS | END_STREAM, stream, &get(path));
        raw.0.write_all(&request).await.unwrap();
    }
    let mut seen = Seen::default();
    raw.see(&mut seen, |seen| seen.answers == PATHS.len()).await;
    assert_eq!(seen.data, 0, "{seen:?}");
    serves_others(&world).await;
}

async fn serves_others(world: &World) {
    let mut client = world.connect().await;
    client.send("GET / HTTP/1.1\r\nHost: shop.localhost\r\n\r\n").await;
    assert_eq!(client.reply().await.status, 200);
}

#[tokio::test]
async fn more_streams_than_agreed_are_refused() {
    let backend = Backend::start(|mut client: super::Client| async move {
        client.request().await;
        tokio::time::sleep(DEADLINE + Duration::from_secs(1)).await;
    })
    .await;
    let world = in_front_of(&backend).await;
    let mut raw = Raw::to(&world, &[]).await;
    for number in 0..140 {
        let request = frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, &get("/"));
        raw.0.write_all(&request).await.unwrap();
    }
    let mut seen = Seen::default();
    in_time(raw.see(&mut seen, |seen| seen.resets == 12)).await;
    assert_eq!((seen.answers, seen.went_away), (0, None), "{seen:?}");
}
