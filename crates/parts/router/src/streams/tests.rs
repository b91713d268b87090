//! Ends, resets and counts of connections that are passed on.

use std::sync::Arc;

use super::*;
use metrics::ports::{PortCounters, Traffic};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const LIMIT: Duration = Duration::from_secs(20);

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (near, listener.accept().await.unwrap().0)
}

/// Runs a client and a back end with the relay between them.
async fn joined<T>(
    idle: Duration,
    talk: impl AsyncFnOnce(TcpStream, TcpStream) -> T,
) -> (TransferEnd, Moved, Means, T) {
    joined_through(Moved::default(), idle, talk).await
}

async fn joined_through<T>(
    moved: Moved,
    idle: Duration,
    talk: impl AsyncFnOnce(TcpStream, TcpStream) -> T,
) -> (TransferEnd, Moved, Means, T) {
    let (client, client_side) = pair().await;
    let (back_end_side, back_end) = pair().await;
    let means = Means::default();
    let relaying = async {
        let status = relay(&means, &client_side, &back_end_side, idle, &moved).await;
        drop((client_side, back_end_side));
        status
    };
    let both = async { tokio::join!(relaying, talk(client, back_end)) };
    let (status, said) = tokio::time::timeout(LIMIT, both).await.unwrap();
    (status, moved, means, said)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251) as u8).collect()
}

#[tokio::test]
async fn each_half_ends_for_itself() {
    let talk = async |mut client: TcpStream, mut back_end: TcpStream| {
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut asked = String::new();
        back_end.read_to_string(&mut asked).await.unwrap();
        back_end.write_all(b"answer").await.unwrap();
        drop(back_end);
        let mut answered = String::new();
        client.read_to_string(&mut answered).await.unwrap();
        (asked, answered)
    };
    let (status, moved, _, said) = joined(LIMIT, talk).await;
    assert_eq!((status, said), (TransferEnd::Closed, ("question".into(), "answer".into())));
    let counted = [Direction::FromClient, Direction::ToClient].map(|way| moved.get(way));
    assert_eq!(counted, [8, 6]);
    assert_eq!(moved.spliced.get(), 0);
}

#[tokio::test]
async fn long_ones_go_through_a_pipe_whole() {
    const LENGTH: usize = 8 * 1024 * 1024;
    let talk = async |mut client: TcpStream, back_end: TcpStream| {
        let (mut read, mut write) = back_end.into_split();
        let echo = async {
            let mut buffer = vec![0; 10_000];
            loop {
                let count = read.read(&mut buffer).await.unwrap();
                if count == 0 {
                    return write.shutdown().await.unwrap();
                }
                write.write_all(&buffer[..count]).await.unwrap();
            }
        };
        let (mut take, mut give) = client.split();
        let mut got = Vec::new();
        let send = async {
            give.write_all(&pattern(LENGTH)).await.unwrap();
            give.shutdown().await.unwrap();
        };
        let (_, _, read) = tokio::join!(echo, send, take.read_to_end(&mut got));
        read.unwrap();
        got
    };
    let (status, moved, means, got) = joined(LIMIT, talk).await;
    assert!(got == pattern(LENGTH), "the bytes are the same");
    assert_eq!(status, TransferEnd::Closed);
    assert!(moved.spliced.get() > LENGTH as u64, "both ways: {moved:?}");
    assert_eq!((means.piped.get(), means.pipes.borrow().len()), (2, 2), "and were kept");
}

#[tokio::test]
async fn a_port_counts_what_is_copied_and_what_goes_through_a_pipe_while_it_moves() {
    const LENGTH: usize = 2 * 1024 * 1024;
    let port = Arc::<PortCounters>::default();
    let talk = async |mut client: TcpStream, mut back_end: TcpStream| {
        let mut bytes = vec![0; LENGTH];
        // The last bytes are there in the same moment as they are counted.
        let (sent, read) =
            tokio::join!(client.write_all(&[1; LENGTH]), back_end.read_exact(&mut bytes));
        sent.and(read.map(drop)).unwrap();
        back_end.write_all(b"answer").await.unwrap();
        client.read_exact(&mut bytes[..6]).await.unwrap();
        port.traffic()
    };
    let moved = Moved::through(port.take());
    let (_, moved, _, seen) = joined_through(moved, LIMIT, talk).await;
    let expected = Traffic { connections: 1, open: 1, bytes_out: 6, ..Traffic::default() };
    assert_eq!(seen, Traffic { bytes_in: LENGTH as u64, ..expected });
    assert!(moved.spliced.get() > 0 && moved.spliced.get() < LENGTH as u64, "{moved:?}");
}

#[tokio::test]
async fn a_reset_is_passed_on_and_never_looks_like_an_end() {
    let talk = async |mut client: TcpStream, mut back_end: TcpStream| {
        back_end.write_all(b"half of").await.unwrap();
        let mut start = [0; 7];
        client.read_exact(&mut start).await.unwrap();
        cut(&back_end);
        drop(back_end);
        client.read(&mut [0; 9]).await.map_err(|error| error.kind())
    };
    let (status, _, _, read) = joined(LIMIT, talk).await;
    assert_eq!((status, read), (TransferEnd::BackEndReset, Err(ErrorKind::ConnectionReset)));
}

#[tokio::test]
async fn silence_ends_a_connection_and_either_side_can_break_it() {
    let talk = async |mut client: TcpStream, back_end: TcpStream| {
        // The client is held until the relay has had enough.
        let read = client.read(&mut [0; 9]).await;
        drop(back_end);
        read.is_err()
    };
    let (status, ..) = joined(Duration::from_millis(50), talk).await;
    assert_eq!(status, TransferEnd::Idle);
}
