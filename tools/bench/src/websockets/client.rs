//! The clients: each is upgraded, says a word and hears it, and then is silent until all speak at
//! once.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Runtime;

use super::echo::HEARD;
use crate::process::on_loopback;
use crate::statistics::Latencies;

const REQUEST: &[u8] = b"GET /live HTTP/1.1\r\nHost: proxy.localhost\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
/// The text `hello` under the mask `1234`.
const SPOKEN: &[u8; SPOKEN_BYTES] = &[
    0x81,
    0x85,
    b'1',
    b'2',
    b'3',
    b'4',
    b'h' ^ b'1',
    b'e' ^ b'2',
    b'l' ^ b'3',
    b'l' ^ b'4',
    b'o' ^ b'1',
];
pub const SPOKEN_BYTES: usize = 11;
/// The most bytes of a head, with what a proxy adds to it.
pub const HEAD_BYTES_MAX: usize = 4096;
/// Clients that connect at the same time, as after a release.
const CONNECTING: usize = 100;
/// The time limit for an answer, even of a loaded machine; reached only when something is wrong.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(20);
/// The addresses that clients come from: the router gives none of them all of its connections, and
/// one alone has not enough ports.
const ADDRESSES: usize = 8;

/// Open WebSockets, until they are dropped.
pub struct Clients {
    runtime: Runtime,
    streams: Vec<TcpStream>,
}

impl Clients {
    pub fn connect(port: u16, count: usize) -> anyhow::Result<Clients> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let some = stream::iter(0..count).map(|number| async move {
            let connecting = tokio::time::timeout(ANSWER_TIME_MAX, connect(port, number));
            connecting.await.context("it was not answered")?
        });
        let all = runtime.block_on(some.buffer_unordered(CONNECTING).try_collect());
        Ok(Clients { streams: all.context("a WebSocket that is to be idle")?, runtime })
    }

    /// Has something happen again and again, which `tell` tells the server's clients; returns how
    /// long it took until each has heard of it, in microseconds, for every time.
    pub fn hear(&mut self, times: usize, tell: impl Fn()) -> anyhow::Result<Vec<Latencies>> {
        let (count, mut all) = (self.streams.len(), Vec::new());
        for _ in 0..times {
            let began = Instant::now();
            let each = self.streams.iter_mut().map(async |stream| {
                heard(stream).await?;
                anyhow::Ok(began.elapsed())
            });
            let each = futures_util::future::try_join_all(each);
            let heard = async {
                let each = tokio::time::timeout(ANSWER_TIME_MAX, each);
                tell();
                each.await
            };
            let mut latencies = Latencies::with_capacity(count);
            let each = self.runtime.block_on(heard).context("not all have heard of it")??;
            each.into_iter().for_each(|latency| latencies.add(latency));
            all.push(latencies);
        }
        Ok(all)
    }

    /// Lets all say a word; returns how long it took until each has heard it.
    pub fn speak_at_once(mut self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let all = futures_util::future::try_join_all(self.streams.iter_mut().map(speak));
        // A timer is made where it is awaited.
        let heard = async { tokio::time::timeout(ANSWER_TIME_MAX, all).await };
        self.runtime.block_on(heard).context("not all were heard")??;
        Ok(began.elapsed())
    }
}

async fn connect(port: u16, number: usize) -> anyhow::Result<TcpStream> {
    let from = Ipv4Addr::new(127, 0, 0, u8::try_from(number % ADDRESSES)?.saturating_add(2));
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    let mut stream = socket.connect(on_loopback(port)).await?;
    stream.set_nodelay(true)?;
    stream.write_all(REQUEST).await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        ensure!(stream.read_buf(&mut head).await? > 0, "it was closed before it was upgraded");
        ensure!(head.len() <= HEAD_BYTES_MAX, "the head of its answer is too large");
    }
    ensure!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    speak(&mut stream).await?;
    Ok(stream)
}

async fn speak(stream: &mut TcpStream) -> anyhow::Result<()> {
    stream.write_all(SPOKEN).await?;
    heard(stream).await
}

async fn heard(stream: &mut TcpStream) -> anyhow::Result<()> {
    let mut heard = [0; HEARD.len()];
    stream.read_exact(&mut heard).await?;
    ensure!(heard == HEARD, "something else was heard: {heard:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::echo::Echo;
    use super::*;

    #[test]
    fn words_are_heard_by_all_that_said_them() {
        let echo = Echo::start().unwrap();
        let mut clients = Clients::connect(echo.port, 20).unwrap();
        let heard = clients.hear(3, || echo.tell()).unwrap();
        assert_eq!(heard.iter().map(Latencies::len).collect::<Vec<_>>(), [20; 3]);
        assert!(clients.speak_at_once().unwrap() < ANSWER_TIME_MAX);
        let port = echo.port;
        drop(echo);
        assert!(Clients::connect(port, 1).is_err());
    }
}
