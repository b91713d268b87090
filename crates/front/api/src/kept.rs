//! Applications that were destroyed and are kept for a while: they are listed, brought back, and in
//! the end removed.

use std::time::Duration;

use access_core::{Decision, Right};
use axum::extract::{Path, State};
use axum::{Extension, Json};
use model::{ApplicationName, PortId, TypedKey};

use super::caller::Caller;
use super::problem::Problem;
use super::records::{self, ApplicationRecords};
use super::{Api, Shared, applications, domains, ports, team_limits};
use api_types::maintenance::{KeptRow, Restored};

/// The time between two looks for what is kept no longer; nobody waits for it.
const LOOK: Duration = Duration::from_secs(60);

/// Lists those that the caller may bring back.
pub async fn list(
    State(api): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Vec<KeptRow>>, Problem> {
    let mut rows = Vec::new();
    for (name, spec, end) in records::names_kept(&*api.store).await? {
        let decision = caller.decide_on(Right::SeeApplication, &name, Some(spec.created_at));
        if decision == Decision::Allowed {
            rows.push(KeptRow {
                name: name.to_string(),
                destroyed_at: records::rfc3339(end.at),
                until: records::rfc3339(end.until),
                by: end.by,
                domains: spec.domains,
            });
        }
    }
    Ok(Json(rows))
}

/// Brings one back with all that was kept of it. What another application has taken meanwhile stays
/// that one's.
pub async fn restore(
    State(api): State<Shared>,
    Path(app): Path<String>,
) -> Result<Json<Restored>, Problem> {
    let name: ApplicationName = app.parse()?;
    let _changing = api.changes.lock().await;
    let Some((mut spec, _)) = records::kept(&*api.store, &name).await? else {
        return Err(match records::require(&*api.store, name.as_str()).await {
            Ok(_) => Problem::conflict("not_destroyed", format!("'{name}' is there"))
                .hint("`cortex apps --destroyed` lists what can be brought back"),
            Err(problem) => problem,
        });
    };
    spec.end = None;
    let mut app = records::with_spec(&*api.store, &name, spec).await?;
    let mut notes = claim_domains(&api, &mut app).await?;
    notes.extend(claim_ports(&api, &mut app).await?);
    team_limits::check_scale(&api, access_core::TeamUse::default(), &app).await?;
    records::write(&*api.store, TypedKey::Spec(name), &app.spec).await?;
    Ok(Json(Restored { row: app.row(&api), notes }))
}

/// Takes back those of its domains that are free; returns what is to be said of the others.
async fn claim_domains(api: &Api, app: &mut ApplicationRecords) -> Result<Vec<String>, Problem> {
    // It comes anew to whoever has them meanwhile, so that it claims them as if nothing served.
    let mut coming = ApplicationRecords::new(app.name.clone(), app.spec.created_at);
    coming.spec = app.spec.clone();
    let (mut had, mut notes) = (Vec::new(), Vec::new());
    for domain in std::mem::take(&mut app.spec.domains) {
        match domains::claim(api, &coming, std::slice::from_ref(&domain), true).await {
            Ok((domains, said)) => {
                had.extend(domains);
                notes.extend(said);
            }
            Err(problem) => notes.push(format!("without {domain}: {}", problem.detail())),
        }
    }
    app.spec.domains = had;
    Ok(notes)
}

/// Gives it another port for HTTP where its own is another application's meanwhile; returns what is
/// to be said of that. Its other ports are its clients' as well, and cannot be others.
async fn claim_ports(api: &Api, app: &mut ApplicationRecords) -> Result<Vec<String>, Problem> {
    let release = app.serving();
    let http = app.spec.port_with(release.map(|release| &release.settings)).map(PortId::tcp);
    let services = release.into_iter().flat_map(|release| &release.recipe.ports);
    for id in services.map(|port| port.id) {
        if let Some(owner) = ports::owner_of(api, &app.name, id).await? {
            let detail = format!("its port {id} belongs to the application '{owner}' by now");
            return Err(Problem::conflict("port_taken", detail)
                .hint(format!("have '{owner}' use another one, or destroy it, and try again")));
        }
    }
    let Some(id) = http else { return Ok(Vec::new()) };
    let Some(owner) = ports::owner_of(api, &app.name, id).await? else { return Ok(Vec::new()) };
    let port = ports::allot(api, &app.name, None, &[]).await?;
    // What is chosen goes before what the release says.
    (app.spec.port, app.spec.port_chosen) = (port, true);
    let now = port.map_or("none".into(), |port| port.to_string());
    Ok(vec![format!("its port is {now} now: {id} belongs to the application '{owner}'")])
}

/// Removes what is kept no longer, for as long as the API is there.
pub async fn follow(api: &Api) -> anyhow::Result<()> {
    loop {
        if let Err(problem) = sweep(api).await {
            tracing::warn!(?problem, "application.kept_on");
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Removes what is kept no longer. Several nodes may do so at once: nothing is removed twice that
/// matters.
pub async fn sweep(api: &Api) -> Result<(), Problem> {
    for (name, spec, end) in records::names_kept(&*api.store).await? {
        if end.until > api.now() {
            continue;
        }
        let _changing = api.changes.lock().await;
        let still = records::kept(&*api.store, &name).await?;
        if still.is_some_and(|(_, now)| now == end) {
            applications::purge(api, &name, spec.created_at).await?;
            tracing::info!(%name, "application.kept_no_longer");
        }
    }
    Ok(())
}
