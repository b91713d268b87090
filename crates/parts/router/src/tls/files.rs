//! A certificate chain and its key as files: read, and refused with what is wrong with them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, bail, ensure};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{Error, InconsistentKeys};

use super::facts::Facts;

/// The size of a file, in bytes, more than any chain or key takes; a wrong path may lead to
/// anything.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The paths of a chain and its key, both in PEM form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, then those of the authorities that vouch for it.
    pub chain: PathBuf,
    pub key: PathBuf,
}

impl CertificateFiles {
    /// Reads the pair, and the names that the certificate is for, in lower case.
    pub(super) fn read(&self) -> anyhow::Result<(Arc<CertifiedKey>, Vec<String>)> {
        let CertificateFiles { chain, key } = self;
        let text = read(chain).with_context(|| format!("the certificate {}", chain.display()))?;
        let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&text)
            .collect::<Result<_, _>>()
            .with_context(|| format!("{} is no certificate in PEM form", chain.display()))?;
        let Some(own) = certificates.first() else {
            bail!(
                "{} has no certificate: a block between BEGIN CERTIFICATE and END CERTIFICATE is \
                 expected",
                chain.display()
            );
        };
        let facts = Facts::read(own)
            .with_context(|| format!("{} is no certificate that can be read", chain.display()))?;
        facts.check(SystemTime::now(), chain)?;
        let text = read(key).with_context(|| format!("the private key {}", key.display()))?;
        let private = PrivateKeyDer::from_pem_slice(&text).with_context(|| {
            format!(
                "{} has no private key in PEM form; one behind a passphrase cannot be used",
                key.display()
            )
        })?;
        match CertifiedKey::from_der(certificates, private, &ring::default_provider()) {
            Ok(certified) => Ok((Arc::new(certified), facts.names)),
            Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => bail!(
                "{} is not the key of {}: give the pair that belongs together",
                key.display(),
                chain.display()
            ),
            Err(error) => Err(error).with_context(|| {
                format!("{} and {} cannot be used for TLS", chain.display(), key.display())
            }),
        }
    }
}

impl Facts {
    fn check(&self, now: SystemTime, chain: &Path) -> anyhow::Result<()> {
        let now = OffsetDateTime::from(now);
        let say = |time: OffsetDateTime| time.format(&Rfc3339).unwrap_or_default();
        ensure!(
            now <= self.not_after,
            "the certificate {} expired at {}: renew it",
            chain.display(),
            say(self.not_after)
        );
        ensure!(
            now >= self.not_before,
            "the certificate {} is valid only from {}: check the clock of this machine",
            chain.display(),
            say(self.not_before)
        );
        Ok(())
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let metadata = std::fs::metadata(path).context("cannot be read")?;
    ensure!(metadata.is_file(), "is no file");
    ensure!(metadata.len() <= FILE_BYTES_MAX, "is too large: {} bytes", metadata.len());
    std::fs::read(path).context("cannot be read")
}

/// The state of files when somebody looked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileStates(Vec<Option<(SystemTime, u64, u64)>>);

impl FileStates {
    pub fn of(files: &[CertificateFiles]) -> FileStates {
        use std::os::unix::fs::MetadataExt;
        let look = |path: &PathBuf| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
        };
        FileStates(files.iter().flat_map(|one| [look(&one.chain), look(&one.key)]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::Duration;

    struct Made {
        directory: tempfile::TempDir,
        files: CertificateFiles,
    }

    fn made(change: impl FnOnce(&mut rcgen::CertificateParams)) -> Made {
        let directory = tempfile::tempdir().unwrap();
        let names = vec!["Shop.example".to_owned(), "*.shop.example".to_owned()];
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        change(&mut params);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let files = CertificateFiles {
            chain: directory.path().join("chain.pem"),
            key: directory.path().join("key.pem"),
        };
        std::fs::write(&files.chain, certificate.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        Made { directory, files }
    }

    fn refused(files: &CertificateFiles) -> String {
        format!("{:#}", files.read().unwrap_err())
    }

    #[test]
    fn names_are_read() {
        let (_, names) = made(|_| ()).files.read().unwrap();
        assert_eq!(names, ["shop.example", "*.shop.example"]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let good = made(|_| ());
        let old = made(|params| params.not_after = OffsetDateTime::now_utc() - Duration::days(1));
        assert!(refused(&old.files).contains("expired at 20"), "{}", refused(&old.files));
        let early = made(|params| params.not_before = OffsetDateTime::now_utc() + Duration::DAY);
        assert!(refused(&early.files).contains("valid only from"), "{}", refused(&early.files));
        let other = made(|_| ());
        let mixed =
            CertificateFiles { chain: good.files.chain.clone(), key: other.files.key.clone() };
        assert!(refused(&mixed).contains("is not the key of"), "{}", refused(&mixed));
        let absent = CertificateFiles { chain: "/none/a.pem".into(), key: good.files.key.clone() };
        assert!(refused(&absent).contains("/none/a.pem: cannot be read"), "{}", refused(&absent));
        let empty = good.directory.path().join("empty.pem");
        std::fs::write(&empty, "").unwrap();
        let none = CertificateFiles { chain: empty.clone(), key: good.files.key.clone() };
        assert!(refused(&none).contains("has no certificate"), "{}", refused(&none));
        let none = CertificateFiles { chain: good.files.chain.clone(), key: empty };
        assert!(refused(&none).contains("has no private key"), "{}", refused(&none));
        let swapped =
            CertificateFiles { chain: good.files.key.clone(), key: good.files.chain.clone() };
        assert!(refused(&swapped).contains("has no certificate"), "{}", refused(&swapped));
        let text = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        std::fs::write(&good.files.chain, text).unwrap();
        assert!(refused(&good.files).contains("is no certificate that can be read"));
    }
}
