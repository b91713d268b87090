//! The authority that vouches for `https://NAME.localhost` to the people of one machine: made by
//! its node, for that machine alone, and good for such names alone, so that whoever takes its key
//! can pretend to be no other site. The cluster's own is another one: its key is on every node.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use certificate_core::facts::Facts;
use certificate_core::pair::{self, Pair};
use cluster::identity::write_private;
use model::{ApplicationName, Timestamp};
use os::directory;
use os::layout::DataDirectory;
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    NameConstraints,
};
use time::OffsetDateTime;
use tls::LocalAuthority;
use tls::book::ServedCertificate;

/// The end of the names that it may vouch for; they are always this machine (RFC 6761).
const SUFFIX: &str = "localhost";
/// The time for which it is good: nobody wants to trust another one each year.
const AUTHORITY_LIFE: Duration = Duration::from_secs(5 * 365 * 24 * 60 * 60);
/// The time for which it vouches for a name; browsers refuse more than 825 days.
const CERTIFICATE_LIFE: Duration = Duration::from_secs(90 * 24 * 60 * 60);
/// The rest of that time in which another certificate is made.
const RENEWED_BEFORE: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// The tolerance for a client's clock that is slow.
const BEFORE_NOW: Duration = Duration::from_secs(60 * 60);
/// Certificates that are kept; more names are asked for by somebody who tries them out.
const KEPT_MAX: usize = 1024;
/// Digits of the hash that tells one authority from others.
const NAME_DIGITS: usize = 8;

/// The paths of an authority's certificate and key.
fn files(layout: &DataDirectory) -> [PathBuf; 2] {
    ["ca.pem", "ca.key"].map(|name| layout.development().join(name))
}

/// An authority's certificate, as people have it trusted.
#[derive(Clone, Debug)]
pub struct DevelopmentCertificate {
    pub path: PathBuf,
    pub pem: String,
    /// The name under which people find it.
    pub name: String,
}

/// Reads the certificate of this node's authority.
pub fn read(layout: &DataDirectory) -> anyhow::Result<DevelopmentCertificate> {
    let [path, _] = files(layout);
    let pem = fs::read_to_string(&path).with_context(|| {
        format!("{} is not there yet: `cortex up --https 127.0.0.1:8443` makes it", path.display())
    })?;
    let facts = pair::first(pem.as_bytes()).and_then(|der| Facts::read(&der));
    let facts = facts.with_context(|| format!("{} is no certificate", path.display()))?;
    Ok(DevelopmentCertificate { path, pem, name: facts.issuer })
}

pub struct DevelopmentAuthority {
    issuer: Issuer<'static, KeyPair>,
    authority: String,
    /// The key of all certificates: they are shown by this machine alone.
    key: KeyPair,
    made: Mutex<BTreeMap<String, Arc<ServedCertificate>>>,
}

impl std::fmt::Debug for DevelopmentAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DevelopmentAuthority")
    }
}

impl DevelopmentAuthority {
    /// Reads this node's authority, or makes it.
    pub fn of(layout: &DataDirectory, now: Timestamp) -> anyhow::Result<DevelopmentAuthority> {
        directory::private_directory(&layout.development())?;
        let [of_certificate, of_key] = files(layout);
        // A key that cannot be read is not replaced: people trust what it vouches for.
        let key = match fs::read_to_string(&of_key) {
            Ok(pem) => KeyPair::from_pem(&pem),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let key = KeyPair::generate()?;
                write_private(&of_key, key.serialize_pem().as_bytes())?;
                Ok(key)
            }
            Err(error) => return Err(error).with_context(|| of_key.display().to_string()),
        };
        let key = key.with_context(|| format!("{} is no private key", of_key.display()))?;
        let params = params(&key, now)?;
        let pem = fs::read_to_string(&of_certificate).ok();
        let good = pem.filter(|pem| is_good(pem, &key, now));
        let authority = match good {
            Some(pem) => pem,
            None => {
                let pem = params.self_signed(&key)?.pem();
                write_private(&of_certificate, pem.as_bytes())?;
                pem
            }
        };
        let issuer = Issuer::new(params, key);
        Ok(DevelopmentAuthority {
            issuer,
            authority,
            key: KeyPair::generate()?,
            made: Mutex::default(),
        })
    }

    fn make(&self, host: &str, now: Timestamp) -> anyhow::Result<ServedCertificate> {
        let mut params = CertificateParams::new(vec![host.to_owned()])?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, host);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        params.not_before = date(now) - BEFORE_NOW;
        params.not_after = date(now) + CERTIFICATE_LIFE;
        let own = params.signed_by(&self.key, &self.issuer)?.pem();
        let chain = format!("{own}{}", self.authority);
        let pair = Pair::read(chain.as_bytes(), self.key.serialize_pem().as_bytes())?;
        Ok(ServedCertificate::new(&pair))
    }
}

impl LocalAuthority for DevelopmentAuthority {
    fn certificate(&self, host: &str, now: Timestamp) -> Option<Arc<ServedCertificate>> {
        let name = host.strip_suffix(SUFFIX)?;
        let is_name = |name: &str| name.parse::<ApplicationName>().is_ok();
        if !name.is_empty() && !name.strip_suffix('.').is_some_and(is_name) {
            return None;
        }
        let soon = now.after(RENEWED_BEFORE);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = made.get(host).filter(|known| known.is_valid(soon)) {
            return Some(known.clone());
        }
        let fresh = self.make(host, now).inspect_err(|error| {
            tracing::warn!(error = format!("{error:#}"), "development.certificate_failed");
        });
        let fresh = Arc::new(fresh.ok()?);
        if made.len() >= KEPT_MAX {
            made.clear();
        }
        made.insert(host.to_owned(), fresh.clone());
        Some(fresh)
    }
}

/// Returns what stands in the authority's certificate; but for the times it follows from the key.
fn params(key: &KeyPair, now: Timestamp) -> anyhow::Result<CertificateParams> {
    let digest = blake3::hash(key.public_key_pem().as_bytes()).to_hex();
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = DistinguishedName::new();
    let name = format!("Cortex development {}", &digest[..NAME_DIGITS]);
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::DnsName(SUFFIX.into())],
        excluded_subtrees: vec![
            GeneralSubtree::IpAddress(CidrSubnet::V4([0; 4], [0; 4])),
            GeneralSubtree::IpAddress(CidrSubnet::V6([0; 16], [0; 16])),
        ],
    });
    params.not_before = date(now) - BEFORE_NOW;
    params.not_after = date(now) + AUTHORITY_LIFE;
    Ok(params)
}

fn is_good(pem: &str, key: &KeyPair, now: Timestamp) -> bool {
    let pair = Pair::read(pem.as_bytes(), key.serialize_pem().as_bytes());
    pair.is_ok_and(|pair| pair.check_time(now.after(CERTIFICATE_LIFE)).is_ok())
}

fn date(now: Timestamp) -> OffsetDateTime {
    OffsetDateTime::UNIX_EPOCH + Duration::from_millis(now.0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn now() -> Timestamp {
        let now = OffsetDateTime::now_utc().unix_timestamp();
        Timestamp(u64::try_from(now).unwrap() * 1000)
    }

    fn layout(directory: &tempfile::TempDir) -> DataDirectory {
        let layout = DataDirectory::new(directory.path().join("data"), directory.path());
        directory::private_directory(layout.root()).unwrap();
        layout
    }

    #[test]
    fn it_is_made_once_and_its_key_is_its_owners_alone() {
        let directory = tempfile::tempdir().unwrap();
        let layout = layout(&directory);
        assert!(read(&layout).unwrap_err().to_string().contains("makes it"));
        let first = DevelopmentAuthority::of(&layout, now()).unwrap();
        let shown = read(&layout).unwrap();
        assert!(shown.name.starts_with("Cortex development "), "{}", shown.name);
        let again = DevelopmentAuthority::of(&layout, now()).unwrap();
        assert_eq!(
            (again.authority.as_str(), first.authority),
            (shown.pem.as_str(), shown.pem.clone())
        );
        let mode = fs::metadata(&files(&layout)[1]).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Shortly before its end there is another one, with the same key.
        let late = now().after(AUTHORITY_LIFE - CERTIFICATE_LIFE + DAY);
        DevelopmentAuthority::of(&layout, late).unwrap();
        let renewed = read(&layout).unwrap();
        assert_eq!(renewed.name, shown.name);
        assert_ne!(renewed.pem, shown.pem);
    }

    #[test]
    fn it_vouches_for_names_of_this_machine_alone() {
        let directory = tempfile::tempdir().unwrap();
        let authority = DevelopmentAuthority::of(&layout(&directory), now()).unwrap();
        let made = authority.certificate("shop.localhost", now()).unwrap();
        assert!(made.covers("shop.localhost") && !made.covers("other.localhost"));
        let again = authority.certificate("shop.localhost", now()).unwrap();
        assert!(Arc::ptr_eq(&made, &again));
        let late = now().after(CERTIFICATE_LIFE - RENEWED_BEFORE + DAY);
        let renewed = authority.certificate("shop.localhost", late).unwrap();
        assert!(!Arc::ptr_eq(&made, &renewed));
        assert!(authority.certificate("localhost", now()).is_some());
        for other in ["shop.example", "a.b.localhost", ".localhost", "x-.localhost", "xlocalhost"] {
            assert!(authority.certificate(other, now()).is_none(), "{other}");
        }
        for number in 0..2 * KEPT_MAX {
            authority.made.lock().unwrap().insert(number.to_string(), made.clone());
        }
        authority.certificate("new.localhost", now()).unwrap();
        assert_eq!(authority.made.lock().unwrap().len(), 1);
    }

    /// Checks with another reader of certificates that a client refuses what it does not vouch for.
    #[test]
    fn what_its_key_signs_for_other_names_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let authority = DevelopmentAuthority::of(&layout(&directory), now()).unwrap();
        let root = directory.path().join("root.pem");
        fs::write(&root, &authority.authority).unwrap();
        for (names, expected) in [
            (&["shop.localhost"][..], true),
            (&["shop.example"], false),
            (&["192.0.2.7"], false),
            (&["127.0.0.1"], false),
            (&["shop.localhost", "shop.example"], false),
        ] {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let params = CertificateParams::new(names.clone()).unwrap();
            let own = params.signed_by(&authority.key, &authority.issuer).unwrap();
            let path = directory.path().join("own.pem");
            fs::write(&path, own.pem()).unwrap();
            let verify = Command::new("openssl")
                .args(["verify", "-CAfile"])
                .args([&root, &path])
                .output()
                .expect("openssl is needed");
            let said = String::from_utf8_lossy(&verify.stderr);
            assert_eq!(verify.status.success(), expected, "{names:?}: {said}");
        }
    }
}
