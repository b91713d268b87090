//! TLS to a node that is known by its key: whoever proves to have that key is the node, whatever
//! names and times its certificate states, as with SSH's known hosts.

use std::sync::Arc;

use model::hex::to_hex;
use runtime::judged::{self, Shown};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{ClientConfig, Error, OtherError};

/// The protocol of the API inside TLS.
pub const ALPN: &[u8] = b"http/1.1";

/// The error that a node has another key than the one that is expected there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it shows the key {shown}, and {expected} is expected: it is another node, or somebody is in \
     between; nothing was sent"
)]
pub struct WrongKey {
    pub shown: String,
    pub expected: String,
}

/// Returns the configuration for a node with this fingerprint: the BLAKE3 of its public key, in
/// hexadecimal digits.
pub fn config(fingerprint: &str) -> anyhow::Result<Arc<ClientConfig>> {
    let expected = fingerprint.to_string();
    let judge = move |server: Shown<'_>| {
        let parsed = ParsedCertificate::try_from(server.own)?;
        let shown = to_hex(blake3::hash(&parsed.subject_public_key_info()).as_bytes());
        if shown == expected {
            return Ok(());
        }
        let wrong = WrongKey { shown, expected: expected.clone() };
        Err(Error::Other(OtherError(Arc::new(wrong))))
    };
    Ok(judged::client_config(Box::new(judge), ALPN)?)
}
