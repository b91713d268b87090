//! Bodies so long that they pass this process by.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use model::InstanceState::Ready;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

use super::forwarding::{GET, world};
use super::world::{Backend, Client, DEADLINE, ok, wait};

fn letters(count: usize) -> String {
    (0..count).map(|n| char::from(b'a' + (n % 26) as u8)).collect()
}

#[tokio::test]
async fn long_answers_pass_whole_in_every_framing() {
    let content = letters(200_000);
    let whole = content.clone();
    let chunked = format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{whole}\r\n0\r\n\r\n",
        whole.len()
    );
    let backend = Backend::answering(move |request| match request.split(' ').nth(1) {
        Some("/length") => ok(&whole),
        Some("/chunked") => chunked.clone(),
        Some("/trailing") => format!("{}trailing", ok(&whole)),
        _ => format!("{chunked}trailing"),
    })
    .await;
    let world = world(&backend).await;
    let mut client = world.connect().await;
    let paths = ["/length", "/chunked", "/length", "/trailing", "/length", "/chunked-trailing"];
    for path in paths.into_iter().chain(["/length"]) {
        client.send(&GET.replacen('/', path, 1)).await;
        assert!(client.reply().await.text() == content, "{path}");
    }
    // A connection with bytes that nobody asked for was not used again.
    assert_eq!(backend.connections.load(Ordering::SeqCst), 3);
    let until_close = Backend::start({
        let content = content.clone();
        move |mut client: Client| {
            let content = content.clone();
            async move {
                client.request().await;
                let answer = format!("HTTP/1.1 200 OK\r\n\r\n{content}");
                client.0.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    })
    .await;
    world.claim(1, None, &[(2, Ready, until_close.port)]);
    let known = || {
        let live = world.router.shared.live.lock().unwrap();
        live.endpoints.values().flat_map(|all| all.keys()).any(|((_, n), _)| *n == 2)
    };
    wait(known).await;
    assert!(world.get("/").await.text() == content);
}

/// Bytes for which a client's buffer has room are sent without waiting for the client to read.
#[tokio::test]
async fn a_window_opens_for_long_answers() {
    const BUFFER: u32 = 64 * 1024;
    // The window stays at 95,000 bytes if it does not open, and opens to 128,000.
    const LENGTH: usize = 120_000;
    const BEFORE: usize = 8;
    let content = letters(LENGTH);
    let answer = ok(&content);
    let length = answer.len();
    let backend = Backend::answering(move |_| answer.clone()).await;
    let world = world(&backend).await;
    let mut client = world.connect_with(BUFFER).await;
    for _ in 0..BEFORE {
        client.send(GET).await;
        assert!(client.reply().await.text() == content);
    }
    client.send(GET).await;
    let mut room = vec![MaybeUninit::uninit(); 2 * LENGTH];
    let here = || SockRef::from(&client.0).peek(&mut room).is_ok_and(|count| count >= length);
    wait(here).await;
    assert!(client.reply().await.text() == content);
}

#[tokio::test]
async fn answers_of_any_length_follow_a_long_one() {
    let backend = Backend::answering(move |request| {
        let path = request.split(' ').nth(1).unwrap();
        let count = path[1..].parse().unwrap();
        match request.starts_with("HEAD") {
            true => format!("HTTP/1.1 200 OK\r\nContent-Length: {count}\r\n\r\n"),
            false => ok(&letters(count)),
        }
    })
    .await;
    let world = world(&backend).await;
    let mut client = world.connect().await;
    // These lie around what is read of the next head, and around what is spliced.
    for count in (0..20).chain(200..320).chain([6_000, 16_300, 18_300, 18_500, 90_000]) {
        for count in [70_000, count] {
            client.send(&GET.replacen('/', &format!("/{count}"), 1)).await;
            assert!(client.reply().await.text() == letters(count), "{count}");
        }
        client.send(&GET.replacen("GET /", "HEAD /5000", 1)).await;
        assert_eq!(client.try_reply(true).await.unwrap().status, 200);
    }
    assert_eq!(backend.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_answer_after_a_long_one_may_come_slowly_and_is_cut_where_it_ends() {
    // The length of the head of the one before, and some more.
    const BRIEF: usize = 42 + 256;
    let begun = Arc::new(Notify::new());
    let seen = begun.clone();
    let backend = Backend::start(move |mut client: Client| {
        let seen = seen.clone();
        async move {
            let head = "HTTP/1.1 200 OK\r\nContent-Length: 6000\r\n\r\n";
            let slow = format!("{head}{}", "x".repeat(6_000));
            for rest in [6_000, 5_999] {
                client.request().await;
                client.0.write_all(ok(&"x".repeat(70_000)).as_bytes()).await.unwrap();
                client.request().await;
                // This is as much as is read of it at first.
                client.0.write_all(&slow.as_bytes()[..BRIEF]).await.unwrap();
                seen.notified().await;
                client.0.write_all(&slow.as_bytes()[BRIEF..head.len() + rest]).await.unwrap();
            }
        }
    })
    .await;
    let world = world(&backend).await;
    let mut client = world.connect().await;
    for whole in [true, false] {
        client.send(GET).await;
        assert_eq!(client.reply().await.text().len(), 70_000);
        client.send(GET).await;
        // What has come is passed on before the rest is there.
        assert_eq!(client.0.peek(&mut [0]).await.unwrap(), 1);
        begun.notify_one();
        let reply = client.try_reply(false);
        let result = tokio::time::timeout(DEADLINE, reply).await.unwrap();
        assert_eq!(result.is_ok_and(|reply| reply.text().len() == 6_000), whole);
    }
}

#[tokio::test]
async fn long_requests_pass_whole() {
    let backend = Backend::answering(|request| {
        let body = request.split_once("\r\n\r\n").unwrap().1;
        ok(&format!("{} {}", body.len(), body == letters(body.len())))
    })
    .await;
    let world = world(&backend).await;
    let mut client = world.connect().await;
    let mut sent = 0;
    // These lie around a read, a pipe and a turn.
    for count in [16_300, 16_384, 32_700, 32_768, 100_000, 524_288, 600_000, 3_000_000, 5] {
        let head = format!("POST / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: {count}");
        let requests = format!("{head}\r\n\r\n{}{GET}", letters(count));
        client.send(&requests).await;
        sent += requests.len();
        assert_eq!(client.reply().await.text(), format!("{count} true"));
        assert_eq!(client.reply().await.text(), "0 true");
    }
    assert_eq!(backend.connections.load(Ordering::SeqCst), 1);
    let received = |line: &str| {
        line.starts_with("cortex_received_bytes_total{") && line.ends_with(&format!(" {sent}"))
    };
    wait(|| world.metrics.prometheus().lines().any(received)).await;
}

#[tokio::test]
async fn what_an_instance_says_in_between_comes_before_the_rest_of_a_long_request() {
    const COUNT: usize = 16 << 20;
    let said = Arc::new(Notify::new());
    let heard = said.clone();
    let backend = Backend::start(move |mut client: Client| {
        let heard = heard.clone();
        async move {
            let mut begun = vec![0; 100_000];
            client.0.read_exact(&mut begun).await.unwrap();
            let hints = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n";
            client.0.write_all(hints).await.unwrap();
            // Until then nothing more is read.
            heard.notified().await;
            let at = begun.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
            let mut body = begun.split_off(at);
            let missing = COUNT - body.len();
            (&mut client.0).take(missing as u64).read_to_end(&mut body).await.unwrap();
            let answer = ok(if body == letters(COUNT).as_bytes() { "whole" } else { "not so" });
            client.0.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
    let world = world(&backend).await;
    let mut client = world.connect().await;
    let (mut read, mut write) = client.0.split();
    let sending = async {
        let head = format!("POST / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: {COUNT}");
        let request = format!("{head}\r\n\r\n{}", letters(COUNT));
        write.write_all(request.as_bytes()).await.unwrap();
    };
    let hearing = async {
        let mut got = Vec::new();
        while !got.ends_with(b"\r\n\r\n") {
            got.push(read.read_u8().await.unwrap());
        }
        assert!(got.starts_with(b"HTTP/1.1 103 "), "{}", String::from_utf8_lossy(&got));
        said.notify_one();
    };
    let both = async { tokio::join!(sending, hearing) };
    tokio::time::timeout(DEADLINE, both).await.unwrap();
    assert_eq!(client.reply().await.text(), "whole");
}
