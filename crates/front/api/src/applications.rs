//! Applications: they are listed, created, shown and destroyed here.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use model::application::Destruction;
use model::certificate::CertificateOwner;
use model::key::{destroyed_prefix, prefixes_of};
use model::record::{self, RECORD_VERSION, Unknown};
use model::{ApplicationName, Key, Timestamp, TypedKey};
use store::{Submission, Submitted};

use super::caller::Caller;
use super::json_body::JsonBody;
use super::problem::Problem;
use super::records::{self, ApplicationRecords};
use super::{Api, Shared, certificates, domains, ports, team_limits};
use api_types::{
    ApplicationRow, ApplicationShown, CreateApplication, Destroyed, ProcessRow, RolloutShown,
};

/// The longest wait for instances to stop: the usual grace of 30 s between SIGTERM and SIGKILL, and
/// some time for draining before it.
const STOP_WAIT_MAX: Duration = Duration::from_secs(45);
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
        isolation: release.map(|release| release.recipe.isolation.word().to_owned()),
        notes: release.map(|release| release.recipe.notes.clone()).unwrap_or_default(),
    }))
}

/// Deletes the specification first, since that is what stops everything. The application's
/// persistent files stay on disk, since nothing could bring them back.
pub async fn destroy(
    State(api): State<Shared>,
    Path(app): Path<String>,
) -> Result<Json<Destroyed>, Problem> {
    let app = records::require(&*api.store, &app).await?;
    let name = app.name;
    let spec = TypedKey::Spec(name.clone()).key();
    {
        let _changing = api.changes.lock().await;
        note_end(&api, &name, app.spec.created_at).await?;
        api.store.delete(spec.clone()).await?;
        let (application, created_at) = (name.clone(), app.spec.created_at);
        certificates::delete_owned(&api, &CertificateOwner { application, created_at }).await?;
        delete_all(&api, &name).await?;
    }
    let stopped = wait_until_stopped(&api, &name).await?;
    {
        // Deletes what nodes wrote about it until they stopped it, but nothing of an application
        // that was made anew under the same name.
        let _changing = api.changes.lock().await;
        if api.store.lookup(&spec).await?.is_none() {
            delete_all(&api, &name).await?;
        }
    }
    let kept = if stopped { remove_directories(&api, &name).await } else { None };
    Ok(Json(Destroyed { name: name.to_string(), stopped, kept }))
}

/// Puts on record that an application is destroyed, before anything of it goes: nodes that are cut
/// off may write of it later, and what they write is newer. Where no node can be cut off from this
/// one, nobody does.
async fn note_end(api: &Api, name: &ApplicationName, created_at: Timestamp) -> Result<(), Problem> {
    let earlier = api.store.keys(&destroyed_prefix(name)).await?;
    if api.peers.is_none() && earlier.is_empty() {
        return Ok(());
    }
    let record = Destruction { v: RECORD_VERSION, at: api.now(), unknown: Unknown::new() };
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

async fn remove_directories(api: &Api, name: &ApplicationName) -> Option<String> {
    let (directory, persist) = (api.layout.application(name), api.layout.persist(name));
    let removed = runtime::task::spawn_blocking(move || {
        let kept = std::fs::read_dir(&persist).is_ok_and(|mut entries| entries.next().is_some());
        let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| !kept || entry.path() != persist) {
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let removed = match is_directory {
                true => std::fs::remove_dir_all(entry.path()),
                false => std::fs::remove_file(entry.path()),
            };
            if let Err(error) = removed {
                tracing::warn!(path = %entry.path().display(), %error, "application.left_behind");
            }
        }
        if !kept {
            std::fs::remove_dir(&directory).ok();
        }
        kept.then(|| persist.display().to_string())
    });
    removed.await.ok().flatten()
}
