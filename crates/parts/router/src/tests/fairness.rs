//! Clients that ask together: one that floods waits for itself.

use std::sync::{Arc, Mutex};

use model::InstanceState::Ready;
use tokio::io::AsyncWriteExt;
use tokio::sync::Semaphore;

use super::world::{Backend, Client, DEADLINE, World, ok, wait};
use crate::queue::QueueLimits;

/// Serial instances, and the paths that they were asked for, in order.
struct Serial {
    world: World,
    _backend: Backend,
    gate: Arc<Semaphore>,
    served: Arc<Mutex<Vec<String>>>,
}

impl Serial {
    async fn start(limits: QueueLimits, fair: &str) -> Serial {
        Serial::start_with(limits, fair, 1).await
    }

    async fn start_with(limits: QueueLimits, fair: &str, instances: u32) -> Serial {
        let (gate, served) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (held, seen): (_, Arc<Mutex<Vec<String>>>) = (gate.clone(), served.clone());
        let backend = Backend::start(move |mut client: Client| {
            let (held, seen) = (held.clone(), seen.clone());
            async move {
                let Some(request) = client.request().await else { return };
                let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
                seen.lock().unwrap().push(path);
                held.acquire().await.unwrap().forget();
                client.0.write_all(ok("done").as_bytes()).await.ok();
            }
        })
        .await;
        let world = World::with(2, limits);
        world.set(|settings| settings.fair = fair.parse().unwrap());
        for slot in 1..=instances {
            world.claim(slot, Some(1), &[(1, Ready, backend.port)]);
        }
        world.routed().await;
        let shared = world.router.shared.clone();
        let count = || shared.table.load().by_host(b"shop.localhost").unwrap().endpoints.len();
        wait(|| count() == instances as usize).await;
        Serial { world, _backend: backend, gate, served }
    }

    fn waiting(&self) -> usize {
        let table = self.world.router.shared.table.load();
        table.by_host(b"shop.localhost").unwrap().queue.length()
    }

    /// Asks, and returns once the request is being served or waits.
    async fn ask(&self, address: [u8; 4], path: &str, header: &str) -> Client {
        let before = self.waiting() + self.served.lock().unwrap().len();
        let mut client = self.world.connect_as(address).await;
        let host = "Host: shop.localhost\r\n";
        client.send(&format!("GET {path} HTTP/1.1\r\n{host}{header}\r\n")).await;
        wait(|| self.waiting() + self.served.lock().unwrap().len() == before + 1).await;
        client
    }

    async fn serve(&self, clients: Vec<Client>) -> Vec<String> {
        self.gate.add_permits(clients.len());
        for mut client in clients {
            assert_eq!(client.reply().await.text(), "done");
        }
        self.served.lock().unwrap().clone()
    }
}

fn limits(length_max: usize) -> QueueLimits {
    QueueLimits { length_max, time_max: DEADLINE * 10 }
}

/// Lets one client ask six times before two others ask once.
async fn is_served_in_turn(fair: &str, flood: impl Fn(u8) -> [u8; 4], others: [[u8; 4]; 2]) {
    let serial = Serial::start(limits(100), fair).await;
    let mut clients = Vec::new();
    for number in 0..6 {
        clients.push(serial.ask(flood(number), &format!("/flood{number}"), "").await);
    }
    clients.push(serial.ask(others[0], "/quiet", "").await);
    clients.push(serial.ask(others[1], "/third", "").await);
    let served = serial.serve(clients).await;
    assert_eq!(served[..5], ["/flood0", "/flood1", "/quiet", "/third", "/flood2"]);
}

#[tokio::test]
async fn clients_are_told_apart_by_address_and_served_in_turn() {
    is_served_in_turn("address", |_| [127, 0, 0, 2], [[127, 0, 0, 3], [127, 0, 0, 4]]).await;
}

#[tokio::test]
async fn clients_are_told_apart_by_a_prefix_of_their_address() {
    let flood = |number| [127, 0, 1, 2 + number];
    is_served_in_turn("address/24", flood, [[127, 0, 2, 2], [127, 0, 3, 2]]).await;
}

/// It waits though it came first, and it would be its turn.
#[tokio::test]
async fn a_client_with_half_of_the_instances_waits_while_another_client_waits() {
    let serial = Serial::start_with(limits(100), "address", 4).await;
    let mut clients = Vec::new();
    for number in 0..8 {
        clients.push(serial.ask([127, 0, 0, 2], &format!("/slow{number}"), "").await);
    }
    for number in 0..3 {
        clients.push(serial.ask([127, 0, 0, 3], &format!("/quick{number}"), "").await);
    }
    let count = || serial.served.lock().unwrap().len();
    for served in 5..=9 {
        assert_eq!(count(), served - 1);
        // The client that has been served for longest is answered.
        serial.gate.add_permits(1);
        wait(|| count() == served).await;
    }
    let served = serial.served.lock().unwrap()[4..].to_vec();
    assert_eq!(served, ["/quick0", "/quick1", "/slow4", "/slow5", "/quick2"]);
    serial.gate.add_permits(100);
    for mut client in clients {
        assert_eq!(client.reply().await.text(), "done");
    }
    // Nobody has a place any more, and none is held for anybody.
    let mut again = Vec::new();
    for number in 0..4 {
        again.push(serial.ask([127, 0, 0, 2], &format!("/again{number}"), "").await);
    }
    assert_eq!(serial.waiting(), 0);
}

#[tokio::test]
async fn clients_are_told_apart_by_a_header_or_by_what_a_local_proxy_says() {
    let serial = Serial::start(limits(100), "header:X-Key").await;
    let mut clients = Vec::new();
    for number in 0..3 {
        let path = format!("/flood{number}");
        clients.push(serial.ask([127, 0, 0, 2], &path, "X-Key: one\r\n").await);
    }
    clients.push(serial.ask([127, 0, 0, 2], "/quiet", "x-key: two\r\n").await);
    // Without the header clients count by address, which a proxy on this machine passes on.
    for (path, from) in [("/a", "192.0.2.1"), ("/b", "192.0.2.1"), ("/c", "192.0.2.2")] {
        let header = format!("X-Forwarded-For: {from}\r\n");
        clients.push(serial.ask([127, 0, 0, 2], path, &header).await);
    }
    let served = serial.serve(clients).await;
    assert_eq!(served, ["/flood0", "/flood1", "/quiet", "/a", "/c", "/flood2", "/b"]);
}

#[tokio::test]
async fn a_full_queue_has_room_for_a_client_with_few_requests() {
    let serial = Serial::start(limits(4), "address").await;
    let mut flood = Vec::new();
    for number in 0..5 {
        flood.push(serial.ask([127, 0, 0, 2], &format!("/flood{number}"), "").await);
    }
    let quiet = serial.world.connect_as([127, 0, 0, 3]).await;
    let mut quiet = quiet;
    quiet.send("GET /quiet HTTP/1.1\r\nHost: shop.localhost\r\n\r\n").await;
    // The last of the flood is told at once, and so is a client that goes on with it.
    let reply = flood.pop().unwrap().reply().await;
    assert_eq!(reply.status, 503);
    assert!(reply.head.contains("Retry-After: "), "{}", reply.head);
    let mut more = serial.world.connect_as([127, 0, 0, 2]).await;
    more.send("GET /more HTTP/1.1\r\nHost: shop.localhost\r\n\r\n").await;
    assert!(more.reply().await.head.contains("X-Cortex-Error: queue-full\r\n"));
    flood.push(quiet);
    let served = serial.serve(flood).await;
    assert_eq!(served[..3], ["/flood0", "/flood1", "/quiet"]);
}
