//! TLS 1.3 to a server that is judged by what it shows, and not by the authorities of the public
//! web: by its key, or by the authority of its own cluster. Whoever makes such a configuration says
//! how; that the server has the key of its certificate is always proven.

use std::fmt;
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{self, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

/// What a server shows in a handshake.
pub struct Shown<'a> {
    pub own: &'a CertificateDer<'a>,
    pub authorities: &'a [CertificateDer<'a>],
    /// The name by which it was called.
    pub name: &'a ServerName<'a>,
    pub now: UnixTime,
}

/// A function that accepts a server or says why not.
pub type Judge = Box<dyn Fn(Shown<'_>) -> Result<(), Error> + Send + Sync>;

/// Returns the configuration of a client that shows no certificate, and speaks this protocol.
pub fn client_config(judge: Judge, alpn: &[u8]) -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(ring::default_provider());
    let judged = Judged { judge, provider: provider.clone() };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(judged))
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    Ok(Arc::new(config))
}

struct Judged {
    judge: Judge,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Judged")
    }
}

impl ServerCertVerifier for Judged {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        authorities: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        (self.judge)(Shown { own, authorities, name, now })?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.3 alone is spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
