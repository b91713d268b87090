//! Adding a brand new node from a member: the node waits on its node port and shows a key; the
//! caller compares that with what the node shows to people, and gives it an invitation, which is
//! redeemed as usual. A node waits only if it was told to, and for one invitation.

use std::net::TcpListener as StdListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use model::NodeId;
use model::hex::to_hex;
use rcgen::{CertificateParams, KeyPair};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use super::frame::{GREETING_BYTES_MAX, read_json, write_json};
use super::identity::{KeyPin, node_key, pin_of, pin_of_key};
use super::invitation::Token;
use super::tls::{Trust, agreed, provider, stranger};

const ALPN_ADD: &[u8] = b"cortex-add/1";
/// The name in the certificate of a node that belongs to no cluster.
const NAME: &str = "new.cortex";
const FORMAT: u32 = 1;
const CALL_MAX: Duration = Duration::from_secs(10);
/// The time for a decision: a person reads a fingerprint and walks to another machine meanwhile.
const DECISION_MAX: Duration = Duration::from_secs(600);
/// The number of callers at a time, so that a stranger who calls and says nothing keeps nobody else
/// away.
const CALLERS_MAX: usize = 16;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The number of bytes shown of the key's hash: nobody can make another key with the same sixteen.
const SHOWN_BYTES: usize = 16;

#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    v: u32,
    node: NodeId,
}

#[derive(Debug, Serialize, Deserialize)]
struct Offer {
    v: u32,
    invitation: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum InvitationReply {
    Yes,
    No { reason: String },
}

/// Returns a pin in the form in which people compare it.
fn shown(pin: &KeyPin) -> String {
    let digits = to_hex(&pin[..SHOWN_BYTES]);
    let groups = digits.as_bytes().chunks(4).map(|group| String::from_utf8_lossy(group));
    groups.collect::<Vec<_>>().join(" ")
}

/// Runs the new node's side: waits until somebody has given it an invitation.
pub async fn wait(dir: &Path, node: &NodeId, listener: &StdListener) -> anyhow::Result<Token> {
    let key = node_key(dir)?;
    let address = listener.local_addr()?;
    let acceptor = TlsAcceptor::from(Arc::new(server_config(&key)?));
    let listener = TcpListener::from_std(listener.try_clone()?)?;
    eprintln!("This node waits to be added to a cluster. On one of its members, give:");
    eprintln!("  vera --add-node {address}");
    eprintln!("Its fingerprint is {}", shown(&pin_of_key(&key)));
    let mut callers = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if callers.len() < CALLERS_MAX => match accepted {
                Ok((stream, _)) => {
                    let taking = take(acceptor.clone(), node.clone(), stream);
                    callers.spawn(timeout(DECISION_MAX, taking));
                }
                Err(error) => {
                    tracing::warn!(%error, "peer.accept_failed");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(ended) = callers.join_next() => match ended {
                Ok(Ok(Ok(token))) => return Ok(token),
                Ok(Ok(Err(error))) => {
                    tracing::warn!(error = format!("{error:#}"), "peer.not_added");
                }
                Ok(Err(_)) | Err(_) => tracing::warn!("peer.not_added: nobody decided"),
            },
        }
    }
}

async fn take(acceptor: TlsAcceptor, node: NodeId, stream: TcpStream) -> anyhow::Result<Token> {
    let accepting = timeout(CALL_MAX, acceptor.accept(stream)).await;
    let mut stream: server::TlsStream<TcpStream> = accepting.context("no handshake")??;
    agreed(stream.get_ref().1.alpn_protocol(), ALPN_ADD)?;
    write_json(&mut stream, &Hello { v: FORMAT, node }).await?;
    let offer: Offer = read_json(&mut stream, GREETING_BYTES_MAX).await?;
    let token = match offer.invitation.parse::<Token>() {
        Ok(token) if offer.v == FORMAT => Ok(token),
        Ok(_) => Err("the two nodes run versions of Cortex that differ too much".to_string()),
        Err(error) => Err(error.to_string()),
    };
    let taken = match &token {
        Ok(_) => InvitationReply::Yes,
        Err(reason) => InvitationReply::No { reason: reason.clone() },
    };
    write_json(&mut stream, &taken).await?;
    tokio::io::AsyncWriteExt::shutdown(&mut stream).await.ok();
    token.map_err(|reason| anyhow!(reason))
}

fn server_config(key: &KeyPair) -> anyhow::Result<ServerConfig> {
    let certificate = CertificateParams::new(vec![NAME.to_string()])?.self_signed(key)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.into()], key)?;
    config.alpn_protocols = vec![ALPN_ADD.to_vec()];
    Ok(config)
}

/// A node that waits, with the key that it has shown.
pub struct WaitingNode {
    stream: client::TlsStream<TcpStream>,
    node: NodeId,
    pin: KeyPin,
}

/// Calls a node that waits, on the member's side.
pub async fn call(address: &str) -> anyhow::Result<WaitingNode> {
    let calling = async {
        let stream = TcpStream::connect(address).await.context("nobody answers")?;
        let connector = TlsConnector::from(stranger(Trust::Anybody, ALPN_ADD)?);
        let stream = connector.connect(ServerName::try_from(NAME)?, stream).await;
        let mut stream = stream.context(
            "who answers there does not wait to be added: it is a member already, or no node",
        )?;
        agreed(stream.get_ref().1.alpn_protocol(), ALPN_ADD)?;
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let pin = pin_of(shown.context("it showed no certificate")?)?;
        let hello: Hello = read_json(&mut stream, GREETING_BYTES_MAX).await?;
        ensure!(hello.v == FORMAT, "it runs another version of Cortex: start the same on both");
        Ok(WaitingNode { stream, node: hello.node, pin })
    };
    timeout(CALL_MAX, calling).await.map_err(|_| anyhow!("no answer in time"))?
}

impl WaitingNode {
    pub fn fingerprint(&self) -> String {
        shown(&self.pin)
    }

    /// Invites the node, after somebody has compared the fingerprint. Returns the invited node.
    pub async fn invite(mut self, invitation: &str) -> anyhow::Result<NodeId> {
        let offer = Offer { v: FORMAT, invitation: invitation.into() };
        let answering = async {
            write_json(&mut self.stream, &offer).await?;
            read_json::<InvitationReply>(&mut self.stream, GREETING_BYTES_MAX).await
        };
        match timeout(CALL_MAX, answering).await.map_err(|_| anyhow!("no answer in time"))?? {
            InvitationReply::Yes => Ok(self.node),
            InvitationReply::No { reason } => bail!(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_invitation_goes_to_the_key_that_was_compared() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("cluster");
        let listener = super::super::listen::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let expected = shown(&pin_of_key(&node_key(&dir).unwrap()));
        let waiting = runtime::task::spawn(async move {
            let node = "new".parse().unwrap();
            wait(&dir, &node, &listener).await.unwrap()
        });
        // A text that is no invitation is refused, and the node waits on.
        let found = call(&address).await.unwrap();
        assert_eq!((found.fingerprint(), found.node.as_str()), (expected.clone(), "new"));
        assert_eq!(expected.split(' ').count(), SHOWN_BYTES / 2);
        let refused = found.invite("no invitation").await.unwrap_err().to_string();
        assert!(refused.contains("cortex nodes invite"), "{refused}");
        let (cluster, authority, secret) = ("0".repeat(32), "1".repeat(64), "2".repeat(32));
        let text = format!("cortex1.a.{cluster}.{authority}.{secret}.127.0.0.1:8205");
        call(&address).await.unwrap().invite(&text).await.unwrap();
        assert_eq!(waiting.await.unwrap().to_string(), text);
    }
}
