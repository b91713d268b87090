//! Clients whose requests to instances the lane passes on: they notice nothing of where they are,
//! whatever they or an instance do next.

mod long;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use model::InstanceState::Ready;
use model::request::RequestLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use super::world::{Backend, Client, DEADLINE, World, ok, wait};
use crate::connection::run::QUICK_IN_A_ROW;
use crate::plain::HEAD_SLACK;

/// Requests, more than it takes to be in the lane.
const ASKED: usize = QUICK_IN_A_ROW as usize + 2;
/// The time for an answer; a client that has room for it is answered sooner.
const ANSWER_TIME: Duration = Duration::from_millis(500);
const LONG: usize = 100_000;
/// The length of an answer of which half comes with its head.
const LONGISH: usize = 34_000;
/// The length of an answer that is as long as what is read at first behind a long one.
const BRIEF: usize = 3 + HEAD_SLACK;

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: shop.localhost\r\n\r\n")
}

/// A router and an instance that does as the path says.
struct Site {
    world: World,
    means: Arc<Means>,
    _backend: Backend,
}

struct Means {
    /// The gate for answers that wait.
    gate: Semaphore,
    asked: AtomicUsize,
    died: AtomicUsize,
    /// The number of answers that nobody asked for.
    unasked: AtomicUsize,
}

/// Answers a request; returns false if the connection ends.
async fn answer(client: &mut Client, path: &str, nth: usize, means: &Means) -> bool {
    let Means { gate, unasked, .. } = means;
    let pass = async || gate.acquire().await.unwrap().forget();
    match path {
        "/slowly" => {
            client.send("HTTP/1.1 200 OK\r\nContent-Le").await;
            pass().await;
            client.send("ngth: 4\r\n\r\nwe").await;
            pass().await;
            client.send("ll").await;
        }
        "/late" => {
            pass().await;
            client.send(&ok("well")).await;
        }
        "/chunks" => {
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            client.send(&format!("{head}2\r\nwe\r\n2\r\nll\r\n0\r\n\r\n")).await;
        }
        "/interim" => {
            client.send(&format!("HTTP/1.1 103 Early Hints\r\n\r\n{}", ok("well"))).await;
        }
        "/long" => client.send(&ok(&"x".repeat(LONG))).await,
        "/longish" => client.send(&ok(&"x".repeat(LONGISH))).await,
        "/brief-odd" => client.send(&(ok(&"z".repeat(BRIEF)) + &ok("evil"))).await,
        "/long-odd" => client.send(&(ok(&"x".repeat(LONG)) + &ok("evil"))).await,
        "/long-slowly" | "/long-cut" => {
            let answer = ok(&"x".repeat(LONG));
            let (one, other) = answer.split_at(LONG / 2);
            client.send(one).await;
            pass().await;
            if path == "/long-cut" {
                return false;
            }
            client.send(other).await;
        }
        "/some" => client.send(&ok(&"y".repeat(12_000))).await,
        "/none" => client.send("HTTP/1.1 204 No Content\r\n\r\n").await,
        "/last" => {
            client
                .send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nwell")
                .await;
            return false;
        }
        "/until-close" => {
            client.send("HTTP/1.1 200 OK\r\n\r\nwell").await;
            return false;
        }
        "/cut" => {
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nwel").await;
            return false;
        }
        "/nonsense" => client.send("this is no answer\r\n\r\n").await,
        // The first time there is no answer.
        "/dies" if nth == 1 => return false,
        // This is more than was asked for, which is nobody's.
        "/twice" => client.send(&format!("{}{}", ok("well"), ok("evil"))).await,
        // Nobody asks for the second.
        "/later" => {
            client.send(&ok("well")).await;
            pass().await;
            client.send(&ok("evil")).await;
            unasked.fetch_add(1, Ordering::SeqCst);
        }
        _ => client.send(&ok("well")).await,
    }
    true
}

impl Site {
    async fn new() -> Site {
        Site::on(World::new(), RequestLimits::default()).await
    }

    async fn on(world: World, limits: RequestLimits) -> Site {
        let means = Arc::new(Means {
            gate: Semaphore::new(0),
            asked: AtomicUsize::new(0),
            died: AtomicUsize::new(0),
            unasked: AtomicUsize::new(0),
        });
        let given = means.clone();
        let backend = Backend::start(move |mut client: Client| {
            let means = given.clone();
            async move {
                // What is said comes before the next request does.
                client.0.set_nodelay(true).unwrap();
                while let Some(request) = client.request().await {
                    means.asked.fetch_add(1, Ordering::SeqCst);
                    let path = request.split(' ').nth(1).unwrap().to_owned();
                    let nth = match path.as_str() {
                        "/dies" => means.died.fetch_add(1, Ordering::SeqCst) + 1,
                        _ => 0,
                    };
                    if !answer(&mut client, &path, nth, &means).await {
                        break;
                    }
                }
            }
        })
        .await;
        world.limited(limits);
        world.claim(1, None, &[(1, Ready, backend.port)]);
        world.routed().await;
        Site { world, means, _backend: backend }
    }

    /// Returns a client that is in the lane.
    async fn guest(&self) -> Client {
        let mut client = self.world.connect().await;
        settle(&mut client).await;
        client
    }

    fn asked(&self) -> usize {
        self.means.asked.load(Ordering::SeqCst)
    }

    async fn counted(&self, requests: usize) {
        let sum = |text: &str| -> usize {
            let lines = text.lines().filter(|line| line.starts_with("cortex_requests_total{"));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum()
        };
        wait(|| sum(&self.world.metrics.prometheus()) == requests).await;
    }

    fn in_flight(&self) -> u32 {
        let table = self.world.router.shared.table.load();
        let application = table.by_host(b"shop.localhost").unwrap();
        application.endpoints.iter().map(|endpoint| endpoint.in_flight()).sum()
    }
}

async fn settle(client: &mut Client) {
    for _ in 0..ASKED {
        client.send(&get("/")).await;
        assert_eq!(client.reply().await.text(), "well");
    }
}

#[tokio::test]
async fn every_kind_of_request_is_answered_and_quick_ones_follow() {
    let site = Site::new().await;
    let mut client = site.guest().await;
    let mut requests = ASKED;
    let with_body = "POST / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: 2\r\n\r\nab";
    let long = "x".repeat(LONG);
    let some = "y".repeat(12_000);
    for (request, bodies) in [
        (get("/chunks"), &["well"][..]),
        (get("/none"), &[""]),
        (get("/some"), &[&some]),
        (get("/long"), &[&long]),
        (get("/last"), &["well"]),
        (get("/dies"), &["well"]),
        (get("/twice"), &["well"]),
        (with_body.into(), &["well"]),
        ("POST / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: 0\r\n\r\n".into(), &["well"]),
        ("DELETE / HTTP/1.1\r\nHost: shop.localhost\r\n\r\n".into(), &["well"]),
        (get("/").repeat(3), &["well"; 3]),
        (format!("{}{with_body}{}", get("/chunks"), get("/long")), &["well", "well", &long]),
    ] {
        client.send(&request).await;
        for body in bodies {
            assert_eq!(client.reply().await.text(), *body, "{request}");
        }
        settle(&mut client).await;
        requests += bodies.len() + ASKED;
    }
    client.send(&get("/interim")).await;
    assert_eq!(client.reply().await.status, 103);
    assert_eq!(client.reply().await.text(), "well");
    settle(&mut client).await;
    client.send(&get("/").replace("GET", "HEAD")).await;
    let head = client.try_reply(true).await.unwrap();
    assert!(head.head.contains("Content-Length: 4\r\n"), "{}", head.head);
    site.counted(requests + 2 + ASKED).await;
}

#[tokio::test]
async fn an_answer_in_pieces_passes_as_it_comes() {
    let site = Site::new().await;
    let mut client = site.guest().await;
    client.send(&get("/slowly")).await;
    wait(|| site.asked() == ASKED + 1).await;
    site.means.gate.add_permits(1);
    let mut text = String::new();
    while !text.ends_with("\r\n\r\nwe") {
        text.push(client.0.read_u8().await.unwrap().into());
    }
    // This is asked before the answer is whole.
    client.send(&get("/")).await;
    site.means.gate.add_permits(1);
    let mut rest = [0; 2];
    client.0.read_exact(&mut rest).await.unwrap();
    assert_eq!(&rest, b"ll");
    assert_eq!(client.reply().await.text(), "well");
    settle(&mut client).await;
}

#[tokio::test]
async fn what_is_asked_meanwhile_is_answered_afterwards() {
    let site = Site::on(World::with_threads(1), RequestLimits::default()).await;
    let (mut client, mut other) = (site.guest().await, site.guest().await);
    for meanwhile in [get("/"), get("/chunks").repeat(2), "GET / HTTP/1.1\r\nHo".into()] {
        let before = site.asked();
        client.send(&get("/late")).await;
        wait(|| site.asked() == before + 1).await;
        client.send(&meanwhile).await;
        // The thread has heard of it by the time that it has answered others.
        settle(&mut other).await;
        // Nothing of it is asked before its time.
        assert_eq!(site.asked(), before + 1 + ASKED);
        site.means.gate.add_permits(1);
        assert_eq!(client.reply().await.text(), "well");
        if meanwhile.ends_with("Ho") {
            client.send("st: shop.localhost\r\n\r\n").await;
        }
        for _ in 0..meanwhile.matches("GET").count() {
            assert_eq!(client.reply().await.text(), "well");
        }
        settle(&mut client).await;
    }
}

#[tokio::test]
async fn an_answer_that_is_cut_off_never_looks_whole() {
    let site = Site::new().await;
    let mut client = site.guest().await;
    client.send(&get("/cut")).await;
    let mut rest = Vec::new();
    let end = tokio::time::timeout(DEADLINE, client.0.read_to_end(&mut rest)).await;
    end.expect("the connection ends").expect_err("by a reset");
    let mut client = site.guest().await;
    client.send(&get("/until-close")).await;
    let reply = client.reply().await;
    assert_eq!(reply.text(), "well");
    assert!(reply.head.contains("Connection: close"), "{}", reply.head);
    let mut client = site.guest().await;
    client.send(&get("/nonsense")).await;
    assert_eq!(client.reply().await.status, 502);
}

#[tokio::test]
async fn an_answer_that_does_not_come_is_told_in_time() {
    let limits = RequestLimits { answer_ms: Some(300), ..RequestLimits::default() };
    let site = Site::on(World::new(), limits).await;
    let mut client = site.guest().await;
    client.send(&get("/late")).await;
    assert_eq!(client.reply().await.status, 504);
    wait(|| site.in_flight() == 0).await;
    let mut client = site.guest().await;
    client.send(&get("/slowly")).await;
    assert_eq!(client.reply().await.status, 504);
}

#[tokio::test]
async fn a_client_that_ends_its_half_is_answered_and_let_go() {
    // There are so many that the ends of some are there before their requests are read.
    const CLIENTS: usize = 60;
    let site = Site::on(World::with_threads(1), RequestLimits::default()).await;
    for request in [get("/"), String::new(), get("/").repeat(2), get("/late")] {
        let mut clients = join_all((0..CLIENTS).map(|_| site.guest())).await;
        for client in &mut clients {
            client.send(&request).await;
            client.0.shutdown().await.unwrap();
        }
        site.means.gate.add_permits(if request.contains("late") { CLIENTS } else { 0 });
        for mut client in clients {
            let mut rest = String::new();
            let end = tokio::time::timeout(DEADLINE, client.0.read_to_string(&mut rest)).await;
            end.expect("its end in time").unwrap();
            assert_eq!(rest.matches("\r\n\r\nwell").count(), request.matches("GET").count());
        }
    }
    assert_eq!(site.in_flight(), 0);
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_gives_its_place_back() {
    let site = Site::new().await;
    let mut client = site.guest().await;
    client.send(&get("/late")).await;
    wait(|| site.in_flight() == 1).await;
    client.0.set_zero_linger().unwrap();
    drop(client);
    wait(|| site.in_flight() == 0).await;
    site.counted(ASKED + 1).await;
}

#[tokio::test]
async fn a_connection_that_ended_while_nobody_used_it_costs_no_request() {
    let backend = Backend::start(|mut client: Client| async move {
        // It lets go of each after some answers, as many servers do.
        for _ in 0..ASKED + 2 {
            if client.request().await.is_none() {
                return;
            }
            client.send(&ok("well")).await;
        }
    })
    .await;
    let world = World::with_threads(1);
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    let mut client = world.connect().await;
    let post = "POST / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: 0\r\n\r\n";
    for number in 0..20 * (ASKED + 2) {
        // The end comes with the answer or behind it: an instance that must not be asked twice is
        // not.
        let is_first = number % (ASKED + 2) == 0;
        client.send(&if is_first { post.to_owned() } else { get("/") }).await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "well"), "request {number}");
    }
    assert_eq!(backend.connections.load(Ordering::SeqCst), 20);
}

#[tokio::test]
async fn answers_that_nobody_asked_for_reach_nobody() {
    let site = Site::on(World::with_threads(1), RequestLimits::default()).await;
    let mut client = site.guest().await;
    for number in 1..=10 {
        client.send(&get("/later")).await;
        assert_eq!(client.reply().await.text(), "well");
        site.means.gate.add_permits(1);
        wait(|| site.means.unasked.load(Ordering::SeqCst) == number).await;
        settle(&mut client).await;
    }
}

#[tokio::test]
async fn a_client_that_reads_late_gets_all_of_it() {
    const ASKED_MAX: usize = 2_000;
    let site = Site::new().await;
    // What is sent finds little room.
    let mut client = site.world.connect_with(64 * 1024).await;
    settle(&mut client).await;
    let mut asked = ASKED;
    // One request is sent at a time, until there is no room.
    loop {
        client.send(&get("/some")).await;
        asked += 1;
        if tokio::time::timeout(ANSWER_TIME, site.counted(asked)).await.is_err() {
            break;
        }
        assert!(asked < ASKED_MAX, "nobody reads, and all is sent");
    }
    // The instance has answered: nobody waits for its place.
    wait(|| site.in_flight() == 0).await;
    client.send(&get("/chunks").repeat(3)).await;
    for number in ASKED..asked {
        assert!(client.reply().await.text() == "y".repeat(12_000), "answer {number}");
    }
    for _ in 0..3 {
        assert_eq!(client.reply().await.text(), "well");
    }
    site.counted(asked + 3).await;
    settle(&mut client).await;
}

/// Starts one thread in front of two instances that answer so.
async fn on_two(
    answer: impl Fn(&str) -> String + Copy + Send + Sync + 'static,
) -> (World, Backend, Backend) {
    let (one, two) = (Backend::answering(answer).await, Backend::answering(answer).await);
    let world = World::with_threads(1);
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, one.port)]);
    world.claim(2, None, &[(1, Ready, two.port)]);
    world.routed().await;
    (world, one, two)
}

/// Lets each client ask one thing after the other, all clients at once.
async fn all_ask(world: &World, clients: usize, each: usize, wanted: impl Fn(&str) -> String) {
    let wanted = &wanted;
    join_all((0..clients).map(|client| async move {
        let mut connection = world.connect().await;
        for number in 0..each {
            let path = format!("/{client}/{number}");
            connection.send(&get(&path)).await;
            assert!(connection.reply().await.text() == wanted(&path), "{path}");
        }
    }))
    .await;
}

#[tokio::test]
async fn many_at_once_get_their_own_answers() {
    const CLIENTS: usize = 200;
    const EACH: usize = 30;
    let echo = |request: &str| ok(request.split(' ').nth(1).unwrap());
    let (world, one, two) = on_two(echo).await;
    all_ask(&world, CLIENTS, EACH, str::to_owned).await;
    let (one, two) = (&one.connections, &two.connections);
    let connections = one.load(Ordering::SeqCst) + two.load(Ordering::SeqCst);
    assert!(connections <= 2 * CLIENTS, "{connections} connections for {CLIENTS} clients");
}

#[tokio::test]
async fn a_client_that_waits_when_the_router_leaves_is_answered_and_told() {
    let site = Site::on(World::with_threads(1), RequestLimits::default()).await;
    let (mut guest, mut idle) = (site.guest().await, site.guest().await);
    let mut other = site.guest().await;
    let asked = site.asked();
    guest.send(&get("/late")).await;
    wait(|| site.asked() == asked + 1).await;
    site.world.router.leave(Duration::from_secs(60), Duration::from_secs(60));
    // By then the thread knows.
    loop {
        other.send(&get("/")).await;
        if other.reply().await.head.contains("Connection: close") {
            break;
        }
    }
    site.means.gate.add_permits(1);
    let reply = guest.reply().await;
    assert_eq!(reply.text(), "well");
    assert!(reply.head.contains("Connection: close"), "{}", reply.head);
    idle.send(&get("/")).await;
    let reply = idle.reply().await;
    assert_eq!(reply.text(), "well");
    assert!(reply.head.contains("Connection: close"), "{}", reply.head);
    drop((guest, idle, other));
    wait(|| site.world.router.has_left()).await;
}

#[tokio::test]
async fn a_router_that_stops_waits_for_what_is_under_way() {
    let site = Site::on(World::with_threads(1), RequestLimits::default()).await;
    let (mut guest, mut other) = (site.guest().await, site.guest().await);
    let asked = site.asked();
    guest.send(&get("/late")).await;
    wait(|| site.asked() == asked + 1).await;
    let Site { world, means, _backend } = site;
    let stopping = tokio::task::spawn_blocking(move || world.router.stop(DEADLINE * 10));
    // The thread knows once the other one is told, or is let go behind an answer.
    loop {
        other.send(&get("/")).await;
        let reply = tokio::time::timeout(DEADLINE, other.try_reply(false)).await.unwrap();
        if reply.is_err() || reply.is_ok_and(|reply| reply.head.contains("Connection: close")) {
            break;
        }
    }
    means.gate.add_permits(1);
    assert_eq!(guest.reply().await.text(), "well");
    tokio::time::timeout(DEADLINE, stopping).await.unwrap().unwrap();
}
