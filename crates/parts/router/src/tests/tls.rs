//! Clients that speak TLS to the router.

use std::path::Path;
use std::sync::Arc;

use model::BuildId;
use model::InstanceState::Ready;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{
    self, ClientConfig, HandshakeKind, RootCertStore, SupportedProtocolVersion,
};

use super::world::{Backend, Client, DEADLINE, World, app, ok, release_id};
use tls::{CertificateFiles, Tls};

/// Returns a certificate for `names`, as files `NAME.pem` and `NAME.key`.
pub fn certificate(directory: &Path, name: &str, names: &[&str]) -> CertificateFiles {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let files = CertificateFiles {
        chain: directory.join(format!("{name}.pem")),
        key: directory.join(format!("{name}.key")),
    };
    std::fs::write(&files.chain, made.cert.pem()).unwrap();
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    files
}

/// Returns a client that trusts this certificate, speaks these versions, and offers `alpn`.
pub fn client(
    trusted: &CertificateFiles,
    versions: &[&'static SupportedProtocolVersion],
    alpn: &[&[u8]],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let pem = std::fs::read(&trusted.chain).unwrap();
    roots.add(CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|one| one.to_vec()).collect();
    Arc::new(config)
}

pub async fn connect(
    world: &World,
    config: &Arc<ClientConfig>,
    name: &'static str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(world.router.secure().unwrap()).await.unwrap();
    let name = ServerName::try_from(name).unwrap();
    TlsConnector::from(config.clone()).connect(name, tcp).await
}

struct TlsFixture {
    world: World,
    files: CertificateFiles,
    _directory: tempfile::TempDir,
    _backend: Backend,
}

/// Starts an application that answers with the request that it got.
async fn place() -> TlsFixture {
    let directory = tempfile::tempdir().unwrap();
    let files = certificate(directory.path(), "shop", &["shop.localhost"]);
    let other = certificate(directory.path(), "other", &["other.localhost"]);
    let world = World::secured(Tls::load(vec![other, files.clone()]).unwrap());
    let backend = Backend::answering(ok).await;
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    TlsFixture { world, files, _directory: directory, _backend: backend }
}

async fn ask(stream: &mut TlsStream<TcpStream>, path: &str) -> String {
    let text = format!("GET {path} HTTP/1.1\r\nHost: shop.localhost\r\n\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    while !answer.ends_with("\r\n\r\n") || answer.matches("\r\n\r\n").count() < 2 {
        answer.push(char::from(stream.read_u8().await.unwrap()));
    }
    answer
}

#[tokio::test]
async fn requests_come_inside_tls_and_instances_are_told() {
    let place = place().await;
    let config = client(&place.files, rustls::ALL_VERSIONS, &[b"http/1.1"]);
    let mut stream = connect(&place.world, &config, "shop.localhost").await.unwrap();
    for path in ["/one", "/two"] {
        let answer = ask(&mut stream, path).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains(&format!("GET {path} HTTP/1.1\r\n")), "{answer}");
        assert!(answer.contains("X-Forwarded-Proto: https\r\n"), "{answer}");
    }
    let plain = place.world.get("/").await.text();
    assert!(plain.contains("X-Forwarded-Proto: http\r\n"), "{plain}");
    // The certificate of another name is not given, nor believed.
    let unknown = connect(&place.world, &config, "elsewhere.localhost").await;
    unknown.unwrap_err();
}

#[tokio::test]
async fn sessions_are_resumed_with_either_version() {
    let place = place().await;
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let config = client(&place.files, &[version], &[]);
        let mut kinds = Vec::new();
        for _ in 0..2 {
            let mut stream = connect(&place.world, &config, "shop.localhost").await.unwrap();
            ask(&mut stream, "/").await;
            kinds.push(stream.get_ref().1.handshake_kind());
        }
        assert_eq!(kinds, [Some(HandshakeKind::Full), Some(HandshakeKind::Resumed)]);
    }
}

#[tokio::test]
async fn plain_http_is_told_and_nonsense_is_not_answered() {
    let place = place().await;
    let address = place.world.router.secure().unwrap();
    let mut plain = Client(TcpStream::connect(address).await.unwrap());
    plain.send("GET / HTTP/1.1\r\nHost: shop.localhost\r\n\r\n").await;
    let answer = plain.reply().await;
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("https://"), "{}", answer.text());
    let mut nonsense = TcpStream::connect(address).await.unwrap();
    nonsense.write_all(&[0; 40]).await.unwrap();
    let mut rest = Vec::new();
    nonsense.read_to_end(&mut rest).await.ok();
    assert!(rest.is_empty());
    let mut broken = TcpStream::connect(address).await.unwrap();
    broken.write_all(b"\x16\x03\x01\x00\x05hello").await.unwrap();
    broken.read_to_end(&mut rest).await.ok();
    // It is an alert, that is all.
    assert!(rest.first().is_none_or(|kind| *kind == 21), "{rest:?}");
}

/// One thread serves all, so that they are counted together.
#[tokio::test]
async fn a_client_with_too_many_connections_is_turned_away_and_counted() {
    const CONNECTIONS_MAX: usize = 8;
    let directory = tempfile::tempdir().unwrap();
    let files = certificate(directory.path(), "shop", &["shop.localhost"]);
    let tls = Tls::load(vec![files.clone()]).unwrap();
    let world = World::secured_with(tls, 1, CONNECTIONS_MAX);
    let backend = Backend::answering(ok).await;
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    let config = client(&files, rustls::ALL_VERSIONS, &[]);
    let refused = || {
        let text = world.metrics.prometheus();
        let (_, rest) = text.split_once("\ncortex_connections_refused_total ").unwrap();
        rest.lines().next().unwrap().parse::<u32>().unwrap()
    };
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS_MAX / 2 {
        let mut stream = connect(&world, &config, "shop.localhost").await.unwrap();
        ask(&mut stream, "/").await;
        held.push(stream);
    }
    assert_eq!(refused(), 0);
    connect(&world, &config, "shop.localhost").await.unwrap_err();
    assert_eq!(refused(), 1);
    let mut plain = world.connect().await;
    assert_eq!(plain.reply().await.status, 429);
    assert_eq!(refused(), 2);
    // Those that it has are served on, and others have room.
    for stream in &mut held {
        ask(stream, "/").await;
    }
    let mut other = world.connect_as([127, 0, 0, 9]).await;
    other.send("GET / HTTP/1.1\r\nHost: shop.localhost\r\n\r\n").await;
    assert_eq!(other.reply().await.status, 200);
    // A client that closes one has room again, too.
    held.pop();
    let again = async {
        while connect(&world, &config, "shop.localhost").await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, again).await.expect("there is room again");
}

/// The bodies are more than either side's buffers hold.
#[tokio::test]
async fn large_bodies_pass_both_ways() {
    const BYTES: usize = 3 * 1024 * 1024;
    let directory = tempfile::tempdir().unwrap();
    let files = certificate(directory.path(), "shop", &["shop.localhost"]);
    let world = World::secured(Tls::load(vec![files.clone()]).unwrap());
    let backend = Backend::answering(|request| {
        let body = request.split_once("\r\n\r\n").unwrap().1;
        ok(&body.chars().rev().collect::<String>())
    })
    .await;
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, backend.port)]);
    let file = world.layout.build(&app(), &BuildId::Of(release_id())).join("public");
    std::fs::create_dir_all(&file).unwrap();
    world.routed().await;
    let config = client(&files, rustls::ALL_VERSIONS, &[]);
    let stream = connect(&world, &config, "shop.localhost").await.unwrap();
    let (mut reading, mut writing) = tokio::io::split(stream);
    let body: String = (0..BYTES).map(|at| char::from(b'a' + (at % 23) as u8)).collect();
    let sent = body.clone();
    let sending = tokio::spawn(async move {
        let head = format!(
            "POST / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: {BYTES}\r\n\
             Connection: close\r\n\r\n"
        );
        writing.write_all(head.as_bytes()).await.unwrap();
        writing.write_all(sent.as_bytes()).await.unwrap();
        writing
    });
    let mut answer = Vec::new();
    reading.read_to_end(&mut answer).await.unwrap();
    sending.await.unwrap();
    let at = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let expected: String = body.chars().rev().collect();
    assert!(answer[at..] == *expected.as_bytes(), "{} bytes", answer.len());
}
