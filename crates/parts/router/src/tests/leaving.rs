//! A router that leaves: what its clients were told, they can rely on.

use std::sync::Arc;
use std::time::Duration;

use model::InstanceState::Ready;
use tokio::io::AsyncReadExt;
use tokio::sync::Semaphore;

use super::world::{Backend, Client, World, ok, wait};

const ASK: &str = "GET / HTTP/1.1\r\nHost: shop.localhost\r\n\r\n";
const ASK_SLOWLY: &str = "GET /slowly HTTP/1.1\r\nHost: shop.localhost\r\n\r\n";
/// The time to leave, far longer than the test takes.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(60);

/// Starts a back end that says at once how long its answer to `/slowly` is, and the rest when it is
/// let.
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
    world.router.leave(LEAVE_TIME_MAX);
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
