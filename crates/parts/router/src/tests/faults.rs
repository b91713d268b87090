//! Faults and shortages: the queue's limits, answers that never come, endpoints that were left
//! alone, and the metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use model::InstanceState::Ready;
use model::probe::{HealthState, Verdict};
use model::{Timestamp, TypedKey};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use super::world::{Backend, Client, DEADLINE, World, instance, node, ok, wait};
use crate::queue::QueueLimits;
use runtime::faults::Fault;
use runtime::supervise::supervise;

const GET: &str = "GET / HTTP/1.1\r\nHost: shop.localhost\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: 0\r\n\r\n";

/// Starts a back end that answers once the gate lets it.
async fn gated(gate: &Arc<Semaphore>) -> Backend {
    let gate = gate.clone();
    Backend::start(move |mut client: Client| {
        let gate = gate.clone();
        async move {
            client.request().await;
            gate.acquire().await.unwrap().forget();
            client.0.write_all(ok("done").as_bytes()).await.ok();
        }
    })
    .await
}

async fn one_serial_instance(backend: &Backend, queue: QueueLimits) -> World {
    let world = World::with(2, queue);
    world.application(|_| (), Vec::new());
    world.claim(1, Some(1), &[(1, Ready, backend.port)]);
    world.routed().await;
    world
}

fn queued(world: &World) -> usize {
    let table = world.router.shared.table.load();
    table.by_host(b"shop.localhost").unwrap().queue.length()
}

#[tokio::test]
async fn a_full_queue_says_so_at_once_and_serves_those_who_wait() {
    let gate = Arc::new(Semaphore::new(0));
    let backend = gated(&gate).await;
    let limits = QueueLimits { length_max: 2, time_max: DEADLINE * 10 };
    let world = one_serial_instance(&backend, limits).await;
    let mut served = Vec::new();
    for waiting in 0..3 {
        let mut client = world.connect().await;
        client.send(GET).await;
        wait(|| backend.connections.load(Ordering::SeqCst) == 1 && queued(&world) == waiting).await;
        served.push(client);
    }
    let mut late = world.connect().await;
    late.send(GET).await;
    let reply = late.reply().await;
    assert_eq!(reply.status, 503);
    assert!(reply.head.contains("X-Cortex-Error: queue-full\r\n"), "{}", reply.head);
    assert!(reply.head.contains("Retry-After: "), "{}", reply.head);
    gate.add_permits(3);
    for mut client in served {
        assert_eq!(client.reply().await.text(), "done");
    }
    assert_eq!(queued(&world), 0);
}

#[tokio::test]
async fn a_client_that_waited_too_long_is_told_and_leaves_the_queue() {
    let gate = Arc::new(Semaphore::new(0));
    let backend = gated(&gate).await;
    let limits = QueueLimits { time_max: Duration::from_millis(50), ..QueueLimits::default() };
    let world = one_serial_instance(&backend, limits).await;
    let mut served = world.connect().await;
    served.send(GET).await;
    wait(|| backend.connections.load(Ordering::SeqCst) == 1).await;
    let reply = world.get("/").await;
    assert_eq!(reply.status, 503);
    assert!(reply.head.contains("X-Cortex-Error: queue-timeout\r\n"), "{}", reply.head);
    assert!(reply.head.contains("Retry-After: "), "{}", reply.head);
    assert_eq!(queued(&world), 0);
    gate.add_permits(1);
    // The limit is on waiting, not on an answer that is on its way.
    assert_eq!(served.reply().await.text(), "done");
}

#[tokio::test]
async fn a_get_without_an_answer_is_asked_again_even_of_the_same_instance() {
    let hits = Arc::new(AtomicUsize::new(0));
    let count = hits.clone();
    let backend = Backend::start(move |mut client: Client| {
        let count = count.clone();
        async move {
            client.request().await;
            // Every second connection ends without an answer, the first one too.
            if count.fetch_add(1, Ordering::SeqCst) % 2 == 1 {
                client.0.write_all(ok("second").as_bytes()).await.unwrap();
            }
        }
    })
    .await;
    let world = World::new();
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    assert_eq!(world.get("/").await.text(), "second");
    assert_eq!(hits.load(Ordering::SeqCst), 2);
    let mut client = world.connect().await;
    client.send(POST).await;
    assert_eq!(client.reply().await.status, 502);
    assert_eq!(hits.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn the_checkers_word_ends_the_pause_of_an_endpoint() {
    let backend = Backend::named("well").await;
    let world = World::new();
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    let endpoint = || {
        let table = world.router.shared.table.load();
        table.by_host(b"shop.localhost").and_then(|one| one.endpoints.first().cloned())
    };
    wait(|| endpoint().is_some()).await;
    let endpoint = endpoint().unwrap();
    // It looks as if connections had been refused until just now; each pause is longer.
    let mut failed_at = world.router.shared.clock.now().0;
    for _ in 0..20 {
        assert!(endpoint.failed(failed_at));
        failed_at += 10_000;
    }
    failed_at -= 10_000;
    let say = |changed_at| {
        let verdict = Verdict {
            v: 1,
            generation: 1,
            health: HealthState::Healthy,
            detail: String::new(),
            changed_at: Timestamp(changed_at),
            unknown: Default::default(),
        };
        world.put(TypedKey::Probe(node(), instance(1)), &verdict);
    };
    let seen = || world.router.shared.table.load_full();
    let before = seen();
    say(failed_at);
    wait(|| !Arc::ptr_eq(&before, &seen())).await;
    assert!(!endpoint.candidate(failed_at + 1).admits, "what was said before counts no more");
    say(failed_at + 1);
    wait(|| endpoint.candidate(failed_at + 1).admits).await;
    assert_eq!(world.get("/").await.text(), "well");
}

#[tokio::test]
async fn clients_that_ask_to_close_get_one_answer_and_the_end() {
    let backend = Backend::answering(|request| {
        let body = if request.contains("Connection: close") { "closing" } else { "keeping" };
        ok(body)
    })
    .await;
    let world = World::new();
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    for request in [
        "GET / HTTP/1.1\r\nHost: shop.localhost\r\nConnection: close\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: shop.localhost\r\n\r\n",
    ] {
        let mut client = world.connect().await;
        client.send(request).await;
        let reply = client.reply().await;
        // The instance's connection is kept all the same.
        assert_eq!(reply.text(), "keeping");
        assert!(reply.head.contains("Connection: close\r\n"), "{}", reply.head);
        let end = tokio::time::timeout(DEADLINE, client.0.read(&mut [0; 1])).await.unwrap();
        assert_eq!(end.unwrap(), 0);
    }
    let mut old = world.connect().await;
    for _ in 0..2 {
        old.send("GET / HTTP/1.0\r\nHost: shop.localhost\r\nConnection: keep-alive\r\n\r\n").await;
        let reply = old.reply().await;
        assert!(reply.head.contains("Connection: keep-alive\r\n"), "{}", reply.head);
    }
}

#[tokio::test]
async fn requests_are_served_while_the_metrics_fault() {
    let backend = Backend::named("on").await;
    let world = World::new();
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    let (metrics, faults) = (world.metrics.clone(), world.faults.clone());
    tokio::spawn(supervise("metrics", move || metrics.clone().run(faults.clone())));
    let point = metrics::FAIL_POINT;
    let mut client = world.connect().await;
    let mut served = 0;
    // It panics twice: after the first panic it runs again.
    for fault in [Fault::PanicOnce, Fault::PanicOnce, Fault::Stall] {
        world.faults.arm(point, fault).unwrap();
        loop {
            client.send(GET).await;
            assert_eq!(client.reply().await.text(), "on");
            served += 1;
            if !world.faults.is_armed(point) || (fault == Fault::Stall && served % 100 == 0) {
                break;
            }
        }
    }
    world.faults.disarm(point);
    let prefix = "cortex_instance_requests_total{application=\"shop\",instance=\"web.1\"} ";
    wait(|| world.metrics.prometheus().contains(&format!("{prefix}{served}\n"))).await;
}
