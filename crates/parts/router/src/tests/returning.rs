//! Endpoints that fail, come back, or are new: which are left alone, and how much each takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use model::InstanceState::Ready;
use router_core::breaker::Failure;
use router_core::ramp;
use tokio::io::AsyncWriteExt;

use super::world::{Backend, Client, World, ok, wait};
use crate::table::RoutedApplication;

const POST: &str = "POST / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: 0\r\n\r\n";

async fn routed(world: &World, endpoints: usize) -> Arc<RoutedApplication> {
    world.routed().await;
    let table = || world.router.shared.table.load_full();
    wait(|| table().by_host(b"shop.localhost").unwrap().endpoints.len() == endpoints).await;
    table().by_host(b"shop.localhost").unwrap().clone()
}

fn now_ms(world: &World) -> u64 {
    world.router.shared.clock.now().0
}

/// Starts a back end that ends without an answer while it is told to.
async fn moody(fails: &Arc<AtomicBool>, asked: &Arc<AtomicUsize>) -> Backend {
    let (fails, asked) = (fails.clone(), asked.clone());
    Backend::start(move |mut client: Client| {
        let (fails, asked) = (fails.clone(), asked.clone());
        async move {
            while client.request().await.is_some() {
                asked.fetch_add(1, Ordering::SeqCst);
                if fails.load(Ordering::SeqCst) {
                    return;
                }
                client.0.write_all(ok("well").as_bytes()).await.ok();
            }
        }
    })
    .await
}

#[tokio::test]
async fn the_last_instance_is_always_asked_and_one_of_two_is_left_alone() {
    let (fails, asked) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let backend = moody(&fails, &asked).await;
    let world = World::new();
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, backend.port)]);
    let application = routed(&world, 1).await;
    for _ in 0..3 {
        let mut client = world.connect().await;
        client.send(POST).await;
        assert_eq!(client.reply().await.status, 502);
        assert!(application.endpoints[0].candidate(now_ms(&world)).admits);
    }
    assert_eq!(asked.load(Ordering::SeqCst), 3);
    // Beside a good one it is left alone at once.
    let good = Backend::named("good").await;
    world.claim(2, None, &[(1, Ready, good.port)]);
    let application = routed(&world, 2).await;
    let bad = &application.endpoints[0];
    let is_out = || !bad.candidate(0).admits;
    while !is_out() {
        let mut client = world.connect().await;
        client.send(POST).await;
        client.reply().await;
    }
    assert_eq!(world.get("/").await.status, 200);
}

#[tokio::test]
async fn an_instance_that_comes_back_returns_by_and_by_or_serves_all_alone() {
    let (fails, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let backend = moody(&fails, &asked).await;
    let world = World::new();
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, backend.port)]);
    let application = routed(&world, 1).await;
    let endpoint = &application.endpoints[0];
    assert!(endpoint.failed(now_ms(&world)));
    assert!(!endpoint.candidate(now_ms(&world)).admits);
    // It waits for the trial, which goes well.
    assert_eq!(world.get("/").await.text(), "well");
    let share = endpoint.share(now_ms(&world));
    assert!(endpoint.candidate(now_ms(&world)).admits && share < ramp::WHOLE, "{share}");
    // All of them find it, as there is nobody else.
    for _ in 0..20 {
        assert_eq!(world.get("/").await.text(), "well");
    }
    wait(|| endpoint.share(now_ms(&world)) == ramp::WHOLE).await;
}

#[tokio::test]
async fn a_new_instance_starts_slowly_beside_others_and_at_once_alone() {
    let (old, new) = (Backend::named("old").await, Backend::named("new").await);
    let world = World::new();
    world.set(|settings| settings.balance = "round-robin".into());
    world.claim(1, None, &[(1, Ready, old.port)]);
    routed(&world, 1).await;
    world.set(|settings| {
        settings.balance = "round-robin".into();
        // This is longer than any test, so that the share stays a tenth.
        settings.slow_start_ms = Some(86_400_000);
    });
    world.claim(2, None, &[(1, Ready, new.port)]);
    let application = routed(&world, 2).await;
    assert_eq!(application.endpoints[0].share(now_ms(&world)), ramp::WHOLE);
    assert!(application.endpoints[1].share(now_ms(&world)) < ramp::WHOLE / 5);
    let (mut client, mut from_new) = (world.connect().await, 0);
    for _ in 0..200 {
        client.send("GET / HTTP/1.1\r\nHost: shop.localhost\r\n\r\n").await;
        from_new += usize::from(client.reply().await.text() == "new");
    }
    assert!((1..40).contains(&from_new), "{from_new} of 200");
    application.endpoints[0].drain();
    for _ in 0..20 {
        assert_eq!(world.get("/").await.text(), "new");
    }
}

#[tokio::test]
async fn a_returning_instance_takes_less_than_its_part() {
    let (old, back) = (Backend::named("old").await, Backend::named("back").await);
    let world = World::new();
    world.set(|settings| settings.balance = "round-robin".into());
    world.claim(1, None, &[(1, Ready, old.port)]);
    world.claim(2, None, &[(1, Ready, back.port)]);
    let application = routed(&world, 2).await;
    // It failed and succeeded just now, again and again: the share stays near its lowest.
    let endpoint = &application.endpoints[1];
    let mut client = world.connect().await;
    let mut from_back = 0;
    for _ in 0..200 {
        let now = now_ms(&world);
        assert!(endpoint.failed(now.saturating_sub(10_000)));
        endpoint.succeeded(|| now);
        client.send("GET / HTTP/1.1\r\nHost: shop.localhost\r\n\r\n").await;
        from_back += usize::from(client.reply().await.text() == "back");
    }
    assert!((1..60).contains(&from_back), "{from_back} of 200");
}

#[tokio::test]
async fn an_instance_that_refuses_is_out_even_where_it_is_alone() {
    let world = World::new();
    world.application(|_| (), Vec::new());
    let gone = Backend::named("gone").await;
    let port = gone.port;
    world.claim(1, None, &[(1, Ready, port)]);
    let application = routed(&world, 1).await;
    drop(gone);
    let thread_sees = application.others_admitting(&application.endpoints[0], now_ms(&world));
    assert_eq!(thread_sees, Some((0, 1)));
    assert!(router_core::breaker::ejects(Failure::Refused, 0, 1));
    let mut client = world.connect().await;
    client.send(POST).await;
    wait(|| !application.endpoints[0].candidate(0).admits).await;
    // It waits; the first sign of life is enough.
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let serve = async {
        let mut backend = Client(listener.accept().await.unwrap().0);
        backend.request().await;
        backend.0.write_all(ok("back").as_bytes()).await.unwrap();
    };
    let (reply, ()) = tokio::join!(client.reply(), serve);
    assert_eq!(reply.text(), "back");
}
