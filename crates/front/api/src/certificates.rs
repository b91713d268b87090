//! Certificates that people bring for the domains of their applications: checked before anything is
//! written, listed without their keys, and taken away again. Routers serve them from the records.

mod holders;

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::{Path, State};
use certificate_core::facts::Facts;
use certificate_core::pair::{Pair, PairError};
use model::certificate::{CertificateOwner, CertificateSource};
use model::key::certificates_prefix;
use model::record::{RECORD_VERSION, Unknown};
use model::value::ContentHash;
use model::{ApplicationSpec, Certificate, CertificateName, DomainName, TypedKey};

use super::json_body::JsonBody;
use super::problem::Problem;
use super::records::{self, ApplicationRecords};
use super::{Api, Shared, own_names};
use api_types::certificates::{CertificateRow, CertificateUpload, CertificatesShown};

pub use holders::fingerprints;

/// Certificates that the people of one application may bring: one for each of its domains, and as
/// many again for those to come.
const CERTIFICATES_MAX: usize = 200;
/// Digits of the hash of a chain that are compared and shown.
const FINGERPRINT_DIGITS: usize = 16;

/// A certificate as it is kept.
struct Kept {
    name: CertificateName,
    record: Certificate,
}

impl Kept {
    fn is_owned_by(&self, app: &ApplicationRecords) -> bool {
        self.record.owner.as_ref() == Some(&owner(app))
    }
}

fn owner(app: &ApplicationRecords) -> CertificateOwner {
    CertificateOwner { application: app.name.clone(), created_at: app.spec.created_at }
}

async fn kept(api: &Api) -> Result<Vec<Kept>, Problem> {
    let named = |key| match key {
        TypedKey::Certificate(name) => Some(name),
        _ => None,
    };
    let all = records::all(&*api.store, &certificates_prefix(), named).await?;
    Ok(all.into_iter().map(|(name, record)| Kept { name, record }).collect())
}

/// Returns the hash by which chains are compared; nothing of the key is in it.
fn fingerprint(record: &Certificate) -> String {
    let mut text = ContentHash(*blake3::hash(record.chain.as_bytes()).as_bytes()).to_string();
    text.truncate(FINGERPRINT_DIGITS);
    text
}

pub async fn list(
    State(api): State<Shared>,
    Path(app): Path<String>,
) -> Result<Json<CertificatesShown>, Problem> {
    let app = records::require(&*api.store, &app).await?;
    Ok(Json(shown(&api, Some(&app), Vec::new()).await?))
}

/// Lists all certificates of the platform.
pub async fn list_all(State(api): State<Shared>) -> Result<Json<CertificatesShown>, Problem> {
    let mut notes = Vec::new();
    for own in own_names::status(&api).await? {
        let (name, certificate) = (&own.name, &own.certificate);
        if let Some(error) = &certificate.error {
            let advice = certificate.advice.as_deref().unwrap_or_default();
            notes.push(format!("{name}, which is the platform's own: {error}; {advice}"));
        } else if !certificate.valid {
            let why = own_names::why_none(certificate);
            notes.push(format!("{name}, which is the platform's own, has no certificate: {why}"));
        }
    }
    Ok(Json(shown(&api, None, notes).await?))
}

async fn shown(
    api: &Api,
    app: Option<&ApplicationRecords>,
    notes: Vec<String>,
) -> Result<CertificatesShown, Problem> {
    let mut all = kept(api).await?;
    if let Some(app) = app {
        all.retain(|one| one.is_owned_by(app) || has_domain(&app.spec, &one.name));
    }
    let domains = owners_of_domains(api).await?;
    let held = holders::ask(api, &all).await;
    let row = |(one, held): (&Kept, holders::Held)| row(api, one, &domains, held);
    let certificates = all.iter().zip(held).map(row).collect();
    Ok(CertificatesShown { certificates, notes })
}

fn has_domain(spec: &ApplicationSpec, name: &CertificateName) -> bool {
    let Some(domain) = name.domain() else { return false };
    spec.domains.iter().any(|one| one == domain.as_str())
}

/// An application with its domains.
struct DomainOwner {
    owner: CertificateOwner,
    domains: Vec<String>,
}

async fn owners_of_domains(api: &Api) -> Result<Vec<DomainOwner>, Problem> {
    let mut owners = Vec::new();
    for application in records::names(&*api.store).await? {
        let spec = records::read(&*api.store, TypedKey::Spec(application.clone())).await?;
        let Some(spec): Option<ApplicationSpec> = spec else { continue };
        let owner = CertificateOwner { application, created_at: spec.created_at };
        owners.push(DomainOwner { owner, domains: spec.domains });
    }
    Ok(owners)
}

fn row(api: &Api, one: &Kept, domains: &[DomainOwner], held: holders::Held) -> CertificateRow {
    let Kept { name, record } = one;
    let text = name.to_string();
    let with_domain = domains.iter().find(|other| other.domains.contains(&text));
    let own = certificate(&record.chain);
    let source = match &record.source {
        CertificateSource::Issued { by } => format!("issued by {by}"),
        CertificateSource::Uploaded => "uploaded".into(),
        CertificateSource::Cluster => "the cluster".into(),
        CertificateSource::Other => "a later version".into(),
    };
    let now = api.now();
    let state = match &record.owner {
        _ if now > record.not_after => "expired".into(),
        _ if now < record.not_before => "not valid yet".into(),
        Some(owner) if with_domain.is_none_or(|other| other.owner != *owner) => {
            format!("not served: no domain of {}", owner.application)
        }
        _ => "served".into(),
    };
    let application = record.owner.as_ref().map(|owner| owner.application.to_string());
    CertificateRow {
        name: text,
        application: application
            .or_else(|| with_domain.map(|other| other.owner.application.to_string())),
        names: record.names.iter().map(ToString::to_string).collect(),
        issuer: own.map(|facts| facts.issuer).unwrap_or_default(),
        source,
        not_before: records::rfc3339(record.not_before),
        not_after: records::rfc3339(record.not_after),
        state,
        fingerprint: fingerprint(record),
        held_by: held.by,
        missing_on: held.missing,
    }
}

fn certificate(chain: &str) -> Option<Facts> {
    certificate_core::pair::first(chain.as_bytes()).and_then(|der| Facts::read(&der))
}

/// Takes a certificate of one's own. Nothing is written unless all of it is good, so what was there
/// serves on.
pub async fn add(
    State(api): State<Shared>,
    Path(app): Path<String>,
    JsonBody(CertificateUpload { chain, key }): JsonBody<CertificateUpload>,
) -> Result<Json<CertificatesShown>, Problem> {
    let pair = Pair::read(chain.as_bytes(), key.expose().as_bytes()).map_err(refused)?;
    let now = api.now();
    pair.check_time(now).and_then(|()| pair.check_order(now)).map_err(refused)?;
    let facts = &pair.facts;
    let _changing = api.changes.lock().await;
    let app = records::require(&*api.store, &app).await?;
    let all = kept(&api).await?;
    let Chosen { names, mut notes } = choose(&api, &app, facts, &all).await?;
    let owned = all.iter().filter(|one| one.is_owned_by(&app) && !names.contains(&one.name));
    if owned.count() + names.len() > CERTIFICATES_MAX {
        let detail = format!("{} has more than {CERTIFICATES_MAX} certificates", app.name);
        let hint = "take away those that are not needed: `cortex certs remove NAME`";
        return Err(Problem::invalid("too_many_certificates", detail).hint(hint));
    }
    let record = Certificate {
        v: RECORD_VERSION,
        chain,
        key,
        source: CertificateSource::Uploaded,
        not_before: facts.not_before,
        not_after: facts.not_after,
        names: facts.names.clone(),
        owner: Some(owner(&app)),
        unknown: Unknown::new(),
    };
    let too_large = |error: model::certificate::CertificateError| {
        Problem::invalid("certificate_refused", error.to_string())
    };
    record.check_sizes().map_err(too_large)?;
    for name in &names {
        if let Some(before) = all.iter().find(|one| one.name == *name)
            && before.record.not_after > record.not_after
        {
            let until = before.record.not_after.date();
            notes.push(format!("{name} had one that was good for longer, until {until} UTC"));
        }
        records::write(&*api.store, TypedKey::Certificate(name.clone()), &record).await?;
    }
    let written: Vec<Kept> =
        names.into_iter().map(|name| Kept { name, record: record.clone() }).collect();
    let held = holders::wait(&api, &written).await;
    let domains = owners_of_domains(&api).await?;
    let row = |(one, held): (&Kept, holders::Held)| row(&api, one, &domains, held);
    let certificates: Vec<CertificateRow> = written.iter().zip(held).map(row).collect();
    let late: BTreeSet<&String> = certificates.iter().flat_map(|row| &row.missing_on).collect();
    notes.extend(late.into_iter().map(|node| format!("node {node} does not have it yet")));
    Ok(Json(CertificatesShown { certificates, notes }))
}

fn refused(error: PairError) -> Problem {
    let code = match error {
        PairError::KeyMismatch => "key_mismatch",
        PairError::Expired(_) => "certificate_expired",
        _ => "certificate_refused",
    };
    Problem::invalid(code, error.to_string()).hint("nothing was changed; what was there serves on")
}

struct Chosen {
    names: Vec<CertificateName>,
    notes: Vec<String>,
}

/// Chooses the names for which a certificate is kept: those domains of the application that it is
/// good for, and those of its names that nobody has yet.
async fn choose(
    api: &Api,
    app: &ApplicationRecords,
    facts: &Facts,
    all: &[Kept],
) -> Result<Chosen, Problem> {
    let covered = app.spec.domains.iter().filter(|domain| facts.covers(domain));
    let mut names: BTreeSet<CertificateName> =
        covered.filter_map(|domain| domain.parse().ok()).map(CertificateName::Domain).collect();
    let has_some = !names.is_empty();
    let others = owners_of_domains(api).await?;
    let (mut free, mut taken) = (Vec::new(), Vec::new());
    for name in facts.names.iter().filter_map(CertificateName::domain) {
        let text = name.as_str();
        if text.ends_with(".localhost") || names.contains(&CertificateName::Domain(name.clone())) {
            continue;
        }
        let has_domain = |one: &&DomainOwner| one.domains.iter().any(|domain| domain == text);
        let is_kept = |one: &&Kept| one.name.domain() == Some(name) && !one.is_owned_by(app);
        match others.iter().find(has_domain) {
            Some(_) => taken.push(text),
            None if all.iter().any(|one| is_kept(&one)) => taken.push(text),
            None => free.push(name),
        }
    }
    let mut notes = Vec::new();
    if !taken.is_empty() {
        notes.push(format!("not kept for {}: not a domain of {}", taken.join(", "), app.name));
    }
    names.extend(free.iter().map(|name| CertificateName::Domain((*name).clone())));
    if names.is_empty() {
        return Err(no_names(app, facts));
    }
    if !has_some {
        let waiting: Vec<&str> = free.iter().map(|name| DomainName::as_str(name)).collect();
        let (waiting, app) = (waiting.join(" "), &app.name);
        notes.push(format!(
            "no domain of {app} is among its names yet: `cortex domains add {waiting} -a {app}`"
        ));
    }
    Ok(Chosen { names: names.into_iter().collect(), notes })
}

fn no_names(app: &ApplicationRecords, facts: &Facts) -> Problem {
    let names: Vec<String> = facts.names.iter().map(ToString::to_string).collect();
    let of = if names.is_empty() { "no name at all".into() } else { names.join(", ") };
    let detail = format!("the certificate is for {of}, and {} may have none of these", app.name);
    let hint = format!("`cortex domains -a {}` shows the domains that it has", app.name);
    Problem::conflict("no_name_for_certificate", detail).hint(hint)
}

/// Takes a certificate away: one that was brought for this application, or one for a domain that it
/// has.
pub async fn remove(
    State(api): State<Shared>,
    Path((app, name)): Path<(String, String)>,
) -> Result<Json<CertificatesShown>, Problem> {
    let _changing = api.changes.lock().await;
    let app = records::require(&*api.store, &app).await?;
    let absent = || {
        let shown: String = name.chars().take(80).flat_map(char::escape_debug).collect();
        let detail = format!("{} has no certificate for {shown}", app.name);
        let hint = format!("`cortex certs -a {}` lists those it has", app.name);
        Problem::missing("no_certificate", detail).hint(hint)
    };
    let wanted: CertificateName = name.to_ascii_lowercase().parse().map_err(|_| absent())?;
    let all = kept(&api).await?;
    let found = all.into_iter().find(|one| {
        let is_free = one.record.owner.is_none() && has_domain(&app.spec, &one.name);
        one.name == wanted && (one.is_owned_by(&app) || is_free)
    });
    let Some(found) = found else { return Err(absent()) };
    api.store.delete(TypedKey::Certificate(found.name).key()).await?;
    Ok(Json(shown(&api, Some(&app), Vec::new()).await?))
}

/// Deletes what was brought for an application that is destroyed.
pub async fn delete_owned(api: &Api, owner: &CertificateOwner) -> Result<(), Problem> {
    for one in kept(api).await? {
        if one.record.owner.as_ref() == Some(owner) {
            api.store.delete(TypedKey::Certificate(one.name).key()).await?;
        }
    }
    Ok(())
}
