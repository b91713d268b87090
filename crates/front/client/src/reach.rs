//! The way to a cluster elsewhere: one of its nodes, whichever answers first. The addresses are
//! tried one after the other without waiting for those that say nothing, as browsers do (RFC 8305).

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::ClientError;
use crate::pinned::{self, ALPN, WrongKey};
use api_types::login::{HOST, NodeReach};
use runtime::members::BoxedStream;
use runtime::web;

/// The head start of an address before the next one is tried beside it (RFC 8305, section 5).
const HEAD_START: Duration = Duration::from_millis(250);
/// The time limit of one attempt: distant nodes answer in less, lost packets included.
const ATTEMPT_MAX: Duration = Duration::from_secs(8);

/// The silence of a node after which its kernel is asked whether it is still there, and how often
/// and how many times: somebody who follows logs goes on with another node within some ten seconds.
const SILENCE_MAX: Duration = Duration::from_secs(5);
const PROBE_INTERVAL: Duration = Duration::from_secs(2);
const PROBES: u32 = 3;

/// One address of one node.
#[derive(Clone, Debug)]
struct Attempt {
    address: String,
    fingerprint: String,
}

/// Connects to one of the nodes, the first ones preferred.
pub async fn connect(nodes: &[NodeReach]) -> anyhow::Result<BoxedStream> {
    let mut left: VecDeque<Attempt> = in_order(nodes).into();
    let mut running = FuturesUnordered::new();
    let mut failed = Vec::new();
    let mut next_at = Instant::now();
    loop {
        let starts = !left.is_empty();
        tokio::select! {
            Some((attempt, connected)) = running.next(), if !running.is_empty() => match connected {
                Ok(stream) => return Ok(stream),
                Err(error) => {
                    failed.push((attempt, error));
                    next_at = Instant::now();
                }
            },
            () = sleep_until(next_at), if starts => {
                if let Some(attempt) = left.pop_front() {
                    running.push(try_one(attempt));
                    next_at = Instant::now() + HEAD_START;
                }
            }
            else => return Err(unreachable(failed)),
        }
    }
}

/// Returns the first address of each node before the second of any.
fn in_order(nodes: &[NodeReach]) -> Vec<Attempt> {
    let most = nodes.iter().map(|node| node.addresses.len()).max().unwrap_or(0);
    let attempt = |node: &NodeReach, n: usize| {
        let address = node.addresses.get(n)?.clone();
        Some(Attempt { address, fingerprint: node.fingerprint.clone() })
    };
    (0..most).flat_map(|n| nodes.iter().filter_map(move |node| attempt(node, n))).collect()
}

async fn try_one(attempt: Attempt) -> (Attempt, anyhow::Result<BoxedStream>) {
    let connecting = timeout(ATTEMPT_MAX, shake_hands(&attempt)).await;
    let connected = connecting.unwrap_or_else(|_| Err(anyhow::anyhow!("it does not answer")));
    (attempt, connected)
}

async fn shake_hands(attempt: &Attempt) -> anyhow::Result<BoxedStream> {
    let stream = TcpStream::connect(&attempt.address).await?;
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(SILENCE_MAX).with_interval(PROBE_INTERVAL);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive.with_retries(PROBES))?;
    let (config, host) = match attempt.fingerprint.as_str() {
        "" => (read_once(&PUBLIC_WEB, public_web)?, host(&attempt.address)),
        key => (pinned::config(key)?, HOST),
    };
    let connector = TlsConnector::from(config);
    let name = ServerName::try_from(host.to_string()).context("a host")?;
    match connector.connect(name, stream).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => Err(wrong_key(&error).map_or_else(|| error.into(), Into::into)),
    }
}

/// The configuration for the platform's name. A hundred files or more are read for it, so a command
/// makes it once, however often it connects; it does not live for as long as authorities change.
static PUBLIC_WEB: OnceLock<Arc<ClientConfig>> = OnceLock::new();

fn public_web() -> anyhow::Result<Arc<ClientConfig>> {
    web::client_config(web::roots_of_machine()?, Some(ALPN))
}

/// Returns what was made before, or makes it; what fails is tried again.
fn read_once<T: Clone>(
    cell: &OnceLock<T>,
    make: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    if let Some(made) = cell.get() {
        return Ok(made.clone());
    }
    let made = make()?;
    Ok(cell.get_or_init(|| made).clone())
}

/// Returns the host of `HOST:PORT`.
fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// Finds out whether a handshake failed because the node has another key.
fn wrong_key(error: &std::io::Error) -> Option<WrongKey> {
    use tokio_rustls::rustls::Error::Other;
    let error = error.get_ref()?.downcast_ref()?;
    let Other(other) = error else { return None };
    other.0.downcast_ref::<WrongKey>().cloned()
}

fn unreachable(failed: Vec<(Attempt, anyhow::Error)>) -> anyhow::Error {
    let is_wrong_key = failed.iter().any(|(_, error)| error.is::<WrongKey>());
    let tried = failed.iter().map(|(attempt, error)| format!("{}: {error:#}", attempt.address));
    ClientError::NoNodeReached { tried: tried.collect(), is_wrong_key }.into()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn authorities_are_read_once_but_for_a_failure() {
        let (cell, reads) = (OnceLock::new(), Cell::new(0));
        let read = |fails: bool| {
            read_once(&cell, || {
                reads.set(reads.get() + 1);
                if fails { Err(anyhow::anyhow!("no authorities")) } else { Ok(reads.get()) }
            })
        };
        assert!(read(true).is_err());
        assert_eq!((read(false).unwrap(), read(false).unwrap(), reads.get()), (2, 2, 2));
    }

    #[test]
    fn each_node_is_tried_before_the_second_address_of_any() {
        let node = |id: &str, addresses: &[&str]| NodeReach {
            id: id.into(),
            addresses: addresses.iter().map(|at| (*at).into()).collect(),
            fingerprint: String::new(),
        };
        let nodes = [node("n1", &["a:1", "b:1"]), node("n2", &[]), node("n3", &["c:1"])];
        let order: Vec<String> = in_order(&nodes).into_iter().map(|one| one.address).collect();
        assert_eq!(order, ["a:1", "c:1", "b:1"]);
    }

    #[tokio::test]
    async fn what_was_tried_is_told() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = closed.local_addr().unwrap().to_string();
        drop(closed);
        let addresses = vec![address.clone()];
        let node = NodeReach { id: "n1".into(), addresses, fingerprint: "00".into() };
        let error = connect(&[node]).await.err().unwrap().to_string();
        assert!(error.contains(&address) && error.contains("refused"), "{error}");
        assert!(connect(&[]).await.is_err());
    }
}
