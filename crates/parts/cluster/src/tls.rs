//! TLS between nodes: members prove to each other that the cluster's authority named them; a node
//! that redeems an invitation knows nothing but the issuer's fingerprint.

use std::sync::Arc;

use anyhow::{Context, ensure};
use model::NodeId;
use rcgen::KeyPair;
use store_core::sync::message::ClusterId;
use time::OffsetDateTime;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, CertificateError, ClientConfig, RootCertStore, ServerConfig};

use super::credential::Credential;
use super::identity::{Authority, KeyPin, fingerprint, name_of, pin_of, pin_of_key};
use runtime::judged::{self, Shown};
use runtime::members::StreamKind;

/// The protocol of replication, liveness and messages.
pub const ALPN_NODE: &[u8] = b"cortex-node/1";
/// The protocol of large values.
pub const ALPN_BULK: &[u8] = store::bulk::ALPN;
/// The protocol of requests for instances, from router to router.
pub const ALPN_ROUTER: &[u8] = b"cortex-router/1";
/// The protocol of a node without a store and one that keeps it.
pub const ALPN_STORE: &[u8] = b"cortex-store/1";
/// The protocol of redeeming an invitation; the only one that wants no certificate of the caller.
pub const ALPN_JOIN: &[u8] = b"cortex-join/1";

/// The protocol of people's clients, who bring a token and no certificate.
pub const ALPN_CLIENT: &[u8] = b"http/1.1";

/// Returns the name of a kind of stream in the handshake.
pub fn stream_alpn(kind: StreamKind) -> &'static [u8] {
    match kind {
        StreamKind::Files => b"cortex-files/1",
        StreamKind::Probe => b"cortex-probe/1",
        StreamKind::Call => b"cortex-call/1",
        StreamKind::Listeners => b"cortex-listeners/1",
        StreamKind::Certificates => b"cortex-certificates/1",
        StreamKind::Secrets => b"cortex-secrets/1",
    }
}

/// The TLS configurations of one node in its cluster.
pub struct ClusterTls {
    pub cluster: ClusterId,
    /// This node's own pin.
    pub pin: KeyPin,
    pub credential: Arc<Credential>,
    node_client: Arc<ClientConfig>,
    bulk_client: Arc<ClientConfig>,
    router_client: Arc<ClientConfig>,
    store_client: Arc<ClientConfig>,
    stream_clients: [Arc<ClientConfig>; StreamKind::ALL.len()],
    pub member_server: Arc<ServerConfig>,
    pub join_server: Arc<ServerConfig>,
    pub client_server: Arc<ServerConfig>,
}

pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

impl ClusterTls {
    pub fn new(
        authority: &Authority,
        cluster: ClusterId,
        node: &NodeId,
        key: &KeyPair,
    ) -> anyhow::Result<ClusterTls> {
        Self::new_at(authority, cluster, node, key, OffsetDateTime::now_utc())
    }

    pub fn new_at(
        authority: &Authority,
        cluster: ClusterId,
        node: &NodeId,
        key: &KeyPair,
        now: OffsetDateTime,
    ) -> anyhow::Result<ClusterTls> {
        let credential = Credential::new(authority, cluster, node, key, now)?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.certificate.clone())?;
        let roots = Arc::new(roots);
        let client = |alpn: &[u8]| -> anyhow::Result<Arc<ClientConfig>> {
            let mut config = ClientConfig::builder_with_provider(provider())
                .with_protocol_versions(&[&rustls::version::TLS13])?
                .with_root_certificates(roots.clone())
                .with_client_cert_resolver(credential.clone());
            config.alpn_protocols = vec![alpn.to_vec()];
            Ok(Arc::new(config))
        };
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots.clone(), provider()).build()?;
        let mut member_server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(credential.clone());
        let spoken = [ALPN_NODE, ALPN_BULK, ALPN_ROUTER, ALPN_STORE];
        let all = spoken.into_iter().chain(StreamKind::ALL.map(stream_alpn));
        member_server.alpn_protocols = all.map(<[u8]>::to_vec).collect();
        let for_strangers = |alpn: &[u8]| -> anyhow::Result<Arc<ServerConfig>> {
            let mut config = ServerConfig::builder_with_provider(provider())
                .with_protocol_versions(&[&rustls::version::TLS13])?
                .with_no_client_auth()
                .with_cert_resolver(credential.clone());
            config.alpn_protocols = vec![alpn.to_vec()];
            Ok(Arc::new(config))
        };
        let join_server = for_strangers(ALPN_JOIN)?;
        let client_server = for_strangers(ALPN_CLIENT)?;
        Ok(ClusterTls {
            cluster,
            pin: pin_of_key(key),
            credential: credential.clone(),
            node_client: client(ALPN_NODE)?,
            bulk_client: client(ALPN_BULK)?,
            router_client: client(ALPN_ROUTER)?,
            store_client: client(ALPN_STORE)?,
            stream_clients: [
                client(stream_alpn(StreamKind::Files))?,
                client(stream_alpn(StreamKind::Probe))?,
                client(stream_alpn(StreamKind::Call))?,
                client(stream_alpn(StreamKind::Listeners))?,
                client(stream_alpn(StreamKind::Certificates))?,
                client(stream_alpn(StreamKind::Secrets))?,
            ],
            member_server: Arc::new(member_server),
            join_server,
            client_server,
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

    pub fn stream_client(&self, kind: StreamKind) -> Arc<ClientConfig> {
        self.stream_clients[kind as usize].clone()
    }

    pub fn store_client(&self) -> Arc<ClientConfig> {
        self.store_client.clone()
    }

    pub fn server_name(&self, node: &NodeId) -> anyhow::Result<ServerName<'static>> {
        server_name(self.cluster, node)
    }

    /// Checks that the certificate of a peer, signed by the authority, is that of this node. A
    /// removed node could sign any name for itself, but not with a member's key.
    pub fn is_of(
        &self,
        chain: Option<&[CertificateDer<'_>]>,
        node: &NodeId,
        pinned: Option<KeyPin>,
    ) -> anyhow::Result<()> {
        let first = chain.and_then(|chain| chain.first()).context("it showed no certificate")?;
        let parsed = ParsedCertificate::try_from(first)?;
        rustls::client::verify_server_name(&parsed, &self.server_name(node)?)
            .with_context(|| format!("its certificate is not that of node {node}"))?;
        ensure!(
            pinned.is_none_or(|pinned| pin_of(first).is_ok_and(|shown| shown == pinned)),
            "its key is not the one that node {node} came in with: restore DATA/cluster/node.key \
             there from a copy, or remove the node (`cortex nodes remove {node}`) and invite it \
             again"
        );
        Ok(())
    }
}

fn server_name(cluster: ClusterId, node: &NodeId) -> anyhow::Result<ServerName<'static>> {
    let name = name_of(cluster, node);
    ServerName::try_from(name).context("a node's name in its certificate")
}

/// Returns the configuration for redeeming: it trusts only the node that the fingerprint is of.
pub fn joining(
    pinned: [u8; 32],
    cluster: ClusterId,
    issuer: &NodeId,
) -> anyhow::Result<(Arc<ClientConfig>, ServerName<'static>)> {
    Ok((stranger(Trust::Issuer(pinned), ALPN_JOIN)?, server_name(cluster, issuer)?))
}

/// Returns the configuration of a caller that belongs to no cluster yet, or calls a node that does
/// not.
pub fn stranger(trust: Trust, alpn: &[u8]) -> anyhow::Result<Arc<ClientConfig>> {
    Ok(judged::client_config(Box::new(move |server| trust.judge(&server)), alpn)?)
}

#[derive(Clone, Copy, Debug)]
pub enum Trust {
    /// Any node that has the key of what it shows; a person decides whether that is the right one.
    Anybody,
    /// The issuer of an invitation, which carries this fingerprint.
    Issuer([u8; 32]),
}

impl Trust {
    fn judge(self, server: &Shown<'_>) -> Result<(), rustls::Error> {
        let Trust::Issuer(pinned) = self else { return Ok(()) };
        let unsound = |_| rustls::Error::InvalidCertificate(CertificateError::BadEncoding);
        let issuer = pin_of(server.own).map_err(unsound)?;
        let shown = server.authorities;
        let authority = shown.iter().find(|shown| fingerprint(shown, &issuer) == pinned);
        let unknown = || rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let mut roots = RootCertStore::empty();
        roots.add(authority.ok_or_else(unknown)?.clone().into_owned())?;
        let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
        let usual = usual.build().map_err(|_| unknown())?;
        usual.verify_server_cert(server.own, &[], server.name, &[], server.now)?;
        Ok(())
    }
}

/// Returns the protocol that both sides agreed on; a caller that names none is no node.
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

#[cfg(test)]
mod tests {
    use super::super::identity::Membership;
    use super::*;

    #[test]
    fn a_name_that_the_authority_signed_is_not_enough() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Membership::load_or_found(dir.path()).unwrap().id();
        let authority = Authority::load_or_make(dir.path(), cluster).unwrap();
        let (own, other): (NodeId, NodeId) = ("n1".parse().unwrap(), "n2".parse().unwrap());
        let keys = [(); 3].map(|()| KeyPair::generate().unwrap());
        let tls = ClusterTls::new(&authority, cluster, &own, &keys[0]).unwrap();
        let shown =
            authority.certify(cluster, &other, &keys[1], OffsetDateTime::now_utc()).unwrap().chain;
        let check = |node, pin| tls.is_of(Some(&shown), node, pin).map_err(|e| e.to_string());
        assert_eq!(check(&other, Some(pin_of_key(&keys[1]))), Ok(()));
        // For a node that has not said its key, the name has to do.
        assert_eq!(check(&other, None), Ok(()));
        let error = check(&other, Some(pin_of_key(&keys[2]))).unwrap_err();
        assert!(error.contains("its key is not the one") && error.contains("remove n2"), "{error}");
        assert!(check(&own, None).unwrap_err().contains("not that of node n1"));
        assert!(tls.is_of(None, &other, None).is_err());
    }
}
