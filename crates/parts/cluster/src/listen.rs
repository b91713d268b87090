//! The node port: accepts callers, finds out by TLS who each is, and hands them on.

use std::net::{IpAddr, SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use model::NodeId;
use socket2::{SockRef, TcpKeepalive};
use store_core::NodeTag;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, rustls};

use super::frame::{Greeting, GreetingRefused};
use super::handshakes::{HANDSHAKES_MAX, Handshakes};
use super::net::Net;
use super::tls::{
    ALPN_BULK, ALPN_CLIENT, ALPN_JOIN, ALPN_NODE, ALPN_ROUTER, ALPN_STORE, stream_alpn,
};
use super::{join, link, roster};
use os::shared_port::Listeners;
use runtime::members::StreamKind;

const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// The silence of a caller after which its kernel is asked whether it is still there, and the time
/// between two questions: a laptop that was closed holds its connections for some minutes.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// The pause after a failed accept: a lack of descriptors is over in a moment or will be reported
/// again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Returns the listener of the node port, that of the process before if it hands over to this one.
/// It queues callers for as long as any process holds it.
pub fn have(at: SocketAddr, listeners: &Listeners) -> anyhow::Result<StdListener> {
    let listener = listeners.inherited(at).map_or_else(|| bind(at), Ok)?;
    let kept = [listener];
    listeners.keep(at, &kept)?;
    let [listener] = kept;
    Ok(listener)
}

pub fn bind(at: SocketAddr) -> anyhow::Result<StdListener> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(at),
        socket2::Type::STREAM.cloexec().nonblocking(),
        None,
    )?;
    // A node that starts again finds its old connections still ending.
    socket.set_reuse_address(true)?;
    let bound = socket.bind(&at.into()).and_then(|()| socket.listen(1024));
    bound.with_context(|| {
        format!("the node port {at} cannot be had; choose another with --listen HOST:PORT")
    })?;
    Ok(socket.into())
}

pub async fn run(net: Arc<Net>, listener: StdListener) -> anyhow::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let permits = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    let handshakes = Handshakes::default();
    loop {
        let permit = permits.clone().acquire_owned().await?;
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "peer.accept_failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(handshake) = handshakes.begin(from.ip().to_canonical()) else {
            report(&net, from.ip(), &anyhow!("too many handshakes from there are under way"));
            continue;
        };
        let net = net.clone();
        net.clone().spawn(async move {
            let taken = timeout(HANDSHAKE_MAX, shake_hands(&net, stream)).await;
            drop((permit, handshake));
            let handed = match taken {
                Err(_) => Err(anyhow!("it did not finish the handshake")),
                Ok(Err(error)) => Err(error),
                Ok(Ok(caller)) => serve(&net, caller, from.ip()).await,
            };
            if let Err(error) = handed {
                report(&net, from.ip(), &error);
            }
        });
    }
}

fn report(net: &Net, from: IpAddr, error: &anyhow::Error) {
    let reason = format!("{error:#}");
    if net.reports().is_news(from.to_string(), reason.clone()) {
        tracing::warn!(%from, reason, "peer.refused");
    }
}

enum Caller {
    Joins(Box<TlsStream<TcpStream>>),
    /// A person's client, which says who it is in its requests.
    Client(Box<TlsStream<TcpStream>>),
    Member {
        stream: Box<TlsStream<TcpStream>>,
        peer: NodeId,
        wants: Wants,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wants {
    Link,
    Bulk,
    Router,
    Store,
    Stream(StreamKind),
}

async fn shake_hands(net: &Net, stream: TcpStream) -> anyhow::Result<Caller> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    let accepting = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream);
    let start = accepting.await.context("it does not speak TLS")?;
    let offers = |wanted: &[u8]| {
        let hello = start.client_hello();
        hello.alpn().is_some_and(|mut names| names.any(|name| name == wanted))
    };
    if offers(ALPN_CLIENT) {
        // It hears of no token that is revoked from now on. Refused this early, a client asks
        // another node.
        ensure!(!net.is_removed(), "it is a client, and this node was removed from the cluster");
        let stream = start.into_stream(net.tls.client_server.clone()).await?;
        return Ok(Caller::Client(Box::new(stream)));
    }
    if offers(ALPN_JOIN) {
        ensure!(net.book().has_open(net.now()), "it wants to join, and no invitation is open");
        let stream = start.into_stream(net.tls.join_server.clone()).await?;
        return Ok(Caller::Joins(Box::new(stream)));
    }
    let mut stream = start
        .into_stream(net.tls.member_server.clone())
        .await
        .context("its certificate is not of this cluster, or it showed none")?;
    let wants = match stream.get_ref().1.alpn_protocol() {
        Some(ALPN_NODE) => Wants::Link,
        Some(ALPN_BULK) => Wants::Bulk,
        Some(ALPN_ROUTER) => Wants::Router,
        Some(ALPN_STORE) => Wants::Store,
        other => match StreamKind::ALL.into_iter().find(|kind| Some(stream_alpn(*kind)) == other) {
            Some(kind) => Wants::Stream(kind),
            None => bail!("it does not say what it wants to speak"),
        },
    };
    let chain = stream.get_ref().1.peer_certificates().map(<[_]>::to_vec);
    let answer = async |greeting: &Greeting| {
        net.tls.is_of(chain.as_deref(), &greeting.node, net.pin_of(&greeting.node))?;
        let refused = refusal(net, &greeting.node, wants).await?;
        Ok(Greeting { refused, ..Greeting::of(net.node.clone(), net.versions) })
    };
    let greeting = link::greet_back(&mut stream, answer).await?;
    ensure!(greeting.node != net.node, "it calls itself {}, as this node is called", net.node);
    Ok(Caller::Member { stream: Box::new(stream), peer: greeting.node, wants })
}

/// Returns why a caller is refused, if it is. Members are accepted, and for the store's own link
/// also a node that may be a member of which this node has not heard yet.
async fn refusal(
    net: &Net,
    node: &NodeId,
    wants: Wants,
) -> anyhow::Result<Option<GreetingRefused>> {
    if net.links.is_member(NodeTag::from(node)) {
        return Ok(None);
    }
    // This node's own view of the roster is old while it joins itself.
    let known = !net.store_role.is_joining() && roster::was_ever_entered(&*net.store, node).await?;
    Ok(match wants {
        _ if known => Some(GreetingRefused::Removed),
        Wants::Link => None,
        Wants::Bulk | Wants::Router | Wants::Store | Wants::Stream(_) => {
            Some(GreetingRefused::Unknown)
        }
    })
}

async fn serve(net: &Arc<Net>, caller: Caller, from: IpAddr) -> anyhow::Result<()> {
    match caller {
        Caller::Client(stream) => net.take_client(from, stream)?,
        Caller::Joins(stream) => {
            let node = join::serve(net, stream).await?;
            tracing::info!(%node, "peer.admitted");
        }
        Caller::Member { stream, peer, wants: Wants::Bulk } => net.take_bulk(peer, stream),
        Caller::Member { stream, peer, wants: Wants::Store } => net.take_store(peer, stream)?,
        Caller::Member { stream, peer, wants: Wants::Stream(kind) } => {
            net.take_stream(kind, peer, stream)?;
        }
        Caller::Member { stream, peer, wants: Wants::Router } => net.take_router(peer, *stream)?,
        Caller::Member { stream, peer, wants: Wants::Link } => {
            let tag = NodeTag::from(&peer);
            if net.is_shunned(tag) {
                return Ok(());
            }
            net.clone().keep(tag, tag, stream).await;
        }
    }
    Ok(())
}
