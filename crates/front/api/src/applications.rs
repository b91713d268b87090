//! Applications: they are listed, created, shown and destroyed here.

use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use model::application::{Destruction, KeptEnd};
use model::certificate::CertificateOwner;
use model::key::prefixes_of;
use model::node::Feature;
use model::record::{self, RECORD_VERSION, Unknown};
use model::{ApplicationName, Key, Timestamp, TypedKey};
use schemars::JsonSchema;
use serde::Deserialize;
use store::{Submission, Submitted};

use super::caller::Caller;
use super::json_body::JsonBody;
use super::problem::Problem;
use super::records::{self, ApplicationRecords};
use super::{Api, Shared, certificates, domains, isolation, nodes, ports, team_limits};
use api_types::{
    ApplicationRow, ApplicationShown, CreateApplication, Destroyed, ProcessRow, RolloutShown,
};

/// The longest wait for instances to stop: the usual grace of 30 s between SIGTERM and SIGKILL, and
/// some time for draining before it.
const STOP_WAIT_MAX: Duration = Duration::from_secs(45);
/// The time for which what was destroyed is kept: a week, so that somebody notices who is back from
/// a few days off.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// The time for which the end of an application stays on record: a node that comes back later than
/// that is a curiosity, and brings back no more than what was changed there.
const END_KEPT: Duration = Duration::from_secs(90 * 24 * 3600);
const STOP_POLL: Duration = Duration::from_millis(100);

pub async fn list(
    State(api): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Vec<ApplicationRow>>, Problem> {
    let mut rows = rows(&api).await?;
    if let Some(visible) = caller.visible(&api.store).await? {
        rows.retain(|row| row.name.parse().is_ok_and(|name| visible.contains(&name)));
    }
    Ok(Json(rows))
}

pub async fn rows(api: &Api) -> Result<Vec<ApplicationRow>, Problem> {
    let mut rows = Vec::new();
    for name in records::names(&*api.store).await? {
        match records::find(&*api.store, &name).await {
            Ok(app) => rows.extend(app.map(|app| app.without_lost(api).row(api))),
            Err(problem) => tracing::warn!(%name, ?problem, "application.unreadable"),
        }
    }
    Ok(rows)
}

pub async fn create(
    State(api): State<Shared>,
    Extension(caller): Extension<Caller>,
    JsonBody(asked): JsonBody<CreateApplication>,
) -> Result<(StatusCode, Json<ApplicationRow>), Problem> {
    let name: ApplicationName = asked.name.parse()?;
    if let Some(framework) = &asked.framework {
        check_framework(framework)?;
    }
    caller.team_for_new()?;
    let _changing = api.changes.lock().await;
    if records::find(&*api.store, &name).await?.is_some() {
        return Err(Problem::conflict(
            "application_exists",
            format!("there is an application '{name}' already"),
        )
        .hint(format!("push to it with `cortex push -a {name}`, or choose another name")));
    }
    team_limits::check_new(&api, &caller).await?;
    let mut app = records::begin(&api, &name).await?;
    app.spec.framework = asked.framework;
    app.spec.port = ports::allot(&api, &name, asked.port, &[]).await?;
    app.spec.port_chosen = asked.port.is_some();
    records::write(&*api.store, TypedKey::Spec(name.clone()), &app.spec).await?;
    caller.adopt(&api.store, &name).await?;
    Ok((StatusCode::CREATED, Json(app.row(&api))))
}

/// Refuses an unknown framework; detection over an empty tree tells which frameworks there are.
fn check_framework(framework: &str) -> Result<(), Problem> {
    let nothing = recipe_core::source::SourceTree::new();
    match recipe_core::detect::plan_release(&nothing, Some(framework), "application") {
        Err(error @ recipe_core::detect::DetectError::UnknownFramework { .. }) => {
            Err(Problem::invalid("unknown_type", error.to_string()))
        }
        _ => Ok(()),
    }
}

pub async fn show(
    State(api): State<Shared>,
    Path(app): Path<String>,
) -> Result<Json<ApplicationShown>, Problem> {
    let app = records::require(&*api.store, &app).await?.without_lost(&api);
    let release = app.serving().or(app.current());
    let processes = release.map_or_else(Vec::new, |release| {
        app.wanted(release)
            .into_iter()
            .map(|(process, wanted)| ProcessRow {
                command: release.recipe.processes[&process].command.clone(),
                wanted,
                ready: app.ready(&release.id, Some(&process)),
                nodes: app.ready_by_node(&release.id, &process),
                process: process.to_string(),
            })
            .collect()
    });
    Ok(Json(ApplicationShown {
        row: app.row(&api),
        domains: app.spec.domains.clone(),
        clashes: domains::clashes(&api)
            .await?
            .iter()
            .filter(|one| one.concerns(&app.name))
            .map(domains::Clash::said)
            .collect(),
        decided_by: release.map(|release| release.recipe.decided_by.clone()),
        processes,
        rollout: app.rollout.as_ref().map(|rollout| RolloutShown {
            serving: rollout.serving.as_ref().map(|id| app.label(id)),
            target: rollout.target.as_ref().map(|id| app.label(id)),
            phase: records::phase_word(rollout.phase).into(),
            message: rollout.message.clone(),
        }),
        releases: app.releases.len(),
        ports: release.map(|release| ports::services(&api, &app.name, release)).unwrap_or_default(),
        persist: release.map(|release| release.recipe.persist.clone()).unwrap_or_default(),
        holder: app.tied_to().map(ToString::to_string),
        isolation: release.map(|release| app.isolation_of(release).word().to_owned()),
        isolation_mark: app.spec.isolation.as_ref().map(isolation::mark_shown),
        notes: release.map(|release| release.recipe.notes.clone()).unwrap_or_default(),
    }))
}

/// The way in which an application is destroyed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub struct DestroyQuery {
    /// Whether nothing of it is kept, its files included.
    #[serde(default)]
    now: bool,
}

/// Destroys an application. Its records stay for a while, with its end in them: agents and routers
/// take it for absent from then on.
pub async fn destroy(
    State(api): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(app): Path<String>,
    Query(query): Query<DestroyQuery>,
) -> Result<Json<Destroyed>, Problem> {
    let name: ApplicationName = app.parse()?;
    if query.now {
        return Ok(Json(purge_now(&api, &name).await?));
    }
    let until = {
        let _changing = api.changes.lock().await;
        let mut app = records::require(&*api.store, &app).await?;
        let harm = format!("would go on running '{name}'");
        let instead = format!("or keep nothing: `cortex apps destroy {name} --now`");
        nodes::check_all_know(&api, Feature::KeptApplications, &harm, &instead).await?;
        let (at, until) = (api.now(), api.now().after(KEPT));
        app.spec.end = Some(KeptEnd { at, until, by: caller.name() });
        records::write(&*api.store, TypedKey::Spec(name.clone()), &app.spec).await?;
        until
    };
    let (stopped, until) = (wait_until_stopped(&api, &name).await?, records::rfc3339(until));
    Ok(Json(Destroyed { name: name.to_string(), stopped, kept: None, until: Some(until) }))
}

async fn purge_now(api: &Api, name: &ApplicationName) -> Result<Destroyed, Problem> {
    let created_at = match records::kept(&*api.store, name).await? {
        Some((spec, _)) => spec.created_at,
        None => records::require(&*api.store, name.as_str()).await?.spec.created_at,
    };
    {
        let _changing = api.changes.lock().await;
        purge(api, name, created_at).await?;
    }
    let spec = TypedKey::Spec(name.clone()).key();
    let stopped = wait_until_stopped(api, name).await?;
    {
        // Deletes what nodes wrote about it until they stopped it, but nothing of an application
        // that was made anew under the same name.
        let _changing = api.changes.lock().await;
        if api.store.lookup(&spec).await?.is_none() {
            delete_all(api, name).await?;
            if stopped {
                remove_directories(api, name).await;
            }
        }
    }
    Ok(Destroyed { name: name.to_string(), stopped, kept: None, until: None })
}

/// Deletes all that is stored of an application, the specification first, since that is what stops
/// everything. Nodes remove its files when they hear of it. The caller holds `Api::changes`.
pub async fn purge(
    api: &Api,
    name: &ApplicationName,
    created_at: Timestamp,
) -> Result<(), Problem> {
    note_end(api, name, created_at).await?;
    api.store.delete(TypedKey::Spec(name.clone()).key()).await?;
    let application = name.clone();
    certificates::delete_owned(api, &CertificateOwner { application, created_at }).await?;
    delete_all(api, name).await
}

/// Puts on record that an application is destroyed, before anything of it goes: nodes that are cut
/// off may write of it later, and what they write is newer.
async fn note_end(api: &Api, name: &ApplicationName, created_at: Timestamp) -> Result<(), Problem> {
    let record =
        Destruction { v: RECORD_VERSION, at: api.now(), with_files: true, unknown: Unknown::new() };
    let expires = Some(api.now().after(END_KEPT));
    let change = Submitted::Set { value: record::encode(&record).into(), expires };
    let key = TypedKey::Destroyed(name.clone(), created_at).key();
    api.store.write(Submission { key, change, only_over: None }).await?;
    Ok(())
}

async fn delete_all(api: &Api, name: &ApplicationName) -> Result<(), Problem> {
    for prefix in prefixes_of(name) {
        let keys: Vec<Key> = api.store.keys(&prefix).await?;
        for key in keys {
            api.store.delete(key).await?;
        }
    }
    Ok(())
}

async fn wait_until_stopped(api: &Api, name: &ApplicationName) -> Result<bool, Problem> {
    let deadline = tokio::time::Instant::now() + STOP_WAIT_MAX;
    loop {
        if !is_anything_alive(api, name).await? {
            return Ok(true);
        }
        if tokio::time::Instant::now() >= deadline {
            return Ok(false);
        }
        tokio::time::sleep(STOP_POLL).await;
    }
}

async fn is_anything_alive(api: &Api, name: &ApplicationName) -> Result<bool, Problem> {
    let mut app = ApplicationRecords::new(name.clone(), api.now());
    app.claims = records::claims(&*api.store, name).await?;
    Ok(app.is_anything_alive())
}

async fn remove_directories(api: &Api, name: &ApplicationName) {
    let directory = api.layout.application(name);
    let removed =
        runtime::task::spawn_blocking(move || match std::fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(path = %directory.display(), %error, "application.left_behind");
            }
            _ => {}
        });
    removed.await.ok();
}
