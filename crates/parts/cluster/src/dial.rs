//! Dials every member that should be linked and is not: with pauses that grow and are partly
//! random, so that the nodes of a cluster that starts at once do not call in step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use model::NodeId;
use store_core::NodeTag;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;

use super::frame::{Greeting, GreetingRefused, Versions};
use super::identity::{KeyPin, random};
use super::liveness::Heard;
use super::net::Net;
use super::roster::Addresses;
use super::tls::{ClusterTls, agreed};
use super::{link, tls};

const CONNECT_MAX: Duration = Duration::from_secs(5);
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The age from which a stream counts as a good one: the next call comes soon.
const LASTED: Duration = Duration::from_secs(5);
/// The time that the node with the higher id waits for the one with the lower to call.
const HIGHER_WAITS: Duration = Duration::from_millis(500);
/// The number of members up to which a node keeps streams to all; with more, it keeps this many,
/// spread over the roster.
pub const LINKS_KEPT_MAX: usize = 64;

#[derive(Default)]
struct Patience {
    pause: Duration,
    not_before: Option<Instant>,
    calling: bool,
}

/// Returns the members that this node links to: all of them, or half of `LINKS_KEPT_MAX` next in
/// the order of ids and half at even distances, so that up to a thousand members are two steps
/// apart.
pub fn chosen(node: &NodeId, members: &[NodeId]) -> Vec<NodeId> {
    let others: Vec<&NodeId> = members.iter().filter(|member| *member != node).collect();
    if others.len() <= LINKS_KEPT_MAX {
        return others.into_iter().cloned().collect();
    }
    let after = others.partition_point(|member| *member < node);
    let near = LINKS_KEPT_MAX / 2;
    let far = LINKS_KEPT_MAX - near;
    let at = |n: usize| others[(after + n) % others.len()].clone();
    let distant = |n: usize| at(near + n * (others.len() - near) / far);
    (0..near).map(at).chain((0..far).map(distant)).collect()
}

/// Runs for as long as the transport does.
pub async fn run(net: Arc<Net>) {
    let mut patience: BTreeMap<NodeId, Patience> = BTreeMap::new();
    let (done, mut ended) = tokio::sync::mpsc::unbounded_channel::<(NodeId, Duration)>();
    loop {
        let addresses = net.addresses();
        let members: Vec<NodeId> = addresses.keys().cloned().collect();
        let wanted = chosen(&net.node, &members);
        patience.retain(|node, patience| patience.calling || wanted.contains(node));
        let linked = net.links.linked();
        let mut next = Instant::now() + PAUSE_MAX;
        for node in wanted {
            let tag = NodeTag::from(&node);
            let patience = patience.entry(node.clone()).or_default();
            if patience.calling || linked.contains(&tag) {
                continue;
            }
            let first =
                Instant::now() + if node < net.node { HIGHER_WAITS } else { Duration::ZERO };
            let not_before = *patience.not_before.get_or_insert(first);
            if not_before > Instant::now() {
                next = next.min(not_before);
                continue;
            }
            patience.calling = true;
            let (net, done, addresses) = (net.clone(), done.clone(), addresses.clone());
            net.clone().spawn(async move {
                let began = Instant::now();
                call(&net, &node, &addresses).await;
                let _ = done.send((node, began.elapsed()));
            });
        }
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = net.links.changed.notified() => {}
            () = net.roster_changed.notified() => {}
            Some((node, lasted)) = ended.recv() => {
                let patience = patience.entry(node).or_default();
                patience.calling = false;
                patience.pause = match lasted >= LASTED {
                    true => PAUSE_MIN,
                    false => (patience.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX),
                };
                patience.not_before = Some(Instant::now() + jittered(patience.pause));
            }
        }
    }
}

/// Returns half of the pause, and up to as much again.
fn jittered(pause: Duration) -> Duration {
    let chance = random::<1>().map_or(128, |[byte]| u32::from(byte));
    pause / 2 + pause * chance / 256
}

/// Calls a member; returns when the stream has ended or could not be made.
async fn call(net: &Arc<Net>, node: &NodeId, addresses: &Addresses) {
    let tag = NodeTag::from(node);
    if net.is_shunned(tag) {
        return;
    }
    match connect(net, node, addresses, net.tls.node_client(), tls::ALPN_NODE).await {
        Ok(stream) => {
            net.reports().forget(node.as_str());
            net.clone().keep(tag, NodeTag::from(&net.node), Box::new(stream)).await;
        }
        Err(error) => {
            if nobody_listens(&error) {
                net.liveness.tell(Heard::Refused(tag));
            }
            let reason = format!("{error:#}");
            if net.reports().is_news(node.to_string(), reason.clone()) {
                tracing::warn!(peer = %node, reason, "peer.unreachable");
            }
        }
    }
}

/// Returns whether the member's machine refused the connection; a member that cannot be reached may
/// be alive.
fn nobody_listens(error: &anyhow::Error) -> bool {
    let refused = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::ConnectionRefused;
    error.chain().any(|cause| cause.downcast_ref().is_some_and(refused))
}

/// The calling node, and what proves its identity.
#[derive(Clone, Copy)]
pub struct CallingNode<'a> {
    pub tls: &'a ClusterTls,
    pub node: &'a NodeId,
    pub versions: Versions,
    /// The pin that the called node has to show; `None` if it is not known.
    pub pin: Option<KeyPin>,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "it says that this node was removed from the cluster: only an invitation brings it back \
     (`cortex nodes invite` there)"
)]
struct WasRemoved;

/// Opens a stream like `reach`, for this node's own transport, which is told if this node was
/// removed.
pub async fn connect(
    net: &Net,
    node: &NodeId,
    addresses: &Addresses,
    config: Arc<ClientConfig>,
    alpn: &[u8],
) -> anyhow::Result<TlsStream<TcpStream>> {
    let (versions, pin) = (net.versions, net.pin_of(node));
    let caller = CallingNode { tls: &net.tls, node: &net.node, versions, pin };
    let reached = reach(caller, node, addresses, config, alpn).await;
    if reached.as_ref().is_err_and(|error| error.is::<WasRemoved>()) {
        net.was_refused(NodeTag::from(node));
    }
    reached
}

/// Opens a stream to the node itself, whoever else may answer at its addresses.
pub async fn reach(
    caller: CallingNode<'_>,
    node: &NodeId,
    addresses: &Addresses,
    config: Arc<ClientConfig>,
    alpn: &[u8],
) -> anyhow::Result<TlsStream<TcpStream>> {
    let known = addresses.get(node).map(Vec::as_slice).unwrap_or_default();
    ensure!(!known.is_empty(), "the roster has no address of it");
    let mut failed = anyhow!("no address was tried");
    for address in known {
        match reach_at(caller, node, address, config.clone(), alpn).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error.context(address.clone()),
        }
    }
    Err(failed)
}

async fn reach_at(
    caller: CallingNode<'_>,
    node: &NodeId,
    address: &str,
    config: Arc<ClientConfig>,
    alpn: &[u8],
) -> anyhow::Result<TlsStream<TcpStream>> {
    let connecting = timeout(CONNECT_MAX, TcpStream::connect(address)).await;
    let stream = connecting.map_err(|_| anyhow!("no answer"))??;
    stream.set_nodelay(true)?;
    let name = caller.tls.server_name(node)?;
    let shaking = async {
        let mut stream = TlsConnector::from(config)
            .connect(name, stream)
            .await
            .context("who answers there is not this node")?;
        let tls = stream.get_ref().1;
        agreed(tls.alpn_protocol(), alpn)?;
        caller.tls.is_of(tls.peer_certificates(), node, caller.pin)?;
        let own = Greeting::of(caller.node.clone(), caller.versions);
        let greeting = link::greet(&mut stream, &own).await?;
        if greeting.node != *node {
            bail!("it calls itself {}", greeting.node);
        }
        match greeting.refused {
            None => {}
            Some(GreetingRefused::Removed) => return Err(WasRemoved.into()),
            Some(GreetingRefused::Unknown) => bail!(
                "this node is not on its roster yet; if that does not end, an older copy of that \
                 node's data was put back, and `cortex nodes` there says what to do"
            ),
        }
        Ok(stream)
    };
    timeout(HANDSHAKE_MAX, shaking).await.map_err(|_| anyhow!("it did not finish the handshake"))?
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn few_members_are_all_linked_and_many_through_few() {
        let members: Vec<NodeId> = (0..500).map(|n| format!("n{n:03}").parse().unwrap()).collect();
        let few = chosen(&members[0], &members[..5]);
        assert_eq!(few, members[1..5]);
        let mut reached: BTreeSet<NodeId> = [members[7].clone()].into();
        for round in 0.. {
            assert!(round < 4, "{} of 500", reached.len());
            let next: Vec<NodeId> =
                reached.iter().flat_map(|node| chosen(node, &members)).collect();
            reached.extend(next);
            if reached.len() == members.len() {
                break;
            }
        }
        let links = chosen(&members[499], &members);
        assert!(links.len() <= LINKS_KEPT_MAX && links.contains(&members[0]));
    }
}
