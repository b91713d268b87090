//! Strategies over real sockets: what each application asks for in its settings.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use model::InstanceState::Ready;
use tokio::io::AsyncWriteExt;
use tokio::sync::Semaphore;

use super::world::{Backend, Client, World, ok, wait};

async fn three() -> Vec<Backend> {
    vec![Backend::named("one").await, Backend::named("two").await, Backend::named("three").await]
}

fn claim(world: &World, backends: &[Backend], concurrency: Option<u32>) {
    for (slot, backend) in (1..).zip(backends) {
        world.claim(slot, concurrency, &[(1, Ready, backend.port)]);
    }
}

async fn routed(world: &World, endpoints: usize) {
    world.routed().await;
    let table = || world.router.shared.table.load_full();
    wait(|| table().by_host(b"shop.localhost").unwrap().endpoints.len() == endpoints).await;
}

async fn asked_with(world: &World, header: &str) -> String {
    let mut client = world.connect().await;
    let text = format!("GET / HTTP/1.1\r\nHost: shop.localhost\r\n{header}\r\n\r\n");
    client.send(&text).await;
    client.reply().await.text()
}

#[tokio::test]
async fn every_strategy_serves_and_uses_every_instance() {
    for (name, _) in router_core::balance::STRATEGIES {
        let (world, backends) = (World::new(), three().await);
        world.set(|settings| settings.balance = (*name).into());
        claim(&world, &backends, None);
        routed(&world, 3).await;
        let mut seen = BTreeSet::new();
        for number in 0..60 {
            let mut client = world.connect_as([127, 1, 0, number]).await;
            client.send("GET / HTTP/1.1\r\nHost: shop.localhost\r\n\r\n").await;
            seen.insert(client.reply().await.text());
        }
        assert_eq!(seen.len(), 3, "{name}: {seen:?}");
    }
}

#[tokio::test]
async fn a_session_stays_with_its_instance_and_comes_back_to_it() {
    for (kind, header) in [("cookie:id", "Cookie: a=b; id="), ("header:X-User", "x-user: ")] {
        let (world, backends) = (World::new(), three().await);
        world.set(|settings| {
            settings.balance = model::application::STICKY_BALANCE.into();
            settings.sticky = Some(kind.parse().unwrap());
        });
        claim(&world, &backends, None);
        routed(&world, 3).await;
        let mut homes = Vec::new();
        for user in 0..20 {
            homes.push(asked_with(&world, &format!("{header}{user}")).await);
            for _ in 0..3 {
                assert_eq!(asked_with(&world, &format!("{header}{user}")).await, homes[user]);
            }
        }
        // One is replaced: the others' sessions stay where they are, and its own come back.
        let table = world.router.shared.table.load_full();
        let lost = table.by_host(b"shop.localhost").unwrap().endpoints[1].clone();
        drop(table);
        lost.drain();
        for (user, home) in homes.iter().enumerate() {
            let now = asked_with(&world, &format!("{header}{user}")).await;
            assert_eq!(now != *home, home == "two", "{user}: {home}, then {now}");
        }
        world.claim(2, None, &[(2, Ready, backends[1].port)]);
        let table = || world.router.shared.table.load_full();
        let is_new = || {
            let application = table().by_host(b"shop.localhost").unwrap().clone();
            application.endpoints.iter().any(|one| one.generation == 2)
        };
        wait(is_new).await;
        for (user, home) in homes.iter().enumerate() {
            assert_eq!(asked_with(&world, &format!("{header}{user}")).await, *home);
        }
    }
}

/// Returns the cookie that an answer sets, with its value.
fn set_cookie(head: &str) -> Option<&str> {
    let line = head.lines().find_map(|line| line.strip_prefix("Set-Cookie: "))?;
    line.split(';').next()
}

#[tokio::test]
async fn a_client_without_the_cookie_is_given_one_that_keeps_it_where_it_is() {
    let (world, backends) = (World::new(), three().await);
    world.set(|settings| {
        settings.balance = model::application::STICKY_BALANCE.into();
        settings.sticky = Some("cookie:home".parse().unwrap());
    });
    claim(&world, &backends, None);
    routed(&world, 3).await;
    let mut homes = BTreeSet::new();
    for _ in 0..30 {
        let first = world.get("/").await;
        assert!(first.head.contains("; Path=/; HttpOnly; SameSite=Lax\r\n"), "{}", first.head);
        let cookie = set_cookie(&first.head).expect("a cookie");
        let mut client = world.connect().await;
        for _ in 0..3 {
            let more = format!("Cookie: a=b; {cookie}\r\n");
            client.send(&format!("GET / HTTP/1.1\r\nHost: shop.localhost\r\n{more}\r\n")).await;
            let next = client.reply().await;
            assert_eq!(next.text(), first.text(), "it goes on where it began");
            assert_eq!(set_cookie(&next.head), None, "it has one");
        }
        homes.insert(first.text());
    }
    assert_eq!(homes.len(), 3, "{homes:?}");
}

#[tokio::test]
async fn a_cookie_that_the_application_sets_by_itself_stands_alone() {
    let backend = Backend::start(|mut client: Client| async move {
        while client.request().await.is_some() {
            let head =
                "HTTP/1.1 200 OK\r\nSet-Cookie: home=own; Path=/\r\nContent-Length: 0\r\n\r\n";
            client.0.write_all(head.as_bytes()).await.unwrap();
        }
    })
    .await;
    let world = World::new();
    world.set(|settings| {
        settings.balance = model::application::STICKY_BALANCE.into();
        settings.sticky = Some("cookie:home".parse().unwrap());
    });
    claim(&world, std::slice::from_ref(&backend), None);
    routed(&world, 1).await;
    let reply = world.get("/").await;
    assert_eq!(reply.head.matches("Set-Cookie").count(), 1, "{}", reply.head);
    assert_eq!(set_cookie(&reply.head), Some("home=own"));
}

/// Its instance is busy with one slow request: it waits for that one, and no longer than it must.
#[tokio::test]
async fn a_session_waits_for_its_busy_instance_and_at_last_goes_elsewhere() {
    let gate = Arc::new(Semaphore::new(0));
    let serial = |name: &'static str| {
        let gate = gate.clone();
        Backend::start(move |mut client: Client| {
            let gate = gate.clone();
            async move {
                if let Some(request) = client.request().await {
                    if request.starts_with("GET /slow") {
                        gate.acquire().await.unwrap().forget();
                    }
                    client.0.write_all(ok(name).as_bytes()).await.ok();
                }
            }
        })
    };
    let (world, backends) = (World::new(), vec![serial("one").await, serial("two").await]);
    world.set(|settings| {
        settings.balance = model::application::STICKY_BALANCE.into();
        settings.sticky = Some("header:x-user".parse().unwrap());
    });
    claim(&world, &backends, Some(1));
    routed(&world, 2).await;
    let home = asked_with(&world, "X-User: me").await;
    let total = || backends.iter().map(|one| one.connections.load(Ordering::SeqCst)).sum::<usize>();
    let before = total();
    let slow = "GET /slow HTTP/1.1\r\nHost: shop.localhost\r\nX-User: me\r\n\r\n";
    let mut slow_client = world.connect().await;
    slow_client.send(slow).await;
    wait(|| total() == before + 1).await;
    // Another waits while the first is under way, and then comes to the same instance.
    let mut waiting = world.connect().await;
    waiting.send("GET / HTTP/1.1\r\nHost: shop.localhost\r\nX-User: me\r\n\r\n").await;
    let queue = {
        let table = world.router.shared.table.load();
        table.by_host(b"shop.localhost").unwrap().queue.clone()
    };
    wait(|| queue.length() == 1).await;
    gate.add_permits(1);
    assert_eq!(slow_client.reply().await.text(), home);
    assert_eq!(waiting.reply().await.text(), home);
    // Nobody opens the gate this time.
    let mut stuck = world.connect().await;
    stuck.send(slow).await;
    wait(|| total() == before + 3).await;
    assert_ne!(asked_with(&world, "X-User: me").await, home);
    gate.add_permits(1);
    assert_eq!(stuck.reply().await.text(), home);
}

#[tokio::test]
async fn the_quick_instance_answers_more_where_latency_counts() {
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let slow = Backend::start(move |mut client: Client| {
        let held = held.clone();
        async move {
            while client.request().await.is_some() {
                held.acquire().await.unwrap().forget();
                if client.0.write_all(ok("slow").as_bytes()).await.is_err() {
                    return;
                }
            }
        }
    })
    .await;
    let quick = Backend::named("quick").await;
    let world = World::new();
    world.set(|settings| settings.balance = "latency-weighted".into());
    let backends = [slow, quick];
    claim(&world, &backends, None);
    routed(&world, 2).await;
    let mut held = world.connect().await;
    // The slow one keeps whatever it gets first, which is at most one request.
    let mut answers = Vec::new();
    for _ in 0..2 {
        let mut client = world.connect().await;
        client.send("GET / HTTP/1.1\r\nHost: shop.localhost\r\n\r\n").await;
        answers.push(client);
    }
    let table = world.router.shared.table.load_full();
    let endpoints = table.by_host(b"shop.localhost").unwrap().endpoints.clone();
    wait(|| endpoints[0].candidate(0).in_flight == 1 && endpoints[1].learnt() != 0).await;
    for _ in 0..20 {
        held.send("GET / HTTP/1.1\r\nHost: shop.localhost\r\n\r\n").await;
        assert_eq!(held.reply().await.text(), "quick");
    }
    gate.add_permits(10);
    for mut client in answers {
        client.reply().await;
    }
}
