//! Clients that ask for one file after the other, which the lane answers: they notice nothing of
//! where they are, whatever they do next.

use std::time::Duration;

use futures_util::future::join_all;
use model::request::RequestLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Site;
use crate::connection::run::QUICK_IN_A_ROW;
use crate::tests::world::{Client, DEADLINE, World, wait};

const PAGE: &str = "GET /page.txt HTTP/1.1\r\nHost: shop.localhost\r\n\r\n";
/// The time for an answer; a client that has room for it is answered sooner.
const ANSWER_TIME: Duration = Duration::from_millis(500);
/// Requests for files, more than it takes to be in the lane.
const FILES: usize = QUICK_IN_A_ROW as usize + 2;

impl Site {
    /// Returns a client that is in the lane.
    async fn guest(&self) -> Client {
        let mut client = self.world.connect().await;
        for _ in 0..FILES {
            client.send(PAGE).await;
            assert_eq!(client.reply().await.text(), "page");
        }
        client
    }

    async fn counted(&self, requests: usize) {
        let sum = |text: &str| -> usize {
            let lines = text.lines().filter(|line| line.starts_with("cortex_requests_total{"));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum()
        };
        wait(|| sum(&self.world.metrics.prometheus()) == requests).await;
    }
}

#[tokio::test]
async fn a_client_that_asks_for_something_else_gets_it_and_comes_back() {
    let site = Site::new(&[("page.txt", b"page"), ("other.txt", b"other")]).await;
    let mut client = site.guest().await;
    let mut requests = FILES;
    for (request, bodies) in [
        ("GET /other.txt HTTP/1.1\r\nHost: shop.localhost\r\n\r\n", &["other"][..]),
        ("GET /none HTTP/1.1\r\nHost: shop.localhost\r\n\r\n", &["application"]),
        (
            "POST /page.txt HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: 2\r\n\r\nab",
            &["application"],
        ),
        ("GET /page.txt HTTP/1.1\r\nHost: shop.localhost\r\nRange: bytes=1-2\r\n\r\n", &["ag"]),
        (&PAGE.repeat(3), &["page", "page", "page"]),
        (
            &format!("{PAGE}GET /other.txt HTTP/1.1\r\nHost: shop.localhost\r\n\r\n"),
            &["page", "other"],
        ),
    ] {
        client.send(request).await;
        for body in bodies {
            assert_eq!(client.reply().await.text(), *body, "{request}");
        }
        requests += bodies.len() + FILES;
        for _ in 0..FILES {
            client.send(PAGE).await;
            assert_eq!(client.reply().await.text(), "page");
        }
    }
    // The head comes in two pieces: the first has been read when the second comes.
    let (first, second) = PAGE.split_at(20);
    client.send(first).await;
    let mut sent = client.0;
    wait(|| unread(&sent) == 0).await;
    sent.write_all(second.as_bytes()).await.unwrap();
    let mut client = Client(sent);
    assert_eq!(client.reply().await.text(), "page");
    client.send(&PAGE.replace("GET", "HEAD")).await;
    let head = client.try_reply(true).await.unwrap();
    assert!(head.head.contains("Content-Length: 4\r\n"), "{}", head.head);
    client.send("GET /page.txt HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n").await;
    assert_eq!(client.reply().await.status, 400);
    site.counted(requests + 2).await;
}

/// Returns how many bytes the other side's kernel has not taken, or nobody there has read yet.
fn unread(client: &TcpStream) -> usize {
    let (near, far) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let ports = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let mut port = || u16::from_str_radix(words.next()?.split_once(':')?.1, 16).ok();
        let ports = (port()?, port()?);
        let queued = words.nth(1)?.split_once(':')?.1.to_owned();
        Some((ports, usize::from_str_radix(&queued, 16).ok()?))
    };
    let theirs = (far.port(), near.port());
    let found = table.lines().skip(1).filter_map(ports).find(|(ports, _)| *ports == theirs);
    found.map_or(0, |(_, queued)| queued)
}

#[tokio::test]
async fn a_client_that_asks_for_nothing_any_more_is_let_go() {
    let limits = RequestLimits { idle_ms: Some(300), ..RequestLimits::default() };
    let site = Site::on(World::new(), &[("page.txt", b"page")], limits).await;
    let (mut first, mut second) = (site.guest().await, site.guest().await);
    let ended = |client: &mut Client| client.0.try_read(&mut [0; 8]).is_ok_and(|count| count == 0);
    // A client that goes on asking stays.
    while !ended(&mut first) {
        second.send(PAGE).await;
        assert_eq!(second.reply().await.text(), "page");
    }
    wait(|| ended(&mut second)).await;
}

#[tokio::test]
async fn a_client_that_ends_its_half_is_answered_and_let_go() {
    // There are so many that the ends of some are there before their requests are read.
    const CLIENTS: usize = 100;
    let world = World::with_threads(1);
    let site = Site::on(world, &[("page.txt", b"page")], RequestLimits::default()).await;
    for request in [PAGE, "", &PAGE.repeat(2)] {
        let mut clients = join_all((0..CLIENTS).map(|_| site.guest())).await;
        for client in &mut clients {
            client.send(request).await;
            client.0.shutdown().await.unwrap();
        }
        for mut client in clients {
            let mut rest = String::new();
            // This is long before a client that asks for nothing is let go.
            let end = tokio::time::timeout(DEADLINE, client.0.read_to_string(&mut rest)).await;
            end.expect("its end in time").unwrap();
            assert_eq!(rest.matches("\r\n\r\npage").count(), request.matches("GET").count());
        }
    }
}

#[tokio::test]
async fn a_client_that_reads_late_gets_all_of_it() {
    // These ask for most of what sockets hold, for more than they hold, and for what comes behind
    // that.
    const AHEAD: usize = 50;
    const ASKED_MAX: usize = 1_000;
    const REST: usize = 20;
    let content: Vec<u8> = (0..30_000_u32).map(|n| b'a' + (n % 23) as u8).collect();
    let site = Site::new(&[("page.txt", &content)]).await;
    // What is sent finds little room.
    let mut client = site.world.connect_with(64 * 1024).await;
    for _ in 0..FILES {
        client.send(PAGE).await;
        assert_eq!(client.reply().await.body, content);
    }
    // They are sent at once, so that what the thread knows of the file is new when there is no more
    // room.
    client.send(&PAGE.repeat(AHEAD)).await;
    let mut asked = FILES + AHEAD;
    site.counted(asked).await;
    // One is sent at a time, until there is no room.
    loop {
        client.send(PAGE).await;
        asked += 1;
        if tokio::time::timeout(ANSWER_TIME, site.counted(asked)).await.is_err() {
            break;
        }
        assert!(asked < ASKED_MAX, "nobody reads, and all is sent");
    }
    client.send(&PAGE.repeat(REST)).await;
    asked += REST;
    for number in FILES..asked {
        assert!(client.reply().await.body == content, "the answer {number} is another one");
    }
    site.counted(asked).await;
    client.send(PAGE).await;
    assert!(client.reply().await.body == content);
}

#[tokio::test]
async fn many_at_once_are_all_answered() {
    const CLIENTS: usize = 300;
    let site = Site::new(&[("page.txt", b"page")]).await;
    join_all((0..CLIENTS).map(|_| site.guest())).await;
    site.counted(CLIENTS * FILES).await;
}

#[tokio::test]
async fn a_client_in_the_lane_when_the_router_leaves_may_ask_once_more() {
    const OTHER: &str = "GET /none HTTP/1.1\r\nHost: shop.localhost\r\n\r\n";
    let world = World::with_threads(1);
    let site = Site::on(world, &[("page.txt", b"page")], RequestLimits::default()).await;
    let (mut guest, mut other) = (site.guest().await, site.world.connect().await);
    other.send(OTHER).await;
    assert_eq!(other.reply().await.text(), "application");
    site.world.router.leave(Duration::from_secs(60), Duration::from_secs(60));
    // By then the thread knows.
    loop {
        other.send(OTHER).await;
        if other.reply().await.head.contains("Connection: close") {
            break;
        }
    }
    guest.send(PAGE).await;
    let reply = guest.reply().await;
    assert_eq!(reply.text(), "page");
    assert!(reply.head.contains("Connection: close"), "{}", reply.head);
    drop((guest, other));
    wait(|| site.world.router.has_left()).await;
}
