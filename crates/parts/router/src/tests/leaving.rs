//! A router that leaves: what its clients were told, they can rely on.

use std::sync::Arc;
use std::time::Duration;

use model::InstanceState::Ready;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use super::world::{Backend, Client, World, ok, wait};
use crate::connection::run::QUICK_IN_A_ROW;

const ASK: &str = "GET / HTTP/1.1\r\nHost: shop.localhost\r\n\r\n";
const ASK_TO_TALK: &str = "GET /talk HTTP/1.1\r\nHost: shop.localhost\r\n\
                           Connection: Upgrade\r\nUpgrade: words\r\n\r\n";
const ASK_SLOWLY: &str = "GET /slowly HTTP/1.1\r\nHost: shop.localhost\r\n\r\n";
/// The time to leave, far longer than the test takes.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(60);

/// Starts a back end that says at once how long its answer to `/slowly` is, and the rest when it is
/// let. Behind `/talk` it says again what it hears.
async fn hesitant(gate: &Arc<Semaphore>) -> Backend {
    let gate = gate.clone();
    Backend::start(move |mut client: Client| {
        let gate = gate.clone();
        async move {
            while let Some(request) = client.request().await {
                if request.starts_with("GET /slowly") {
                    client.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nwe").await;
                    gate.acquire().await.unwrap().forget();
                    client.send("ll").await;
                } else if request.starts_with("GET /talk") {
                    let head = "Connection: Upgrade\r\nUpgrade: words\r\n\r\n";
                    client.send(&format!("HTTP/1.1 101 Switching Protocols\r\n{head}")).await;
                    let (mut reading, mut writing) = client.0.split();
                    tokio::io::copy(&mut reading, &mut writing).await.ok();
                    return;
                } else {
                    client.send(&ok("well")).await;
                }
            }
        }
    })
    .await
}

async fn until(client: &mut Client, end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        text.push(client.0.read_u8().await.unwrap().into());
    }
    text
}

#[tokio::test]
async fn a_client_on_a_kept_connection_is_answered_while_the_router_leaves() {
    let gate = Arc::new(Semaphore::new(0));
    let backend = hesitant(&gate).await;
    let world = World::with_threads(1);
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    let (mut slow, mut other) = (world.connect().await, world.connect().await);
    other.send(ASK).await;
    assert!(!other.reply().await.head.contains("Connection: close"));
    slow.send(ASK_SLOWLY).await;
    let head = until(&mut slow, "\r\n\r\n").await;
    assert!(!head.contains("Connection: close"), "{head}");
    world.router.leave(LEAVE_TIME_MAX, LEAVE_TIME_MAX);
    loop {
        other.send(ASK).await;
        if other.reply().await.head.contains("Connection: close") {
            break;
        }
    }
    gate.add_permits(1);
    assert_eq!(until(&mut slow, "ll").await, "well");
    slow.send(ASK).await;
    let last = slow.reply().await;
    assert_eq!((last.status, last.text().as_str()), (200, "well"));
    assert!(last.head.contains("Connection: close"), "{}", last.head);
    drop((slow, other));
    wait(|| world.router.has_left()).await;
}

#[tokio::test]
async fn what_is_under_way_goes_on_when_nobody_may_ask_any_more() {
    let gate = Arc::new(Semaphore::new(0));
    let backend = hesitant(&gate).await;
    let world = World::with_threads(1);
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    let (mut slow, mut talk) = (world.connect().await, world.connect().await);
    slow.send(ASK_SLOWLY).await;
    until(&mut slow, "\r\n\r\n").await;
    talk.send(ASK_TO_TALK).await;
    until(&mut talk, "\r\n\r\n").await;
    // One of those that ask for nothing waits in a task, the other one in the lane.
    let (mut new, mut quick) = (world.connect().await, world.connect().await);
    new.send(ASK).await;
    new.reply().await;
    for _ in 0..=QUICK_IN_A_ROW {
        quick.send(ASK).await;
        quick.reply().await;
    }
    world.router.leave(Duration::ZERO, LEAVE_TIME_MAX);
    for idle in [&mut new, &mut quick] {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(LEAVE_TIME_MAX, idle.0.read_to_end(&mut rest)).await;
        assert_eq!(ended.expect("its wait is over").unwrap(), 0);
    }
    talk.send("still there?").await;
    assert_eq!(until(&mut talk, "?").await, "still there?");
    gate.add_permits(1);
    assert_eq!(until(&mut slow, "ll").await, "well");
    assert!(!world.router.has_left());
    talk.0.shutdown().await.unwrap();
    assert_eq!(talk.0.read(&mut [0]).await.unwrap(), 0, "an end in order");
    drop((slow, talk));
    wait(|| world.router.has_left()).await;
}

#[tokio::test]
async fn what_never_ends_is_cut_in_the_end() {
    let gate = Arc::new(Semaphore::new(0));
    let backend = hesitant(&gate).await;
    let world = World::with_threads(1);
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    let mut talk = world.connect().await;
    talk.send(ASK_TO_TALK).await;
    until(&mut talk, "\r\n\r\n").await;
    world.router.leave(Duration::ZERO, Duration::from_millis(1));
    wait(|| world.router.has_left()).await;
    assert!(talk.0.read(&mut [0]).await.is_err(), "it does not look like an end in order");
}
