//! The roster as the transport reads it: who is a member, where each is found and which key it
//! shows. Keeps this node's own entry right; must not restore it once somebody removed it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use anyhow::Context;
use model::hex::{from_hex, to_hex};
use model::node::{Member, NodeAddress};
use model::record::{self, RECORD_VERSION, Unknown};
use model::{Key, NodeId, Prefix, Timestamp, TypedKey};

use super::identity::KeyPin;
use store::{Store, StoreError, Watch, WatchEvent, readable};

/// The number of addresses of one member; more are not tried.
pub const ADDRESSES_MAX: usize = 8;

pub type Addresses = BTreeMap<NodeId, Vec<String>>;

#[derive(Clone, Debug, Default)]
pub struct Roster {
    pub addresses: Addresses,
    /// The pins of members that have said which key they show.
    pub pins: BTreeMap<NodeId, KeyPin>,
    /// The members without a store.
    pub guests: BTreeSet<NodeId>,
    /// The member that is there for the longest time.
    pub eldest: Option<NodeId>,
}

impl Roster {
    /// Returns the roster without the guests.
    pub fn keepers(mut self) -> Roster {
        self.addresses.retain(|node, _| !self.guests.contains(node));
        self.pins.retain(|node, _| !self.guests.contains(node));
        self.guests.clear();
        self
    }
}

pub fn prefix() -> Prefix {
    "cluster::nodes".parse().expect("a well-formed prefix")
}

/// Returns the prefix of the keys under which nodes publish their addresses.
pub fn addresses_prefix() -> Prefix {
    "node".parse().expect("a well-formed prefix")
}

pub fn address_key(node: &NodeId) -> Key {
    format!("node::{node}::address").parse().expect("a well-formed key")
}

pub fn is_address(key: &Key) -> bool {
    key.as_str().ends_with("::address")
}

/// Returns whether a node belongs to the cluster, with a store or without.
pub async fn is_listed(store: &dyn Store, node: &NodeId) -> Result<bool, StoreError> {
    let member = store.lookup(&TypedKey::Member(node.clone()).key()).await?;
    let guest = TypedKey::Guest(node.clone()).key();
    Ok(member.is_some() || store.lookup(&guest).await?.is_some())
}

/// Returns the node whose roster entry this is, whether it keeps a store or not.
pub fn node_of(key: &Key) -> Option<NodeId> {
    match TypedKey::parse(key)? {
        TypedKey::Member(node) | TypedKey::Guest(node) => Some(node),
        _ => None,
    }
}

/// Reads the roster. A record that cannot be read is reported, and its node is still a member,
/// without an address.
pub async fn read(store: &dyn Store) -> anyhow::Result<Roster> {
    let entries = store.prefix(&prefix()).await?;
    let (mut roster, mut first) = (Roster::default(), None);
    for entry in entries {
        let Some(node) = node_of(&entry.key) else { continue };
        let key = address_key(&node);
        let said = store.lookup(&key).await?;
        let said: Option<NodeAddress> = readable(&key, said.as_ref().map(|said| &said.value));
        let member: Option<Member> = readable(&entry.key, Some(&entry.value));
        if let Some(member) = &member {
            let came = (member.joined_at, node.clone());
            first = first.filter(|first| *first < came).or(Some(came));
        }
        let (mut addresses, mut pin) =
            member.map(|member| (member.addresses, member.pin)).unwrap_or_default();
        if let Some(said) = said {
            addresses = said.addresses;
            pin = said.pin.or(pin);
        }
        addresses.truncate(ADDRESSES_MAX);
        if let Some(pin) = pin.as_deref().and_then(from_hex) {
            roster.pins.insert(node.clone(), pin);
        }
        if TypedKey::parse(&entry.key) == Some(TypedKey::Guest(node.clone())) {
            roster.guests.insert(node.clone());
        }
        roster.addresses.insert(node, addresses);
    }
    roster.eldest = first.map(|(_, node)| node);
    Ok(roster)
}

/// Waits for a change of an address; returns `false` when the store has stopped.
pub async fn next_address(moved: &mut Watch) -> bool {
    loop {
        match moved.next().await {
            Some(WatchEvent::Changed { key, .. }) if !is_address(&key) => {}
            Some(_) => return true,
            None => return false,
        }
    }
}

/// Enters a new node, under `TypedKey::Member`, or `TypedKey::Guest` if it keeps no store; its
/// entry is written once. Durable when it returns.
pub async fn enter(
    store: &dyn Store,
    key: TypedKey,
    node: &NodeId,
    addresses: Vec<String>,
    pin: Option<KeyPin>,
    now: Timestamp,
) -> anyhow::Result<()> {
    let member = Member {
        v: RECORD_VERSION,
        id: node.clone(),
        joined_at: now,
        addresses,
        pin: pin.map(|pin| to_hex(&pin)),
        unknown: Unknown::new(),
    };
    store.set(key.key(), record::encode(&member).into()).await.context("the roster")?;
    Ok(())
}

/// Publishes a node's new address, and the pin it shows there.
pub async fn tell_address(
    store: &dyn Store,
    node: &NodeId,
    addresses: Vec<String>,
    pin: Option<KeyPin>,
) -> anyhow::Result<()> {
    let pin = pin.map(|pin| to_hex(&pin));
    let address = NodeAddress { v: RECORD_VERSION, addresses, pin, unknown: Unknown::new() };
    let value = record::encode(&address).into();
    store.set(address_key(node), value).await.context("this node's address")?;
    Ok(())
}

/// Returns whether a node was ever on this roster: then only an invitation brings it back.
pub async fn was_ever_entered(store: &dyn Store, node: &NodeId) -> anyhow::Result<bool> {
    let own: Prefix = format!("cluster::nodes::{node}").parse()?;
    match store.history(&own, 1).await {
        Ok(history) => Ok(!history.is_empty()),
        // Another kind of store has no history, and no other members.
        Err(_) => Ok(store.lookup(&TypedKey::Member(node.clone()).key()).await?.is_some()),
    }
}

/// Returns the address at which others find this node. Asking the kernel for a route sends nothing.
pub fn reachable_at(listen: SocketAddr, towards: Option<IpAddr>) -> SocketAddr {
    if !listen.ip().is_unspecified() {
        return listen;
    }
    // This address is reserved for documentation; no machine has it.
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
