//! Certificates from records, and what clients without them are told.

use std::sync::Arc;

use model::InstanceState::Ready;
use model::application::Settings;
use model::certificate::{
    AcmeAccount, AcmeChallenge, CertificateOwner, CertificateSource, SecretText,
};
use model::people::Team;
use model::record::Unknown;
use model::{Certificate, Recipe, Timestamp, TypedKey};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use super::world::{Backend, Reply, World, app, ok, wait};
use tls::Tls;

/// Returns a record of a certificate for these names.
fn certificate(names: &[&str], owner: Option<CertificateOwner>) -> Certificate {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names.clone()).unwrap();
    Certificate {
        v: 1,
        chain: made.cert.pem(),
        key: SecretText::from(made.signing_key.serialize_pem()),
        source: CertificateSource::Uploaded,
        not_before: Timestamp(0),
        not_after: Timestamp(u64::MAX),
        names: names.iter().map(|name| name.parse().unwrap()).collect(),
        owner,
        unknown: Unknown::new(),
    }
}

/// Returns a client that trusts these certificates and speaks this protocol.
fn client(trusted: &[&Certificate], alpn: &[u8]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for one in trusted {
        roots.add(CertificateDer::from_pem_slice(one.chain.as_bytes()).unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    Arc::new(config)
}

async fn connect(
    world: &World,
    config: &Arc<ClientConfig>,
    name: &'static str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(world.router.secure().unwrap()).await?;
    let name = ServerName::try_from(name).unwrap();
    TlsConnector::from(config.clone()).connect(name, tcp).await
}

/// Asks inside TLS; returns the head of the answer.
async fn ask(stream: &mut TlsStream<TcpStream>, host: &str) -> String {
    let text = format!("HEAD /a HTTP/1.1\r\nHost: {host}\r\n\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        head.push(char::from(stream.read_u8().await.unwrap()));
    }
    head
}

async fn plain(world: &World, request: &str) -> Reply {
    let mut client = world.connect().await;
    client.send(request).await;
    let head_only = request.starts_with("HEAD");
    client.try_reply(head_only).await.unwrap()
}

fn key(name: &str) -> TypedKey {
    TypedKey::Certificate(name.parse().unwrap())
}

/// Starts an application with some domains.
async fn place(settings: Settings) -> (World, Backend) {
    let world = World::secured(Tls::load_good(Vec::new()).unwrap());
    let backend = Backend::answering(ok_empty).await;
    let domains = ["shop.example", "www.example", "*.family.example"].map(str::to_owned);
    let spec = |spec: &mut model::ApplicationSpec| spec.domains = domains.into();
    world.application_set(spec, Recipe::default(), settings);
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    (world, backend)
}

fn ok_empty(_: &str) -> String {
    ok("")
}

async fn covered(world: &World, host: &'static str, is_so: bool) {
    let tls = world.router.shared.secure.clone().unwrap().tls;
    let now = world.router.shared.clock.now();
    wait(|| tls.covers(host, now) == is_so).await;
}

#[tokio::test]
async fn a_record_is_served_replaced_and_removed_while_a_connection_stays() {
    let (world, _backend) = place(Settings::default()).await;
    let one = certificate(&["shop.example"], None);
    let (first, other) = (client(&[&one], b"http/1.1"), certificate(&["shop.example"], None));
    connect(&world, &first, "shop.example").await.unwrap_err();
    world.put(key("shop.example"), &one);
    covered(&world, "shop.example", true).await;
    let mut open = connect(&world, &first, "shop.example").await.unwrap();
    assert!(ask(&mut open, "shop.example").await.starts_with("HTTP/1.1 200"));
    world.put(key("shop.example"), &other);
    let second = client(&[&other], b"http/1.1");
    let replaced = async {
        while connect(&world, &second, "shop.example").await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(super::world::DEADLINE, replaced).await.unwrap();
    assert!(ask(&mut open, "shop.example").await.starts_with("HTTP/1.1 200"));
    world.records.delete(&key("shop.example"));
    covered(&world, "shop.example", false).await;
    let fresh = client(&[&other], b"http/1.1");
    connect(&world, &fresh, "shop.example").await.unwrap_err();
    assert!(ask(&mut open, "shop.example").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn what_one_application_brought_is_not_shown_for_another() {
    let (world, _backend) = place(Settings::default()).await;
    let owner = |created_at| {
        Some(CertificateOwner { application: app(), created_at: Timestamp(created_at) })
    };
    world.put(key("shop.example"), &certificate(&["shop.example"], owner(7)));
    world.put(key("elsewhere.example"), &certificate(&["elsewhere.example"], owner(0)));
    world.put(key("www.example"), &certificate(&["www.example"], owner(0)));
    covered(&world, "www.example", true).await;
    covered(&world, "shop.example", false).await;
    covered(&world, "elsewhere.example", false).await;
    // It is shown once the name is theirs.
    world.put(TypedKey::Spec(app()), &{
        let mut spec = model::ApplicationSpec::new(Timestamp(0));
        spec.domains = vec!["elsewhere.example".into()];
        spec
    });
    covered(&world, "elsewhere.example", true).await;
    covered(&world, "www.example", false).await;
}

#[tokio::test]
async fn clients_without_tls_are_sent_there_once_there_is_a_certificate() {
    let mut settings = Settings::default();
    settings.health.path = Some("/up".into());
    let (world, _backend) = place(settings).await;
    let status = async |host: &str, path: &str, method: &str| {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let reply = plain(&world, &request).await;
        let location = reply.head.split("\r\nLocation: ").nth(1);
        let location = location.map(|rest| rest.split("\r\n").next().unwrap().to_owned());
        (reply.status, location.unwrap_or_default())
    };
    assert_eq!(status("shop.example", "/", "GET").await.0, 200);
    for name in ["shop.example", "*.family.example", "shop.localhost"] {
        world.put(key(name), &certificate(&[name], None));
    }
    covered(&world, "shop.localhost", true).await;
    wait(|| {
        let table = world.router.shared.table.load();
        table.route(b"shop.example").is_some_and(|route| route.is_redirected)
    })
    .await;
    let port = world.router.secure().unwrap().port();
    let to = |host: &str, path: &str| format!("https://{host}:{port}{path}");
    for (method, expected) in [("GET", 301), ("HEAD", 301), ("POST", 308), ("DELETE", 308)] {
        let got = status("Shop.Example:80", "/a?b=c", method).await;
        assert_eq!(got, (expected, to("shop.example", "/a?b=c")), "{method}");
    }
    let of_family = status("a.family.example", "/", "GET").await;
    assert_eq!(of_family, (301, to("a.family.example", "/")));
    // One star stands for one label, the route for all; and others have no certificate.
    for host in ["a.b.family.example", "www.example", "shop.localhost"] {
        assert_eq!(status(host, "/", "GET").await.0, 200, "{host}");
    }
    for path in ["/up", "/up?x", "/.well-known/acme-challenge/abc"] {
        assert_eq!(status("shop.example", path, "GET").await.0, 200, "{path}");
    }
    assert_eq!(status("shop.example", "/upper", "GET").await.0, 301);
    let behind = "GET / HTTP/1.1\r\nHost: shop.example\r\nX-Forwarded-Proto: https\r\n\r\n";
    assert_eq!(plain(&world, behind).await.status, 200);
    world.records.delete(&key("shop.example"));
    wait(|| {
        let table = world.router.shared.table.load();
        table.route(b"shop.example").is_some_and(|route| !route.is_redirected)
    })
    .await;
    assert_eq!(status("shop.example", "/", "GET").await.0, 200);
}

#[tokio::test]
async fn an_application_may_want_no_redirect_and_may_want_hsts() {
    let mut settings = Settings::default();
    settings.https.redirect = false;
    settings.https.hsts_seconds = Some(600);
    let (world, _backend) = place(settings).await;
    let shown = certificate(&["shop.example"], None);
    world.put(key("shop.example"), &shown);
    covered(&world, "shop.example", true).await;
    let request = "GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n";
    let reply = plain(&world, request).await;
    assert_eq!(reply.status, 200);
    assert!(!reply.head.contains("Strict-Transport-Security"), "{}", reply.head);
    let mut stream =
        connect(&world, &client(&[&shown], b"http/1.1"), "shop.example").await.unwrap();
    let head = ask(&mut stream, "shop.example").await;
    assert!(head.contains("\r\nStrict-Transport-Security: max-age=600\r\n"), "{head}");
}

#[tokio::test]
async fn a_connection_for_another_name_is_told_so() {
    let (world, _backend) = place(Settings::default()).await;
    let shared = certificate(&["shop.example", "other.example"], None);
    let lone = certificate(&["www.example"], None);
    world.put(key("shop.example"), &shared);
    world.put(key("www.example"), &lone);
    // Another application has one of the names.
    let other: model::ApplicationName = "other".parse().unwrap();
    let mut spec = model::ApplicationSpec::new(Timestamp(3));
    spec.domains = vec!["other.example".into()];
    world.put(TypedKey::Spec(other.clone()), &spec);
    covered(&world, "www.example", true).await;
    let is_there = || world.router.shared.table.load().by_host(b"other.example").is_some();
    wait(is_there).await;
    let config = client(&[&shared, &lone], b"http/1.1");
    let mut stream = connect(&world, &config, "shop.example").await.unwrap();
    let answers = async |stream: &mut TlsStream<TcpStream>, host: &str, status: &str| {
        let head = ask(stream, host).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {head}");
    };
    answers(&mut stream, "shop.example", "200").await;
    answers(&mut stream, "Shop.Example:443", "200").await;
    answers(&mut stream, "www.example", "421").await;
    // Nobody's and nobody's, so that is no other team; nothing was released there.
    answers(&mut stream, "other.example", "503").await;
    let team = Team {
        v: 1,
        created_at: Timestamp(0),
        created_by: String::new(),
        applications: [(other.clone(), Timestamp(3))].into(),
        limits: Default::default(),
        unknown: Unknown::new(),
    };
    world.put(TypedKey::Team("others".parse().unwrap()), &team);
    let table = || world.router.shared.table.load_full();
    wait(|| table().by_host(b"other.example").is_some_and(|one| one.team.is_some())).await;
    answers(&mut stream, "other.example", "421").await;
    answers(&mut stream, "shop.example", "200").await;
}

fn account() -> AcmeAccount {
    AcmeAccount {
        v: 1,
        directory: "https://acme.example/directory".into(),
        credentials: SecretText::default(),
        thumbprint: "thumb".into(),
        contact: None,
        unknown: Unknown::new(),
    }
}

#[tokio::test]
async fn the_account_alone_answers_for_names_that_lead_here() {
    let (world, _backend) = place(Settings::default()).await;
    let asked = async |host: &str, token: &str| {
        let path = format!("/.well-known/acme-challenge/{token}");
        plain(&world, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")).await
    };
    // Without an account an instance answers for itself.
    let reply = asked("shop.example", "abc").await;
    assert_eq!((reply.status, reply.text().as_str()), (200, ""));
    world.put(TypedKey::AcmeAccount, &account());
    let path = b"/.well-known/acme-challenge/abc";
    wait(|| world.router.shared.certificates.load().answer(path).is_some()).await;
    for host in ["shop.example", "a.family.example", "127.0.0.1", "[::1]:80"] {
        let reply = asked(host, "abc").await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "abc.thumb"), "{host}");
    }
    assert_eq!(asked("nobody.example", "abc").await.status, 404);
    assert_eq!(asked("shop.example", "a.b").await.text(), "");
}

#[tokio::test]
async fn an_authority_is_shown_the_challenge_and_nothing_else() {
    let (world, _backend) = place(Settings::default()).await;
    let usual = certificate(&["shop.example"], None);
    world.put(key("shop.example"), &usual);
    let made = certificate(&["shop.example"], None);
    let challenge = AcmeChallenge {
        v: 1,
        certificate: made.chain.clone(),
        key: made.key.clone(),
        expires_at: Timestamp(u64::MAX),
        unknown: Unknown::new(),
    };
    let of_authority = client(&[&made], b"acme-tls/1");
    connect(&world, &of_authority, "shop.example").await.unwrap_err();
    world.put(TypedKey::AcmeChallenge("shop.example".parse().unwrap()), &challenge);
    let now = world.router.shared.clock.now();
    let stored = || world.router.shared.certificates.load_full();
    wait(|| stored().challenge("shop.example", now).is_some()).await;
    let mut stream = connect(&world, &of_authority, "shop.example").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"acme-tls/1"[..]));
    // It is not served on.
    stream.write_all(b"GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n").await.ok();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.ok();
    assert!(rest.is_empty());
    connect(&world, &client(&[&usual], b"http/1.1"), "shop.example").await.unwrap();
}
