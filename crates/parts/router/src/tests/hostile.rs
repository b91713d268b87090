//! Clients and instances that mean ill, or are broken: nobody gets a wrong answer, nothing grows
//! without limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use model::InstanceState::Ready;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use super::world::{Backend, Client, DEADLINE, World, ok, wait};

const GET: &str = "GET / HTTP/1.1\r\nHost: shop.localhost\r\n\r\n";

async fn world(backend: &Backend) -> World {
    let world = World::with_threads(1);
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    world
}

#[tokio::test]
async fn a_head_that_comes_byte_by_byte_is_read() {
    let backend = Backend::answering(ok).await;
    let world = world(&backend).await;
    let mut client = world.connect().await;
    client.0.set_nodelay(true).unwrap();
    let long = format!("GET / HTTP/1.1\r\nHost: shop.localhost\r\nA: {}\r\n\r\n", "b".repeat(3000));
    for byte in long.bytes() {
        client.0.write_all(&[byte]).await.unwrap();
    }
    let reply = client.reply().await;
    assert!(reply.status == 200 && reply.text().contains(&"b".repeat(3000)));
}

/// Bytes of an answer, more than the buffers of the kernel and of the router hold together.
const LONG_BYTES: u64 = 256 << 20;
/// Bytes that they may hold: the kernel's buffers at their largest, for two connections.
const HELD_BYTES_MAX: u64 = 64 << 20;

#[tokio::test]
async fn a_client_that_does_not_read_holds_up_its_instance_but_no_memory() {
    for framing in ["Content-Length: 268435456\r\n", "", "Transfer-Encoding: chunked\r\n"] {
        let sent = Arc::new(AtomicU64::new(0));
        let counted = sent.clone();
        let backend = Backend::start(move |mut client: Client| {
            let sent = counted.clone();
            async move {
                client.request().await;
                let head = format!("HTTP/1.1 200 OK\r\n{framing}\r\n");
                client.0.write_all(head.as_bytes()).await.unwrap();
                let piece = vec![b'x'; 1 << 20];
                while sent.load(Ordering::SeqCst) < LONG_BYTES {
                    let chunked = framing.starts_with('T');
                    let before = if chunked { "100000\r\n" } else { "" };
                    let after = if chunked { "\r\n" } else { "" };
                    for part in [before.as_bytes(), &piece, after.as_bytes()] {
                        if client.0.write_all(part).await.is_err() {
                            return;
                        }
                    }
                    sent.fetch_add(piece.len() as u64, Ordering::SeqCst);
                }
            }
        })
        .await;
        let world = world(&backend).await;
        let mut client = world.connect().await;
        client.send(GET).await;
        // It stands still when nothing has moved while others were served.
        let (mut before, mut still) = (0, 0);
        wait(|| {
            let now = sent.load(Ordering::SeqCst);
            still = if now == before { still + 1 } else { 0 };
            before = now;
            now > 0 && still > 200
        })
        .await;
        assert!(before <= HELD_BYTES_MAX, "{before} bytes are held somewhere");
        drop(client);
        // Its instance is let go.
        let others = Backend::named("other").await;
        world.claim(2, None, &[(1, Ready, others.port)]);
        wait(|| {
            let table = world.router.shared.table.load();
            let shop = table.by_host(b"shop.localhost").unwrap();
            shop.endpoints.len() == 2
                && shop.endpoints.iter().all(|one| one.candidate(0).in_flight == 0)
        })
        .await;
    }
}

#[tokio::test]
async fn a_client_that_ends_its_half_gets_the_answer() {
    let gate = Arc::new(Semaphore::new(0));
    let gated = gate.clone();
    let backend = Backend::start(move |mut client: Client| {
        let gate = gated.clone();
        async move {
            while client.request().await.is_some() {
                gate.acquire().await.unwrap().forget();
                client.0.write_all(ok("answer").as_bytes()).await.unwrap();
            }
        }
    })
    .await;
    let world = world(&backend).await;
    let mut client = world.connect().await;
    client.send(GET).await;
    client.0.shutdown().await.unwrap();
    wait(|| backend.connections.load(Ordering::SeqCst) == 1).await;
    gate.add_permits(1);
    assert_eq!(client.reply().await.text(), "answer");
    let end = tokio::time::timeout(DEADLINE, client.0.read(&mut [0])).await.unwrap();
    assert_eq!(end.unwrap(), 0);
    // The request has a body, and a second request is behind it.
    let mut client = world.connect().await;
    client.send("POST / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: 2\r\n\r\nhi").await;
    client.send(GET).await;
    client.0.shutdown().await.unwrap();
    gate.add_permits(2);
    assert_eq!(client.reply().await.text(), "answer");
    assert_eq!(client.reply().await.text(), "answer");
}

#[tokio::test]
async fn an_answer_to_a_body_that_nobody_reads_is_passed_on() {
    let backend = Backend::start(|mut client: Client| async move {
        client.0.read_exact(&mut [0; 64]).await.unwrap();
        let answer = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno";
        client.0.write_all(answer).await.unwrap();
        // It neither reads nor ends.
        std::future::pending::<()>().await;
    })
    .await;
    let world = world(&backend).await;
    let client = world.connect().await;
    let (read, mut write) = client.0.into_split();
    let sending = tokio::spawn(async move {
        let head = "POST / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: 268435456\r\n\r\n";
        write.write_all(head.as_bytes()).await.unwrap();
        let piece = vec![0; 1 << 20];
        while write.write_all(&piece).await.is_ok() {}
    });
    let mut answer = vec![0; 4096];
    let mut got = Vec::new();
    let reading = async {
        while !got.ends_with(b"\r\n\r\nno") {
            read.readable().await.unwrap();
            match read.try_read(&mut answer) {
                Ok(0) => break,
                Ok(count) => got.extend_from_slice(&answer[..count]),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
        }
    };
    tokio::time::timeout(DEADLINE, reading).await.unwrap();
    assert!(got.starts_with(b"HTTP/1.1 413 "), "{}", String::from_utf8_lossy(&got));
    drop(read);
    tokio::time::timeout(DEADLINE, sending).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_connection_that_carried_a_get_with_a_body_is_not_reused() {
    let backend = Backend::named("on").await;
    let world = world(&backend).await;
    let mut client = world.connect().await;
    for number in 1..=3 {
        // An instance that overlooks it would take it for a request of the next client.
        client
            .send("GET / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: 5\r\n\r\nhello")
            .await;
        assert_eq!(client.reply().await.text(), "on");
        assert_eq!(backend.connections.load(Ordering::SeqCst), number);
    }
}

#[tokio::test]
async fn answers_that_nobody_asked_for_reach_nobody() {
    // Some are short, and others are spliced.
    for padding in [0, 100_000] {
        let asked = Arc::new(AtomicUsize::new(0));
        let said = Arc::new(AtomicUsize::new(0));
        let (counted, told) = (asked.clone(), said.clone());
        let answer = move |number| format!("answer {number}{}", " ".repeat(padding));
        let backend = Backend::start(move |mut client: Client| {
            let (asked, said) = (counted.clone(), told.clone());
            async move {
                // The port may have been another test's, whose router still asks there.
                let request = client.request().await;
                if !request.is_some_and(|text| text.starts_with("GET /unasked ")) {
                    return;
                }
                let number = asked.fetch_add(1, Ordering::SeqCst);
                client.0.write_all(ok(&answer(number)).as_bytes()).await.unwrap();
                // This comes later, while the connection waits to be used again.
                tokio::task::yield_now().await;
                client.0.write_all(ok("evil").as_bytes()).await.ok();
                said.fetch_add(1, Ordering::SeqCst);
                client.0.read_u8().await.ok();
            }
        })
        .await;
        let world = world(&backend).await;
        let mut client = world.connect().await;
        for number in 0..20 {
            client.send("GET /unasked HTTP/1.1\r\nHost: shop.localhost\r\n\r\n").await;
            assert!(client.reply().await.text() == answer(number), "{padding} {number}");
            // Each comes on a connection of its own, as the handler answers one.
            assert_eq!(asked.load(Ordering::SeqCst), number + 1);
            wait(|| said.load(Ordering::SeqCst) == number + 1).await;
        }
    }
}

#[tokio::test]
async fn an_answer_that_an_instance_cuts_off_anywhere_is_cut_off() {
    let whole = "x".repeat(400_000);
    for (head, wire) in [
        ("Content-Length: 400000\r\n", whole.clone()),
        ("Transfer-Encoding: chunked\r\n", format!("61a80\r\n{whole}\r\n0\r\n\r\n")),
        ("", whole.clone()),
    ] {
        for cut in [0, 1, 100, 20_000, 130_000, 399_999] {
            let bytes = format!("HTTP/1.1 200 OK\r\n{head}\r\n{}", &wire[..cut]);
            let backend = Backend::start(move |mut client: Client| {
                let bytes = bytes.clone();
                async move {
                    client.request().await;
                    client.0.write_all(bytes.as_bytes()).await.unwrap();
                    // All of it has been taken before the reset destroys the rest.
                    let socket = socket2::SockRef::from(&client.0);
                    socket.set_linger(Some(std::time::Duration::ZERO)).unwrap();
                }
            })
            .await;
            let world = world(&backend).await;
            let mut client = world.connect().await;
            client
                .send("POST / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: 0\r\n\r\n")
                .await;
            let reply = tokio::time::timeout(DEADLINE, client.try_reply(false)).await.unwrap();
            match reply {
                Err(_) => {}
                // Nothing of the answer had been read.
                Ok(reply) => assert_eq!(reply.status, 502, "{head:?} at {cut}"),
            }
        }
    }
}
