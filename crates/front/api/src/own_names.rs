//! The names that belong to the platform and to no application: its own one, and with `up --public`
//! the addresses of its nodes. Says how far the certificate of each is, and what there is to do.

use std::collections::BTreeSet;

use cluster::roster;
use model::acme::PublicAddresses;
use model::{CertificateName, PlatformAddress, TypedKey};

use super::domains::status::Look;
use super::problem::Problem;
use super::{Api, records};
use api_types::authority::{ArrivalStatus, CertificateStatus, DnsStatus, OwnNameStatus};
use api_types::{Check, CheckResult};

/// A name of the platform itself.
struct OwnName {
    name: CertificateName,
    url: String,
}

async fn names(api: &Api) -> Result<Vec<OwnName>, Problem> {
    let own: Option<PlatformAddress> =
        records::read(&*api.store, TypedKey::PlatformAddress).await?;
    let own = own.map(|own| OwnName {
        url: match own.port {
            443 => format!("https://{}", own.name),
            port => format!("https://{}:{port}", own.name),
        },
        name: CertificateName::Domain(own.name),
    });
    let keys = api.store.keys(&roster::prefix()).await?;
    let members: BTreeSet<_> = keys.iter().filter_map(roster::node_of).collect();
    let named = |key| if let TypedKey::PublicAddresses(node) = key { Some(node) } else { None };
    let public: Vec<(_, PublicAddresses)> = records::of_nodes(&*api.store, named).await?;
    // A node that was removed needs none any more.
    let public = public.into_iter().filter(|(node, _)| members.contains(node));
    let addresses: BTreeSet<_> = public.flat_map(|(_, public)| public.addresses).collect();
    let addresses = addresses.into_iter().map(|address| {
        let name = CertificateName::Address(address);
        let host = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
        OwnName { name, url: format!("https://{host}") }
    });
    Ok(own.into_iter().chain(addresses).collect())
}

pub async fn has(api: &Api, name: &CertificateName) -> Result<bool, Problem> {
    Ok(names(api).await?.iter().any(|own| own.name == *name))
}

/// Returns what the store says of each.
pub async fn status(api: &Api) -> Result<Vec<OwnNameStatus>, Problem> {
    let Some((_, all)) = looked_at(api).await? else { return Ok(Vec::new()) };
    Ok(all.into_iter().map(|(_, status)| status).collect())
}

type Named = (CertificateName, OwnNameStatus);

/// Returns what all have in common, and each; `None` if there are none.
async fn looked_at(api: &Api) -> Result<Option<(Look, Vec<Named>)>, Problem> {
    let names = names(api).await?;
    if names.is_empty() {
        return Ok(None);
    }
    let look = Look::begin(api).await?;
    let mut all = Vec::new();
    for own in names {
        all.push((own.name.clone(), one(api, &look, own).await?));
    }
    Ok(Some((look, all)))
}

async fn one(api: &Api, look: &Look, own: OwnName) -> Result<OwnNameStatus, Problem> {
    let OwnName { name, url } = own;
    let retry = format!("cortex certs retry {name} --platform");
    let mut certificate = look.certificate(api, &name, true, &retry).await?;
    let text = name.to_string();
    if !certificate.valid && api.control.covers(&text) {
        certificate.state = "served from this node's own files".into();
        certificate.valid = true;
        (certificate.error, certificate.advice) = (None, None);
    } else if !certificate.valid && !look.has_authority() {
        certificate.state = "none: agree to an authority with `cortex certs agree`, or start the \
                             nodes with one: `cortex up --tls-cert`"
            .into();
    }
    Ok(OwnNameStatus { name: text, url, certificate })
}

/// Returns the reason why there is no certificate, in words that follow this.
pub fn why_none(certificate: &CertificateStatus) -> &str {
    let state = &certificate.state;
    state.strip_prefix("none: ").unwrap_or(state)
}

/// Returns what is wrong with the certificates of these names, in a line for each.
pub fn problems(all: &[OwnNameStatus]) -> Vec<String> {
    let problem = |own: &OwnNameStatus| {
        let error = own.certificate.error.as_ref()?;
        let (name, kind) = (&own.name, if own.certificate.valid { "new" } else { "valid" });
        Some(format!("{name} gets no {kind} certificate: {error}; see `cortex doctor`"))
    };
    all.iter().filter_map(problem).collect()
}

/// Checks the names, and tries whether requests come here for one that has no certificate yet and
/// no error that says why.
pub async fn checks(api: &Api) -> Result<Vec<Check>, Problem> {
    let Some((look, all)) = looked_at(api).await? else { return Ok(Vec::new()) };
    let mut checks = Vec::new();
    for (name, own) in all {
        let found = match !own.certificate.valid && own.certificate.error.is_none() {
            true => Some(look.find(&name).await?),
            false => None,
        };
        checks.push(check(&own, found.as_ref()));
    }
    Ok(checks)
}

fn check(own: &OwnNameStatus, looked: Option<&(DnsStatus, ArrivalStatus)>) -> Check {
    let OwnNameStatus { name, url, certificate } = own;
    let of = |result, detail, advice| Check { name: "own name".into(), result, detail, advice };
    if let Some(error) = &certificate.error {
        let (result, what) = match certificate.valid {
            true => (CheckResult::Warn, "is not renewed"),
            false => (CheckResult::Fail, "cannot be had"),
        };
        let detail = format!("the certificate for {name} {what}: {error}");
        return of(result, detail, certificate.advice.clone());
    }
    if certificate.valid {
        return of(CheckResult::Ok, format!("{url} has a certificate"), None);
    }
    let mut detail = format!("{name} has no certificate: {}", why_none(certificate));
    let mut advice = None;
    if let Some((dns, arrival)) = looked {
        let wrong = matches!(arrival.state.as_str(), "elsewhere" | "nowhere");
        if let Some(why) = arrival.why.as_ref().filter(|_| wrong).or(dns.problem.as_ref()) {
            let wanted: Vec<String> = dns.wanted.iter().map(ToString::to_string).collect();
            let wanted = match wanted.is_empty() {
                true => "this cluster".into(),
                false => wanted.join(", "),
            };
            detail.push_str(&format!("; requests do not come here: {why}"));
            advice = Some(format!(
                "let {name} lead to {wanted} in DNS, with ports 80 and 443 open to the whole \
                 Internet"
            ));
        }
    }
    let result = match certificate.state.starts_with("none") {
        true => CheckResult::Warn,
        false => CheckResult::Ok,
    };
    of(result, detail, advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(state: &str, valid: bool, error: Option<&str>) -> OwnNameStatus {
        let certificate = CertificateStatus {
            state: state.into(),
            valid,
            issuer: None,
            not_after: None,
            renewal: None,
            error: error.map(String::from),
            advice: error.map(|_| "mend it".into()),
        };
        let (name, url) = ("cortex.example.org".into(), "https://cortex.example.org".into());
        OwnNameStatus { name, url, certificate }
    }

    #[test]
    fn a_name_without_a_certificate_says_why() {
        let refused = check(&own("none", false, Some("policy forbids it (caa)")), None);
        assert_eq!(
            (refused.result, refused.advice.as_deref()),
            (CheckResult::Fail, Some("mend it"))
        );
        assert!(refused.detail.contains("policy forbids it"), "{refused:?}");
        let not_renewed = check(&own("served", true, Some("away")), None);
        assert_eq!(not_renewed.result, CheckResult::Warn);
        assert_eq!(check(&own("served", true, None), None).result, CheckResult::Ok);
        assert_eq!(check(&own("being ordered", false, None), None).result, CheckResult::Ok);
        let dns = DnsStatus {
            wanted: vec!["192.0.2.7".parse().unwrap()],
            found: Vec::new(),
            problem: None,
        };
        let why = Some("it has no address".into());
        let arrival = ArrivalStatus { state: "elsewhere".into(), why, seen_from: None };
        let waits = check(&own("none: ordered later", false, None), Some(&(dns, arrival)));
        assert_eq!(waits.result, CheckResult::Warn);
        assert!(waits.detail.contains("it has no address"), "{waits:?}");
        assert!(waits.advice.unwrap().contains("192.0.2.7"));
        assert_eq!(problems(&[own("served", true, None), own("none", false, Some("no"))]).len(), 1);
    }
}
