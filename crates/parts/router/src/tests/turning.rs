//! A port of an application on which something else is spoken from one release to the next.

use std::net::SocketAddr;

use model::application::Settings;
use model::port::PortRecipe;
use model::{Claim, Incarnation, InstanceState, PortId, ProcessType, Recipe, Timestamp, TypedKey};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::world::{Backend, Client, World, instance, node, release_id, wait};
use crate::deferred::is_deferred;

const GREETING: &str = "220 ready";

/// Starts a server that speaks first; returns its port.
async fn greeter() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.write_all(GREETING.as_bytes()).await.ok();
        }
    });
    port
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

async fn connect(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port)).await.expect("somebody listens all the while")
}

async fn is_http(port: u16) -> bool {
    let mut client = Client(connect(port).await);
    client.send("GET / HTTP/1.1\r\nHost: any\r\nConnection: close\r\n\r\n").await;
    let mut said = String::new();
    client.0.read_to_string(&mut said).await.is_ok() && said.ends_with("one")
}

async fn greets(port: u16) -> bool {
    let mut said = String::new();
    connect(port).await.read_to_string(&mut said).await.is_ok() && said == GREETING
}

fn are_deferred(world: &World, port: u16, expected: bool) -> bool {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let open = world.router.shared.listeners.again(address).unwrap();
    !open.is_empty() && open.iter().all(|one| is_deferred(one).unwrap() == expected)
}

#[tokio::test]
async fn port_turns_from_http_to_a_service_and_back_and_is_open_all_the_while() {
    let (backend, greeter) = (Backend::named("one").await, greeter().await);
    let (port, other) = (free_port(), free_port());
    let world = World::new();
    let serve = |http: u16, services: &[u16]| {
        let recipe = |port: &u16| PortRecipe {
            id: PortId::tcp(*port),
            process: ProcessType::web(),
            env: "GREETING_PORT".into(),
            proxy_protocol: None,
            idle_ms: None,
        };
        let recipe = Recipe { ports: services.iter().map(recipe).collect(), ..Recipe::default() };
        let settings = Settings { port: Some(http), ..Settings::default() };
        world.application_set(|spec| spec.port = Some(http), recipe, settings);
    };
    let mut claim = Claim::new(Timestamp(0));
    claim.incarnations.push(Incarnation {
        generation: 1,
        release: release_id(),
        restart: 0,
        state: InstanceState::Ready,
        port: Some(backend.port),
        ports: [(PortId::tcp(port), greeter)].into(),
        process: None,
        started_at: None,
        concurrency: None,
        restarts: 0,
        reason: None,
        remark: None,
    });
    world.put(TypedKey::Claim(instance(1), node()), &claim);

    serve(port, &[]);
    wait(|| world.router.ports().len() == 2).await;
    assert!(is_http(port).await);
    wait(|| are_deferred(&world, port, true)).await;

    serve(other, &[port]);
    while is_http(port).await {}
    assert!(greets(port).await && is_http(other).await);
    wait(|| are_deferred(&world, port, false)).await;

    serve(port, &[]);
    while !is_http(port).await {}
    wait(|| are_deferred(&world, port, true)).await;
    wait(|| world.router.ports().len() == 2).await;
}
