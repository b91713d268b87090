//! The node port: a client that is no member of the cluster reaches no instance through it.

use std::path::Path;
use std::sync::Arc;

use cluster::frame::{Greeting, Versions, read_json, write_json};
use cluster::identity::{Authority, Membership, name_of};
use cluster::tls::ALPN_ROUTER;
use model::{NodeId, ProcessType};
use rcgen::KeyPair;
use router_core::far::{FarOutcome, FarReply, FarRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use super::{NAME, Two};
use crate::node::Node;
use crate::wait::STATE_DEADLINE;

fn authority(directory: &Path) -> (Membership, Authority) {
    let membership = Membership::load_or_found(directory).expect("an identity");
    let authority = Authority::load_or_make(directory, membership.id()).expect("an authority");
    (membership, authority)
}

/// Returns a configuration that trusts `victim` and shows a certificate for `node` by the authority
/// in `shown`, if any.
fn config(victim: &Path, shown: Option<(&Path, &NodeId)>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(authority(victim).1.certificate.clone()).expect("a certificate");
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("a version")
        .with_root_certificates(roots);
    let mut config = match shown {
        None => builder.with_no_client_auth(),
        Some((directory, node)) => {
            let (membership, authority) = authority(directory);
            let key = KeyPair::generate().expect("a key");
            let own = authority
                .certify(membership.id(), node, &key, time::OffsetDateTime::now_utc())
                .expect("a certificate");
            builder.with_client_auth_cert(own.chain, own.key).expect("with its key")
        }
    };
    config.alpn_protocols = vec![ALPN_ROUTER.to_vec()];
    Arc::new(config)
}

/// Returns the router's answer to a request of `node`.
async fn ask(nodes: &Two, config: Arc<ClientConfig>, node: &NodeId) -> anyhow::Result<Vec<u8>> {
    let cluster = authority(&nodes.one.data().join("cluster")).0.id();
    let victim = std::fs::read_to_string(nodes.one.data().join("node.id"))?;
    let name = ServerName::try_from(name_of(cluster, &victim.trim().parse()?))?;
    let stream = TcpStream::connect(&nodes.address).await?;
    let mut stream = TlsConnector::from(config).connect(name, stream).await?;
    write_json(&mut stream, &Greeting::of(node.clone(), Versions::default())).await?;
    read_json::<Greeting>(&mut stream, 4096).await?;
    let process = ProcessType::web();
    let ask = FarRequest { wait_ms: 0, application: NAME.parse()?, process, through: None };
    let mut request = Vec::new();
    ask.write(&mut request);
    request.extend_from_slice(
        b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.9\r\nConnection: close\r\n\r\n",
    );
    stream.write_all(&request).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer)
}

#[test]
fn nobody_but_a_member_reaches_an_instance() {
    let nodes = Two::start();
    let stranger = Node::start_with(&[]);
    let (own, others) = (nodes.one.data().join("cluster"), stranger.data().join("cluster"));
    let node: NodeId = "friend".parse().unwrap();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let say = |config| {
        let asking = async { timeout(STATE_DEADLINE, ask(&nodes, config, &node)).await };
        runtime.block_on(asking).expect("no hang")
    };
    let refused = [
        ("no certificate", config(&own, None)),
        ("one of another cluster", config(&own, Some((&others, &node)))),
        ("one of this cluster, but not on the roster", config(&own, Some((&own, &node)))),
    ];
    for (what, config) in refused {
        let said = say(config);
        assert!(said.as_ref().map_or(true, Vec::is_empty), "{what}: {said:?}");
    }
    let member = format!(r#"{{"v":1,"id":"{node}","joined_at":1}}"#);
    nodes.one.cortex(&["store", "set", &format!("cluster::nodes::{node}"), &member]);
    crate::wait::wait_for("the new member to be answered", STATE_DEADLINE, || {
        let said = say(config(&own, Some((&own, &node)))).map_err(|error| format!("{error:#}"))?;
        let reply = FarReply::parse(&said).ok().flatten();
        let text = String::from_utf8_lossy(&said).into_owned();
        let taken = reply.is_some_and(|reply| reply.outcome == FarOutcome::Taken);
        if taken && text.contains("for 192.0.2.9") { Ok(()) } else { Err(text) }
    });
}
