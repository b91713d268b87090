//! A server of WebSockets that says each word again. It is no part of what is measured, so it knows
//! the one request and the one word of the clients and no more.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::{HEAD_BYTES_MAX, SPOKEN_BYTES};
use crate::own_server::OwnServer;

/// The answer to the key that RFC 6455 has as its example, which all clients send.
const ANSWER: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
/// A text without the mask that clients put over theirs.
pub const HEARD: &[u8] = b"\x81\x05hello";

pub fn start() -> anyhow::Result<OwnServer> {
    OwnServer::start("echo", serve)
}

async fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < HEAD_BYTES_MAX {
        if stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    drop(head);
    stream.write_all(ANSWER).await?;
    loop {
        stream.read_exact(&mut [0; SPOKEN_BYTES]).await?;
        stream.write_all(HEARD).await?;
    }
}
