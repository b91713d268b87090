//! Applications that were destroyed and are kept for a while: they are listed, brought back, and in
//! the end removed.

use std::time::Duration;

use access_core::{Decision, Right};
use axum::extract::{Path, State};
use axum::{Extension, Json};
use model::{ApplicationName, TypedKey};

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
    // It comes anew to whoever has its domains and ports, so it claims them without its release.
    let mut coming = ApplicationRecords::new(name.clone(), spec.created_at);
    coming.spec = spec;
    let mut notes = claim_domains(&api, &mut coming).await?;
    if let Some(port) = coming.spec.port
        && let Err(problem) = ports::check_http(&api, &coming, Some(port)).await
    {
        coming.spec.port = ports::allot(&api, &name, None, &[]).await?;
        let port = coming.spec.port.unwrap_or_default();
        notes.push(format!("at port {port} now: {}", problem.detail()));
    }
    let app = records::with_spec(&*api.store, &name, coming.spec).await?;
    team_limits::check_scale(&api, access_core::TeamUse::default(), &app).await?;
    records::write(&*api.store, TypedKey::Spec(name), &app.spec).await?;
    Ok(Json(Restored { row: app.row(&api), notes }))
}

/// Takes back those of its domains that are free; returns what is to be said of the others.
async fn claim_domains(api: &Api, app: &mut ApplicationRecords) -> Result<Vec<String>, Problem> {
    let (mut had, mut notes) = (Vec::new(), Vec::new());
    for domain in std::mem::take(&mut app.spec.domains) {
        match domains::claim(api, app, std::slice::from_ref(&domain), true).await {
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
