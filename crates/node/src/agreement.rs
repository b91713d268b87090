//! What a person said of certificates where the node was started: which authority they agreed to,
//! at which addresses strangers reach the node, and how the platform itself is called. It goes into
//! the store, so that all nodes keep to it.

use std::net::IpAddr;

use anyhow::Context;
use model::acme::{AcmeSettings, PublicAddresses};
use model::key::acme_prefix;
use model::record::{self, RECORD_VERSION, Unknown};
use model::{Key, NodeId, PlatformAddress, TypedKey};
use runtime::driver::Clock;
use store::{SharedStore, lookup_record};

use super::NodeConfig;

/// The word for somebody who has the node's machine.
const MACHINE_OWNER: &str = "machine";

/// The authority that a person agreed to on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityOptions {
    /// The URL of its directory.
    pub directory: String,
    pub contact: Option<String>,
    /// The certificates that vouch for its own server, in PEM form.
    pub roots: Option<String>,
}

/// What a person said of the platform's own name on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlatformName {
    Is(PlatformAddress),
    /// It has none any more.
    None,
}

/// Writes to the store what is not there yet.
pub async fn keep(
    store: &SharedStore,
    config: &NodeConfig,
    node: &NodeId,
    clock: Clock,
) -> anyhow::Result<()> {
    if let Some(asked) = &config.authority {
        keep_authority(store, asked, clock).await.context("the authority for certificates")?;
    }
    if let Some(said) = &config.platform {
        keep_platform(store, said).await.context("the platform's own name")?;
    }
    keep_addresses(store, &config.public, node).await.context("the node's public addresses")
}

async fn keep_platform(store: &SharedStore, said: &PlatformName) -> anyhow::Result<()> {
    let key = TypedKey::PlatformAddress.key();
    let known: Option<PlatformAddress> = lookup_record(&**store, key.clone()).await?;
    match said {
        PlatformName::None if known.is_none() => {}
        PlatformName::None => drop(store.delete(key).await?),
        PlatformName::Is(address) if known.as_ref() == Some(address) => {}
        PlatformName::Is(address) => {
            store.set(key, record::encode(address).into()).await?;
        }
    }
    Ok(())
}

async fn keep_authority(
    store: &SharedStore,
    asked: &AuthorityOptions,
    clock: Clock,
) -> anyhow::Result<()> {
    let key = TypedKey::AcmeSettings.key();
    let known: Option<AcmeSettings> = lookup_record(&**store, key.clone()).await?;
    let moves = known.as_ref().is_some_and(|known| known.directory != asked.directory);
    let directory = asked.directory.clone();
    let settings = AcmeSettings::agreed(known.clone(), directory, clock.now(), MACHINE_OWNER);
    let settings = AcmeSettings {
        contact: asked.contact.clone().or(settings.contact),
        roots: asked.roots.clone().or(settings.roots),
        ..settings
    };
    if known.as_ref() != Some(&settings) {
        store.set(key, record::encode(&settings).into()).await?;
    }
    if moves {
        // The next authority knows nothing of orders and refusals of the last one.
        let is_order = |key: &Key| matches!(TypedKey::parse(key), Some(TypedKey::AcmeOrder(_)));
        for order in store.keys(&acme_prefix()).await?.into_iter().filter(is_order) {
            store.delete(order).await?;
        }
    }
    Ok(())
}

async fn keep_addresses(
    store: &SharedStore,
    addresses: &[IpAddr],
    node: &NodeId,
) -> anyhow::Result<()> {
    let key = TypedKey::PublicAddresses(node.clone()).key();
    let known: Option<PublicAddresses> = lookup_record(&**store, key.clone()).await?;
    match (known, addresses.is_empty()) {
        (Some(_), true) => drop(store.delete(key).await?),
        (known, false) if known.as_ref().is_none_or(|one| one.addresses != addresses) => {
            let addresses = addresses.to_vec();
            let record = PublicAddresses { v: RECORD_VERSION, addresses, unknown: Unknown::new() };
            store.set(key, record::encode(&record).into()).await?;
        }
        _ => {}
    }
    Ok(())
}
