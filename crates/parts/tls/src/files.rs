//! A certificate chain and its key as files: read, and refused with what is wrong with them.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, ensure};
use certificate_core::pair::Pair;

use super::now;
use crate::book::ServedCertificate;

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
    /// Reads the pair, which must be good now.
    pub(crate) fn read(&self) -> anyhow::Result<ServedCertificate> {
        let CertificateFiles { chain, key } = self;
        let of_chain =
            read(chain).with_context(|| format!("the certificate {}", chain.display()))?;
        let of_key = read(key).with_context(|| format!("the private key {}", key.display()))?;
        let pair = Pair::read(&of_chain, &of_key).and_then(|pair| {
            pair.check_time(now())?;
            Ok(pair)
        });
        let pair = pair.with_context(|| {
            format!("the certificate {} with the key {}", chain.display(), key.display())
        })?;
        Ok(ServedCertificate::new(&pair))
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
pub(crate) struct FileStates(Vec<Option<(SystemTime, u64, u64)>>);

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
    use time::{Duration, OffsetDateTime};

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
        let read = made(|_| ()).files.read().unwrap();
        let names: Vec<String> = read.names.iter().map(ToString::to_string).collect();
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
        assert!(refused(&mixed).contains("the key is not that of"), "{}", refused(&mixed));
        let absent = CertificateFiles { chain: "/none/a.pem".into(), key: good.files.key.clone() };
        assert!(refused(&absent).contains("/none/a.pem: cannot be read"), "{}", refused(&absent));
        let empty = good.directory.path().join("empty.pem");
        std::fs::write(&empty, "").unwrap();
        let none = CertificateFiles { chain: empty.clone(), key: good.files.key.clone() };
        assert!(refused(&none).contains("has no certificate"), "{}", refused(&none));
        let none = CertificateFiles { chain: good.files.chain.clone(), key: empty };
        assert!(refused(&none).contains("there is no private key"), "{}", refused(&none));
        let swapped =
            CertificateFiles { chain: good.files.key.clone(), key: good.files.chain.clone() };
        assert!(refused(&swapped).contains("has no certificate"), "{}", refused(&swapped));
        let text = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        std::fs::write(&good.files.chain, text).unwrap();
        assert!(refused(&good.files).contains("cannot be read"));
    }
}
