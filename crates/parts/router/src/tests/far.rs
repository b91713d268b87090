//! Two routers with real TLS between them: requests that one passes to instances of the other.

mod pair;

use model::InstanceState::{Draining, Ready};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use self::pair::{Pair, far_node};
use super::world::{Backend, Client, DEADLINE, World, ok, wait};
use crate::command::{Command, DrainScope, Stop};
use crate::queue::QueueLimits;

const GET: &str = "GET / HTTP/1.1\r\nHost: shop.localhost\r\n\r\n";
const LARGE: usize = 10 << 20;

fn post(body: &str) -> String {
    let length = body.len();
    format!("POST / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: {length}\r\n\r\n{body}")
}

#[tokio::test]
async fn a_request_reaches_an_instance_that_only_the_other_node_has() {
    let backend = Backend::answering(ok).await;
    let pair = Pair::new().await;
    pair.far_claim(1, None, &[(1, Ready, backend.port)]);
    pair.routed().await;
    let mut client = pair.near.connect().await;
    for _ in 0..20 {
        client
            .send("GET /a?b HTTP/1.1\r\nHost: Shop.localhost\r\nX-Forwarded-For: 10.0.0.1\r\n\r\n")
            .await;
        let reply = client.reply().await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let seen = reply.text();
        assert!(seen.starts_with("GET /a?b HTTP/1.1\r\nHost: Shop.localhost\r\n"), "{seen}");
        assert!(seen.contains("X-Forwarded-For: 10.0.0.1, 127.0.0.1\r\n"), "{seen}");
        for header in ["X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Request-Id"] {
            assert_eq!(seen.matches(header).count(), 1, "{header}: {seen}");
        }
    }
    // Requests one after the other need one connection on each part of the way.
    assert_eq!(pair.calls(), 1);
    assert_eq!(backend.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn near_instances_come_first_and_far_ones_when_those_are_busy() {
    let near = Backend::start(|mut client| async move {
        let Some(request) = client.request().await else { return };
        if request.contains("/slow") {
            // This lasts until the test ends.
            std::future::pending::<()>().await;
        }
        client.0.write_all(ok("near").as_bytes()).await.ok();
    })
    .await;
    let far = Backend::named("far").await;
    let pair = Pair::new().await;
    pair.near_claim(1, Some(1), &[(1, Ready, near.port)]);
    pair.far_claim(2, Some(1), &[(1, Ready, far.port)]);
    pair.routed().await;
    for _ in 0..10 {
        assert_eq!(pair.near.get("/").await.text(), "near");
    }
    assert_eq!(pair.calls(), 0);
    let mut slow = pair.near.connect().await;
    slow.send(&GET.replacen('/', "/slow", 1)).await;
    let before = near.connections.load(Ordering::SeqCst);
    wait(|| near.connections.load(Ordering::SeqCst) > before || pair.is_busy_near()).await;
    for _ in 0..10 {
        let mut client = pair.near.connect().await;
        client.send(&post("any method")).await;
        assert_eq!(client.reply().await.text(), "far");
    }
}

#[tokio::test]
async fn large_bodies_pass_both_ways() {
    let backend = Backend::answering(|request| ok(request.split_once("\r\n\r\n").unwrap().1)).await;
    let pair = Pair::new().await;
    pair.far_claim(1, None, &[(1, Ready, backend.port)]);
    pair.routed().await;
    let body: String = (0..LARGE).map(|n| char::from(b'a' + (n / 7 % 26) as u8)).collect();
    let mut client = pair.near.connect().await;
    for _ in 0..2 {
        client.send(&post(&body)).await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.body.len()), (200, LARGE));
        assert!(reply.body == body.as_bytes(), "what comes back is what was sent");
    }
    let chunked = "POST / HTTP/1.1\r\nHost: shop.localhost\r\nTransfer-Encoding: chunked\r\n\r\n\
                   5\r\nhello\r\n0\r\n\r\n";
    client.send(chunked).await;
    assert!(client.reply().await.text().contains("hello"));
    client
        .send(
            "POST / HTTP/1.1\r\nHost: shop.localhost\r\nExpect: 100-continue\r\n\
             Content-Length: 5\r\n\r\n",
        )
        .await;
    let interim = tokio::time::timeout(DEADLINE, client.try_reply(true)).await.unwrap().unwrap();
    assert_eq!(interim.status, 100);
    client.send("later").await;
    assert_eq!(client.reply().await.text(), "later");
    assert_eq!(pair.calls(), 1);
}

#[tokio::test]
async fn an_upgraded_connection_is_a_tunnel() {
    let backend = Backend::start(|mut client| async move {
        let request = client.request().await.unwrap();
        assert!(request.contains("Upgrade: websocket\r\n"), "{request}");
        assert!(request.contains("Connection: Upgrade\r\n"), "{request}");
        let answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                      Connection: Upgrade\r\n\r\nhello";
        client.0.write_all(answer.as_bytes()).await.unwrap();
        let mut bytes = [0; 64];
        loop {
            let count = client.0.read(&mut bytes).await.unwrap();
            if count == 0 {
                return;
            }
            client.0.write_all(&bytes[..count]).await.unwrap();
        }
    })
    .await;
    let pair = Pair::new().await;
    pair.far_claim(1, None, &[(1, Ready, backend.port)]);
    pair.routed().await;
    let mut client = pair.near.connect().await;
    client
        .send(
            "GET /cable HTTP/1.1\r\nHost: shop.localhost\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\n\r\nearly",
        )
        .await;
    let reply = client.reply().await;
    assert_eq!(reply.status, 101);
    let mut echoed = [0; 10];
    client.0.read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, b"helloearly");
    for word in ["ping", "pong"] {
        client.send(word).await;
        let mut echoed = [0; 4];
        client.0.read_exact(&mut echoed).await.unwrap();
        assert_eq!(&echoed, word.as_bytes());
    }
    client.0.shutdown().await.unwrap();
    let mut rest = Vec::new();
    tokio::time::timeout(DEADLINE, client.0.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert!(rest.is_empty());
}

#[tokio::test]
async fn a_truncated_answer_never_looks_whole() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ] {
        let backend = Backend::start(move |mut client| async move {
            client.request().await;
            client.0.write_all(answer.as_bytes()).await.ok();
        })
        .await;
        let pair = Pair::new().await;
        pair.far_claim(1, None, &[(1, Ready, backend.port)]);
        pair.routed().await;
        let mut client = pair.near.connect().await;
        client.send(GET).await;
        let mut rest = Vec::new();
        let read = tokio::time::timeout(DEADLINE, client.0.read_to_end(&mut rest)).await.unwrap();
        assert!(read.is_err(), "a reset: {}", String::from_utf8_lossy(&rest));
    }
    // An answer that ends with its connection ends so here too.
    let backend = Backend::start(|mut client| async move {
        client.request().await;
        client.0.write_all(b"HTTP/1.0 200 OK\r\n\r\nall of it").await.ok();
    })
    .await;
    let pair = Pair::new().await;
    pair.far_claim(1, None, &[(1, Ready, backend.port)]);
    pair.routed().await;
    assert_eq!(pair.near.get("/").await.text(), "all of it");
}

#[tokio::test]
async fn a_busy_far_node_is_never_the_clients_answer() {
    let (entered, mut inside) = tokio::sync::mpsc::channel(16);
    let (open, gate) = tokio::sync::watch::channel(false);
    let far = Backend::start(move |mut client| {
        let (entered, mut gate) = (entered.clone(), gate.clone());
        async move {
            if client.request().await.is_some() {
                entered.send(()).await.ok();
                gate.wait_for(|open| *open).await.ok();
                client.0.write_all(ok("far").as_bytes()).await.ok();
            }
        }
    })
    .await;
    let pair = Pair::new().await;
    pair.far_claim(1, Some(1), &[(1, Ready, far.port)]);
    pair.routed().await;
    // A client of the other node has its only instance.
    let mut other = pair.far.connect().await;
    other.send(GET).await;
    tokio::time::timeout(DEADLINE, inside.recv()).await.unwrap().unwrap();
    let mut client = pair.near.connect().await;
    client.send(&post(&"x".repeat(100_000))).await;
    wait(|| pair.calls() > 0).await;
    // It waits, is sent back and asks again, until there is room: nothing of it is lost.
    tokio::select! {
        reply = client.reply() => panic!("there is no room: {reply:?}"),
        () = tokio::time::sleep(Duration::from_millis(1500)) => {}
    }
    assert!(inside.try_recv().is_err(), "not a byte was passed on");
    open.send(true).unwrap();
    assert_eq!(other.reply().await.text(), "far");
    assert_eq!(client.reply().await.text(), "far");
}

#[tokio::test]
async fn a_drain_waits_for_requests_that_came_from_afar() {
    let (entered, mut inside) = tokio::sync::mpsc::channel(16);
    let (open, gate) = tokio::sync::watch::channel(false);
    let old = Backend::start(move |mut client| {
        let (entered, mut gate) = (entered.clone(), gate.clone());
        async move {
            if client.request().await.is_some() {
                entered.send(()).await.ok();
                gate.wait_for(|open| *open).await.ok();
                client.0.write_all(ok("old").as_bytes()).await.ok();
            }
        }
    })
    .await;
    let new = Backend::named("new").await;
    let pair = Pair::new().await;
    pair.far_claim(1, None, &[(1, Ready, old.port)]);
    pair.routed().await;
    let mut client = pair.near.connect().await;
    client.send(GET).await;
    tokio::time::timeout(DEADLINE, inside.recv()).await.unwrap().unwrap();
    pair.far_claim(1, None, &[(1, Draining, old.port), (2, Ready, new.port)]);
    wait(|| {
        !pair
            .far
            .router
            .shared
            .table
            .load()
            .by_host(b"shop.localhost")
            .unwrap()
            .endpoints
            .iter()
            .any(|endpoint| endpoint.generation == 1)
    })
    .await;
    assert_eq!(pair.near.get("/").await.text(), "new");
    assert!(!pair.far.is_drained(1, 1));
    open.send(true).unwrap();
    assert_eq!(client.reply().await.text(), "old");
    wait(|| pair.far.is_drained(1, 1)).await;
}

#[tokio::test]
async fn a_node_that_is_lost_is_told_apart() {
    let near = Backend::named("near").await;
    let queue = QueueLimits { time_max: Duration::from_millis(300), ..QueueLimits::default() };
    let pair = Pair::with(queue).await;
    // Its router is there, and every caller is cut off.
    let far = Backend::start(|client| async move { drop(client) }).await;
    pair.far_claim(1, None, &[(1, Ready, far.port)]);
    pair.routed().await;
    pair.lose_calls(true);
    let mut client = pair.near.connect().await;
    client.send(&post("once only")).await;
    let reply = client.reply().await;
    assert_eq!(reply.status, 503, "{reply:?}");
    assert!(reply.head.contains("X-Cortex-Error: node-lost\r\n"), "{reply:?}");
    // It is left alone, and others are asked.
    pair.near_claim(2, None, &[(1, Ready, near.port)]);
    pair.near_has(1).await;
    assert_eq!(pair.near.get("/").await.text(), "near");
    pair.near_claim(2, None, &[]);
    pair.near_has(0).await;
    pair.down(&[far_node()]);
    wait(|| pair.is_unreachable()).await;
    let reply = pair.near.get("/").await;
    assert_eq!(reply.status, 503);
    assert!(reply.head.contains("X-Cortex-Error: nodes-unreachable\r\n"), "{reply:?}");
}

#[tokio::test]
async fn a_router_that_stops_fails_no_request() {
    let (near, far) = (Backend::named("near").await, Backend::named("far").await);
    let pair = Pair::new().await;
    pair.far_claim(1, None, &[(1, Ready, far.port)]);
    pair.routed().await;
    let mut client = pair.near.connect().await;
    client.send(&post("one")).await;
    assert_eq!(client.reply().await.text(), "far");
    // Its idle connection ends with the word that nothing was passed on.
    let stopping = pair.far.router.shared.clone();
    for thread in &stopping.threads {
        let stop = Stop { limit: DEADLINE, asks: DEADLINE, awaits: DrainScope::Answers };
        thread.try_send(Command::Stop(stop)).unwrap();
    }
    wait(|| stopping.threads.iter().all(|thread| thread.is_closed())).await;
    client.send(&post("two")).await;
    pair.near_claim(2, None, &[(1, Ready, near.port)]);
    assert_eq!(client.reply().await.text(), "near");
}

#[test]
fn a_connection_that_waits_is_small() {
    use std::rc::Rc;

    use crate::connection::Connection;
    use crate::connection::run::ConnectionStart;
    use crate::h2::client::Job;
    use crate::h2::workers::Workers;

    fn size<F>(_: impl Fn(Connection, ConnectionStart, Rc<Workers<Job>>) -> F) -> usize {
        size_of::<F>()
    }
    // There may be 20,000 of them on each thread.
    let bytes = size(Connection::run);
    assert!(bytes <= 4096, "{bytes}");
}

#[tokio::test]
async fn a_removed_node_is_not_served_any_more() {
    let backend = Backend::named("far").await;
    let queue = QueueLimits { time_max: Duration::from_millis(500), ..QueueLimits::default() };
    let pair = Pair::with(queue).await;
    pair.far_claim(1, None, &[(1, Ready, backend.port)]);
    pair.routed().await;
    assert_eq!(pair.near.get("/").await.text(), "far");
    pair.remove_near_from_roster_of_far().await;
    let before = backend.connections.load(Ordering::SeqCst);
    // This goes over the connection that was made while it was a member.
    assert_eq!(pair.near.get("/").await.status, 503);
    assert_eq!(backend.connections.load(Ordering::SeqCst), before);
}

/// Both routers take clients in turn, and both know whose a request is.
#[tokio::test]
async fn clients_wait_in_turn_for_an_instance_of_the_other_node() {
    let (gate, served) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (held, seen): (_, Arc<Mutex<Vec<String>>>) = (gate.clone(), served.clone());
    let backend = Backend::start(move |mut client: Client| {
        let (held, seen) = (held.clone(), seen.clone());
        async move {
            while let Some(request) = client.request().await {
                seen.lock().unwrap().push(request.split(' ').nth(1).unwrap().to_owned());
                held.acquire().await.unwrap().forget();
                client.0.write_all(ok("done").as_bytes()).await.ok();
            }
        }
    })
    .await;
    let pair = Pair::new().await;
    pair.far_claim(1, Some(1), &[(1, Ready, backend.port)]);
    pair.routed().await;
    let waiting = |world: &World| {
        let table = world.router.shared.table.load();
        table.by_host(b"shop.localhost").unwrap().queue.length()
    };
    let known = || waiting(&pair.near) + waiting(&pair.far) + served.lock().unwrap().len();
    let mut clients = Vec::new();
    let flood = (0..5).map(|number| (2, format!("/flood{number}")));
    for (address, path) in flood.chain([(3, "/quiet".to_owned())]) {
        let mut client = pair.near.connect_as([127, 0, 0, address]).await;
        client.send(&GET.replacen('/', &path, 1)).await;
        let count = clients.len() + 1;
        wait(|| known() == count).await;
        clients.push(client);
    }
    gate.add_permits(clients.len());
    for client in &mut clients {
        assert_eq!(client.reply().await.text(), "done");
    }
    assert_eq!(served.lock().unwrap()[..3], ["/flood0", "/flood1", "/quiet"]);
}
