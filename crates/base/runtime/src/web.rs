//! TLS to a server that an authority of the public web vouches for, as far as this machine trusts
//! them.

use std::sync::Arc;

use anyhow::anyhow;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Returns the authorities that this machine trusts.
pub fn roots_of_machine() -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
        return Err(anyhow!(
            "this machine trusts no authorities{why}: install its package of them, which is \
             `ca-certificates` on Debian"
        ));
    }
    Ok(roots)
}

/// Returns the configuration of a client that trusts these authorities, and speaks this protocol if
/// any is named.
pub fn client_config(
    roots: RootCertStore,
    alpn: Option<&[u8]>,
) -> anyhow::Result<Arc<ClientConfig>> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.map(<[u8]>::to_vec).into_iter().collect();
    Ok(Arc::new(config))
}
