//! One asynchronous client that asks on a connection of its own and returns the outcome.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::answer::Head;
use crate::process::on_loopback;

/// The time limit for an answer: longer than any queue that is measured may hold a request.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);
/// The most bytes of an answer; those of the instances are a line, a proxy's own ones a page.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

pub struct Client {
    /// The port of the contender on loopback.
    pub port: u16,
    /// The address from which the client connects.
    pub from: Ipv4Addr,
    pub host: String,
    kept: Option<TcpStream>,
}

impl Client {
    pub fn new(port: u16, from: Ipv4Addr) -> Client {
        Client { port, from, host: "proxy.localhost".into(), kept: None }
    }

    /// Sends a request and returns the status of the complete answer. Keeps the connection if the
    /// other side does.
    pub async fn ask(&mut self, path: &str) -> anyhow::Result<u16> {
        tokio::time::timeout(ANSWER_TIME_MAX, self.exchange(path)).await.context("no answer")?
    }

    async fn exchange(&mut self, path: &str) -> anyhow::Result<u16> {
        let mut stream = match self.kept.take() {
            Some(stream) => stream,
            None => self.connect().await?,
        };
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.host);
        stream.write_all(request.as_bytes()).await?;
        let mut bytes = Vec::with_capacity(1024);
        loop {
            ensure!(stream.read_buf(&mut bytes).await? > 0, "cut off");
            ensure!(bytes.len() <= ANSWER_BYTES_MAX, "the answer is too large");
            let whole = Head::parse(&bytes)?.filter(|head| bytes.len() >= head.whole_bytes);
            if let Some(head) = whole {
                self.kept = (!head.closes).then_some(stream);
                return Ok(head.status);
            }
        }
    }

    async fn connect(&self) -> anyhow::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((self.from, 0)))?;
        let stream = socket.connect(on_loopback(self.port)).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn an_answer_is_read_once_it_is_whole() {
        let text = b"HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno";
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = Client::new(listener.local_addr().unwrap().port(), Ipv4Addr::LOCALHOST);
        for end in 0..=text.len() {
            let answering = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.read_buf(&mut Vec::with_capacity(1024)).await.unwrap();
                stream.write_all(&text[..end]).await.unwrap();
            };
            let (answer, ()) = tokio::join!(client.ask("/"), answering);
            assert_eq!(answer.ok(), (end == text.len()).then_some(503), "{end}");
            assert!(client.kept.is_none());
        }
    }
}
