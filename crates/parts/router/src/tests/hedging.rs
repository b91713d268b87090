//! A second attempt beside one that is silent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use model::InstanceState::Ready;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use super::world::{Backend, Client, DEADLINE, World, ok, wait};
use router_core::retry::BUDGET_TENTHS_MAX;

const GET: &str = "GET / HTTP/1.1\r\nHost: shop.localhost\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: 0\r\n\r\n";

/// Two instances. The first request of all is never answered; `left` counts those whose client went
/// away.
struct Pair {
    world: World,
    _backends: [Backend; 2],
    asked: Arc<AtomicUsize>,
    left: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
}

impl Pair {
    async fn start(hedge_after_ms: Option<u64>) -> Pair {
        let (asked, left) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let gate = Arc::new(Semaphore::new(0));
        let backend = |name: &'static str| {
            let (asked, left, gate) = (asked.clone(), left.clone(), gate.clone());
            Backend::start(move |mut client: Client| {
                let (asked, left, gate) = (asked.clone(), left.clone(), gate.clone());
                async move {
                    while client.request().await.is_some() {
                        if asked.fetch_add(1, Ordering::SeqCst) == 0 {
                            let mut rest = [0; 1];
                            tokio::select! {
                                read = client.0.read(&mut rest) => {
                                    assert_eq!(read.unwrap_or(0), 0);
                                    left.fetch_add(1, Ordering::SeqCst);
                                    return;
                                }
                                _ = gate.acquire() => {}
                            }
                        }
                        client.0.write_all(ok(name).as_bytes()).await.unwrap();
                    }
                }
            })
        };
        let backends = [backend("one").await, backend("two").await];
        let world = World::new();
        world.set(|settings| settings.hedge_after_ms = hedge_after_ms);
        for (slot, backend) in (1..).zip(&backends) {
            world.claim(slot, None, &[(1, Ready, backend.port)]);
        }
        world.routed().await;
        let shared = world.router.shared.clone();
        wait(|| shared.table.load().by_host(b"shop.localhost").unwrap().endpoints.len() == 2).await;
        Pair { world, _backends: backends, asked, left, gate }
    }

    fn all_admit(&self) -> bool {
        let table = self.world.router.shared.table.load();
        let endpoints = &table.by_host(b"shop.localhost").unwrap().endpoints;
        endpoints.iter().all(|one| one.candidate(0).admits)
    }

    fn in_flight(&self) -> u32 {
        let table = self.world.router.shared.table.load();
        let endpoints = &table.by_host(b"shop.localhost").unwrap().endpoints;
        endpoints.iter().map(|one| one.candidate(0).in_flight).sum()
    }
}

#[tokio::test]
async fn the_first_answer_wins_and_the_other_attempt_is_let_go() {
    let pair = Pair::start(Some(20)).await;
    let mut client = pair.world.connect().await;
    client.send(GET).await;
    assert_eq!(client.reply().await.status, 200);
    assert_eq!(pair.asked.load(Ordering::SeqCst), 2);
    wait(|| pair.left.load(Ordering::SeqCst) == 1 && pair.in_flight() == 0).await;
    // Being slower than another is no failure.
    assert!(pair.all_admit());
    client.send(GET).await;
    assert_eq!(client.reply().await.status, 200);
}

#[tokio::test]
async fn only_safe_requests_are_hedged_and_only_if_asked_for() {
    for (text, after) in [(POST, Some(1)), (GET, None)] {
        let pair = Pair::start(after).await;
        let mut client = pair.world.connect().await;
        client.send(text).await;
        wait(|| pair.asked.load(Ordering::SeqCst) == 1).await;
        // Another request is sent in between, so that there was time for a second attempt.
        let mut other = pair.world.connect().await;
        other.send(text).await;
        assert_eq!(other.reply().await.status, 200);
        tokio::time::timeout(Duration::from_millis(50), client.0.readable()).await.unwrap_err();
        assert_eq!(pair.asked.load(Ordering::SeqCst), 2);
        pair.gate.add_permits(1);
        assert_eq!(client.reply().await.status, 200);
        assert_eq!(pair.asked.load(Ordering::SeqCst), 2);
    }
}

#[tokio::test]
async fn a_client_that_leaves_ends_both_attempts() {
    let backend = |count: Arc<AtomicUsize>| {
        Backend::start(move |mut client: Client| {
            let count = count.clone();
            async move {
                client.request().await;
                count.fetch_add(1, Ordering::SeqCst);
                client.request().await;
                count.fetch_sub(1, Ordering::SeqCst);
            }
        })
    };
    let open = Arc::new(AtomicUsize::new(0));
    let backends = [backend(open.clone()).await, backend(open.clone()).await];
    let world = World::new();
    world.set(|settings| settings.hedge_after_ms = Some(5));
    for (slot, backend) in (1..).zip(&backends) {
        world.claim(slot, None, &[(1, Ready, backend.port)]);
    }
    world.routed().await;
    let shared = world.router.shared.clone();
    wait(|| shared.table.load().by_host(b"shop.localhost").unwrap().endpoints.len() == 2).await;
    let mut client = world.connect().await;
    client.send(GET).await;
    wait(|| open.load(Ordering::SeqCst) == 2).await;
    // A client that only ends its half so soon is waited for.
    socket2::SockRef::from(&client.0).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(client);
    tokio::time::timeout(DEADLINE, wait(|| open.load(Ordering::SeqCst) == 0)).await.unwrap();
}

/// Requests sent when the budget is spent: more than what is left of it pays for.
const AFTERWARDS: usize = 40;

/// Each second attempt costs what ten requests save up.
#[tokio::test]
async fn without_a_budget_nothing_is_asked_twice() {
    let asked = Arc::new(AtomicUsize::new(0));
    let silent = || {
        let asked = asked.clone();
        Backend::start(move |mut client: Client| {
            let asked = asked.clone();
            async move {
                client.request().await;
                asked.fetch_add(1, Ordering::SeqCst);
                client.request().await;
            }
        })
    };
    let backends = [silent().await, silent().await];
    let world = World::with_threads(1);
    world.set(|settings| settings.hedge_after_ms = Some(1));
    for (slot, backend) in (1..).zip(&backends) {
        world.claim(slot, None, &[(1, Ready, backend.port)]);
    }
    world.routed().await;
    let shared = world.router.shared.clone();
    wait(|| shared.table.load().by_host(b"shop.localhost").unwrap().endpoints.len() == 2).await;
    let saved = BUDGET_TENTHS_MAX as usize / 10;
    for sent in 1..=saved {
        let mut client = world.connect().await;
        client.send(GET).await;
        wait(|| asked.load(Ordering::SeqCst) == 2 * sent).await;
        // Its connections end with it: a test has few descriptors.
        socket2::SockRef::from(&client.0).set_linger(Some(Duration::ZERO)).unwrap();
    }
    let (mut clients, mut seen) = (Vec::new(), 2 * saved);
    for _ in 0..AFTERWARDS {
        clients.push(world.connect().await);
        clients.last_mut().unwrap().send(GET).await;
        seen += 1;
        wait(|| asked.load(Ordering::SeqCst) >= seen).await;
    }
    tokio::time::timeout(Duration::from_millis(100), clients[0].0.readable()).await.unwrap_err();
    let all = asked.load(Ordering::SeqCst);
    // All of these have saved up for a few more.
    let most = seen + (saved + AFTERWARDS) / 10;
    assert!(all >= seen && all <= most, "{all} of at most {most}");
}
