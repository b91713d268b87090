//! How long a tunnel may be idle.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::plain::Plain;

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
