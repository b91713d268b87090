//! TLS to a node that is known by its key: whoever proves to have that key is the node, whatever
//! names and times its certificate states, as with SSH's known hosts.

use std::sync::Arc;

use model::hex::to_hex;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    self, ClientConfig, DigitallySignedStruct, OtherError, SignatureScheme,
};

const ALPN: &[u8] = b"http/1.1";

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
    let provider = Arc::new(ring::default_provider());
    let verifier = PinnedKey { expected: fingerprint.to_string(), provider: provider.clone() };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}

#[derive(Debug)]
struct PinnedKey {
    expected: String,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let shown = to_hex(blake3::hash(&parsed.subject_public_key_info()).as_bytes());
        if shown == self.expected {
            return Ok(ServerCertVerified::assertion());
        }
        let wrong = WrongKey { shown, expected: self.expected.clone() };
        Err(rustls::Error::Other(OtherError(Arc::new(wrong))))
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.3 alone is spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
