//! Tests of users and their rights, and of TLS.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use model::value::ContentHash;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::{Client, DEADLINE, Server, show};
use crate::{LogInRefused, People, ServerConfig};

type Encrypted = StreamOwned<ClientConnection, TcpStream>;

fn encrypted(server: &Server) -> Client<Encrypted> {
    let mut roots = RootCertStore::empty();
    let file = server.directory.path().join("tls/certificate.pem");
    roots.add(CertificateDer::from_pem_file(file).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = TcpStream::connect(server.listener.tls.unwrap()).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    Client { stream: StreamOwned::new(connection, socket), input: Vec::new() }
}

#[test]
fn with_tls_users_say_who_they_are_and_may_what_they_may() {
    let server = Server::start();
    let mut local = server.client();
    local.text("SET app::web::a 1");
    local.text("SET app::website 2");
    local.text("SET node::a 3");
    let token = local.text("CORTEX.USER SET web WRITE app::web READ node");
    assert_eq!(token.len(), 64);
    let mut client = encrypted(&server);
    assert!(client.text("GET app::web::a").starts_with("-NOAUTH"));
    assert!(client.text("HELLO 3").starts_with("-NOAUTH"));
    assert!(client.text("AUTH web wrong").starts_with("-WRONGPASS"));
    assert!(client.text("AUTH nobody wrong").starts_with("-WRONGPASS"));
    assert!(client.text(&format!("HELLO 3 AUTH web {token}")).contains("proto 3"));
    for (line, reply) in [
        ("GET app::web::a", "1"),
        ("SET app::web::b x", "OK"),
        ("GET node::a", "3"),
        ("GET app::website", "-NOPERM"),
        ("SET node::a x", "-NOPERM"),
        ("DEL app::web::b node::a", "-NOPERM"),
        ("MSET app::web::c 1 other 2", "-NOPERM"),
        ("GET access::web", "-NOPERM"),
        ("SET access::web x", "-NOPERM"),
        ("CORTEX.USER LIST", "-NOPERM"),
        ("CORTEX.PREFIX app", "-NOPERM"),
        ("CORTEX.WATCH app", "-NOPERM"),
        ("CORTEX.SQUASH", "-NOPERM"),
        ("KEYS *", "[app::web::a app::web::b node::a]"),
        ("PUBLISH other x", "-NOPERM"),
        ("PUBLISH app::web::news x", "0"),
        ("SUBSCRIBE other", "-NOPERM"),
        ("PSUBSCRIBE *", "-NOPERM"),
        ("PSUBSCRIBE app::web::*", "[psubscribe app::web::* 1]"),
        ("EXISTS app::web::c", "0"),
    ] {
        let said = client.text(line);
        assert!(
            said == reply || reply.starts_with("-NO") && said.starts_with(reply),
            "{line}: {said}"
        );
    }
    // A large value that may not be written is read past, and the connection goes on.
    let large = "x".repeat(100_000);
    assert!(client.text(&format!("SET other {large}")).starts_with("-NOPERM"));
    assert_eq!(client.text(&format!("SET app::web::l {large}")), "OK");
    assert_eq!(client.text("GET app::web::l"), large);
    // A removed user is out at once.
    assert_eq!(local.text("CORTEX.USER DEL web"), "1");
    assert!(client.text("GET app::web::a").starts_with("-NOPERM"));
}

#[test]
fn a_default_user_locks_local_connections_too() {
    let server = Server::start();
    let mut local = server.client();
    let token = local.text("CORTEX.USER SET default WRITE app");
    let root = local.text("CORTEX.USER SET root WRITE ");
    assert!(root.len() == 64, "{root}");
    let mut client = server.client();
    assert!(client.text("GET app::a").starts_with("-NOAUTH"));
    let large = "x".repeat(100_000);
    assert!(client.text(&format!("SET app::a {large}")).starts_with("-NOAUTH"));
    assert_eq!(client.text(&format!("AUTH {token}")), "OK");
    assert_eq!(client.text("SET app::a 1"), "OK");
    assert!(client.text("SET b 1").starts_with("-NOPERM"));
    assert_eq!(client.text(&format!("AUTH root {root}")), "OK");
    assert_eq!(client.text("SET b 1"), "OK");
    for _ in 0..7 {
        assert!(client.text("AUTH guess").starts_with("-WRONGPASS"));
    }
    assert!(client.text("AUTH guess").starts_with("-WRONGPASS"));
    assert!(client.at_end());
}

/// A platform with an owner, and another person as soon as there are others.
#[derive(Default)]
struct Platform {
    others: AtomicBool,
    revoked: AtomicBool,
}

const OWNERS: ContentHash = ContentHash([7; 32]);

#[async_trait]
impl People for Platform {
    fn are_owners(&self) -> bool {
        !self.others.load(Ordering::Relaxed)
    }

    fn may_do_everything(&self, token: &ContentHash) -> bool {
        *token == OWNERS && !self.revoked.load(Ordering::Relaxed)
    }

    async fn log_in(
        &self,
        name: &str,
        token: &str,
        address: &str,
    ) -> Result<ContentHash, LogInRefused> {
        match (name, token) {
            ("ana", "cortex_a") if address.starts_with("127.0.0.1:") => Ok(OWNERS),
            ("ben", "cortex_b") => Err(LogInRefused::BelowOwner("ben".into())),
            ("ana", "full") => Err(LogInRefused::NotRecorded(anyhow::anyhow!("no room"))),
            _ => Err(LogInRefused::WrongPassword),
        }
    }
}

#[test]
fn an_owner_of_the_platform_may_everything_and_other_people_close_the_door() {
    let platform = Arc::new(Platform::default());
    for lane_from in [0, usize::MAX] {
        let people: Arc<dyn People> = platform.clone();
        let (lane_from, people) = (Some(lane_from), Some(people));
        let server = Server::with(ServerConfig { lane_from, people, ..ServerConfig::default() });
        platform.others.store(false, Ordering::Relaxed);
        platform.revoked.store(false, Ordering::Relaxed);
        let mut before = server.client();
        // Often enough that the lane takes it over.
        for _ in 0..100 {
            assert_eq!(before.text("SET a 1"), "OK");
        }
        platform.others.store(true, Ordering::Relaxed);
        for line in ["SET a 2", "GET a", "KEYS *", "CORTEX.USER LIST"] {
            let said = before.text(line);
            assert!(said.starts_with("-NOPERM") || said == "[]", "{line}: {said}");
        }
        let mut client = server.client();
        assert!(client.text("GET a").starts_with("-NOAUTH"));
        let said = client.text("AUTH ben cortex_b");
        assert!(said.starts_with("-NOPERM ben is no owner of the platform"), "{said}");
        assert!(client.text("AUTH ana cortex_b").starts_with("-WRONGPASS"));
        assert!(client.text("AUTH ana full").contains("cannot be recorded: no room"));
        assert!(client.text("GET a").starts_with("-NOAUTH"));
        assert!(client.text("HELLO 3 AUTH ana cortex_a").contains("proto 3"));
        for _ in 0..100 {
            assert_eq!(client.text("SET a 2"), "OK");
        }
        assert_eq!(client.text("CORTEX.PREFIX a"), "[a 2]");
        assert!(client.text("CLIENT LIST").contains("user=ana"));
        // What is listened to ends with the rights, although nothing is asked any more.
        let mut listening = server.client();
        listening.text("HELLO 3 AUTH ana cortex_a");
        assert!(listening.text("CORTEX.WATCH a") == "OK");
        client.text("SET a 3");
        assert!(show(&listening.next()).contains("set a 3"));
        platform.others.store(false, Ordering::Relaxed);
        let mut open = server.client();
        assert_eq!(open.text("GET a"), "3");
        platform.others.store(true, Ordering::Relaxed);
        platform.revoked.store(true, Ordering::Relaxed);
        assert!(open.text("SET a 4").starts_with("-NOPERM"));
        platform.others.store(false, Ordering::Relaxed);
        assert_eq!(open.text("SET a 4"), "OK");
        assert!(listening.at_end(), "it is cut off instead of told");
        platform.others.store(true, Ordering::Relaxed);
        assert!(client.text("GET a").starts_with("-NOPERM"));
        assert!(client.text("DEL a").starts_with("-NOPERM"));
    }
}

#[test]
fn addresses_that_others_reach_need_tls() {
    let any = "0.0.0.0:0".parse().unwrap();
    let error = super::super::Listener::tcp(any, &Default::default(), 1).err().unwrap();
    assert!(error.to_string().contains("--tls"), "{error}");
}
