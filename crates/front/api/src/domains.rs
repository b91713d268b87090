//! Domains of applications: who has one, who may have it, and which are wanted twice. A domain is
//! claimed once; two claims meet only if two nodes did not hear of each other.

pub mod status;

use std::collections::BTreeMap;
use std::fmt;

use axum::extract::{Path, State};
use axum::{Extension, Json};
use model::{
    ApplicationName, ApplicationSpec, PlatformAddress, PortId, Rollout, RolloutPhase, TypedKey,
};
use recipe_core::manifest::domains::domain;
use recipe_core::manifest::{CORTEX_TOML, LIST_LENGTH_MAX};
use router_core::routes::{Rights, default_host};

use super::audit::Underway;
use super::json_body::JsonBody;
use super::problem::Problem;
use super::records::{self, ApplicationRecords};
use super::undo::parts;
use super::{Api, Shared, ports};
use api_types::{DomainRow, DomainsChange, DomainsShown};

/// The stage of an application that has claimed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainStanding {
    Serves,
    /// Its first release is on its way.
    Underway,
    /// Its first release failed.
    Failed,
    /// Nothing was ever pushed to it.
    Unreleased,
}

impl DomainStanding {
    pub fn of(rollout: Option<&Rollout>) -> DomainStanding {
        match rollout {
            Some(rollout) if rollout.serving.is_some() => DomainStanding::Serves,
            Some(rollout) if rollout.phase == RolloutPhase::Failed => DomainStanding::Failed,
            Some(rollout) if rollout.target.is_some() => DomainStanding::Underway,
            _ => DomainStanding::Unreleased,
        }
    }

    /// Returns whether this application keeps what it claimed although the other one wants it.
    fn holds_against(self, other: Claimant) -> bool {
        match self {
            DomainStanding::Serves | DomainStanding::Underway => true,
            DomainStanding::Failed => other == Claimant::Idle,
            DomainStanding::Unreleased => other != Claimant::Serves,
        }
    }
}

/// An application that wants a domain now, by how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimant {
    Serves,
    /// It never served, and a release of it is being made.
    Comes,
    Idle,
}

struct Other {
    name: ApplicationName,
    spec: ApplicationSpec,
    standing: DomainStanding,
}

async fn all(api: &Api) -> Result<Vec<Other>, Problem> {
    let (store, mut all) = (&*api.store, Vec::new());
    for name in records::names(store).await? {
        let spec = records::read(store, TypedKey::Spec(name.clone())).await?;
        let Some(spec) = spec else { continue };
        let rollout: Option<Rollout> =
            records::read(store, TypedKey::Rollout(name.clone())).await?;
        all.push(Other { name, spec, standing: DomainStanding::of(rollout.as_ref()) });
    }
    Ok(all)
}

/// Returns the domains out of `wanted` that `app` may have, with remarks about them.
pub async fn claim(
    api: &Api,
    app: &ApplicationRecords,
    wanted: &[String],
    comes: bool,
) -> Result<(Vec<String>, Vec<String>), Problem> {
    if wanted.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    let serves = DomainStanding::of(app.rollout.as_ref()) == DomainStanding::Serves;
    let claimant = match (serves, comes) {
        (true, _) => Claimant::Serves,
        (false, true) => Claimant::Comes,
        (false, false) => Claimant::Idle,
    };
    let own: Option<PlatformAddress> =
        records::read(&*api.store, TypedKey::PlatformAddress).await?;
    let others = all(api).await?;
    let (mut domains, mut notes) = (Vec::<String>::new(), Vec::new());
    for domain in wanted {
        if *domain == default_host(&app.name) || domains.contains(domain) {
            continue;
        }
        not_of_the_platform(domain)?;
        if own.as_ref().is_some_and(|own| own.is(domain)) {
            return Err(own_name_taken(domain));
        }
        let is_other =
            |other: &&Other| other.name != app.name && other.spec.domains.contains(domain);
        for other in others.iter().filter(is_other) {
            // An application that already serves there goes on: that two have the domain is for a
            // person to settle, and no reason to fail its releases.
            let has_it = serves && app.spec.domains.contains(domain);
            if !has_it && other.standing.holds_against(claimant) {
                return Err(taken(domain, &other.name));
            }
            let other = &other.name;
            notes.push(match has_it {
                true => format!("{domain} is claimed by '{other}' too: `cortex doctor` says more"),
                false => format!("{domain} is claimed by '{other}' too, which never served"),
            });
        }
        domains.push(domain.clone());
    }
    Ok((domains, notes))
}

fn taken(domain: &str, owner: &ApplicationName) -> Problem {
    Problem::conflict(
        "domain_taken",
        format!("the domain {domain} belongs to the application '{owner}'"),
    )
    .hint(format!(
        "choose another, or have it given up first: `cortex domains remove {domain} -a {owner}`"
    ))
}

fn own_name_taken(domain: &str) -> Problem {
    Problem::conflict("domain_taken", format!("{domain} is the platform's own name"))
        .hint("choose another, or give the platform another: `cortex up --platform-domain NAME`")
}

fn not_of_the_platform(domain: &str) -> Result<(), Problem> {
    let Some(name) = domain.strip_suffix(".localhost") else { return Ok(()) };
    Err(Problem::conflict(
        "domain_taken",
        format!("{domain} is the platform's own: there it answers for the application '{name}'"),
    )
    .hint("names that end in .localhost are not given away: choose another"))
}

/// Returns everything that several applications want; the owner is the one that gets it.
pub async fn clashes(api: &Api) -> Result<Vec<Clash>, Problem> {
    let mut wanted: BTreeMap<String, Vec<(Rights, ApplicationName)>> = BTreeMap::new();
    let mut ports: BTreeMap<PortId, Vec<(Rights, ApplicationName)>> = BTreeMap::new();
    for Other { name, spec, standing } in all(api).await? {
        let rights = Rights::of(&spec, standing == DomainStanding::Serves);
        for domain in &spec.domains {
            wanted.entry(domain.clone()).or_default().push((rights.clone(), name.clone()));
        }
        for id in ports::of_one(api, &name, &spec).await? {
            ports.entry(id).or_default().push((rights.clone(), name.clone()));
        }
    }
    let mut clashes = Vec::new();
    for (domain, mut of) in wanted.into_iter().filter(|(_, of)| of.len() > 1) {
        of.sort_by(|a, b| a.0.to_host(&domain, &a.1).cmp(&b.0.to_host(&domain, &b.1)));
        clashes.push(Clash::new(Claimed::Domain(domain), of));
    }
    for (id, mut of) in ports.into_iter().filter(|(_, of)| of.len() > 1) {
        of.sort_by(|a, b| a.0.to_port(&a.1).cmp(&b.0.to_port(&b.1)));
        clashes.push(Clash::new(Claimed::Port(id), of));
    }
    Ok(clashes)
}

/// A resource that only one application can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    Domain(String),
    Port(PortId),
}

impl fmt::Display for Claimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Claimed::Domain(domain) => write!(f, "the domain {domain}"),
            Claimed::Port(id) => write!(f, "port {id}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clash {
    pub what: Claimed,
    pub owner: ApplicationName,
    pub others: Vec<ApplicationName>,
}

impl Clash {
    fn new(what: Claimed, of: Vec<(Rights, ApplicationName)>) -> Clash {
        let mut names = of.into_iter().map(|(_, name)| name);
        let owner = names.next().expect("several want it");
        Clash { what, owner, others: names.collect() }
    }

    fn is_of_domain(&self, name: &str) -> bool {
        matches!(&self.what, Claimed::Domain(domain) if domain == name)
    }

    /// Returns how each of the others can give it up.
    pub fn advice(&self) -> String {
        let of_one = |other: &ApplicationName| match &self.what {
            Claimed::Domain(domain) => format!("`cortex domains remove {domain} -a {other}`"),
            Claimed::Port(_) => format!("another port in {CORTEX_TOML} of '{other}', and a push"),
        };
        self.others.iter().map(of_one).collect::<Vec<_>>().join("; ")
    }

    pub fn concerns(&self, name: &ApplicationName) -> bool {
        self.owner == *name || self.others.contains(name)
    }

    /// Returns whether requests for this domain go to another application although this one wants
    /// it.
    pub fn is_lost_by(&self, domain: &str, name: &ApplicationName) -> bool {
        self.others.contains(name) && self.is_of_domain(domain)
    }

    pub fn said(&self) -> String {
        let others: Vec<String> = self.others.iter().map(|name| format!("'{name}'")).collect();
        let (what, owner) = (&self.what, &self.owner);
        format!(
            "{what} is claimed by '{owner}' and by {}: it leads to '{owner}'",
            others.join(", ")
        )
    }
}

pub async fn list(
    State(api): State<Shared>,
    Path(app): Path<String>,
) -> Result<Json<DomainsShown>, Problem> {
    let app = records::require(&*api.store, &app).await?;
    Ok(Json(shown(&api, &app).await?))
}

async fn shown(api: &Api, app: &ApplicationRecords) -> Result<DomainsShown, Problem> {
    let clashes = clashes(api).await?;
    let row = |domain: &String| DomainRow {
        domain: domain.clone(),
        since: records::rfc3339(app.spec.has_domain_since(domain)),
        clash: clashes.iter().find(|one| one.is_of_domain(domain)).map(Clash::said),
    };
    Ok(DomainsShown {
        application: app.name.to_string(),
        chosen: app.spec.domains_chosen,
        domains: app.spec.domains.iter().map(row).collect(),
        notes: Vec::new(),
    })
}

/// Changes the domains. From then on commands decide which domains it has, until a reset leaves
/// that to the project's own file again.
pub async fn change(
    State(api): State<Shared>,
    Extension(entry): Extension<Underway>,
    Path(app): Path<String>,
    JsonBody(asked): JsonBody<DomainsChange>,
) -> Result<Json<DomainsShown>, Problem> {
    let names = |texts: &[String]| -> Result<Vec<String>, String> {
        texts.iter().map(|text| domain(text)).collect()
    };
    let invalid = |why: String| Problem::invalid("invalid_domain", why);
    let add = names(&asked.add).map_err(invalid)?;
    let remove = names(&asked.remove).map_err(invalid)?;
    let _changing = api.changes.lock().await;
    let mut app = records::require(&*api.store, &app).await?;
    if let Some(absent) = remove.iter().find(|one| !app.spec.domains.contains(one)) {
        return Err(Problem::missing("no_domain", format!("{} has no domain {absent}", app.name))
            .hint(format!("`cortex domains list -a {}` shows those it has", app.name)));
    }
    if app.spec.domains.len() + add.len() > LIST_LENGTH_MAX {
        let detail = format!("an application has at most {LIST_LENGTH_MAX} domains");
        let hint = "`*.example.org` stands for every name below";
        return Err(Problem::invalid("too_many_domains", detail).hint(hint));
    }
    let (add, notes) = claim(&api, &app, &add, false).await?;
    let mut domains = app.spec.domains.clone();
    domains.retain(|one| !remove.contains(one));
    let fresh: Vec<String> = add.into_iter().filter(|one| !domains.contains(one)).collect();
    domains.extend(fresh);
    let before = app.spec.clone();
    app.spec.set_domains(domains, api.now());
    app.spec.domains_chosen = !asked.reset;
    entry.describe(&app, api.now(), parts::of_spec(&before, &app.spec)).await?;
    records::write(&*api.store, TypedKey::Spec(app.name.clone()), &app.spec).await?;
    Ok(Json(DomainsShown { notes, ..shown(&api, &app).await? }))
}

/// Takes the domains of the project's own file, unless commands have chosen them; returns remarks
/// for the user.
pub async fn merge(
    api: &Api,
    app: &mut ApplicationRecords,
    from_file: &[String],
) -> Result<Vec<String>, Problem> {
    if app.spec.domains_chosen {
        let same = from_file.iter().all(|one| app.spec.domains.contains(one));
        let note = format!(
            "{CORTEX_TOML}: 'domains' was ignored, as commands chose them: `cortex domains reset -a \
             {}` leaves them to the file again",
            app.name
        );
        return Ok(if same { Vec::new() } else { vec![note] });
    }
    let (domains, notes) = claim(api, app, from_file, true).await?;
    app.spec.set_domains(domains, api.now());
    Ok(notes)
}

/// Returns the Host that a probe of the next release asks for if nothing else is configured.
pub fn first(spec: &ApplicationSpec) -> Option<String> {
    spec.domains.iter().find(|domain| !domain.starts_with("*.")).cloned()
}
