//! What is known of an application's domains: what DNS must say and says, whether requests come
//! here, and how far the certificate is, with what to do.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use acme_core::{Arrival, advice, can_have, is_global};
use axum::Json;
use axum::extract::{Path, State};
use certificate_core::facts::Facts;
use certificates::Found;
use futures_util::StreamExt;
use model::acme::{AcmeError, AcmeOrder, AcmeRegistration, AcmeSettings, PublicAddresses};
use model::certificate::CertificateSource;
use model::node::{NodeAddress, NodeInfo};
use model::role::Role;
use model::{Certificate, CertificateName, NodeId, TypedKey};
use runtime::members::Members;

use super::{Clash, clashes};
use crate::problem::Problem;
use crate::records::{self, ApplicationRecords};
use crate::{Api, Shared, authority};
use api_types::authority::{
    ArrivalStatus, CertificateStatus, DnsStatus, DomainStatus, DomainsStatus,
};

/// Domains that are looked at at a time; each is a question to DNS and a few requests.
const LOOKS_AT_ONCE: usize = 8;

pub async fn status(
    State(api): State<Shared>,
    Path(app): Path<String>,
) -> Result<Json<DomainsStatus>, Problem> {
    let app = records::require(&*api.store, &app).await?;
    let platform = Look::begin(&api).await?;
    let clashes = clashes(&api).await?;
    let names = app
        .spec
        .domains
        .iter()
        .filter_map(|domain| domain.parse::<CertificateName>().ok().map(|name| (domain, name)));
    let looks = names.map(|(domain, name)| {
        let clash = clashes.iter().find(|one| one.is_of_domain(domain)).map(Clash::said);
        one(&api, &platform, &app, name, clash)
    });
    let looks: Vec<_> = looks.collect();
    let domains: Vec<Result<DomainStatus, Problem>> =
        futures_util::stream::iter(looks).buffered(LOOKS_AT_ONCE).collect().await;
    let domains = domains.into_iter().collect::<Result<_, _>>()?;
    let password_since = app.spec.password.as_ref().map(|one| records::rfc3339(one.since));
    Ok(Json(DomainsStatus { application: app.name.to_string(), domains, password_since }))
}

/// What all names have in common.
pub struct Look {
    addresses: Vec<IpAddr>,
    settings: Option<AcmeSettings>,
    account: String,
    /// The reason why there is no account.
    account_error: Option<AcmeError>,
    thumbprint: Option<String>,
    members: Option<Arc<dyn Members>>,
}

impl Look {
    pub async fn begin(api: &Api) -> Result<Look, Problem> {
        let settings = authority::settings(api).await?;
        let account = match &settings {
            Some(settings) => authority::account_state(api, settings).await?,
            None => String::new(),
        };
        let refused: Option<AcmeRegistration> =
            records::read(&*api.store, TypedKey::AcmeRegistration).await?;
        Ok(Look {
            account_error: refused.filter(|_| account != "ready").map(|refused| refused.error),
            addresses: addresses(api).await?,
            settings,
            account,
            thumbprint: authority::account(api).await?.map(|account| account.thumbprint),
            members: api.peers.clone().map(|peers| peers as Arc<dyn Members>),
        })
    }
}

/// Returns the addresses at which strangers find the routers of the cluster, as far as it knows:
/// those that were named, or else those at which nodes find each other.
async fn addresses(api: &Api) -> Result<Vec<IpAddr>, Problem> {
    let of = |key: TypedKey| match key {
        TypedKey::PublicAddresses(node) => Some(node),
        _ => None,
    };
    let nodes = "node".parse().expect("a prefix");
    let named: Vec<(NodeId, PublicAddresses)> = records::all(&*api.store, &nodes, of).await?;
    let mut all: BTreeSet<IpAddr> =
        named.into_iter().flat_map(|(_, public)| public.addresses).collect();
    if all.is_empty() {
        let of = |key: TypedKey| match key {
            TypedKey::NodeInfo(node) => Some(node),
            _ => None,
        };
        let infos: Vec<(NodeId, NodeInfo)> = records::all(&*api.store, &nodes, of).await?;
        for (node, info) in infos.iter().filter(|(_, info)| info.roles.has(Role::Router)) {
            let listens = info.http.parse::<SocketAddr>().map(|address| address.ip());
            match listens {
                Ok(address) if !address.is_unspecified() && !address.is_loopback() => {
                    all.insert(address);
                }
                _ => all.extend(node_addresses(api, node).await?),
            }
        }
    }
    let public: Vec<IpAddr> = all.iter().copied().filter(|one| is_global(*one)).collect();
    Ok(if public.is_empty() { all.into_iter().collect() } else { public })
}

async fn node_addresses(api: &Api, node: &NodeId) -> Result<Vec<IpAddr>, Problem> {
    let key = format!("node::{node}::address").parse().map_err(|_| records_odd())?;
    let entry = api.store.lookup(&key).await.map_err(Problem::from)?;
    let known: Option<NodeAddress> =
        store::readable(&key, entry.as_ref().map(|entry| &entry.value));
    let known = known.map(|known| known.addresses).unwrap_or_default();
    let parsed = known.iter().filter_map(|one| one.parse::<SocketAddr>().ok());
    Ok(parsed.map(|one| one.ip()).filter(|ip| !ip.is_loopback()).collect())
}

fn records_odd() -> Problem {
    Problem::internal("a node has an odd name")
}

async fn one(
    api: &Api,
    platform: &Look,
    app: &ApplicationRecords,
    name: CertificateName,
    clash: Option<String>,
) -> Result<DomainStatus, Problem> {
    let (dns, arrival) = platform.find(&name).await?;
    let text = name.to_string();
    let retry = format!("cortex certs retry {text} -a {}", app.name);
    let serves = app.serving().is_some();
    Ok(DomainStatus {
        since: records::rfc3339(app.spec.has_domain_since(&text)),
        clash,
        dns,
        arrival,
        certificate: platform.certificate(api, &name, serves, &retry).await?,
        domain: text,
    })
}

fn dns(platform: &Look, found: &Found) -> DnsStatus {
    let wanted = &platform.addresses;
    let foreign: Vec<String> = found
        .addresses
        .iter()
        .filter(|one| !wanted.is_empty() && !wanted.contains(one))
        .map(ToString::to_string)
        .collect();
    let problem = found.lookup.clone().or_else(|| {
        // What is in front of the cluster has an address of its own, and may lead here.
        let leads_here = matches!(found.arrival(), Arrival::Arrives { .. });
        (!foreign.is_empty() && !leads_here)
            .then(|| format!("{} is no known address of this cluster", foreign.join(", ")))
    });
    DnsStatus { wanted: wanted.clone(), found: found.addresses.clone(), problem }
}

fn arrival(platform: &Look, by: Option<NodeId>, found: &Found) -> ArrivalStatus {
    let (state, why) = match found.arrival() {
        _ if platform.thumbprint.is_none() => {
            ("untested", Some("there is no account yet whose answer would be known".into()))
        }
        Arrival::Arrives { .. } => ("here", None),
        Arrival::Elsewhere { why } => ("elsewhere", Some(why)),
        Arrival::Unknown { why } => ("nowhere", Some(why)),
    };
    ArrivalStatus { state: state.into(), why, seen_from: by.map(|node| node.to_string()) }
}

impl Look {
    pub fn has_authority(&self) -> bool {
        self.settings.is_some()
    }

    /// Looks where a name leads.
    pub async fn find(
        &self,
        name: &CertificateName,
    ) -> Result<(DnsStatus, ArrivalStatus), Problem> {
        // Without an account there is nothing that only this cluster answers; DNS is looked at
        // anyway.
        let thumbprint = self.thumbprint.clone().unwrap_or_default();
        let nonce = certificates::nonce().map_err(|error| Problem::internal(error.to_string()))?;
        let (by, found) =
            certificates::find(self.members.as_ref(), name, &nonce, &thumbprint).await;
        Ok((dns(self, &found), arrival(self, by, &found)))
    }

    /// Returns how far the certificate for a name is. `serves` says whether there is something to
    /// show under it, `retry` is the command by which a person has it tried again.
    pub async fn certificate(
        &self,
        api: &Api,
        name: &CertificateName,
        serves: bool,
        retry: &str,
    ) -> Result<CertificateStatus, Problem> {
        let key = TypedKey::Certificate(name.clone());
        let record: Option<Certificate> = records::read(&*api.store, key).await?;
        let order: Option<AcmeOrder> =
            records::read(&*api.store, TypedKey::AcmeOrder(name.clone())).await?;
        let facts = record.as_ref().and_then(|record| {
            let der = certificate_core::pair::first(record.chain.as_bytes())?;
            Facts::read(&der)
        });
        let uploaded = record.as_ref().is_some_and(|one| one.source == CertificateSource::Uploaded);
        let good = record.as_ref().filter(|record| record.not_after > api.now());
        let renewal = good.filter(|_| !uploaded && self.settings.is_some()).and_then(|record| {
            let facts = certificates::facts(&record.chain)?;
            let window = order.as_ref().and_then(|order| order.renewal.as_ref());
            let rests = order.as_ref().map_or(model::Timestamp(0), |order| order.rest_until);
            Some(records::rfc3339(facts.due(window).max(rests)))
        });
        let refused = order.as_ref().and_then(|order| order.error.as_ref());
        let error = refused.or(self.account_error.as_ref().filter(|_| good.is_none()));
        Ok(CertificateStatus {
            state: self.state(name, serves, good.map(|_| uploaded), order.as_ref()),
            valid: good.is_some(),
            issuer: facts.map(|facts| facts.issuer),
            not_after: record.map(|record| records::rfc3339(record.not_after)),
            renewal,
            error: error.map(|error| format!("{} ({})", error.detail, error.kind)),
            advice: error.map(|error| advice(error, name, retry)),
        })
    }

    /// `good` says of a certificate that is good whether a person brought it.
    fn state(
        &self,
        name: &CertificateName,
        serves: bool,
        good: Option<bool>,
        order: Option<&AcmeOrder>,
    ) -> String {
        let is_ordered = order.is_some_and(|order| order.active);
        let wild = name.domain().is_some_and(|domain| domain.is_wild());
        let Some(settings) = &self.settings else {
            return match good {
                Some(_) => "served; not renewed by itself".into(),
                None => "none: agree to an authority with `cortex certs agree`, or bring one with \
                         `cortex certs add`"
                    .into(),
            };
        };
        match (good, is_ordered) {
            (Some(true), false) => "brought by a person; renew it with `cortex certs add`".into(),
            (Some(false), false) => "served".into(),
            (Some(_), true) => "served; being renewed".into(),
            (None, true) => "being ordered".into(),
            (None, false) if !serves => "none: nothing serves yet".into(),
            (None, false) if !can_have(name, certificates::is_public(&settings.directory)) => {
                format!("none: no authority of the Internet knows {name}")
            }
            (None, false) if self.account_error.is_some() => {
                "none: the authority gives no account".into()
            }
            (None, false) if self.account != "ready" => {
                format!("none: the account is {}", self.account)
            }
            (None, false) if wild && settings.dns_hook.is_none() => {
                "none: a star needs a program for DNS, `cortex certs agree --dns-hook PROGRAM`"
                    .into()
            }
            (None, false) => match order.map(|order| order.rest_until) {
                Some(until) if until.0 > 0 => format!("none: tried again {} UTC", until.date()),
                _ => "none: ordered once requests for it come here".into(),
            },
        }
    }
}
