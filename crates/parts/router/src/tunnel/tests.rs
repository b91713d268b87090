//! How long a tunnel may be idle, and what it does meanwhile: nothing.

use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::*;
use crate::endpoint::Endpoint;
use crate::plain::Plain;
use crate::queue::{Queue, QueueLimits};
use crate::tests::world::instance;
use runtime::driver::Clock;

const IDLE: Duration = Duration::from_secs(5);

/// Returns two ends of a connection.
async fn pair() -> (Wire, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let near = Plain::connect(address).await.unwrap();
    (near.into(), listener.accept().await.unwrap().0)
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_is_not_idle_while_the_other_direction_moves() {
    let ((to_client, mut client), (to_server, mut server)) = (pair().await, pair().await);
    let pool = Pool::default();
    let (limits, moved) = (TunnelLimits { idle: IDLE, write: 1000 * IDLE }, Moved::default());
    let relayed = relay(&pool, &to_client, &to_server, limits, &moved);
    let talk = async {
        // This is more than anybody takes who does not read.
        let (mut reading, mut writing) = client.split();
        let flood = async { while writing.write_all(&[0; 64 * 1024]).await.is_ok() {} };
        let words = async {
            for _ in 0..4 {
                tokio::time::sleep(IDLE * 3 / 4).await;
                server.write_all(b"x").await.unwrap();
                assert_eq!(reading.read_u8().await.unwrap(), b'x');
            }
            Instant::now()
        };
        tokio::select! {
            () = flood => panic!("it was cut"),
            last = words => last,
        }
    };
    let both = async { tokio::join!(relayed, talk) };
    let both = tokio::time::timeout(100 * IDLE, both).await;
    let (ended, last) = both.expect("it goes on while one way moves");
    assert_eq!((ended, Instant::now().duration_since(last).as_secs()), (TransferEnd::Idle, 5));
    assert_eq!(moved.get(Direction::ToClient), 4);
}

#[tokio::test(start_paused = true)]
async fn an_idle_tunnel_sleeps_until_its_instance_drains() {
    let ((to_client, _client), (to_server, _server)) = (pair().await, pair().await);
    let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let endpoint = Arc::new(Endpoint::at(1, instance(1), nowhere, None));
    let drained = Arc::new(Notify::new());
    let queue = Arc::new(Queue::new(Clock::start(), drained.clone(), QueueLimits::default()));
    let permit = Permit::enter(&endpoint, &queue).unwrap();
    let pool = Pool::default();
    let (tunnel, looks) = (run(&pool, &to_client, &to_server, permit), Cell::new(0));
    tokio::pin!(tunnel);
    let mut counted = poll_fn(|cx| {
        looks.set(looks.get() + 1);
        tunnel.as_mut().poll(cx)
    });
    let half = IDLE_TIME_MAX / 2;
    tokio::time::timeout(half, &mut counted).await.expect_err("it goes on for long");
    // It was asked when it began, and by the end of that time.
    assert!(looks.get() <= 2, "it woke {} times", looks.get());
    assert_eq!(endpoint.in_flight(), 1, "an instance that stays is not let go");
    endpoint.drain();
    let since = Instant::now();
    tokio::select! {
        () = &mut counted => panic!("a tunnel outlives the drain"),
        () = drained.notified() => {}
    }
    assert!(endpoint.is_drained());
    assert_eq!(Instant::now(), since, "no time passes until then");
    tokio::time::timeout(IDLE, &mut counted).await.expect_err("it goes on after the drain");
}
