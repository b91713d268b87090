//! Connections to an application's own port for which there is no room, or that nobody can tell
//! whose they are.

use std::io::Result;
use std::net::SocketAddr;
use std::sync::Arc;

use model::port::PortRecipe;
use model::{PortId, ProcessType};
use router_core::http::request::ForwardedFields;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::world::{DEADLINE, World, app, node, wait};
use crate::RouterConfig;
use crate::queue::QueueLimits;
use metrics::ports::Traffic;

/// Connections of all clients together; one client has half of them.
const CONNECTIONS_MAX: usize = 4;
const CLIENT: [u8; 4] = [127, 0, 0, 1];
/// The address of a proxy that says for whom it connects.
const PROXY: [u8; 4] = [127, 0, 0, 2];

async fn connect(from: [u8; 4], port: u16) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    socket.connect(([127, 0, 0, 1], port).into()).await
}

/// Connects and reads; the error of a reset may come as early as that.
async fn is_reset(from: [u8; 4], port: u16, says: &[u8]) -> Result<usize> {
    let mut stream = connect(from, port).await?;
    stream.write_all(says).await?;
    tokio::time::timeout(DEADLINE, stream.read(&mut [0])).await.unwrap()
}

#[tokio::test]
async fn connections_without_room_or_with_a_bad_header_count_as_refused() {
    let config = RouterConfig {
        public: Some(([127, 0, 0, 1], 0).into()),
        secure: None,
        announced_by: Some("127.0.0.2".parse().unwrap()),
        forwarded: ForwardedFields::Usual,
        threads: Some(1),
        queue: QueueLimits::default(),
        connections_max: CONNECTIONS_MAX,
        listeners: Arc::default(),
    };
    let world = World::configured(node(), &config, |_| ());
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let (id, process, env) = (PortId::tcp(free), ProcessType::web(), "PORT".into());
    world.ported(vec![PortRecipe { id, process, env, proxy_protocol: None, idle_ms: None }]);
    world.routed().await;
    let is_open = |port: &crate::PublicPort| port.address.port() == free;
    wait(|| world.router.ports().iter().any(is_open)).await;
    let counters = world.metrics.port(&app(), id);
    // They wait for an instance.
    let held = [connect(CLIENT, free).await.unwrap(), connect(CLIENT, free).await.unwrap()];
    is_reset(CLIENT, free, b"").await.unwrap_err();
    is_reset(PROXY, free, b"GET / HTTP/1.1\r\n\r\n").await.unwrap_err();
    assert_eq!(counters.traffic(), Traffic { refused: 2, ..Traffic::default() });
    drop(held);
}
