//! What a person said of certificates where the node was started: which authority they agreed to,
//! and at which addresses strangers reach the node. It goes into the store, so that all nodes keep
//! to it.

use std::net::IpAddr;

use anyhow::Context;
use model::acme::{AcmeSettings, PublicAddresses};
use model::record::{self, RECORD_VERSION, Unknown};
use model::{NodeId, TypedKey};
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
    keep_addresses(store, &config.public, node).await.context("the node's public addresses")
}

async fn keep_authority(
    store: &SharedStore,
    asked: &AuthorityOptions,
    clock: Clock,
) -> anyhow::Result<()> {
    let key = TypedKey::AcmeSettings.key();
    let known: Option<AcmeSettings> = lookup_record(&**store, key.clone()).await?;
    let same = known.clone().filter(|known| known.directory == asked.directory);
    // What was said of another authority does not hold for this one.
    let settings = same.unwrap_or_else(|| AcmeSettings {
        v: RECORD_VERSION,
        directory: asked.directory.clone(),
        contact: None,
        roots: None,
        profile: None,
        binding: None,
        dns_hook: None,
        agreed_at: clock.now(),
        agreed_by: MACHINE_OWNER.into(),
        unknown: Unknown::new(),
    });
    let settings = AcmeSettings {
        contact: asked.contact.clone().or(settings.contact),
        roots: asked.roots.clone().or(settings.roots),
        ..settings
    };
    if known.as_ref() != Some(&settings) {
        store.set(key, record::encode(&settings).into()).await?;
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
