//! Preparation before the store is opened: settles where this node listens, and has it let into its
//! cluster.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::bail;
use model::NodeId;
use os::layout::DataDirectory;
use os::shared_port::Listeners;

use super::frame::Versions;
use super::identity::Membership;
use super::options::{NODE_PORT, PeerOptions};
use super::{adding, join, listen};

const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), NODE_PORT);

/// The result of preparation.
#[derive(Debug)]
pub struct Prepared {
    pub listener: Option<TcpListener>,
    pub listen: SocketAddr,
    pub advertise: Option<SocketAddr>,
    pub versions: Versions,
    pub listeners: Arc<Listeners>,
}

/// Redeems the invitation, if one was given; the identity that results is durable then. Blocks
/// until the issuer answers.
pub async fn prepare(
    layout: &DataDirectory,
    node: &NodeId,
    options: &PeerOptions,
) -> anyhow::Result<Prepared> {
    let dir = layout.cluster();
    let held = Membership::load(&dir)?;
    let before = held.as_ref().and_then(|held| held.listen);
    let asked = options.listen.or(before).unwrap_or(LISTEN_DEFAULT);
    let wanted = options.listen.is_some() || options.joins() || before.is_some();
    let listener = wanted.then(|| listen::have(asked, &options.listeners)).transpose()?;
    let listen = match &listener {
        Some(listener) => listener.local_addr()?,
        None => asked,
    };
    let joins = match (&listener, &held) {
        _ if options.join.is_some() => options.join.clone(),
        (Some(listener), None) if options.awaits => Some(adding::wait(&dir, node, listener).await?),
        (_, Some(held)) if options.awaits && held.redeemed.is_none() => bail!(
            "this node has a store of its own already, and --await is for a brand new one: give \
             it an empty --data-dir, or leave --await out"
        ),
        _ => None,
    };
    if let Some(token) = &joins {
        join::redeem(&dir, token, node, listen, options).await?;
    } else if options.listen.is_some() && before != Some(listen) {
        let held = held.map_or_else(|| Membership::load_or_found(&dir), Ok)?;
        Membership { listen: Some(listen), ..held }.save(&dir)?;
    }
    let listeners = options.listeners.clone();
    let (advertise, versions) = (options.advertise, options.versions);
    Ok(Prepared { listener, listen, advertise, versions, listeners })
}
