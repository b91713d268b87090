//! Encrypted connections: the certificate that was given, or one made here on the first start.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use os::directory::private_directory;

/// The files of a certificate chain and its key, in PEM.
#[derive(Clone, Debug)]
pub struct Certificate {
    pub chain: PathBuf,
    pub key: PathBuf,
}

pub fn acceptor(certificate: &Certificate) -> anyhow::Result<TlsAcceptor> {
    let Certificate { chain, key } = certificate;
    let unreadable = |path: &Path, what: &str| {
        format!("{} cannot be read as {what}; give files in PEM form", path.display())
    };
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(chain)
        .and_then(Iterator::collect)
        .with_context(|| unreadable(chain, "a certificate chain"))?;
    let private =
        PrivateKeyDer::from_pem_file(key).with_context(|| unreadable(key, "a private key"))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(certificates, private)
        .with_context(|| format!("{} and {} do not fit", chain.display(), key.display()))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Makes a certificate for the names given, if there is none yet in `directory`. Clients are given
/// the certificate's file, and need not trust any other authority.
pub fn self_made(directory: &Path, names: Vec<String>) -> anyhow::Result<Certificate> {
    let (chain, key) = (directory.join("certificate.pem"), directory.join("key.pem"));
    if !chain.exists() || !key.exists() {
        private_directory(directory)?;
        let made = rcgen::generate_simple_self_signed(names).context("the names of this node")?;
        write_private(&key, &made.signing_key.serialize_pem())?;
        write_private(&chain, &made.cert.pem())?;
    }
    Ok(Certificate { chain, key })
}

fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let opened =
        std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
    opened
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .with_context(|| format!("{} cannot be written", path.display()))
}
