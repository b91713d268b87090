//! Clients that open and close connections for a while, against a server that may have 1,024 files
//! open: the thesis's store ran out of descriptors there and dropped connections.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;
use tokio::task::LocalSet;

use super::client::resp::{Resp, RespValue};
use super::contender::Kind;
use crate::interrupted::Interrupted;

pub const DESCRIPTORS: u64 = 1024;
pub const CLIENTS: [usize; 2] = [100, 1000];
/// The pause before a client that was refused tries again.
const PAUSE: Duration = Duration::from_millis(10);
/// The time that clients that still wait get after the end.
const OVERTIME: Duration = Duration::from_secs(30);
const INTERRUPTED_POLL: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, Serialize)]
pub struct Endured {
    pub kind: Kind,
    pub clients: usize,
    pub seconds: u64,
    pub served: u64,
    /// The attempts that were not connected, closed without an answer, or answered with an error.
    pub refused: u64,
    /// The attempts that were still without an answer when it was over.
    pub unanswered: u64,
    /// The attempts for which this side had no port left to connect from; no fault of the server.
    pub without_port: u64,
    pub slowest_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

#[derive(Default)]
struct Counts {
    served: Cell<u64>,
    refused: Cell<u64>,
    without_port: Cell<u64>,
    slowest: Cell<Duration>,
    failure: Cell<Option<String>>,
}

pub fn endure(
    kind: Kind,
    address: SocketAddr,
    clients: usize,
    seconds: u64,
    interrupted: &Interrupted,
) -> anyhow::Result<Endured> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let counts = Rc::new(Counts::default());
    let until = Instant::now() + Duration::from_secs(seconds);
    let local = LocalSet::new();
    let mut tasks: Vec<_> = (0..clients)
        .map(|_| {
            let counts = counts.clone();
            local.spawn_local(async move { one_client(address, &counts, until).await })
        })
        .collect();
    runtime.block_on(local.run_until(async {
        while !tasks.is_empty() && Instant::now() < until + OVERTIME {
            interrupted.check()?;
            tokio::time::sleep(INTERRUPTED_POLL).await;
            tasks.retain(|task| !task.is_finished());
        }
        anyhow::Ok(())
    }))?;
    let unanswered = tasks.len() as u64;
    drop(local);
    let counts = Rc::into_inner(counts).context("a client is left")?;
    Ok(Endured {
        kind,
        clients,
        seconds,
        served: counts.served.get(),
        refused: counts.refused.get(),
        unanswered,
        without_port: counts.without_port.get(),
        slowest_ms: counts.slowest.get().as_secs_f64() * 1000.0,
        failure: counts.failure.take(),
    })
}

async fn one_client(address: SocketAddr, counts: &Counts, until: Instant) {
    while Instant::now() < until {
        let since = Instant::now();
        match ask(address).await {
            Ok(()) => {
                counts.served.set(counts.served.get() + 1);
                counts.slowest.set(counts.slowest.get().max(since.elapsed()));
            }
            Err(error) => {
                let cause = error.downcast_ref::<std::io::Error>();
                let local = cause.is_some_and(|e| e.kind() == std::io::ErrorKind::AddrNotAvailable);
                let count = if local { &counts.without_port } else { &counts.refused };
                count.set(count.get() + 1);
                let first = counts.failure.take().unwrap_or_else(|| format!("{error:#}"));
                counts.failure.set(Some(first));
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn ask(address: SocketAddr) -> anyhow::Result<()> {
    let mut connection = Resp::new(address)?;
    connection.tell(&[b"GET", b"test::absent"]).await?;
    match connection.answer().await? {
        RespValue::Null => Ok(()),
        other => anyhow::bail!("answered with {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::store::client::resp::encode;

    /// Starts a server that turns away every third client, and counts the refusals.
    #[test]
    fn refusals_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for (n, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                let answer: &[u8] = if n % 3 == 2 { b"-ERR max\r\n" } else { b"$-1\r\n" };
                let mut request = Vec::new();
                encode(&[b"GET", b"test::absent"], &mut request);
                stream.read_exact(&mut request).ok();
                stream.write_all(answer).ok();
            }
        });
        let endured =
            endure(Kind::Cortex, address, 3, 1, &Interrupted::default()).expect("it ends");
        assert!(endured.served > 0 && endured.refused > 0, "{endured:?}");
        assert_eq!((endured.unanswered, endured.without_port), (0, 0));
        assert!(endured.failure.unwrap().contains("ERR max"));
    }
}
