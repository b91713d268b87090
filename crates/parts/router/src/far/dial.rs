//! Calls to the router of another node. The handshake proves to both that the other is a member;
//! the connection is kept by the thread that called.

use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::Connection;

use super::peer::FarPeer;
use super::sealed::Sealed;
use crate::plain::Plain;
use crate::shared::Shared;
use crate::time_limit::within;
use crate::wire::Wire;

/// The time to connect: a machine that is there answers at once; one that is not counts as down
/// within two seconds.
const CALL_TIME_MAX: Duration = Duration::from_secs(5);

pub async fn connect(shared: &Shared, peer: &Arc<FarPeer>) -> Result<Wire> {
    let peers = shared.peers().clone();
    let peers = peers.ok_or_else(|| Error::other("this node knows no others"))?;
    let calling = async {
        let called = peers.call_router(&peer.node).await;
        called.map_err(|error| Error::other(format!("{error:#}")))
    };
    let called = tokio::select! {
        biased;
        called = within(CALL_TIME_MAX, calling) => called?,
        () = peer.gone() => return Err(Error::from(ErrorKind::HostUnreachable)),
    };
    let (tcp, tls) = called.into_inner();
    let tcp = Plain::from(tcp.into_std()?);
    let sealed = Sealed::new(tcp, Connection::Client(tls), Some(peer.clone()))?;
    Ok(Wire::Sealed(Box::new(sealed)))
}
