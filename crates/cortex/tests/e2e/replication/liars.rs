//! Peers that should not be trusted: strangers, forged certificates, and a member that lies. Each
//! is refused and told of once, and nothing that was stored is touched.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cluster::frame;
use cluster::frame::{Greeting, LinkFrame, Versions, read_json, write_json};
use cluster::identity::{Authority, Membership, name_of};
use cluster::tls::ALPN_NODE;
use model::{NodeId, Timestamp};
use rcgen::KeyPair;
use store_core::event::Ticket;
use store_core::sync::message::{Body, Carried, ClusterId, Hello, Message, SessionRefusal};
use store_core::{Commit, CommitAction, Fingerprint, Horizons, Location, NodeTag, Position, Stamp};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use super::member::Member;
use crate::wait::{STATE_DEADLINE, wait_for};

/// A member that keeps the protocol, until it does not.
struct Liar {
    node: NodeId,
    cluster: ClusterId,
    /// A configuration that trusts the victim, and shows the liar's certificate.
    config: Arc<ClientConfig>,
    runtime: Runtime,
    victim: String,
    victim_name: String,
    next_session: u64,
}

fn victim_membership(victim: &Member) -> Membership {
    Membership::load_or_found(&victim.data().join("cluster")).expect("its identity")
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64
}

impl Liar {
    /// Creates a liar on the victim's roster, with a certificate of its cluster.
    fn of(victim: &Member, node: &str) -> Liar {
        let key = format!("cluster::nodes::{node}");
        let member = format!(r#"{{"v":1,"id":"{node}","joined_at":{}}}"#, now_ms());
        victim.set(&key, &member);
        Liar::with(victim, node, &victim.data().join("cluster"))
    }

    /// Creates a liar with the identity in `dir`.
    fn with(victim: &Member, node: &str, dir: &std::path::Path) -> Liar {
        let membership = Membership::load_or_found(dir).expect("an identity");
        let authority = Authority::load_or_make(dir, membership.id()).expect("an authority");
        let node: NodeId = node.parse().expect("a node id");
        let cluster = membership.id();
        let key = KeyPair::generate().expect("a key");
        let own = authority
            .certify(cluster, &node, &key, time::OffsetDateTime::now_utc())
            .expect("a certificate");
        let trusted = victim_membership(victim);
        let trusted = Authority::load_or_make(&victim.data().join("cluster"), trusted.id());
        let mut roots = RootCertStore::empty();
        roots.add(trusted.expect("its authority").certificate.clone()).expect("a certificate");
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("a version")
            .with_root_certificates(roots)
            .with_client_auth_cert(own.chain, own.key)
            .expect("a certificate with its key");
        config.alpn_protocols = vec![ALPN_NODE.to_vec()];
        Liar {
            config: Arc::new(config),
            node,
            cluster,
            runtime: Runtime::new().expect("a runtime"),
            victim: victim.address(),
            victim_name: name_of(
                victim_membership(victim).id(),
                &victim.id().parse().expect("a node id"),
            ),
            next_session: 1,
        }
    }

    fn try_connect(&self) -> anyhow::Result<TlsStream<TcpStream>> {
        self.runtime.block_on(async {
            let stream = TcpStream::connect(&self.victim).await?;
            let name = ServerName::try_from(self.victim_name.clone())?;
            let connector = TlsConnector::from(self.config.clone());
            let mut stream = timeout(STATE_DEADLINE, connector.connect(name, stream)).await??;
            write_json(&mut stream, &Greeting::of(self.node.clone(), Versions::default())).await?;
            let greeting = read_json::<Greeting>(&mut stream, 4096);
            timeout(STATE_DEADLINE, greeting).await??;
            Ok(stream)
        })
    }

    fn connect(&self) -> TlsStream<TcpStream> {
        self.try_connect().expect("a stream to the victim")
    }

    fn hello(&self, clock: u64) -> Hello {
        Hello {
            cluster: self.cluster,
            node: NodeTag::from(&self.node),
            incarnation: 1,
            clock: Timestamp(clock),
            horizons: Horizons::default(),
            head: Fingerprint([7; 16]),
            count: 1,
            acks: Default::default(),
            fresh: false,
        }
    }

    /// Opens a session and returns the victim's answer to it.
    fn open(&mut self, stream: &mut TlsStream<TcpStream>, clock: u64) -> Body {
        self.next_session += 1;
        let session = self.next_session;
        let body = Body::Open { hello: self.hello(clock), summaries: Vec::new() };
        let frame = frame::sync(&Message { session, body }, &[]).expect("it is small");
        self.send(stream, &frame);
        self.answer(stream, |message| message.session == session)
    }

    fn send(&self, stream: &mut TlsStream<TcpStream>, bytes: &[u8]) {
        self.runtime.block_on(async {
            stream.write_all(bytes).await.expect("the victim listens");
            stream.flush().await.expect("the victim listens");
        });
    }

    fn answer(&self, stream: &mut TlsStream<TcpStream>, wanted: impl Fn(&Message) -> bool) -> Body {
        self.runtime.block_on(async {
            let answer = async {
                loop {
                    if let LinkFrame::Sync(payload) = frame::read(stream).await.expect("a frame") {
                        let message = frame::decode(&payload).expect("a message").message;
                        if wanted(&message) {
                            return message.body;
                        }
                    }
                }
            };
            timeout(STATE_DEADLINE, answer).await.expect("an answer")
        })
    }

    fn commits(&self, batch: u32, key: &str, at: u64, said: &[u8], sent: &[u8]) -> Vec<u8> {
        use sha1::Digest;
        let action = CommitAction::Set {
            hash: *blake3::hash(said).as_bytes(),
            sha1: sha1::Sha1::digest(said).into(),
            size: said.len() as u64,
            expires: None,
        };
        let position =
            Position { stamp: Stamp::start_of(Timestamp(at)), node: NodeTag::from(&self.node) };
        let location = Location::Log { segment: 0, offset: 0 };
        let commit = Commit { at: position, key: key.into(), action, location };
        let commits = vec![Carried { ticket: Ticket(0), commit }];
        let body = Body::Commits { batch, commits };
        let message = Message { session: self.next_session, body };
        let sent = Some(sent.to_vec().into());
        frame::sync(&message, &[sent]).expect("it is small").to_vec()
    }

    /// Waits until the victim ends the stream.
    fn await_cut(&self, stream: &mut TlsStream<TcpStream>) {
        self.runtime.block_on(async {
            let cut = async { while frame::read(stream).await.is_ok() {} };
            timeout(STATE_DEADLINE, cut).await.expect("to be cut off");
        });
    }
}

fn await_said(member: &Member, what: &str) {
    wait_for(&format!("'{what}' in the log"), STATE_DEADLINE, || {
        let log = member.log();
        if log.contains(what) { Ok(()) } else { Err(log) }
    });
}

fn times_said(member: &Member, what: &str) -> usize {
    member.log().matches(what).count()
}

#[test]
fn strangers_are_refused_and_told_of_once() {
    let victim = Member::start("victim", &[]);
    victim.set("precious::key", "kept");
    let elsewhere = tempfile::tempdir().expect("a temporary directory");
    let stranger = Liar::with(&victim, "stranger", elsewhere.path());
    for _ in 0..3 {
        assert!(stranger.try_connect().is_err(), "it belongs to another cluster");
    }
    // The forger uses the right cluster's name under an authority of its own making.
    let forger = tempfile::tempdir().expect("a temporary directory");
    let cluster = victim.data().join("cluster");
    std::fs::copy(cluster.join("member.json"), forger.path().join("member.json")).expect("a copy");
    let forged = Liar::with(&victim, "forged", forger.path());
    assert_eq!(forged.cluster, Membership::load_or_found(&cluster).expect("its own").id());
    for _ in 0..3 {
        assert!(forged.try_connect().is_err(), "its certificate is forged");
    }
    // One peer speaks no TLS at all, another shows a member's certificate under another name.
    forged.runtime.block_on(async {
        let mut plain = TcpStream::connect(&victim.address()).await.expect("the port is open");
        plain.write_all(b"GET / HTTP/1.0\r\n\r\n").await.expect("it takes bytes");
        let mut answer = Vec::new();
        let read = tokio::io::AsyncReadExt::read_to_end(&mut plain, &mut answer);
        let _ = timeout(STATE_DEADLINE, read).await.expect("to be cut off");
    });
    let mut impostor = Liar::of(&victim, "impostor");
    impostor.node = "somebody".parse().expect("a node id");
    if let Ok(mut stream) = impostor.try_connect() {
        impostor.await_cut(&mut stream);
    }
    await_said(&victim, "its certificate is not that of node somebody");
    await_said(&victim, "its certificate is not of this cluster");
    await_said(&victim, "it does not speak TLS");
    // There was a stranger's authority, and a forged signature: three attempts each.
    assert_eq!(times_said(&victim, "its certificate is not of this cluster"), 2);
    assert_eq!(victim.get("precious::key").as_deref(), Some("kept"));
}

#[test]
fn a_removed_node_cannot_enter_itself_again() {
    let victim = Member::start("victim", &[]);
    victim.set("precious::key", "kept");
    let member = Member::join("member", &victim);
    let mut removed = Member::join("removed", &victim);
    victim.await_reachable(2);
    // It keeps the authority, as every member does.
    let held = removed.data().join("cluster");
    removed.stop();
    victim.cortex(&["store", "del", &format!("cluster::nodes::{}", removed.id())]);

    // It comes in the name of a member, under a key of its own.
    let impostor = Liar::with(&victim, &member.id(), &held);
    for _ in 0..3 {
        assert!(impostor.try_connect().is_err(), "it has not the member's key");
    }
    await_said(&victim, "its key is not the one that node");
    assert_eq!(times_said(&victim, "its key is not the one that node"), 1);
    // It comes in its own name.
    let back = Liar::with(&victim, &removed.id(), &held);
    if let Ok(mut stream) = back.try_connect() {
        back.await_cut(&mut stream);
    }
    await_said(&victim, "was removed");
    // It comes in a name that nobody bears: it is heard, and nothing of it counts.
    let mut fresh = Liar::with(&victim, "fresh", &held);
    let mut stream = fresh.connect();
    let said = fresh.open(&mut stream, now_ms());
    assert_eq!(said, Body::Refused(SessionRefusal::Unknown));
    assert_eq!(victim.cortex(&["store", "ls", "cluster::nodes"]).lines().count(), 2);
    // The member itself is let in, also when it starts again.
    let mut member = member;
    member.stop();
    member.up();
    victim.await_reachable(1);
    member.set("still::works", "yes");
    victim.await_value("still::works", "yes");
}

#[test]
fn a_member_that_lies_is_refused_and_told_of_once() {
    let victim = Member::start("victim", &[]);
    victim.set("precious::key", "kept");
    let mut garbage = Liar::of(&victim, "garbage");
    let mut stream = garbage.connect();
    assert!(matches!(garbage.open(&mut stream, now_ms()), Body::Opened { .. }));
    garbage.send(&mut stream, &[9, 0, 0, 0, 77, 1, 2, 3, 4, 5, 6, 7, 8]);
    garbage.await_cut(&mut stream);
    await_said(&victim, "peer.lied");

    let mut false_value = Liar::of(&victim, "falsevalue");
    let mut stream = false_value.connect();
    assert!(matches!(false_value.open(&mut stream, now_ms()), Body::Opened { .. }));
    let lie = false_value.commits(0, "false::key", now_ms(), b"what was said", b"what was sent");
    false_value.send(&mut stream, &lie);
    false_value.await_cut(&mut stream);
    await_said(&victim, "does not match the hash");
    assert_eq!(victim.get("false::key"), None);

    let mut twice = Liar::of(&victim, "twice");
    let mut stream = twice.connect();
    assert!(matches!(twice.open(&mut stream, now_ms()), Body::Opened { .. }));
    let at = now_ms();
    let first = twice.commits(0, "twice::key", at, b"first", b"first");
    twice.send(&mut stream, &first);
    let session = twice.next_session;
    let durable = twice.answer(&mut stream, |message| message.session == session);
    assert_eq!(durable, Body::Durable { batch: 0 });
    let second = twice.commits(1, "twice::key", at, b"second", b"second");
    twice.send(&mut stream, &second);
    await_said(&victim, "two commits have one time and node");
    assert_eq!(victim.get("twice::key").as_deref(), Some("first"));
    assert_eq!(times_said(&victim, "two commits have one time and node"), 1);

    let mut hurried = Liar::of(&victim, "hurried");
    let mut stream = hurried.connect();
    let hour = Duration::from_secs(3600).as_millis() as u64;
    assert!(matches!(hurried.open(&mut stream, now_ms() + hour), Body::Refused(_)));
    assert!(matches!(hurried.open(&mut stream, now_ms() + hour), Body::Refused(_)));
    await_said(&victim, "clocks of the two nodes are");
    assert_eq!(times_said(&victim, "clocks of the two nodes are"), 1);
    // It comes with the right clock, and a commit from the future: that waits, and counts for
    // nothing.
    assert!(matches!(hurried.open(&mut stream, now_ms()), Body::Opened { .. }));
    let early = hurried.commits(0, "early::key", now_ms() + hour, b"x", b"x");
    hurried.send(&mut stream, &early);
    let session = hurried.next_session;
    let durable = hurried.answer(&mut stream, |message| message.session == session);
    assert_eq!(durable, Body::Durable { batch: 0 });
    assert_eq!(victim.get("early::key"), None);
    assert_eq!(victim.get("precious::key").as_deref(), Some("kept"));
    victim.set("still::works", "yes");
    assert_eq!(victim.get("still::works").as_deref(), Some("yes"));
}

#[test]
fn a_peer_that_says_nothing_holds_nobody_up() {
    let victim = Member::start("victim", &[]);
    let mut silent = Liar::of(&victim, "silent");
    let mut stream = silent.connect();
    assert!(matches!(silent.open(&mut stream, now_ms()), Body::Opened { .. }));
    let stalled = Arc::new(stream);
    let other = Member::join("other", &victim);
    victim.set("meanwhile::key", "passes");
    other.await_value("meanwhile::key", "passes");
    other.set("and::back", "too");
    victim.await_value("and::back", "too");
    drop(stalled);
}
