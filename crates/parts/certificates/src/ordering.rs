//! The steps of an order at the authority, each by itself: the order is looked up by its URL each
//! time, so that any node can take any step.

use std::time::Duration;

use acme_core::{
    Authorization, ChallengeKind, Offered, OrderStatus, OrderView, Outcome, Problem, kind,
};
use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeHandle, ChallengeStatus,
    ChallengeType, Error, Identifier, NewOrder, Order,
};
use model::CertificateName;
use model::Timestamp;
use model::acme::{AcmeSettings, RenewalWindow};
use model::certificate::SecretText;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use tokio_rustls::rustls::pki_types::Der;

use crate::failure::{of_api, problem};

/// How often a request is sent again whose nonce the authority does not know any more; the client
/// of the protocol sends each one three times by itself.
const NONCES_MAX: u32 = 4;
/// The profile of certificates for addresses at Let's Encrypt, which gives them out for six days
/// alone.
const SHORT_LIVED: &str = "shortlived";

pub fn identifier(name: &CertificateName) -> Identifier {
    match name {
        CertificateName::Domain(domain) => Identifier::Dns(domain.to_string()),
        CertificateName::Address(address) => Identifier::Ip(*address),
    }
}

/// Runs a step, and once more if the authority forgot the nonce.
pub async fn again<T, F>(mut step: impl FnMut() -> F) -> Result<T, Problem>
where
    F: Future<Output = Result<T, Problem>>,
{
    for _ in 1..NONCES_MAX {
        match step().await {
            Err(problem) if problem.kind == "badNonce" => {}
            other => return other,
        }
    }
    step().await
}

/// Makes an order, and a key for its certificate.
pub async fn order(
    account: &Account,
    settings: &AcmeSettings,
    name: &CertificateName,
    replaces: Option<&str>,
) -> Result<Outcome, Problem> {
    let key = KeyPair::generate().map_err(|error| unusable(&error.to_string()))?;
    let profile = profile(account, settings, name);
    let made = again(|| new_order(account, name, replaces, profile.as_deref())).await;
    let made = match made {
        // Without its predecessor it is an order like any other.
        Err(problem) if replaces.is_some() && is_about_predecessor(&problem) => {
            again(|| new_order(account, name, None, profile.as_deref())).await
        }
        other => other,
    };
    let order = made?;
    Ok(Outcome::Ordered { url: order.url().into(), key: key.serialize_pem().into() })
}

fn is_about_predecessor(problem: &Problem) -> bool {
    matches!(problem.kind.as_str(), "alreadyReplaced" | "malformed" | "conflict" | "unauthorized")
}

fn profile(account: &Account, settings: &AcmeSettings, name: &CertificateName) -> Option<String> {
    let is_offered = |wanted: &str| account.profiles().any(|profile| profile.name == wanted);
    match (&settings.profile, name) {
        (Some(profile), _) => Some(profile.clone()),
        (None, CertificateName::Address(_)) if is_offered(SHORT_LIVED) => Some(SHORT_LIVED.into()),
        (None, _) => None,
    }
}

async fn new_order(
    account: &Account,
    name: &CertificateName,
    replaces: Option<&str>,
    profile: Option<&str>,
) -> Result<Order, Problem> {
    let identifiers = [identifier(name)];
    let mut order = NewOrder::new(&identifiers);
    if let Some(id) = replaces.and_then(predecessor) {
        order = order.replaces(id);
    }
    if let Some(profile) = profile {
        order = order.profile(profile);
    }
    account.new_order(&order).await.map_err(|error| problem(&error))
}

/// Reads the name of a certificate as `leaf::read` wrote it.
pub fn predecessor(id: &str) -> Option<CertificateIdentifier<'static>> {
    let text = serde_json::to_string(id).ok()?;
    serde_json::from_str::<CertificateIdentifier<'_>>(&text).ok().map(|id| id.into_owned())
}

async fn open(account: &Account, url: &str) -> Result<Order, Problem> {
    again(async || account.order(url.to_owned()).await.map_err(|error| problem(&error))).await
}

pub async fn look(account: &Account, url: &str) -> Result<Outcome, Problem> {
    again(|| look_once(account, url)).await
}

async fn look_once(account: &Account, url: &str) -> Result<Outcome, Problem> {
    let mut order = open(account, url).await?;
    let status = order.state().status;
    let error = order.state().error.as_ref().map(of_api);
    let (mut authorizations, mut refused) = (Vec::new(), None);
    if matches!(status, instant_acme::OrderStatus::Pending | instant_acme::OrderStatus::Invalid) {
        let mut all = order.authorizations();
        while let Some(one) = all.next().await {
            let one = one.map_err(|error| problem(&error))?;
            if one.status == AuthorizationStatus::Pending {
                authorizations.push(Authorization { offered: offered(&one.challenges) });
            }
            let said = one.challenges.iter().find_map(|challenge| challenge.error.as_ref());
            refused = refused.or(said.map(of_api));
        }
    }
    let status = match status {
        instant_acme::OrderStatus::Pending => OrderStatus::Pending,
        instant_acme::OrderStatus::Ready => OrderStatus::Ready,
        instant_acme::OrderStatus::Processing => OrderStatus::Processing,
        instant_acme::OrderStatus::Valid => OrderStatus::Valid,
        instant_acme::OrderStatus::Invalid => {
            let why = refused.or(error);
            let silent = || Problem::new("malformed", "the authority gave the order up");
            OrderStatus::Invalid(why.unwrap_or_else(silent))
        }
    };
    Ok(Outcome::Looked(OrderView { status, authorizations, retry_after: None }))
}

fn offered(challenges: &[instant_acme::Challenge]) -> Vec<Offered> {
    let known = challenges.iter().filter_map(|challenge| {
        let kind = match challenge.r#type {
            ChallengeType::Http01 => ChallengeKind::Http01,
            ChallengeType::TlsAlpn01 => ChallengeKind::TlsAlpn01,
            ChallengeType::Dns01 => ChallengeKind::Dns01,
            _ => return None,
        };
        let told = challenge.status == ChallengeStatus::Processing;
        Some(Offered { kind, told })
    });
    known.collect()
}

fn type_of(kind: ChallengeKind) -> ChallengeType {
    match kind {
        ChallengeKind::Http01 => ChallengeType::Http01,
        ChallengeKind::TlsAlpn01 => ChallengeType::TlsAlpn01,
        ChallengeKind::Dns01 => ChallengeType::Dns01,
    }
}

/// What a challenge asks for.
pub struct Asked {
    /// The hash that a certificate of TLS-ALPN-01 carries.
    pub digest: Vec<u8>,
    /// The text of the record in DNS.
    pub dns_value: String,
}

/// Does something with the challenge of this kind that waits for an answer; `None` if none waits.
async fn with_challenge<T>(
    account: &Account,
    url: &str,
    kind: ChallengeKind,
    mut act: impl AsyncFnMut(&mut ChallengeHandle<'_>) -> Result<T, Error>,
) -> Result<Option<T>, Problem> {
    let mut order = open(account, url).await?;
    let mut all = order.authorizations();
    while let Some(one) = all.next().await {
        let mut one = one.map_err(|error| problem(&error))?;
        if one.status != AuthorizationStatus::Pending {
            continue;
        }
        let challenge = one.challenge(type_of(kind));
        let Some(mut challenge) = challenge else { continue };
        return act(&mut challenge).await.map(Some).map_err(|error| problem(&error));
    }
    Ok(None)
}

pub async fn asked(
    account: &Account,
    url: &str,
    kind: ChallengeKind,
) -> Result<Option<Asked>, Problem> {
    again(|| {
        with_challenge(account, url, kind, async |challenge| {
            let authorization = challenge.key_authorization();
            let digest = authorization.digest().as_ref().to_vec();
            Ok(Asked { digest, dns_value: authorization.dns_value() })
        })
    })
    .await
}

/// Says that the challenge is prepared; the authority looks then.
pub async fn tell(account: &Account, url: &str, kind: ChallengeKind) -> Result<Outcome, Problem> {
    let telling = again(|| {
        with_challenge(account, url, kind, async |challenge| match challenge.status {
            ChallengeStatus::Pending => challenge.set_ready().await,
            _ => Ok(()),
        })
    });
    telling.await?;
    Ok(Outcome::Told)
}

pub async fn finalize(
    account: &Account,
    url: &str,
    key: &SecretText,
    name: &CertificateName,
) -> Result<Outcome, Problem> {
    let key = KeyPair::from_pem(key.expose()).map_err(|error| unusable(&error.to_string()))?;
    let csr = CertificateParams::new(vec![name.to_string()]).and_then(|mut params| {
        params.distinguished_name = DistinguishedName::new();
        params.serialize_request(&key)
    });
    let csr = csr.map_err(|error| unusable(&error.to_string()))?;
    let csr = csr.der();
    again(async || {
        let mut order = account.order(url.to_owned()).await.map_err(|error| problem(&error))?;
        // Whoever was lost may have done it.
        if order.state().status == instant_acme::OrderStatus::Ready {
            order.finalize_csr(csr).await.map_err(|error| problem(&error))?;
        }
        Ok(())
    })
    .await?;
    Ok(Outcome::Finalized)
}

/// Returns the chain of certificates in PEM form.
pub async fn download(account: &Account, url: &str) -> Result<String, Problem> {
    again(async || {
        let mut order = account.order(url.to_owned()).await.map_err(|error| problem(&error))?;
        let chain = order.certificate().await.map_err(|error| problem(&error))?;
        chain.ok_or_else(|| Problem::new("orderNotReady", "the certificate is not there yet"))
    })
    .await
}

pub async fn renewal(account: &Account, id: &str) -> Outcome {
    let Some(certificate) = predecessor(id) else { return Outcome::NoRenewal };
    let (info, again) = match account.renewal_info(&certificate).await {
        Ok(found) => found,
        Err(error) => {
            tracing::debug!(id, %error, "certificates.no_renewal_info");
            return Outcome::NoRenewal;
        }
    };
    let millis = |at: i128| Timestamp(u64::try_from(at / 1_000_000).unwrap_or(0));
    let window = &info.suggested_window;
    let window = RenewalWindow {
        certificate: id.into(),
        start: millis(window.start.unix_timestamp_nanos()),
        end: millis(window.end.unix_timestamp_nanos()),
        explanation: info.explanation_url.filter(|url| url.len() <= EXPLANATION_BYTES_MAX),
    };
    Outcome::Renewal { window: Some(window), again: again.min(AGAIN_MAX) }
}

/// Bytes of the address of a page that is kept.
const EXPLANATION_BYTES_MAX: usize = 500;
const AGAIN_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

pub fn unusable(what: &str) -> Problem {
    Problem::new(kind::UNUSABLE, what)
}

/// Returns the name of a certificate as authorities write it (RFC 9773, section 4.1).
pub fn certificate_id(authority_key: &[u8], serial: &[u8]) -> String {
    CertificateIdentifier::new(Der::from_slice(authority_key), Der::from_slice(serial)).to_string()
}
