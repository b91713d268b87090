//! A server of WebSockets that says each word again, and tells all clients when something happens.
//! It is no part of what is measured, so it knows the one request and the one word of the clients
//! and no more.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::client::{HEAD_BYTES_MAX, SPOKEN_BYTES};
use crate::own_server::OwnServer;

/// The answer to the key that RFC 6455 has as its example, which all clients send.
const ANSWER: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
/// A text without the mask that clients put over theirs.
pub const HEARD: &[u8] = b"\x81\x05hello";

pub struct Echo {
    pub port: u16,
    events: watch::Sender<()>,
    _server: OwnServer,
}

impl Echo {
    pub fn start() -> anyhow::Result<Echo> {
        let events = watch::Sender::new(());
        let sender = events.clone();
        let serve = move |stream| serve(stream, sender.subscribe());
        let server = OwnServer::start("echo", serve)?;
        Ok(Echo { port: server.port, events, _server: server })
    }

    /// Tells all clients that something happened.
    pub fn tell(&self) {
        self.events.send_replace(());
    }
}

async fn serve(mut stream: TcpStream, mut events: watch::Receiver<()>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < HEAD_BYTES_MAX {
        if stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    drop(head);
    stream.write_all(ANSWER).await?;
    let (mut word, mut of_it) = ([0; SPOKEN_BYTES], 0);
    loop {
        tokio::select! {
            count = stream.read(&mut word[of_it..]) => match count? {
                0 => return Ok(()),
                count => of_it += count,
            },
            happened = events.changed() => match happened {
                Ok(()) => stream.write_all(HEARD).await?,
                // The server ends.
                Err(_) => return Ok(()),
            },
        }
        if of_it == SPOKEN_BYTES {
            of_it = 0;
            stream.write_all(HEARD).await?;
        }
    }
}
