//! The roster as the transport reads it: who is a member and where each is found. Keeps this
//! node's own entry right; must not put it back once somebody removed it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use anyhow::Context;
use model::node::Member;
use model::record::{self, RECORD_VERSION, Unknown};
use model::{NodeId, Prefix, Timestamp, TypedKey};

use crate::store::{Store, readable};

/// Of one member; more are not tried.
pub const ADDRESSES_MAX: usize = 8;

pub type Addresses = BTreeMap<NodeId, Vec<String>>;

pub fn prefix() -> Prefix {
    "cluster::nodes".parse().expect("a well-formed prefix")
}

/// A record that cannot be read is reported and its node still a member, without an address.
pub async fn read(store: &dyn Store) -> anyhow::Result<Addresses> {
    let entries = store.prefix(&prefix()).await?;
    let mut roster = Addresses::new();
    for entry in entries {
        let Some(TypedKey::Member(node)) = TypedKey::parse(&entry.key) else { continue };
        let member: Option<Member> = readable(&entry.key, Some(&entry.value));
        let mut addresses = member.map(|member| member.addresses).unwrap_or_default();
        addresses.truncate(ADDRESSES_MAX);
        roster.insert(node, addresses);
    }
    Ok(roster)
}

/// Durable when it returns.
pub async fn enter(
    store: &dyn Store,
    node: &NodeId,
    addresses: Vec<String>,
    now: Timestamp,
) -> anyhow::Result<()> {
    let key = TypedKey::Member(node.clone()).key();
    let held = store.lookup(&key).await?;
    let held: Option<Member> = readable(&key, held.as_ref().map(|entry| &entry.value));
    let fresh = || Member {
        v: RECORD_VERSION,
        id: node.clone(),
        joined_at: now,
        addresses: Vec::new(),
        unknown: Unknown::new(),
    };
    let member = Member { addresses, ..held.unwrap_or_else(fresh) };
    store.set(key, record::encode(&member).into()).await.context("the roster")?;
    Ok(())
}

/// Whether this node was ever on the books here: then only an invitation brings it back.
pub async fn was_ever_entered(store: &dyn Store, node: &NodeId) -> anyhow::Result<bool> {
    let own: Prefix = format!("cluster::nodes::{node}").parse()?;
    match store.history(&own, 1).await {
        Ok(history) => Ok(!history.is_empty()),
        // Another kind of store has no history, and no other members.
        Err(_) => Ok(store.lookup(&TypedKey::Member(node.clone()).key()).await?.is_some()),
    }
}

/// Where others find this node. Asking the kernel for a route sends nothing.
pub fn reachable_at(listen: SocketAddr, towards: Option<IpAddr>) -> SocketAddr {
    if !listen.ip().is_unspecified() {
        return listen;
    }
    // An address that documents use, and no machine has.
    let outside = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    let local = |to: IpAddr| {
        let socket = UdpSocket::bind(SocketAddr::new(listen.ip(), 0)).ok()?;
        socket.connect(SocketAddr::new(to, 9)).ok()?;
        let local = socket.local_addr().ok()?.ip();
        (!local.is_unspecified()).then_some(local)
    };
    let ip = towards.and_then(local).or_else(|| local(outside));
    SocketAddr::new(ip.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_others_can_use_is_found() {
        let given: SocketAddr = "127.0.0.1:8205".parse().unwrap();
        assert_eq!(reachable_at(given, None), given);
        let any: SocketAddr = "0.0.0.0:8205".parse().unwrap();
        let towards = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert_eq!(reachable_at(any, towards), given);
        assert!(!reachable_at(any, None).ip().is_unspecified());
    }
}
