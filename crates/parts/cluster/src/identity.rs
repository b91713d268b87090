//! The identity of this node in its cluster, in DATA/cluster: the cluster's id, its authority
//! (every member is the whole platform, so every member holds it), this node's own key, and how it
//! came in. Must not know the network; opening the store and redeeming an invitation drive it.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use model::NodeId;
use model::hex::{from_hex, to_hex};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
};
use serde::{Deserialize, Serialize};
use store_core::event::Standing;
use store_core::sync::message::ClusterId;
use time::OffsetDateTime;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::server::ParsedCertificate;

use super::credential::LIFE;
use os::directory::private_directory;

const FORMAT: u32 = 1;

/// How a node is found before its record in the store can be read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seed {
    pub id: NodeId,
    pub addresses: Vec<String>,
    /// The pin of the key that it shows; `None` if it has not said.
    #[serde(default)]
    pub pin: Option<String>,
}

/// The content of `member.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Membership {
    pub v: u32,
    #[serde(with = "hexadecimal")]
    pub cluster: [u8; 16],
    /// The hash of the invitation that brought this node in; `None` for the founder.
    #[serde(default)]
    pub redeemed: Option<String>,
    /// Whether the store has yet to be told of it.
    #[serde(default)]
    pub joining: bool,
    /// The stamp of the roster entry that was made for this node.
    #[serde(default)]
    pub listed: u64,
    /// The address at which this node listened last, so that a restart needs no option.
    #[serde(default)]
    pub listen: Option<SocketAddr>,
    /// Whether this node keeps no store and uses that of others.
    #[serde(default)]
    pub guest: bool,
    /// The members when this node came in; for a guest, those that keep the store.
    #[serde(default)]
    pub seeds: Vec<Seed>,
}

mod hexadecimal {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(id: &[u8; 16], out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&super::to_hex(id))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[u8; 16], D::Error> {
        let text = String::deserialize(from)?;
        super::from_hex(&text).ok_or_else(|| D::Error::custom("32 hexadecimal digits expected"))
    }
}

pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if got == N { Ok(bytes) } else { Err(io::Error::other("the kernel gave no randomness")) }
}

impl Membership {
    /// Returns the cluster that this directory names. If the log names another one, either the
    /// directory is newer, since its node has just been let in somewhere, or the log is right.
    pub fn settle(dir: &Path, standing: Standing) -> anyhow::Result<ClusterId> {
        let mut membership = Membership::load_or_found(dir)?;
        let logged = (standing.incarnation != 0).then_some(standing.cluster);
        let differs = logged.is_some_and(|logged| logged != membership.id());
        if differs && !membership.joining {
            match (membership.redeemed.is_some(), logged) {
                // An old copy of the log was restored.
                (true, _) => membership.joining = true,
                (false, Some(logged)) => membership = Membership::of(logged),
                (false, None) => {}
            }
            membership.save(dir)?;
        }
        Ok(membership.id())
    }

    pub fn id(&self) -> ClusterId {
        ClusterId(self.cluster)
    }

    /// Loads the membership, or founds a cluster: a node that never joined anything is one of its
    /// own.
    pub fn load_or_found(dir: &Path) -> anyhow::Result<Membership> {
        if let Some(membership) = Membership::load(dir)? {
            return Ok(membership);
        }
        let membership = Membership::of(ClusterId(random()?));
        membership.save(dir)?;
        Ok(membership)
    }

    pub fn of(cluster: ClusterId) -> Membership {
        Membership {
            v: FORMAT,
            cluster: cluster.0,
            redeemed: None,
            joining: false,
            listed: 0,
            listen: None,
            guest: false,
            seeds: Vec::new(),
        }
    }

    pub fn load(dir: &Path) -> anyhow::Result<Option<Membership>> {
        let path = dir.join("member.json");
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let membership: Membership = serde_json::from_slice(&bytes).with_context(|| {
            format!(
                "{} is damaged; restore it from a copy of this directory, or let the node join \
                 its cluster again with --join",
                path.display()
            )
        })?;
        if membership.v > FORMAT {
            bail!("a newer version of Cortex wrote {}; start that version", path.display());
        }
        Ok(Some(membership))
    }

    /// Saves the membership, durably when it returns.
    pub fn save(&self, dir: &Path) -> anyhow::Result<()> {
        private_directory(dir).with_context(|| dir.display().to_string())?;
        write_private(&dir.join("member.json"), &serde_json::to_vec_pretty(self)?)
    }
}

pub fn write_private(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let written = os::secret_file::write_private(path, bytes);
    written.with_context(|| format!("{} cannot be written; free space for it", path.display()))
}

/// The cluster's own certificate authority, by which members recognise one another.
pub struct Authority {
    key: KeyPair,
    pub certificate: CertificateDer<'static>,
    certificate_pem: String,
}

/// The BLAKE3 of a node's public key, which tells it from any other that the authority could give
/// the same name: every member holds the authority, a removed one too, but only this node holds its
/// key.
pub type KeyPin = [u8; 32];

pub fn pin_of(certificate: &CertificateDer<'_>) -> anyhow::Result<KeyPin> {
    let parsed = ParsedCertificate::try_from(certificate)?;
    Ok(*blake3::hash(&parsed.subject_public_key_info()).as_bytes())
}

/// Returns this node's own key, which is made when it is first asked for.
pub fn node_key(dir: &Path) -> anyhow::Result<KeyPair> {
    let path = dir.join("node.key");
    match fs::read_to_string(&path) {
        Ok(pem) => KeyPair::from_pem(&pem).with_context(|| {
            format!(
                "{} is damaged; restore it from a copy, or remove it, have a member remove this \
                 node, and let it join again with --join",
                path.display()
            )
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let fresh = KeyPair::generate()?;
            private_directory(dir).with_context(|| dir.display().to_string())?;
            write_private(&path, fresh.serialize_pem().as_bytes())?;
            Ok(fresh)
        }
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

pub fn pin_of_key(key: &KeyPair) -> KeyPin {
    *blake3::hash(&key.subject_public_key_info()).as_bytes()
}

/// The certificate that a node shows others, with its key.
pub struct NodeCertificate {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl Authority {
    pub fn load_or_make(dir: &Path, cluster: ClusterId) -> anyhow::Result<Authority> {
        let (certificate, key) = paths(dir);
        if !certificate.exists() && !key.exists() {
            let fresh = Authority::make(cluster)?;
            fresh.save(dir)?;
            return Ok(fresh);
        }
        let read = |path: &Path| {
            fs::read_to_string(path).with_context(|| {
                format!(
                    "{} cannot be read; restore it from a copy of this directory, or let the \
                     node join its cluster again with --join",
                    path.display()
                )
            })
        };
        Authority::from_pem(&read(&certificate)?, &read(&key)?)
            .with_context(|| format!("{} is damaged; restore it from a copy", dir.display()))
    }

    fn make(cluster: ClusterId) -> anyhow::Result<Authority> {
        let key = KeyPair::generate()?;
        let certificate = authority_params(cluster).self_signed(&key)?;
        Ok(Authority {
            key,
            certificate: certificate.der().clone(),
            certificate_pem: certificate.pem(),
        })
    }

    pub fn from_pem(certificate: &str, key: &str) -> anyhow::Result<Authority> {
        Ok(Authority {
            key: KeyPair::from_pem(key)?,
            certificate: CertificateDer::from_pem_slice(certificate.as_bytes())?,
            certificate_pem: certificate.to_string(),
        })
    }

    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    pub fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    /// Saves the key first: with only a certificate the directory would count as damaged.
    pub fn save(&self, dir: &Path) -> anyhow::Result<()> {
        private_directory(dir).with_context(|| dir.display().to_string())?;
        let (certificate, key) = paths(dir);
        write_private(&key, self.key_pem().as_bytes())?;
        write_private(&certificate, self.certificate_pem.as_bytes())
    }

    /// Makes a certificate that is valid since long ago, as clocks may be behind. The roster
    /// decides who belongs to the cluster.
    pub fn certify(
        &self,
        cluster: ClusterId,
        node: &NodeId,
        key: &KeyPair,
        now: OffsetDateTime,
    ) -> anyhow::Result<NodeCertificate> {
        let issuer = Issuer::new(authority_params(cluster), &self.key);
        let mut params = CertificateParams::new(vec![name_of(cluster, node)])?;
        params.distinguished_name = named(format!("Cortex node {node}"));
        params.is_ca = IsCa::NoCa;
        params.not_after = now + LIFE;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(key, &issuer)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Ok(NodeCertificate { chain: vec![certificate.into(), self.certificate.clone()], key })
    }
}

/// Returns what an invitation says of its issuer: the hash of the cluster's authority and that
/// node's own key.
pub fn fingerprint(authority: &CertificateDer<'_>, issuer: &KeyPin) -> [u8; 32] {
    *blake3::Hasher::new().update(authority).update(issuer).finalize().as_bytes()
}

/// Returns the name in a node's certificate; a node of one cluster has no name in another.
pub fn name_of(cluster: ClusterId, node: &NodeId) -> String {
    format!("{node}.{}.cortex", to_hex(&cluster.0))
}

fn paths(dir: &Path) -> (PathBuf, PathBuf) {
    (dir.join("authority.pem"), dir.join("authority.key"))
}

fn named(name: String) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn authority_params(cluster: ClusterId) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(format!("Cortex cluster {}", to_hex(&cluster.0)));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_stays_and_damage_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("cluster");
        let founded = Membership::load_or_found(&dir).unwrap();
        assert_eq!(Membership::load_or_found(&dir).unwrap(), founded);
        let authority = Authority::load_or_make(&dir, founded.id()).unwrap();
        let again = Authority::load_or_make(&dir, founded.id()).unwrap();
        assert_eq!(again.certificate, authority.certificate);
        let key = node_key(&dir).unwrap();
        let own = again
            .certify(founded.id(), &"n1".parse().unwrap(), &key, OffsetDateTime::now_utc())
            .unwrap();
        assert_eq!(pin_of(&own.chain[0]).unwrap(), pin_of_key(&node_key(&dir).unwrap()));
        assert_ne!(pin_of(&own.chain[0]).unwrap(), pin_of(&own.chain[1]).unwrap());
        fs::write(dir.join("member.json"), "{").unwrap();
        let error = format!("{:#}", Membership::load_or_found(&dir).unwrap_err());
        assert!(error.contains("is damaged") && error.contains("--join"), "{error}");
        fs::write(dir.join("node.key"), "no key").unwrap();
        assert!(format!("{:#}", node_key(&dir).unwrap_err()).contains("is damaged"));
        fs::write(dir.join("authority.key"), "no key").unwrap();
        assert!(Authority::load_or_make(&dir, founded.id()).is_err());
    }

    #[test]
    fn hexadecimal_digits_are_read_back() {
        assert_eq!(from_hex(&to_hex(&[0, 10, 255])), Some([0u8, 10, 255]));
        assert_eq!(from_hex::<2>("12é"), None);
        assert_eq!(from_hex::<1>("+1"), None);
    }
}
