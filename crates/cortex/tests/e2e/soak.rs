//! A day of traffic through a router, made as fast as possible, with a look at memory and
//! descriptors: a day is 864,000 requests, ten a second. `./test` makes half an hour of it, `./test
//! --long` all, `./test --soak REQUESTS` as many as are said.

mod clients;
mod servers;

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use tempfile::TempDir;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use self::clients::{Clients, Tally};
use self::servers::Servers;
use crate::machine::free_port;
use crate::node::{Running, binary};
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

const REQUESTS_A_SECOND: u64 = 10;
const DAY: u64 = 24 * 60 * 60 * REQUESTS_A_SECOND;
const HALF_AN_HOUR: u64 = 30 * 60 * REQUESTS_A_SECOND;
/// The requests after which every kind of traffic has been there many times, and all buffers that
/// are kept are there.
const WARM_UP: u64 = 6_000;
/// The most bytes by which memory may grow after that: an allocator's pages, and no more after a
/// day than after half an hour. A leak of 100 bytes a request would be 86 MB in a day.
const GROWTH_BYTES_MAX: u64 = 6 * 1024 * 1024;
/// The most additional descriptors: kept connections to instances, and one that is being buried.
const DESCRIPTORS_MORE_MAX: usize = 8;
/// The least percentage of answered requests, of those that are to be answered; the others met an
/// instance that died.
const ANSWERED_PERCENT_MIN: u64 = 97;

/// The router of a node, alone in its process.
struct Router {
    place: TempDir,
    child: Running,
    plain: u16,
    secure: u16,
}

impl Router {
    fn start(servers: &Servers) -> Router {
        let place = TempDir::with_prefix("cortex-e2e-").expect("a temporary directory");
        let made = rcgen::generate_simple_self_signed(vec!["proxy.localhost".to_owned()]);
        let made = made.expect("a certificate");
        let path = |name: &str| place.path().join(name);
        fs::write(path("certificate.pem"), made.cert.pem()).expect("a file");
        fs::write(path("key.pem"), made.signing_key.serialize_pem()).expect("a file");
        let (plain, secure) = (free_port(), free_port());
        let to: Vec<String> = servers.ports.iter().map(u16::to_string).collect();
        let mut command = Command::new(binary());
        command
            .args(["bench", "proxy-router", "--listen", &format!("127.0.0.1:{plain}")])
            .args(["--secure", &format!("127.0.0.1:{secure}"), "--to", &to.join(",")])
            .arg("--certificate")
            .arg(path("certificate.pem"))
            .arg("--key")
            .arg(path("key.pem"))
            .arg("--router-data")
            .arg(path("router"));
        // It ends with its standard input.
        let child = command.stdin(Stdio::piped()).spawn().expect("the binary starts");
        let router = Router { place, child: Running(child), plain, secure };
        wait_for("the router to route", STATE_DEADLINE, || router.answers());
        router
    }

    fn answers(&self) -> Result<(), String> {
        let site = crate::outside::Site { host: "proxy.localhost".into(), port: self.plain };
        let answer = site.try_get("/small")?;
        if answer.status == 200 { Ok(()) } else { Err(format!("{}", answer.status)) }
    }

    /// Returns the configuration of a client that trusts it and comes back with its ticket.
    fn client(&self, alpn: &[u8]) -> Arc<ClientConfig> {
        let pem = fs::read(self.place.path().join("certificate.pem")).expect("a file");
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_slice(&pem).expect("a certificate");
        roots.add(certificate).expect("a certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().expect("versions of TLS");
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![alpn.to_vec()];
        Arc::new(config)
    }

    fn process(&self) -> &Child {
        &self.child.0
    }

    /// Returns the anonymous memory alone: pages of the program come and go as it is used.
    fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process().id()));
        let status = status.expect("it runs");
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("it is said");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap() * 1024
    }

    fn descriptors(&self) -> usize {
        let names = fs::read_dir(format!("/proc/{}/fd", self.process().id()));
        names.expect("it runs").count()
    }
}

/// Returns how many requests are asked for: a day's, half an hour's, or as many as are said.
fn requests() -> u64 {
    let said = std::env::var("CORTEX_SOAK_REQUESTS").ok();
    let said = said.map(|text| text.parse().expect("CORTEX_SOAK_REQUESTS is a number"));
    let is_long = std::env::var_os("CORTEX_LONG_PROOFS").is_some();
    said.unwrap_or(if is_long { DAY } else { HALF_AN_HOUR })
}

#[test]
fn a_day_of_traffic_leaves_nothing_behind() {
    let servers = Servers::start();
    let router = Router::start(&servers);
    let Router { plain, secure, .. } = router;
    let tls = |alpn| router.client(alpn);
    let clients = Clients { plain, secure, http_1: tls(b"http/1.1"), http_2: tls(b"h2") };
    let at_rest = router.descriptors();
    // Kept connections to instances are closed after a while.
    let settle = || {
        wait_until("all connections to be gone", || {
            router.descriptors() <= at_rest + DESCRIPTORS_MORE_MAX
        });
        router.resident_bytes()
    };
    clients.run(0, WARM_UP);
    let before = settle();
    let total = requests();
    let Tally { answered, unanswered, cut, by_kind } = clients.run(WARM_UP, total);
    let after = settle();
    let said = format!(
        "{total} requests ({by_kind:?}), {answered} answered, {unanswered} not, {cut} cut; \
         memory {before} bytes before, {after} after; {} answers died",
        servers.broken()
    );
    println!("{said}; data in {}", router.place.path().display());
    assert!(after <= before + GROWTH_BYTES_MAX, "{said}");
    assert!(answered * 100 >= (answered + unanswered) * ANSWERED_PERCENT_MIN, "{said}");
    assert!(by_kind.iter().all(|(_, count)| *count > 0), "{said}");
    assert!(servers.deaths() > 0, "an instance died now and then");
    assert!(servers.broken() > 0 && cut > 0, "in the middle of answers, too: {said}");
    assert_eq!(servers.twice(), 0, "nothing was asked twice that is not safe");
    router.answers().expect("it serves on");
}
