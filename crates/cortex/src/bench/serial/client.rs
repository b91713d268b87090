//! One asynchronous client: asks on a connection of its own and says how it went.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::bench::process::on_loopback;

/// Longer than anybody may wait in any queue that is measured.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);
/// Of an answer; those of the instances are a line, a proxy's own ones a page.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

pub struct Client {
    /// Where the contender listens on loopback.
    pub port: u16,
    /// Whom the contender sees.
    pub from: Ipv4Addr,
    pub host: String,
    kept: Option<TcpStream>,
}

impl Client {
    pub fn new(port: u16, from: Ipv4Addr) -> Client {
        Client { port, from, host: "proxy.localhost".into(), kept: None }
    }

    /// The status of a whole answer. Keeps the connection where the other side does.
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
            if let Some(answer) = Answer::parse(&bytes)? {
                self.kept = (!answer.closes).then_some(stream);
                return Ok(answer.status);
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

#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    closes: bool,
}

impl Answer {
    /// None while it is not whole.
    fn parse(bytes: &[u8]) -> anyhow::Result<Option<Answer>> {
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut response = httparse::Response::new(&mut headers);
        let httparse::Status::Complete(head) = response.parse(bytes)? else { return Ok(None) };
        let field = |name: &str| {
            let found = response.headers.iter().find(|one| one.name.eq_ignore_ascii_case(name));
            found.and_then(|one| std::str::from_utf8(one.value).ok())
        };
        let Some(length) = field("content-length").and_then(|text| text.parse::<usize>().ok())
        else {
            bail!("an answer without a length");
        };
        if bytes.len() < head + length {
            return Ok(None);
        }
        let closes = field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        Ok(Some(Answer { status: response.code.unwrap_or(0), closes }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_once_it_is_whole() {
        let text = b"HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno";
        for end in 0..text.len() {
            assert_eq!(Answer::parse(&text[..end]).unwrap(), None);
        }
        let whole = Answer { status: 503, closes: true };
        assert_eq!(Answer::parse(text).unwrap(), Some(whole));
        assert!(Answer::parse(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
