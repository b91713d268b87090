//! Answers to challenges, before the authority is told of them: any node may be asked, so all of
//! them must have what it takes.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use acme_core::{ChallengeKind, Problem, kind};
use certificate_core::pair;
use model::acme::AcmeSettings;
use model::certificate::AcmeChallenge;
use model::record::{self, RECORD_VERSION, Unknown};
use model::{CertificateName, Timestamp, TypedKey};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use runtime::driver::Clock;
use runtime::lock::locked;
use store::SharedStore;

use crate::ordering::{Asked, unusable};

/// How long the certificate of a challenge is shown. Its node takes it back before, unless it is
/// lost.
const SHOWN_MAX: Duration = Duration::from_secs(3600);
/// How long the hook program may take: it waits until DNS has the record everywhere.
const HOOK_MAX: Duration = Duration::from_secs(300);
/// Bytes of a hook's complaint that are kept.
const COMPLAINT_BYTES_MAX: u64 = 500;

/// Records in DNS that this node had made and takes away again.
#[derive(Clone, Default)]
pub struct Records(Arc<Mutex<BTreeMap<CertificateName, (String, String)>>>);

/// Writes what any node shows that is asked over TLS; returns its key in the store, and the hash of
/// the certificate.
pub async fn show_certificate(
    store: &SharedStore,
    clock: Clock,
    name: &CertificateName,
    digest: &[u8],
) -> Result<(TypedKey, String), Problem> {
    let made = make_certificate(name, digest, clock.now().after(SHOWN_MAX));
    let challenge = made.map_err(|error| unusable(&error.to_string()))?;
    let der = pair::first(challenge.certificate.as_bytes());
    let der = der.ok_or_else(|| unusable("the new certificate cannot be read"))?;
    let hash = model::hex::to_hex(blake3::hash(&der).as_bytes());
    let key = TypedKey::AcmeChallenge(name.clone());
    let written = store.set(key.key(), record::encode(&challenge).into()).await;
    written.map_err(|error| Problem::new(kind::PEERS, &error.to_string()))?;
    Ok((key, hash))
}

/// Makes the certificate of RFC 8737: for the one name, with the hash in its extension.
fn make_certificate(
    name: &CertificateName,
    digest: &[u8],
    expires_at: Timestamp,
) -> Result<AcmeChallenge, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec![name.to_string()])?;
    params.distinguished_name = DistinguishedName::new();
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let certificate = params.self_signed(&key)?;
    Ok(AcmeChallenge {
        v: RECORD_VERSION,
        certificate: certificate.pem(),
        key: key.serialize_pem().into(),
        expires_at,
        unknown: Unknown::new(),
    })
}

/// Has the record in DNS made.
pub async fn make_record(
    settings: &AcmeSettings,
    records: &Records,
    name: &CertificateName,
    asked: &Asked,
) -> Result<(), Problem> {
    let hook = settings.dns_hook.clone();
    let hook = hook.ok_or_else(|| Problem::new(kind::HOOK, "there is no program for DNS"))?;
    let fqdn = record_name(name);
    let value = asked.dns_value.clone();
    locked(&records.0).insert(name.clone(), (fqdn.clone(), value.clone()));
    run_hook(hook, "present", fqdn, value).await
}

fn record_name(name: &CertificateName) -> String {
    let text = name.to_string();
    format!("_acme-challenge.{}.", text.strip_prefix("*.").unwrap_or(&text))
}

/// Takes back what was prepared. What cannot be taken back harms nobody.
pub async fn withdraw(
    store: &SharedStore,
    settings: Option<AcmeSettings>,
    records: &Records,
    name: &CertificateName,
    kind: ChallengeKind,
) {
    let result = match kind {
        ChallengeKind::Http01 => return,
        ChallengeKind::TlsAlpn01 => {
            let key = TypedKey::AcmeChallenge(name.clone()).key();
            store.delete(key).await.map(drop).map_err(|error| error.to_string())
        }
        ChallengeKind::Dns01 => {
            let made = locked(&records.0).remove(name);
            let hook = settings.and_then(|settings| settings.dns_hook);
            let Some((hook, (fqdn, value))) = hook.zip(made) else { return };
            run_hook(hook, "cleanup", fqdn, value).await.map_err(|problem| problem.detail)
        }
    };
    if let Err(error) = result {
        tracing::warn!(%name, %kind, error, "certificates.not_withdrawn");
    }
}

/// Runs the hook as lego's provider `exec` does: `PROGRAM present|cleanup NAME VALUE`.
async fn run_hook(
    program: String,
    action: &'static str,
    fqdn: String,
    value: String,
) -> Result<(), Problem> {
    let running = runtime::task::spawn_blocking(move || {
        let mut command = Command::new(&program);
        command.args([action, &fqdn, &value]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
        attend(child).map_err(|why| format!("{program} {action} {fqdn}: {why}"))
    });
    let ended = running.await.unwrap_or_else(|error| Err(error.to_string()));
    ended.map_err(|why| Problem::new(kind::HOOK, &why))
}

/// Waits for the end of a hook, and stops one that takes too long.
fn attend(mut child: Child) -> Result<(), String> {
    const POLL: Duration = Duration::from_millis(50);
    let stderr = child.stderr.take().expect("it is piped");
    // It is read to its end, or the hook would wait for somebody to read it.
    let complaint = std::thread::spawn(move || {
        let mut said = Vec::new();
        let mut stderr = stderr;
        (&mut stderr).take(COMPLAINT_BYTES_MAX).read_to_end(&mut said).ok();
        std::io::copy(&mut stderr, &mut std::io::sink()).ok();
        String::from_utf8_lossy(&said).trim().to_string()
    });
    let deadline = Instant::now() + HOOK_MAX;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL),
            Ok(None) => {
                child.kill().ok();
                child.wait().ok();
                return Err(format!("it took more than {} minutes", HOOK_MAX.as_secs() / 60));
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    if status.success() {
        return Ok(());
    }
    // A process that it left behind may hold its output open: nothing more is waited for.
    let said =
        if complaint.is_finished() { complaint.join().unwrap_or_default() } else { String::new() };
    Err(format!("{status} {said}").trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_certificate_of_a_challenge_carries_the_hash() {
        let name: CertificateName = "192.0.2.7".parse().unwrap();
        let made = make_certificate(&name, &[7; 32], Timestamp(1)).unwrap();
        made.check_sizes().unwrap();
        assert!(!format!("{made:?}").contains("PRIVATE"));
    }

    #[test]
    fn records_stand_below_the_name_without_its_star() {
        let name = |text: &str| record_name(&text.parse().unwrap());
        assert_eq!(name("*.shop.example"), "_acme-challenge.shop.example.");
        assert_eq!(name("shop.example"), "_acme-challenge.shop.example.");
    }

    #[tokio::test]
    async fn a_hook_is_heard() {
        let run = |program: &str| run_hook(program.into(), "present", "a.".into(), "v".into());
        run("/bin/true").await.unwrap();
        let why = run("/bin/false").await.unwrap_err();
        assert!(why.kind == kind::HOOK && why.detail.contains("exit status: 1"), "{why:?}");
        let why = run("/bin/cat").await.unwrap_err().detail;
        assert!(why.contains("/bin/cat present a."), "{why}");
        assert!(run("/nowhere").await.unwrap_err().detail.contains("No such file"));
    }
}
