//! TLS towards clients: certificates and keys from files, chosen by the name that a client asks
//! for, and read again when they change. It knows no listener and no request; the router's threads
//! and `cortex proxy` take connections with it.

pub mod accept;
mod facts;
mod files;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::{self, Ticketer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

pub use self::files::CertificateFiles;
use self::files::FileStates;

pub const ALPN_HTTP_2: &[u8] = b"h2";
pub const ALPN_HTTP_1: &[u8] = b"http/1.1";
/// The time between two looks: a renewed certificate is used this soon after it was written.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// The configuration that one or more listeners need for TLS.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ServerConfig>,
    named: Arc<Named>,
    files: Arc<[CertificateFiles]>,
}

/// The certificates by the names in them.
#[derive(Debug)]
struct Named {
    current: ArcSwap<Certificates>,
}

/// The content of one pair of files.
#[derive(Clone, Debug)]
struct Pair {
    key: Arc<CertifiedKey>,
    names: Vec<String>,
}

#[derive(Debug)]
struct Certificates {
    /// The pairs in the order of the files; `None` for those that were never any good.
    pairs: Vec<Option<Pair>>,
    /// The keys by name in lower case; `*.` in front stands for one label.
    by_name: BTreeMap<String, Arc<CertifiedKey>>,
    /// The key for clients that ask for no name, or for one that no certificate has. Without any,
    /// no handshake succeeds.
    first: Option<Arc<CertifiedKey>>,
}

impl Tls {
    /// Reads all files. The first certificate also answers clients that ask for no known name.
    pub fn load(files: Vec<CertificateFiles>) -> anyhow::Result<Tls> {
        let pairs: anyhow::Result<Vec<Pair>> = read(&files).into_iter().collect();
        Tls::of(files, pairs?.into_iter().map(Some).collect())
    }

    /// Reads them like `load`, but leaves out those that are no good; they are used as soon as
    /// their files are good.
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

    fn of(files: Vec<CertificateFiles>, pairs: Vec<Option<Pair>>) -> anyhow::Result<Tls> {
        anyhow::ensure!(!files.is_empty(), "TLS needs at least one certificate and its key");
        let current = ArcSwap::from_pointee(Certificates::new(pairs));
        let named = Arc::new(Named { current });
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(named.clone());
        config.alpn_protocols = vec![ALPN_HTTP_2.to_vec(), ALPN_HTTP_1.to_vec()];
        // A client that comes again saves a signature, whichever thread takes it.
        config.ticketer = Ticketer::new().context("keys for session tickets")?;
        Ok(Tls { config: Arc::new(config), named, files: files.into() })
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

    /// Reads files that change again, for as long as somebody uses this. Files that are no good are
    /// reported once, and what was read before stays in use.
    pub fn follow(&self) -> impl Future<Output = ()> + Send + use<> {
        follow(Arc::downgrade(&self.named), self.files.clone())
    }
}

async fn follow(named: Weak<Named>, files: Arc<[CertificateFiles]>) {
    let mut reported = String::new();
    // Pairs that were left out may only have to wait for their time.
    let is_whole = named.upgrade().is_some_and(|named| named.current.load().is_whole());
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
        let before = named.current.load_full();
        let pairs = read.into_iter().zip(&before.pairs);
        let pairs = pairs.map(|(read, before)| read.ok().or_else(|| before.clone())).collect();
        named.current.store(Arc::new(Certificates::new(pairs)));
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
fn read(files: &[CertificateFiles]) -> Vec<anyhow::Result<Pair>> {
    let pair = |one: &CertificateFiles| one.read().map(|(key, names)| Pair { key, names });
    files.iter().map(pair).collect()
}

impl Certificates {
    fn new(pairs: Vec<Option<Pair>>) -> Certificates {
        let mut by_name = BTreeMap::new();
        for Pair { key, names } in pairs.iter().flatten() {
            for name in names {
                by_name.entry(name.clone()).or_insert_with(|| key.clone());
            }
        }
        let first = pairs.iter().flatten().next().map(|pair| pair.key.clone());
        Certificates { pairs, by_name, first }
    }

    fn is_whole(&self) -> bool {
        self.pairs.iter().all(Option::is_some)
    }

    fn find(&self, name: &str) -> Option<&Arc<CertifiedKey>> {
        let name = name.to_ascii_lowercase();
        let wild = || name.split_once('.').map(|(_, rest)| format!("*.{rest}"));
        let found = self.by_name.get(&name).or_else(|| self.by_name.get(&wild()?));
        found.or(self.first.as_ref())
    }
}

impl ResolvesServerCert for Named {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.current.load();
        match hello.server_name() {
            Some(name) => current.find(name).cloned(),
            None => current.first.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
