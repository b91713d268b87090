//! Requests of a kind that is known to be slow: quick ones have a place beside them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use model::InstanceState::Ready;
use tokio::io::AsyncWriteExt;
use tokio::sync::Semaphore;

use super::world::{Backend, Client, World, ok, wait};
use crate::queue::QueueLimits;

/// The time that slow requests take until they are known, which is by the clock.
const SLOW: Duration = Duration::from_secs(1);
/// Slow requests after which their kind is known; from then on they end when they are told to.
const KNOWN_AFTER: usize = 8;

struct SlowFixture {
    world: World,
    _backend: Backend,
    /// The number of slow requests that came to an instance.
    came: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
}

async fn place(instances: u32, concurrency: Option<u32>) -> SlowFixture {
    place_with(instances, concurrency, QueueLimits::default()).await
}

async fn place_with(instances: u32, concurrency: Option<u32>, queue: QueueLimits) -> SlowFixture {
    let (came, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (counted, held) = (came.clone(), gate.clone());
    let backend = Backend::start(move |mut client: Client| {
        let (counted, held) = (counted.clone(), held.clone());
        async move {
            while let Some(request) = client.request().await {
                if request.starts_with("GET /report") {
                    match counted.fetch_add(1, SeqCst) < KNOWN_AFTER {
                        true => tokio::time::sleep(SLOW).await,
                        false => held.acquire().await.unwrap().forget(),
                    }
                }
                client.0.write_all(ok("done").as_bytes()).await.ok();
                if request.contains("Connection: close") {
                    return;
                }
            }
        }
    })
    .await;
    let world = World::with(2, queue);
    world.set(|_| ());
    for slot in 1..=instances {
        world.claim(slot, concurrency, &[(1, Ready, backend.port)]);
    }
    world.routed().await;
    let shared = world.router.shared.clone();
    let count = || shared.table.load().by_host(b"shop.localhost").unwrap().endpoints.len();
    wait(|| count() == instances as usize).await;
    SlowFixture { world, _backend: backend, came, gate }
}

impl SlowFixture {
    async fn ask(&self, count: u32) -> Vec<Client> {
        let mut clients = Vec::new();
        for number in 0..count {
            let mut client = self.world.connect().await;
            let head = format!("GET /report/{number} HTTP/1.1\r\nHost: shop.localhost\r\n\r\n");
            client.send(&head).await;
            clients.push(client);
        }
        clients
    }

    /// Asks for a quick answer several times on one connection.
    async fn ask_quickly(&self, times: usize) {
        let mut client = self.world.connect().await;
        for _ in 0..times {
            client.send("GET / HTTP/1.1\r\nHost: shop.localhost\r\n\r\n").await;
            assert_eq!(client.reply().await.text(), "done");
        }
    }

    /// Makes both kinds known: the quick one, where instances keep connections, by what the lane
    /// did.
    async fn learnt(&self) {
        for mut client in self.ask(8).await {
            assert_eq!(client.reply().await.text(), "done");
        }
        self.ask_quickly(200).await;
    }

    fn waiting(&self) -> usize {
        let table = self.world.router.shared.table.load();
        table.by_host(b"shop.localhost").unwrap().queue.length()
    }

    async fn end(&self, clients: Vec<Client>) {
        self.gate.add_permits(clients.len());
        for mut client in clients {
            assert_eq!(client.reply().await.text(), "done");
        }
    }
}

async fn keep_an_eighth_for_quick_ones_until_they_are_due(instances: u32, concurrency: u32) {
    let place = place(instances, Some(concurrency)).await;
    place.learnt().await;
    let clients = place.ask(8).await;
    wait(|| place.came.load(SeqCst) == KNOWN_AFTER + 7 && place.waiting() == 1).await;
    place.ask_quickly(10).await;
    assert_eq!(place.came.load(SeqCst), KNOWN_AFTER + 7, "one place is kept");
    // Nobody ends, and the eighth has waited for long enough.
    wait(|| place.came.load(SeqCst) == KNOWN_AFTER + 8).await;
    // It stands behind the quick ones, though it came before them.
    let late = place.ask(1).await;
    wait(|| place.waiting() == 1).await;
    let quick = place.ask_quickly(1);
    let later = async {
        wait(|| place.waiting() == 2).await;
        place.gate.add_permits(1);
    };
    tokio::join!(quick, later);
    let all = clients.into_iter().chain(late).collect();
    place.end(all).await;
    assert_eq!(place.came.load(SeqCst), KNOWN_AFTER + 9);
}

#[tokio::test]
async fn serial_instances_keep_an_eighth_of_their_places_for_quick_requests() {
    keep_an_eighth_for_quick_ones_until_they_are_due(8, 1).await;
}

#[tokio::test]
async fn instances_that_take_a_few_at_a_time_keep_an_eighth_for_quick_requests() {
    keep_an_eighth_for_quick_ones_until_they_are_due(2, 4).await;
}

#[tokio::test]
async fn nobody_waits_in_vain_beside_a_place_that_is_kept() {
    let queue = QueueLimits { time_max: SLOW, ..QueueLimits::default() };
    let place = place_with(8, Some(1), queue).await;
    place.learnt().await;
    let clients = place.ask(8).await;
    wait(|| place.came.load(SeqCst) == KNOWN_AFTER + 8).await;
    place.end(clients).await;
}

#[tokio::test]
async fn fewer_than_eight_places_keep_none_for_quick_requests() {
    let place = place(7, Some(1)).await;
    place.learnt().await;
    let clients = place.ask(7).await;
    wait(|| place.came.load(SeqCst) == KNOWN_AFTER + 7).await;
    place.end(clients).await;
}

#[tokio::test]
async fn instances_that_take_any_number_keep_no_place_for_quick_requests() {
    let place = place(8, None).await;
    place.learnt().await;
    let clients = place.ask(20).await;
    wait(|| place.came.load(SeqCst) == KNOWN_AFTER + 20).await;
    place.end(clients).await;
}
