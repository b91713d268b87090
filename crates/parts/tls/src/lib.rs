//! Which certificate a client is shown: by the name that it asks for, from files that are read
//! again when they change, from the cluster's records, and from an authority of this machine. It
//! knows no connection and no request; the router's threads and `cortex proxy` take connections
//! with it.

pub mod book;
mod files;

use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::ring::{self, Ticketer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use certificate_core::shelf::Shelf;
use model::Timestamp;
use tokio::sync::Notify;

use self::book::{Certificates, ServedCertificate};
pub use self::files::CertificateFiles;
use self::files::FileStates;

pub const ALPN_HTTP_2: &[u8] = b"h2";
/// The protocol by which an authority asks whose a name is (RFC 8737).
pub const ALPN_ACME: &[u8] = b"acme-tls/1";
pub const ALPN_HTTP_1: &[u8] = b"http/1.1";
/// The time between two looks: a renewed certificate is used this soon after it was written.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// The configuration that one or more listeners need for TLS.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ServerConfig>,
    of_platform: Arc<ServerConfig>,
    named: Arc<Named>,
    files: Arc<[CertificateFiles]>,
}

/// The certificates by the names that clients ask for: those of files first, then those that the
/// cluster's records hold.
#[derive(Debug)]
struct Named {
    files: ArcSwap<FileCertificates>,
    stored: ArcSwap<Certificates>,
    local: OnceLock<Arc<dyn LocalAuthority>>,
    /// Tells that other files were read.
    files_changed: Notify,
}

/// An authority that vouches for names of this machine, to its own people.
pub trait LocalAuthority: std::fmt::Debug + Send + Sync {
    /// Returns a certificate for this host; `None` if it does not vouch for such names.
    fn certificate(&self, host: &str, now: Timestamp) -> Option<Arc<ServedCertificate>>;
}

#[derive(Debug)]
struct FileCertificates {
    /// The pairs in the order of the files; `None` for those that were never any good.
    pairs: Vec<Option<Arc<ServedCertificate>>>,
    by_name: Shelf<Arc<ServedCertificate>>,
    /// The certificate for clients that ask for no name, or for one that no certificate has.
    /// Without any, no handshake succeeds.
    first: Option<Arc<ServedCertificate>>,
}

impl Tls {
    /// Reads all files. The first certificate also answers clients that ask for no known name.
    pub fn load(files: Vec<CertificateFiles>) -> anyhow::Result<Tls> {
        anyhow::ensure!(!files.is_empty(), "TLS needs at least one certificate and its key");
        let pairs: anyhow::Result<Vec<_>> = read(&files).into_iter().collect();
        Tls::of(files, pairs?.into_iter().map(Some).collect())
    }

    /// Reads them like `load`, but leaves out those that are no good; they are used as soon as
    /// their files are good. There need not be any, where records have some.
    pub fn load_good(files: Vec<CertificateFiles>) -> anyhow::Result<Tls> {
        let mut pairs = Vec::new();
        for result in read(&files) {
            if let Err(error) = &result {
                let error = format!("{error:#}");
                tracing::error!(error, "tls.certificate_left_out");
            }
            pairs.push(result.ok());
        }
        Tls::of(files, pairs)
    }

    fn of(
        files: Vec<CertificateFiles>,
        pairs: Vec<Option<Arc<ServedCertificate>>>,
    ) -> anyhow::Result<Tls> {
        let of_files = ArcSwap::from_pointee(FileCertificates::new(pairs));
        let named = Arc::new(Named {
            files: of_files,
            stored: ArcSwap::default(),
            local: OnceLock::new(),
            files_changed: Notify::new(),
        });
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(named.clone());
        config.alpn_protocols =
            vec![ALPN_HTTP_2.to_vec(), ALPN_HTTP_1.to_vec(), ALPN_ACME.to_vec()];
        // A client that comes again saves a signature, whichever thread takes it.
        config.ticketer = Ticketer::new().context("keys for session tickets")?;
        let mut of_platform = config.clone();
        of_platform.alpn_protocols = vec![ALPN_HTTP_1.to_vec()];
        let (config, of_platform) = (Arc::new(config), Arc::new(of_platform));
        Ok(Tls { config, of_platform, named, files: files.into() })
    }

    /// Sends no tickets of TLS 1.3, so that no session is resumed.
    pub fn without_tickets(mut self) -> Tls {
        Arc::make_mut(&mut self.config).send_tls13_tickets = 0;
        self
    }

    /// Returns the configuration for `rustls::ServerConnection`: TLS 1.2 and 1.3, sessions resumed,
    /// `h2` before `http/1.1`.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.clone()
    }

    /// Returns the same for clients of the platform's API, which speaks `http/1.1` alone.
    pub fn config_of_platform(&self) -> Arc<ServerConfig> {
        self.of_platform.clone()
    }

    /// Reads files that change again, for as long as somebody uses this. Files that are no good are
    /// reported once, and what was read before stays in use.
    pub fn follow(&self) -> impl Future<Output = ()> + Send + use<> {
        follow(Arc::downgrade(&self.named), self.files.clone())
    }

    /// Waits until files were read again, which they may have been since it was called last.
    pub async fn files_changed(&self) {
        self.named.files_changed.notified().await;
    }

    /// Gives clients that come from now on what the cluster's records hold.
    pub fn serve_stored(&self, certificates: Arc<Certificates>) {
        self.named.stored.store(certificates);
    }

    /// Has this authority asked for names that neither files nor records have, from now on.
    pub fn ask_locally(&self, authority: Arc<dyn LocalAuthority>) {
        self.named.local.set(authority).ok();
    }

    /// Returns the certificate that a client gets which asks for this name.
    pub fn certificate(&self, name: Option<&str>) -> Option<Arc<ServedCertificate>> {
        self.named.find(name, now())
    }

    /// Returns whether a client that asks for this host gets a certificate that is good for it.
    pub fn covers(&self, host: &str, now: Timestamp) -> bool {
        let found = self.named.find(Some(host), now);
        found.is_some_and(|found| found.is_valid(now) && found.covers(host))
    }
}

/// Returns the time by this machine's clock, which decides whether a certificate is good.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

async fn follow(named: Weak<Named>, files: Arc<[CertificateFiles]>) {
    if files.is_empty() {
        return;
    }
    let mut reported = String::new();
    // Pairs that were left out may only have to wait for their time.
    let is_whole = named.upgrade().is_some_and(|named| named.files.load().is_whole());
    let mut seen = is_whole.then(|| FileStates::of(&files));
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let Some(named) = named.upgrade() else { return };
        let (looked, before) = (files.clone(), seen.clone());
        // The disk may be slow.
        let look = tokio::task::spawn_blocking(move || {
            let now = FileStates::of(&looked);
            (before.as_ref() != Some(&now)).then(|| (read(&looked), now))
        });
        let Ok(looked) = look.await else { return };
        let Some((read, now)) = looked else { continue };
        let errors: Vec<String> =
            read.iter().filter_map(|read| Some(format!("{:#}", read.as_ref().err()?))).collect();
        let before = named.files.load_full();
        let pairs = read.into_iter().zip(&before.pairs);
        let pairs = pairs.map(|(read, before)| read.ok().or_else(|| before.clone())).collect();
        named.files.store(Arc::new(FileCertificates::new(pairs)));
        named.files_changed.notify_one();
        // A key may be written after its certificate, so the files are looked at again.
        seen = errors.is_empty().then_some(now);
        let error = errors.join("; ");
        if errors.is_empty() {
            tracing::info!("tls.certificates_read_again");
        } else if error != reported {
            tracing::warn!(error, "tls.certificates_kept");
        }
        reported = error;
    }
}

/// Reads each pair by itself.
fn read(files: &[CertificateFiles]) -> Vec<anyhow::Result<Arc<ServedCertificate>>> {
    files.iter().map(|one| one.read().map(Arc::new)).collect()
}

impl FileCertificates {
    fn new(pairs: Vec<Option<Arc<ServedCertificate>>>) -> FileCertificates {
        let mut by_name = Shelf::default();
        for pair in pairs.iter().flatten() {
            for name in pair.names.iter() {
                by_name.offer(name.to_string(), pair.clone());
            }
        }
        let first = pairs.iter().flatten().next().cloned();
        FileCertificates { pairs, by_name, first }
    }

    fn is_whole(&self) -> bool {
        self.pairs.iter().all(Option::is_some)
    }
}

impl Named {
    /// Returns the certificate for a name. What the operator named by file comes first, then what
    /// records have for that very name, then for its family; but one that is not valid comes last,
    /// so that the client hears what is wrong.
    fn find(&self, name: Option<&str>, now: Timestamp) -> Option<Arc<ServedCertificate>> {
        let (files, stored) = (self.files.load(), self.stored.load());
        let first = files.first.as_ref().or(stored.of_address.as_ref());
        let Some(name) = name else { return first.cloned() };
        let found = || files.by_name.all(name).chain(stored.served.all(name));
        if let Some(good) = found().find(|one| one.is_valid(now)) {
            return Some(good.clone());
        }
        let local = || self.local.get()?.certificate(&name.to_ascii_lowercase(), now);
        local().or_else(|| found().next().or(first).cloned())
    }
}

impl ResolvesServerCert for Named {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let asks_whose = hello.alpn().is_some_and(|mut all| all.all(|one| one == ALPN_ACME));
        if asks_whose {
            return self.stored.load().challenge(hello.server_name()?, now());
        }
        self.find(hello.server_name(), now()).map(|found| found.key.clone())
    }
}

#[cfg(test)]
mod tests;
