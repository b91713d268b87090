//! Who may speak to whom: TLS between members, each proving that the cluster's authority named it,
//! and TLS for those who redeem an invitation and know nothing but that authority's fingerprint.

use std::sync::Arc;

use anyhow::{Context, ensure};
use model::NodeId;
use store::sync::message::ClusterId;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig,
    SignatureScheme,
};

use super::identity::{Authority, fingerprint, name_of};

/// Replication, liveness, messages.
pub const ALPN_NODE: &[u8] = b"cortex-node/1";
/// Large values.
pub const ALPN_BULK: &[u8] = b"cortex-bulk/1";
/// Requests for instances, from router to router.
pub const ALPN_ROUTER: &[u8] = b"cortex-router/1";
/// Files of an application that is to run on the node that calls.
pub const ALPN_FILES: &[u8] = b"cortex-files/1";
/// Redeeming an invitation; the only one that wants no certificate of the caller.
pub const ALPN_JOIN: &[u8] = b"cortex-join/1";

/// One node's view of TLS in its cluster.
pub struct ClusterTls {
    pub cluster: ClusterId,
    node_client: Arc<ClientConfig>,
    bulk_client: Arc<ClientConfig>,
    router_client: Arc<ClientConfig>,
    files_client: Arc<ClientConfig>,
    pub member_server: Arc<ServerConfig>,
    pub join_server: Arc<ServerConfig>,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

impl ClusterTls {
    pub fn new(
        authority: &Authority,
        cluster: ClusterId,
        node: &NodeId,
    ) -> anyhow::Result<ClusterTls> {
        let own = authority.certify(cluster, node)?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.certificate.clone())?;
        let roots = Arc::new(roots);
        let client = |alpn: &[u8]| -> anyhow::Result<Arc<ClientConfig>> {
            let mut config = ClientConfig::builder_with_provider(provider())
                .with_protocol_versions(&[&rustls::version::TLS13])?
                .with_root_certificates(roots.clone())
                .with_client_auth_cert(own.chain.clone(), own.key.clone_key())?;
            config.alpn_protocols = vec![alpn.to_vec()];
            Ok(Arc::new(config))
        };
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots.clone(), provider()).build()?;
        let mut member_server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(own.chain.clone(), own.key.clone_key())?;
        member_server.alpn_protocols =
            [ALPN_NODE, ALPN_BULK, ALPN_ROUTER, ALPN_FILES].map(<[u8]>::to_vec).into();
        let mut join_server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(own.chain.clone(), own.key.clone_key())?;
        join_server.alpn_protocols = vec![ALPN_JOIN.to_vec()];
        Ok(ClusterTls {
            cluster,
            node_client: client(ALPN_NODE)?,
            bulk_client: client(ALPN_BULK)?,
            router_client: client(ALPN_ROUTER)?,
            files_client: client(ALPN_FILES)?,
            member_server: Arc::new(member_server),
            join_server: Arc::new(join_server),
        })
    }

    pub fn node_client(&self) -> Arc<ClientConfig> {
        self.node_client.clone()
    }

    pub fn bulk_client(&self) -> Arc<ClientConfig> {
        self.bulk_client.clone()
    }

    pub fn router_client(&self) -> Arc<ClientConfig> {
        self.router_client.clone()
    }

    pub fn files_client(&self) -> Arc<ClientConfig> {
        self.files_client.clone()
    }

    pub fn server_name(&self, node: &NodeId) -> anyhow::Result<ServerName<'static>> {
        server_name(self.cluster, node)
    }

    /// Whether the certificate of a caller, signed by the authority, is that of this node.
    pub fn is_of(&self, chain: Option<&[CertificateDer<'_>]>, node: &NodeId) -> anyhow::Result<()> {
        let first = chain.and_then(|chain| chain.first()).context("it showed no certificate")?;
        let parsed = ParsedCertificate::try_from(first)?;
        rustls::client::verify_server_name(&parsed, &self.server_name(node)?)
            .with_context(|| format!("its certificate is not that of node {node}"))
    }
}

fn server_name(cluster: ClusterId, node: &NodeId) -> anyhow::Result<ServerName<'static>> {
    let name = name_of(cluster, node);
    ServerName::try_from(name).context("a node's name in its certificate")
}

/// For redeeming: trusts whoever the authority with this fingerprint has named.
pub fn joining(
    pinned: [u8; 32],
    cluster: ClusterId,
    issuer: &NodeId,
) -> anyhow::Result<(Arc<ClientConfig>, ServerName<'static>)> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned { pinned, provider: provider() }))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN_JOIN.to_vec()];
    Ok((Arc::new(config), server_name(cluster, issuer)?))
}

#[derive(Debug)]
struct Pinned {
    pinned: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let authority = intermediates.iter().find(|shown| fingerprint(shown) == self.pinned);
        let unknown = || rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let mut roots = RootCertStore::empty();
        roots.add(authority.ok_or_else(unknown)?.clone().into_owned())?;
        let usual =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone());
        let usual = usual.build().map_err(|_| unknown())?;
        usual.verify_server_cert(end_entity, &[], server_name, ocsp_response, now)
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

/// What both sides agreed to speak; a caller that names nothing is no node.
pub fn agreed<'a>(alpn: Option<&'a [u8]>, wanted: &[u8]) -> anyhow::Result<&'a [u8]> {
    let spoken = alpn.unwrap_or_default();
    ensure!(
        spoken == wanted,
        "it speaks '{}' where '{}' was expected; start the same version of Cortex on both",
        String::from_utf8_lossy(spoken),
        String::from_utf8_lossy(wanted)
    );
    Ok(spoken)
}
