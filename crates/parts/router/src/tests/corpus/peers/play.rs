//! One case, played to a peer: what its client and its instance get in the end.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::task::JoinHandle;

use super::super::case::{Case, Folder};
use super::super::instance::{Answer, Then};
use super::server::Server;

const READ_BYTES: usize = 16 << 10;

/// The bytes that a client got, and how that ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    pub bytes: Vec<u8>,
    pub end: Option<End>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Closed,
    Reset,
}

#[derive(Debug)]
pub struct Played {
    pub answered: Answered,
    /// Whether the peer ended the connection, and not only after its client had.
    pub by_itself: bool,
    /// All that the instance got.
    pub got: Vec<u8>,
    /// Whether the next client's request came on a connection that was there.
    pub reused: bool,
}

/// Everything that one client sends and reads.
struct Asking {
    writer: OwnedWriteHalf,
    answered: Arc<Mutex<Answered>>,
    reading: JoinHandle<()>,
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Asking {
    async fn start(server: &Server, bytes: &[u8]) -> Asking {
        let stream = TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (mut reader, writer) = stream.into_split();
        let answered = Arc::new(Mutex::new(Answered::default()));
        let shared = answered.clone();
        let reading = tokio::spawn(async move {
            let mut piece = vec![0; READ_BYTES];
            loop {
                let read = reader.read(&mut piece).await;
                let mut answered = shared.lock().unwrap();
                match read {
                    Ok(0) => answered.end = Some(End::Closed),
                    Ok(count) => answered.bytes.extend(&piece[..count]),
                    Err(_) => answered.end = Some(End::Reset),
                }
                if answered.end.is_some() {
                    return;
                }
            }
        });
        let mut asking = Asking { writer, answered, reading };
        // A client that is refused may be cut off while it still sends.
        asking.writer.write_all(bytes).await.ok();
        asking
    }

    fn answered(&self) -> Answered {
        self.answered.lock().unwrap().clone()
    }

    async fn rest(&self, server: &Server) {
        server
            .rest(|| {
                let answered = self.answered.lock().unwrap();
                2 * answered.bytes.len() + usize::from(answered.end.is_some())
            })
            .await;
    }
}

/// Plays a case; tells its name if it takes longer than `limit`.
pub async fn play(server: &Server, folder: Folder, case: &Case, limit: Duration) -> Played {
    let playing = async {
        match folder {
            Folder::Requests => request(server, case).await,
            Folder::Answers => answer(server, case).await,
        }
    };
    let played = tokio::time::timeout(limit, playing).await;
    let played = played.unwrap_or_else(|_| panic!("{} does not come to an end", case.name));
    // What was left open is closed, and none of it is left to the next case.
    server.instance.begin(Answer::Hello);
    server.rest(|| 0).await;
    played
}

async fn request(server: &Server, case: &Case) -> Played {
    server.instance.begin(Answer::Hello);
    let mut client = Asking::start(server, &case.sent).await;
    client.rest(server).await;
    let by_itself = client.answered().end.is_some();
    if !by_itself {
        client.writer.shutdown().await.ok();
        client.rest(server).await;
    }
    let (answered, got) = (client.answered(), server.instance.got());
    Played { answered, by_itself, got, reused: false }
}

async fn answer(server: &Server, case: &Case) -> Played {
    let then = Then::named(&case.outcome[0]);
    server.instance.begin(Answer::These(case.got.clone(), then));
    let client = Asking::start(server, &case.sent).await;
    client.rest(server).await;
    let answered = client.answered();
    let connections = || server.instance.backend.connections.load(Ordering::SeqCst);
    let (before, came) = (connections(), server.instance.got_bytes());
    let other = Asking::start(server, &case.sent).await;
    other.rest(server).await;
    let reused = connections() == before && server.instance.got_bytes() > came;
    let by_itself = answered.end.is_some();
    Played { answered, by_itself, got: Vec::new(), reused }
}
