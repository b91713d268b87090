//! The credential of this node towards the others: a certificate that is renewed long before it
//! ends. Its key, which the others have pinned, stays. Shared by all configurations of TLS between
//! nodes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use model::NodeId;
use rcgen::KeyPair;
use store_core::sync::message::ClusterId;
use time::OffsetDateTime;
use tokio_rustls::rustls::SignatureScheme;
use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

use super::identity::{Authority, random};
use super::tls::provider;

/// The validity of a certificate: a stolen one is of no use for longer, and clocks that are days
/// apart do no harm.
pub const LIFE: Duration = Duration::from_secs(90 * DAY);
const DAY: u64 = 24 * 3600;
/// The age at which a certificate is renewed: a third of its life is left to notice that this
/// fails.
const RENEWED_AFTER: Duration = Duration::from_secs(60 * DAY);
/// The longest time by which a renewal is earlier, so that nodes that started together do not renew
/// together.
const JITTER: Duration = Duration::from_secs(10 * DAY);
/// The time between two checks: machines that sleep and clocks that are set make long waits
/// unreliable.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);

pub struct Credential {
    cluster: ClusterId,
    node: NodeId,
    authority: Authority,
    key: KeyPair,
    shown: ArcSwap<Shown>,
}

#[derive(Debug)]
struct Shown {
    certified: Arc<CertifiedKey>,
    renew_at: OffsetDateTime,
}

impl Credential {
    pub fn new(
        authority: &Authority,
        cluster: ClusterId,
        node: &NodeId,
        key: &KeyPair,
        now: OffsetDateTime,
    ) -> anyhow::Result<Arc<Credential>> {
        let authority = Authority::from_pem(authority.certificate_pem(), &authority.key_pem())?;
        let key = KeyPair::from_pem(&key.serialize_pem())?;
        let shown = ArcSwap::from_pointee(certify(&authority, cluster, node, &key, now)?);
        Ok(Arc::new(Credential { cluster, node: node.clone(), authority, key, shown }))
    }

    /// Makes a new certificate if it is time for one; returns whether it was.
    pub fn renew(&self, now: OffsetDateTime) -> anyhow::Result<bool> {
        if now < self.shown.load().renew_at {
            return Ok(false);
        }
        let new = certify(&self.authority, self.cluster, &self.node, &self.key, now)?;
        self.shown.store(Arc::new(new));
        Ok(true)
    }

    /// Renews the certificate for as long as the node runs.
    pub async fn keep(self: Arc<Self>) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            match self.renew(OffsetDateTime::now_utc()) {
                Ok(true) => tracing::info!("peer.certificate_renewed"),
                Ok(false) => {}
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::error!(error, "peer.certificate_not_renewed");
                }
            }
        }
    }
}

fn certify(
    authority: &Authority,
    cluster: ClusterId,
    node: &NodeId,
    key: &KeyPair,
    now: OffsetDateTime,
) -> anyhow::Result<Shown> {
    let made = authority.certify(cluster, node, key, now)?;
    let certified = CertifiedKey::from_der(made.chain, made.key, &provider())
        .context("this node's own certificate")?;
    let share = f64::from(u16::from_le_bytes(random()?)) / f64::from(u16::MAX);
    let renew_at = now + RENEWED_AFTER - JITTER.mul_f64(share);
    Ok(Shown { certified: Arc::new(certified), renew_at })
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential").field("node", &self.node).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Credential {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.shown.load().certified.clone())
    }
}

impl ResolvesClientCert for Credential {
    fn resolve(
        &self,
        _authorities: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        Some(self.shown.load().certified.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::super::identity::Membership;
    use super::super::tls::ClusterTls;
    use super::*;

    fn id(name: &str) -> NodeId {
        name.parse().unwrap()
    }

    /// Returns the certificate that the called side shows, if both take each other for members.
    async fn meet(caller: &ClusterTls, called: &ClusterTls, name: &NodeId) -> Option<Vec<u8>> {
        let (near, far) = tokio::io::duplex(1 << 16);
        let acceptor = TlsAcceptor::from(called.member_server.clone());
        let accepting = async {
            let mut stream = acceptor.accept(far).await.ok()?;
            stream.write_all(b"x").await.ok()?;
            stream.flush().await.ok()
        };
        let calling = async {
            let connector = TlsConnector::from(caller.node_client());
            let mut stream = connector.connect(caller.server_name(name).ok()?, near).await.ok()?;
            // Only now is it known that the caller's own certificate was good.
            stream.read_exact(&mut [0]).await.ok()?;
            Some(stream.get_ref().1.peer_certificates()?.first()?.to_vec())
        };
        let (accepted, shown) = tokio::join!(accepting, calling);
        accepted.and(shown)
    }

    #[tokio::test]
    async fn certificates_end_and_are_made_anew_before_that() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Membership::load_or_found(dir.path()).unwrap().id();
        let authority = Authority::load_or_make(dir.path(), cluster).unwrap();
        let now = OffsetDateTime::now_utc();
        let started = |name: &str, at| {
            let key = KeyPair::generate().unwrap();
            ClusterTls::new_at(&authority, cluster, &id(name), &key, at).unwrap()
        };
        let (young, old) = (started("n1", now), started("n2", now - LIFE - Duration::from_secs(1)));
        assert_eq!(meet(&young, &old, &id("n2")).await, None, "of one that has ended");
        assert_eq!(meet(&old, &young, &id("n1")).await, None, "shown by the caller");
        assert!(old.credential.renew(now).unwrap());
        let shown = meet(&young, &old, &id("n2")).await.expect("it is good again");
        assert!(meet(&old, &young, &id("n1")).await.is_some());
        // The others recognise it by its key.
        assert_eq!(super::super::identity::pin_of(&shown.clone().into()).unwrap(), old.pin);

        assert!(!old.credential.renew(now + Duration::from_secs(49 * DAY)).unwrap());
        assert_eq!(meet(&young, &old, &id("n2")).await.expect("as before"), shown);
        assert!(old.credential.renew(now + RENEWED_AFTER).unwrap());
        // The third node has no earlier session to resume.
        let third = started("n3", now);
        assert_ne!(meet(&third, &old, &id("n2")).await.expect("both are good"), shown);
    }
}
