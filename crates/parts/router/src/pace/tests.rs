//! The time that clients which take little are waited for, in the clear and inside TLS.

use std::io::{Error, ErrorKind};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{self, pki_types::ServerName};

use super::*;
use crate::handshake::{self, Greeted};
use crate::plain::Plain;
use crate::pool::Pool;
use crate::splice::Pipe;
use crate::stream::write_paced;
use crate::tests::tls;
use crate::wire::Wire;
use ::tls::Tls;

/// Bytes to send, more than the kernel holds for a client that takes nothing.
const BYTES: usize = 64 << 20;
/// Less than the time that one may wait for a piece.
const DEADLINE: Duration = Duration::from_secs(50);

/// Returns how many pieces of `bytes` get through, each after as long as a piece may take.
async fn pieces(bytes: usize) -> usize {
    let pace = Pace::default();
    let almost = WRITE_TIME_MAX - Duration::from_secs(1);
    for number in 0..100 {
        let ready = async {
            tokio::time::sleep(almost).await;
            Ok(())
        };
        if Patience::Paced(&pace).wait(ready).await.is_err() {
            return number;
        }
        Patience::Paced(&pace).took(bytes);
    }
    100
}

#[tokio::test(start_paused = true)]
async fn a_client_below_the_floor_is_given_up_however_often_it_takes_a_byte() {
    assert_eq!(pieces(1).await, 1);
    assert_eq!(pieces(120 * 59).await, 1);
    assert_eq!(pieces(240 * 59).await, 100);
}

async fn pair() -> (Plain, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = Plain::connect(listener.local_addr().unwrap()).await.unwrap();
    (near, listener.accept().await.unwrap().0)
}

async fn splice_all(from: &Plain, to: &Plain, pace: &Pace) -> Result<()> {
    let pipe = Pipe::new()?;
    loop {
        from.readable().await?;
        match pipe.take(from, BYTES) {
            Ok(0) => return Err(Error::from(ErrorKind::UnexpectedEof)),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        while let Err(error) = pipe.give_now(to, |count| pace.took(count)) {
            match error.kind() {
                ErrorKind::WouldBlock => pace.wait(WRITE_TIME_MAX, to.writable()).await?,
                _ => return Err(error),
            }
        }
    }
}

#[tokio::test]
async fn writes_and_splices_do_not_wait_without_patience() {
    let ((near, _far), pace) = (pair().await, Pace::spent());
    let zeros = vec![0; BYTES];
    let client = near.into();
    let written = tokio::time::timeout(DEADLINE, write_paced(&client, &zeros, &pace));
    assert_eq!(written.await.unwrap().unwrap_err().kind(), ErrorKind::TimedOut);

    let ((near, _far), (from, mut source), pace) = (pair().await, pair().await, Pace::spent());
    let sending = tokio::spawn(async move { source.write_all(&zeros).await });
    let spliced = tokio::time::timeout(DEADLINE, splice_all(&from, &near, &pace));
    assert_eq!(spliced.await.unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
    sending.abort();
}

/// Returns both ends of a connection inside TLS: the router's, and the client's.
async fn sealed() -> (Wire, impl AsyncRead) {
    let directory = tempfile::tempdir().unwrap();
    let files = tls::certificate(directory.path(), "shop", &["shop.localhost"]);
    let server = Tls::load(vec![files.clone()]).unwrap();
    let config = tls::client(&files, rustls::ALL_VERSIONS, &[]);
    let (near, far) = pair().await;
    let name = ServerName::try_from("shop.localhost").unwrap();
    let (peer, pool) = ("127.0.0.1:1".parse().unwrap(), Pool::default());
    let (accepted, connected) = tokio::join!(
        handshake::accept(near, peer, server.config(), &server, None, &pool),
        TlsConnector::from(config).connect(name, far)
    );
    let Ok(Greeted::Client(accepted)) = accepted else { panic!("no client") };
    (accepted.wire, connected.unwrap())
}

#[tokio::test]
async fn writes_inside_tls_do_not_wait_without_patience() {
    let ((client, _far), pace) = (sealed().await, Pace::spent());
    let zeros = vec![0; BYTES];
    let written = tokio::time::timeout(DEADLINE, write_paced(&client, &zeros, &pace));
    assert_eq!(written.await.unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
}

/// A client that reads has taken what it is sent: its patience grows by that.
#[tokio::test]
async fn what_a_client_takes_inside_tls_counts_for_it() {
    let ((client, mut far), pace) = (sealed().await, Pace::default());
    let mut taken = vec![0; 1 << 20];
    let sent = taken.clone();
    let (written, read) =
        tokio::join!(write_paced(&client, &sent, &pace), far.read_exact(&mut taken));
    written.unwrap();
    assert_eq!(read.unwrap(), sent.len());
    assert!(pace.taken.get() > sent.len() as u64, "and what TLS adds");
}
