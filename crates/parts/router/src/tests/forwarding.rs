//! Requests that go through to one instance, and what comes back.

use model::InstanceState::Ready;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::world::{Backend, Client, DEADLINE, World, ok};

pub async fn world(backend: &Backend) -> World {
    let world = World::new();
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    world
}

pub const GET: &str = "GET / HTTP/1.1\r\nHost: shop.localhost\r\n\r\n";

#[tokio::test]
async fn connections_are_kept_on_both_sides() {
    let backend = Backend::answering(ok).await;
    let world = world(&backend).await;
    let mut client = world.connect().await;
    for _ in 0..20 {
        client.send(GET).await;
        let reply = client.reply().await;
        assert_eq!(reply.status, 200);
        assert!(reply.text().contains("X-Forwarded-For: 127.0.0.1\r\n"), "{}", reply.text());
        assert!(reply.text().contains("Host: shop.localhost\r\n"));
    }
    assert_eq!(backend.connections.load(Ordering::SeqCst), 1);
    let unknown = "GET / HTTP/1.1\r\nHost: other.localhost\r\n\r\n";
    client.send(unknown).await;
    let reply = client.reply().await;
    assert_eq!(reply.status, 404);
    assert!(reply.head.contains("X-Cortex-Error: no-application\r\n"));
    assert!(!reply.text().contains("shop"));
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let backend = Backend::answering(|request| ok(request.split(' ').nth(1).unwrap())).await;
    let world = world(&backend).await;
    let mut client = world.connect().await;
    let all: String = (0..10).map(|n| GET.replacen('/', &format!("/{n}"), 1)).collect();
    client.send(&all).await;
    for n in 0..10 {
        assert_eq!(client.reply().await.text(), format!("/{n}"));
    }
}

#[tokio::test]
async fn bodies_pass_in_both_framings() {
    let backend = Backend::answering(|request| {
        let body = request.split_once("\r\n\r\n").unwrap().1;
        format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        )
    })
    .await;
    let world = world(&backend).await;
    let mut client = world.connect().await;
    let big = "x".repeat(300_000);
    let post = |body: &str| {
        format!(
            "POST / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    for body in ["hello", &big] {
        client.send(&post(body)).await;
        assert_eq!(client.reply().await.text(), body);
    }
    client
        .send(
            "POST / HTTP/1.1\r\nHost: shop.localhost\r\nTransfer-Encoding: chunked\r\n\r\n\
             3\r\nabc\r\n0\r\n\r\n",
        )
        .await;
    assert_eq!(client.reply().await.text(), "3\r\nabc\r\n0\r\n\r\n");
    // A client of the last century gets the content without chunks.
    let mut old = world.connect().await;
    old.send("POST / HTTP/1.0\r\nHost: shop.localhost\r\nContent-Length: 2\r\n\r\nhi").await;
    let reply = old.reply().await;
    assert_eq!(reply.text(), "hi");
    assert!(!reply.head.contains("chunked"));
}

#[tokio::test]
async fn a_client_that_expects_it_is_told_to_continue() {
    let backend = Backend::answering(|request| ok(request.rsplit("\r\n").next().unwrap())).await;
    let world = world(&backend).await;
    let mut client = world.connect().await;
    client
        .send(
            "POST / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: 4\r\n\
             Expect: 100-continue\r\n\r\n",
        )
        .await;
    assert_eq!(client.reply().await.status, 100);
    client.send("body").await;
    assert_eq!(client.reply().await.text(), "body");
}

#[tokio::test]
async fn answers_without_a_body_keep_the_connection() {
    let backend = Backend::answering(|request| match &request[..4] {
        "HEAD" => "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n".into(),
        "DELE" => "HTTP/1.1 204 No Content\r\n\r\n".into(),
        _ => "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 304 Not Modified\r\n\r\n".into(),
    })
    .await;
    let world = world(&backend).await;
    let mut client = world.connect().await;
    client.send(&GET.replace("GET", "HEAD")).await;
    assert!(client.try_reply(true).await.unwrap().head.contains("Content-Length: 99"));
    client.send(&GET.replace("GET", "DELETE")).await;
    assert_eq!(client.reply().await.status, 204);
    client.send(GET).await;
    assert_eq!(client.reply().await.status, 103);
    assert_eq!(client.reply().await.status, 304);
}

#[tokio::test]
async fn a_truncated_answer_is_cut() {
    let backend = Backend::start(|mut client: Client| async move {
        client.request().await;
        let half = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf";
        client.0.write_all(half).await.unwrap();
    })
    .await;
    let world = world(&backend).await;
    let mut client = world.connect().await;
    client.send(GET).await;
    let result = tokio::time::timeout(DEADLINE, client.try_reply(false)).await.unwrap();
    assert!(result.is_err(), "{result:?}");
}

#[tokio::test]
async fn an_answer_that_comes_before_the_body_is_passed_on() {
    let backend = Backend::start(|mut client: Client| async move {
        let mut head = [0; 64];
        client.0.read_exact(&mut head).await.unwrap();
        let answer = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno";
        client.0.write_all(answer).await.unwrap();
        let mut rest = Vec::new();
        client.0.read_to_end(&mut rest).await.ok();
    })
    .await;
    let world = world(&backend).await;
    let mut client = world.connect().await;
    client
        .send("POST / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: 5000000\r\n\r\nx")
        .await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.text().as_str()), (413, "no"));
    assert!(reply.head.contains("Connection: close") || client.0.read_u8().await.is_err());
}

#[tokio::test]
async fn an_upgraded_connection_is_a_tunnel() {
    let backend = Backend::start(|mut client: Client| async move {
        let request = client.request().await.unwrap();
        assert!(request.contains("Upgrade: websocket\r\n"), "{request}");
        assert!(request.contains("Connection: Upgrade\r\n"), "{request}");
        let answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
            Connection: Upgrade\r\n\r\nfirst";
        client.0.write_all(answer).await.unwrap();
        let mut bytes = [0; 64];
        while let Ok(count @ 1..) = client.0.read(&mut bytes).await {
            client.0.write_all(&bytes[..count]).await.unwrap();
        }
    })
    .await;
    let world = world(&backend).await;
    let mut client = world.connect().await;
    client
        .send(
            "GET /ws HTTP/1.1\r\nHost: shop.localhost\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\n\r\n",
        )
        .await;
    let reply = client.reply().await;
    assert_eq!(reply.status, 101);
    assert!(reply.head.contains("Upgrade: websocket"));
    let mut first = [0; 5];
    client.0.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"first");
    for text in ["one", "two!!"] {
        client.send(text).await;
        let mut echo = vec![0; text.len()];
        client.0.read_exact(&mut echo).await.unwrap();
        assert_eq!(echo, text.as_bytes());
    }
}

#[tokio::test]
async fn ambiguous_requests_never_reach_an_instance() {
    let backend = Backend::named("x").await;
    let world = world(&backend).await;
    for bad in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
        "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "X: a\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ] {
        let mut client = world.connect().await;
        client.send(&format!("POST / HTTP/1.1\r\nHost: shop.localhost\r\n{bad}")).await;
        assert_eq!(client.reply().await.status, 400, "{bad:?}");
    }
    assert_eq!(backend.connections.load(Ordering::SeqCst), 0);
    let mut client = world.connect().await;
    client
        .send(&format!("GET / HTTP/1.1\r\nHost: shop.localhost\r\nA: {}", "x".repeat(70_000)))
        .await;
    assert_eq!(client.reply().await.status, 431);
}
