//! Clients that come by another proxy, which says who they are.

use std::net::SocketAddr;
use std::sync::Arc;

use model::InstanceState::Ready;
use router_core::http::request::ForwardedFields;
use router_core::proxy_protocol::{Addresses, HeaderVersion, write};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{self, pki_types::ServerName};

use super::tls::{certificate, client};
use super::world::{Backend, Client, DEADLINE, World, node, ok};
use crate::queue::QueueLimits;
use crate::{CONNECTIONS_MAX, RouterConfig, Secure};
use tls::{CertificateFiles, Tls};

const ASK: &str = "GET / HTTP/1.1\r\nHost: shop.localhost\r\n\r\n";
/// The address of the proxy that is believed.
const PROXY: [u8; 4] = [127, 0, 0, 2];
const CLIENT: &str = "198.51.100.7:5000";

struct AnnouncedFixture {
    world: World,
    files: CertificateFiles,
    _directory: tempfile::TempDir,
    _backend: Backend,
}

/// Starts an application that answers with the request that it got.
async fn place(connections_max: usize) -> AnnouncedFixture {
    let directory = tempfile::tempdir().unwrap();
    let files = certificate(directory.path(), "shop", &["shop.localhost"]);
    let tls = Tls::load(vec![files.clone()]).unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let config = RouterConfig {
        public: Some(any),
        secure: Some(Secure { address: any, tls, port: None }),
        announced_by: Some("127.0.0.2,10.0.0.0/8".parse().unwrap()),
        forwarded: ForwardedFields::Usual,
        threads: Some(1),
        queue: QueueLimits::default(),
        connections_max,
        listeners: Arc::default(),
    };
    let world = World::configured(node(), &config, |_| ());
    let backend = Backend::answering(ok).await;
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    AnnouncedFixture { world, files, _directory: directory, _backend: backend }
}

fn header(version: HeaderVersion, client: &str) -> Vec<u8> {
    let (client, destination) = (client.parse().unwrap(), "192.0.2.80:80".parse().unwrap());
    let mut bytes = Vec::new();
    write(version, Addresses { client, destination }, &mut bytes);
    bytes
}

async fn connected(from: [u8; 4], to: SocketAddr, first: &[u8]) -> Client {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    let mut stream = socket.connect(to).await.unwrap();
    stream.write_all(first).await.unwrap();
    Client(stream)
}

/// Returns whether nothing came and the connection is gone.
async fn is_cut(stream: &mut TcpStream) -> bool {
    let read = tokio::time::timeout(DEADLINE, stream.read(&mut [0; 9])).await.unwrap();
    read.is_err()
}

#[tokio::test]
async fn a_client_is_who_the_proxy_says() {
    let place = place(CONNECTIONS_MAX).await;
    let public = place.world.router.public().unwrap();
    for version in [HeaderVersion::V1, HeaderVersion::V2] {
        let mut client = connected(PROXY, public, &header(version, CLIENT)).await;
        for _ in 0..2 {
            let forged = "X-Forwarded-Proto: https\r\nX-Real-IP: 192.0.2.1\r\n\r\n";
            client.send(&ASK.replace("\r\n\r\n", &format!("\r\n{forged}"))).await;
            let text = client.reply().await.text();
            assert!(text.contains("X-Forwarded-For: 198.51.100.7\r\n"), "{text}");
            assert!(text.contains("X-Forwarded-Proto: http\r\n"), "it is no neighbour: {text}");
            assert!(!text.contains("192.0.2.1"), "{text}");
        }
    }
    // The header comes in one piece with the request, or byte by byte.
    let whole = [header(HeaderVersion::V2, CLIENT), ASK.into()].concat();
    let text = connected(PROXY, public, &whole).await.reply().await.text();
    assert!(text.contains("X-Forwarded-For: 198.51.100.7\r\n"), "{text}");
    let mut client = connected(PROXY, public, b"").await;
    client.0.set_nodelay(true).unwrap();
    for byte in [header(HeaderVersion::V1, CLIENT), ASK.into()].concat() {
        client.0.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let text = client.reply().await.text();
    assert!(text.contains("X-Forwarded-For: 198.51.100.7\r\n"), "{text}");
    // It has an extension of more than is read at first.
    let mut long = header(HeaderVersion::V2, CLIENT);
    let length = 12 + 3 + 3_000_u16;
    long[14..16].copy_from_slice(&length.to_be_bytes());
    long.extend([4, 3_000_u16.to_be_bytes()[0], 3_000_u16.to_be_bytes()[1]]);
    long.extend([0; 3_000]);
    long.extend(ASK.as_bytes());
    let text = connected(PROXY, public, &long).await.reply().await.text();
    assert!(text.contains("X-Forwarded-For: 198.51.100.7\r\n"), "{text}");
    // This is the proxy's own connection: it says nothing of anybody.
    let mut own = connected(PROXY, public, b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0").await;
    own.send(ASK).await;
    let text = own.reply().await.text();
    assert!(text.contains("X-Forwarded-For: 127.0.0.2\r\n"), "{text}");
}

#[tokio::test]
async fn other_addresses_are_clients_themselves_and_cannot_announce() {
    let place = place(CONNECTIONS_MAX).await;
    let public = place.world.router.public().unwrap();
    let text = place.world.get("/").await.text();
    assert!(text.contains("X-Forwarded-For: 127.0.0.1\r\n"), "{text}");
    let pretence = [header(HeaderVersion::V1, CLIENT), ASK.into()].concat();
    let mut stranger = connected([127, 0, 0, 3], public, &pretence).await;
    assert_eq!(stranger.reply().await.status, 400);
}

#[tokio::test]
async fn without_a_header_or_with_a_bad_one_the_connection_ends_and_is_counted() {
    let place = place(CONNECTIONS_MAX).await;
    let (public, secure) = (place.world.router.public(), place.world.router.secure());
    let bad = [ASK.as_bytes(), b"PROXY TCP4 1 2 3 4\r\n", b"\x16\x03\x01", b"PROXY UNKN"];
    for (number, first) in bad.into_iter().enumerate() {
        let to = if number % 2 == 0 { public } else { secure };
        let mut client = connected(PROXY, to.unwrap(), first).await;
        if number == 3 {
            // Half of a header comes, and no more.
            client.0.shutdown().await.unwrap();
        }
        assert!(is_cut(&mut client.0).await, "{number}");
    }
    // A connection that says nothing at all is no bad one: balancers look so whether somebody
    // listens.
    drop(connected(PROXY, public.unwrap(), b"").await);
    let told = place.world.metrics.prometheus();
    assert!(told.contains("cortex_connections_refused_total 4\n"), "{told}");
    let mut good = connected(PROXY, public.unwrap(), &header(HeaderVersion::V2, CLIENT)).await;
    good.send(ASK).await;
    assert_eq!(good.reply().await.status, 200);
}

#[tokio::test]
async fn a_client_inside_tls_is_who_the_proxy_says() {
    let place = place(CONNECTIONS_MAX).await;
    let secure = place.world.router.secure().unwrap();
    let config = client(&place.files, rustls::ALL_VERSIONS, &[]);
    let tcp = connected(PROXY, secure, &header(HeaderVersion::V2, CLIENT)).await.0;
    let name = ServerName::try_from("shop.localhost").unwrap();
    let mut stream = TlsConnector::from(config).connect(name, tcp).await.unwrap();
    let last = ASK.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    stream.write_all(last.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("X-Forwarded-For: 198.51.100.7\r\n"), "{answer}");
    assert!(answer.contains("X-Forwarded-Proto: https\r\n"), "{answer}");
}

#[tokio::test]
async fn each_announced_client_has_a_share_of_its_own() {
    // There are two connections for each address.
    let place = place(4).await;
    let public = place.world.router.public().unwrap();
    let mut held = Vec::new();
    for number in 0..3 {
        let first = header(HeaderVersion::V1, &format!("198.51.100.{}:1", 1 + number / 2));
        let mut client = connected(PROXY, public, &[first, ASK.into()].concat()).await;
        assert_eq!(client.reply().await.status, 200, "{number}");
        held.push(client);
    }
    let first = header(HeaderVersion::V1, "198.51.100.1:1");
    let mut client = connected(PROXY, public, &[first, ASK.into()].concat()).await;
    assert_eq!(client.reply().await.status, 429);
}
