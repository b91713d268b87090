//! The slow service of somebody else's that every server asks: it answers after a while, however
//! many ask at a time.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::own_server::OwnServer;

/// The time it takes and the bytes of its answer, as the thesis found them at the main page of a
/// search engine.
pub const REMOTE_TIME: Duration = Duration::from_millis(170);
const ANSWER_BYTES: usize = 44 * 1024;
/// The most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 * 1024;

pub fn start(time: Duration) -> anyhow::Result<OwnServer> {
    OwnServer::start("remote", move |stream| serve(stream, time))
}

/// Answers requests without bodies, one after the other.
async fn serve(mut stream: TcpStream, time: Duration) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {ANSWER_BYTES}\r\n\r\n");
    let answer = [head.into_bytes(), vec![b'x'; ANSWER_BYTES]].concat();
    loop {
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") && asked.len() < HEAD_BYTES_MAX {
            if stream.read_buf(&mut asked).await? == 0 {
                return Ok(());
            }
        }
        tokio::time::sleep(time).await;
        stream.write_all(&answer).await?;
    }
}
