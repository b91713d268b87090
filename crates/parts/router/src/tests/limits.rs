//! An application's own limits on time and size, over real sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use model::InstanceState::Ready;
use model::request::RequestLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use super::world::{Backend, Client, DEADLINE, World, ok, wait};

const GET: &str = "GET / HTTP/1.1\r\nHost: shop.localhost\r\n\r\n";
/// Milliseconds, short for a person, long for a loaded machine that must answer within them.
const SHORT_MS: u64 = 300;

async fn limited(backend: &Backend, concurrency: Option<u32>, requests: RequestLimits) -> World {
    let world = World::new();
    world.limited(requests);
    world.claim(1, concurrency, &[(1, Ready, backend.port)]);
    world.routed().await;
    world
}

async fn assert_ended(client: &mut Client) {
    let mut rest = Vec::new();
    let end = tokio::time::timeout(DEADLINE, client.0.read_to_end(&mut rest)).await;
    assert!(end.expect("the connection ends").is_err() || rest.is_empty());
}

/// Reads all that comes, and says how much that was once the router has ended the connection.
async fn silent(ended: &Arc<AtomicUsize>, first: &'static str) -> Backend {
    let ended = ended.clone();
    Backend::start(move |mut client: Client| {
        let ended = ended.clone();
        async move {
            let mut all = vec![0; 4096];
            let count = client.0.read(&mut all).await.unwrap();
            client.0.write_all(first.as_bytes()).await.unwrap();
            let mut rest = Vec::new();
            client.0.read_to_end(&mut rest).await.ok();
            ended.store(count + rest.len(), Ordering::SeqCst);
        }
    })
    .await
}

#[tokio::test]
async fn the_time_for_a_head_and_between_requests_is_limited() {
    let backend = Backend::named("on").await;
    let limits =
        RequestLimits { head_ms: Some(SHORT_MS), idle_ms: Some(SHORT_MS), ..Default::default() };
    let world = limited(&backend, None, limits).await;
    // The application that is meant is known from the first request on.
    let mut client = world.connect().await;
    client.send(GET).await;
    assert_eq!(client.reply().await.text(), "on");
    client.send("GET / HTTP/1.1\r\nHo").await;
    let late = client.reply().await;
    assert_eq!(late.status, 408);
    assert!(late.head.contains("X-Cortex-Error: request-timeout\r\n"), "{}", late.head);
    assert!(late.head.contains("Connection: close\r\n"));
    assert_ended(&mut client).await;
    let mut idle = world.connect().await;
    idle.send(GET).await;
    assert_eq!(idle.reply().await.text(), "on");
    assert_ended(&mut idle).await;
}

#[tokio::test]
async fn the_time_between_two_pieces_of_a_body_is_limited() {
    let ended = Arc::new(AtomicUsize::new(0));
    let backend = silent(&ended, "").await;
    let limits = RequestLimits { body_ms: Some(SHORT_MS), ..Default::default() };
    let world = limited(&backend, None, limits).await;
    let mut client = world.connect().await;
    client.send("POST / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: 9\r\n\r\nabc").await;
    assert_eq!(client.reply().await.status, 408);
    assert_ended(&mut client).await;
    wait(|| ended.load(Ordering::SeqCst) > 0).await;
}

#[tokio::test]
async fn a_body_that_trickles_is_not_waited_for_to_its_end() {
    let backend = Backend::answering(ok).await;
    let limits = RequestLimits { body_ms: Some(SHORT_MS), ..Default::default() };
    let world = limited(&backend, None, limits).await;
    let chunked = ("Transfer-Encoding: chunked\r\n", "1\r\nx\r\n");
    for (header, piece) in [("Content-Length: 1000\r\n", "x"), chunked] {
        let mut client = world.connect().await;
        client.send(&format!("POST / HTTP/1.1\r\nHost: shop.localhost\r\n{header}\r\n")).await;
        // Every piece comes in its time.
        let mut pieces = 0;
        while pieces < 1000 {
            let pause = Duration::from_millis(SHORT_MS / 10);
            if tokio::time::timeout(pause, client.0.readable()).await.is_ok() {
                break;
            }
            client.send(piece).await;
            pieces += 1;
        }
        assert!(pieces < 1000, "all of it was taken");
        assert_eq!(client.reply().await.status, 408);
    }
}

#[tokio::test]
async fn the_time_in_the_queue_is_limited() {
    let gate = Arc::new(Semaphore::new(0));
    let gated = gate.clone();
    let backend = Backend::start(move |mut client: Client| {
        let gate = gated.clone();
        async move {
            client.request().await;
            gate.acquire().await.unwrap().forget();
            client.0.write_all(ok("done").as_bytes()).await.ok();
        }
    })
    .await;
    let limits = RequestLimits { queue_ms: Some(SHORT_MS), ..Default::default() };
    let world = limited(&backend, Some(1), limits).await;
    let mut served = world.connect().await;
    served.send(GET).await;
    wait(|| backend.connections.load(Ordering::SeqCst) == 1).await;
    let late = world.get("/").await;
    assert!(late.head.contains("X-Cortex-Error: queue-timeout\r\n"), "{}", late.head);
    gate.add_permits(1);
    assert_eq!(served.reply().await.text(), "done");
}

#[tokio::test]
async fn the_time_until_an_answer_and_between_its_pieces_is_limited() {
    let ended = Arc::new(AtomicUsize::new(0));
    let limits = RequestLimits { answer_ms: Some(SHORT_MS), ..Default::default() };
    let backend = silent(&ended, "").await;
    let world = limited(&backend, None, limits).await;
    assert_eq!(world.get("/").await.status, 504);
    wait(|| ended.load(Ordering::SeqCst) > 0).await;
    for half in [
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        "HTTP/1.1 200 OK\r\n\r\nabc",
    ] {
        let backend = silent(&ended, half).await;
        let world = limited(&backend, None, limits).await;
        let mut client = world.connect().await;
        client.send(GET).await;
        let reply = tokio::time::timeout(DEADLINE, client.try_reply(false)).await.unwrap();
        assert!(reply.is_err(), "{half:?} looks whole: {reply:?}");
    }
}

#[tokio::test]
async fn the_size_of_a_body_is_limited() {
    let backend = Backend::answering(|request| ok(&request.len().to_string())).await;
    let limits = RequestLimits { body_bytes_max: Some(1000), ..Default::default() };
    let world = limited(&backend, None, limits).await;
    let post = |framing: &str| format!("POST / HTTP/1.1\r\nHost: shop.localhost\r\n{framing}\r\n");
    let of = |size: usize| format!("{size:x}\r\n{}\r\n", "x".repeat(size));
    for whole in [
        post("Content-Length: 1000\r\n") + &"x".repeat(1000),
        post("Transfer-Encoding: chunked\r\n") + &of(600) + &of(400) + "0\r\n\r\n",
    ] {
        let mut client = world.connect().await;
        client.send(&whole).await;
        assert_eq!(client.reply().await.status, 200);
    }
    let before = backend.connections.load(Ordering::SeqCst);
    for large in [
        // These are told before anything of them was sent.
        post("Content-Length: 1001\r\nExpect: 100-continue\r\n"),
        post("Transfer-Encoding: chunked\r\n") + &of(1001) + "0\r\n\r\n",
    ] {
        let mut client = world.connect().await;
        client.send(&large).await;
        let reply = client.reply().await;
        assert_eq!(reply.status, 413);
        assert!(reply.head.contains("X-Cortex-Error: body-too-large\r\n"), "{}", reply.head);
        assert_ended(&mut client).await;
    }
    assert_eq!(backend.connections.load(Ordering::SeqCst), before, "no instance was troubled");
    // This one is found out later, and its instance never sees its end.
    let mut client = world.connect().await;
    client.send(&(post("Transfer-Encoding: chunked\r\n") + &of(600))).await;
    wait(|| {
        let table = world.router.shared.table.load();
        let shop = table.by_host(b"shop.localhost").unwrap();
        shop.endpoints[0].candidate(0).in_flight == 1
    })
    .await;
    client.send(&of(600)).await;
    assert_eq!(client.reply().await.status, 413);
    assert_ended(&mut client).await;
}

#[tokio::test]
async fn a_client_that_sends_all_of_an_unwanted_body_finds_the_answer() {
    let backend = Backend::start(|mut client: Client| async move {
        client.0.read_exact(&mut [0; 64]).await.unwrap();
        let refused = "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno";
        client.0.write_all(refused.as_bytes()).await.unwrap();
    })
    .await;
    let world = limited(&backend, None, RequestLimits::default()).await;
    let most = RequestLimits { body_bytes_max: Some(1024), ..Default::default() };
    let strict = limited(&backend, None, most).await;
    for (world, status) in [(world, 403), (strict, 413)] {
        let mut client = world.connect().await;
        let body = vec![b'x'; 8 << 20];
        let length = body.len();
        let head =
            format!("POST / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: {length}\r\n\r\n");
        client.send(&head).await;
        // The answer is there before the client, which is slow, sends more than the kernel would
        // hold for it.
        client.0.readable().await.unwrap();
        for piece in body.chunks(length / 3 + 1) {
            tokio::time::sleep(Duration::from_millis(600)).await;
            client.0.write_all(piece).await.unwrap();
        }
        let reply = client.reply().await;
        assert_eq!(reply.status, status);
        assert!(reply.head.contains("Connection: close\r\n"), "{}", reply.head);
        assert_ended(&mut client).await;
    }
}
