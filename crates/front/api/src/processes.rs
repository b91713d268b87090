//! The processes that run: list, scale, restart.

use axum::extract::{Path, State};
use axum::{Extension, Json};
use model::cron::CronRun;
use model::key::BoardKey;
use model::{InstanceId, NodeId, ProcessSpec, ProcessType, TypedKey};

use super::audit::Underway;
use super::caller::Caller;
use super::json_body::JsonBody;
use super::problem::Problem;
use super::records::{self, ApplicationRecords};
use super::undo::parts;
use super::{Api, Shared, sessions, team_limits};
use agent::one_off::OneOffSession;
use api_types::{InstanceRow, Scale, Scaled};

pub async fn list(
    State(api): State<Shared>,
    Path(app): Path<String>,
) -> Result<Json<Vec<InstanceRow>>, Problem> {
    let app = records::require(&*api.store, &app).await?;
    let mut rows = rows(&api, &app).await?;
    let sessions = sessions::everywhere(&api).await;
    rows.extend(one_offs(&app, &sessions));
    Ok(Json(rows))
}

pub async fn list_all(
    State(api): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Vec<InstanceRow>>, Problem> {
    let mut all = Vec::new();
    let sessions = sessions::everywhere(&api).await;
    let visible = caller.visible(&api.store).await?;
    let mut names = records::names(&*api.store).await?;
    names.retain(|name| visible.as_ref().is_none_or(|visible| visible.contains(name)));
    for name in names {
        if let Some(app) = records::find(&*api.store, &name).await? {
            all.extend(rows(&api, &app).await?);
            all.extend(one_offs(&app, &sessions));
        }
    }
    Ok(Json(all))
}

pub async fn rows(api: &Api, app: &ApplicationRecords) -> Result<Vec<InstanceRow>, Problem> {
    let mut rows = Vec::new();
    for (id, node, one) in app.incarnations() {
        rows.push(InstanceRow {
            application: id.application.to_string(),
            process: id.process.to_string(),
            slot: id.slot,
            node: node.to_string(),
            pid: one.process.as_ref().map(|process| process.pid),
            port: one.port,
            ports: one.ports.clone(),
            release: app.label(&one.release),
            state: match api.is_lost(node) && records::is_alive(one.state) {
                true => "lost".into(),
                false => records::state_word(one.state).into(),
            },
            started_at: one.started_at.map(records::rfc3339),
            memory_bytes: memory(api, id, one.generation).await?,
            restarts: one.restarts,
            reason: one.reason.clone(),
            session: None,
        });
    }
    rows.extend(scheduled(api, app).await?);
    Ok(rows)
}

/// Returns the commands that people run in the application, of all that there are.
pub(super) fn one_offs(
    app: &ApplicationRecords,
    all: &[(NodeId, OneOffSession)],
) -> Vec<InstanceRow> {
    let of = all.iter().filter(|(_, session)| session.application == app.name);
    of.map(|(node, session)| sessions::row(app, node, session.clone())).collect()
}

/// Returns the last run of each scheduled command.
async fn scheduled(api: &Api, app: &ApplicationRecords) -> Result<Vec<InstanceRow>, Problem> {
    let Some(release) = app.serving() else { return Ok(Vec::new()) };
    let mut rows = Vec::new();
    for recipe in &release.recipe.cron {
        let key = TypedKey::Cron(app.name.clone(), recipe.name.clone());
        let run: Option<CronRun> = records::read(&*api.store, key).await?;
        let Some(run) = run else { continue };
        let state = match (run.ended_at, run.success) {
            (None, _) if api.is_lost(&run.node) => "lost",
            (None, _) => "ready",
            (Some(_), true) => "stopped",
            (Some(_), false) => "crashed",
        };
        rows.push(InstanceRow {
            application: app.name.to_string(),
            process: format!("cron.{}", recipe.name),
            slot: 1,
            node: run.node.to_string(),
            pid: run.pid,
            port: None,
            ports: Default::default(),
            release: app.label(&release.id),
            state: state.into(),
            started_at: Some(records::rfc3339(run.started_at)),
            memory_bytes: None,
            restarts: run.attempt.saturating_sub(1),
            reason: run.how,
            session: None,
        });
    }
    Ok(rows)
}

async fn memory(api: &Api, id: &InstanceId, generation: u64) -> Result<Option<u64>, Problem> {
    let key = TypedKey::Board(BoardKey::Memory(id.clone(), generation)).key();
    let entry = api.store.lookup(&key).await?;
    Ok(entry.and_then(|entry| std::str::from_utf8(entry.value.inline()?).ok()?.trim().parse().ok()))
}

pub async fn scale_now(
    State(api): State<Shared>,
    Path(app): Path<String>,
) -> Result<Json<Scaled>, Problem> {
    let app = records::require(&*api.store, &app).await?;
    Ok(Json(scaled(&app)))
}

fn scaled(app: &ApplicationRecords) -> Scaled {
    let chosen = app.spec.processes.iter().map(|(process, spec)| (process.to_string(), spec.count));
    let mut processes: Scale = chosen.collect();
    if let Some(release) = app.current().or(app.serving()) {
        let wanted = app.wanted(release);
        processes = wanted.iter().map(|(process, count)| (process.to_string(), *count)).collect();
    }
    Scaled { application: app.name.to_string(), processes }
}

pub async fn scale(
    State(api): State<Shared>,
    Extension(entry): Extension<Underway>,
    Path(app): Path<String>,
    JsonBody(asked): JsonBody<Scale>,
) -> Result<Json<Scaled>, Problem> {
    let _changing = api.changes.lock().await;
    let mut app = records::require(&*api.store, &app).await?;
    let (before, spec_before) = (team_limits::used_by(&app), app.spec.clone());
    for (word, count) in &asked {
        let process = known_process(&app, word)?;
        if *count > recipe_core::manifest::COUNT_MAX {
            return Err(Problem::invalid(
                "too_many_instances",
                format!("{count} instances of {word} are more than a node can hold"),
            )
            .hint(format!("ask for at most {}", recipe_core::manifest::COUNT_MAX)));
        }
        let spec = app.spec.processes.entry(process).or_insert_with(ProcessSpec::default);
        spec.count = *count;
    }
    team_limits::check_scale(&api, before, &app).await?;
    entry.describe(&app, api.now(), parts::of_spec(&spec_before, &app.spec)).await?;
    records::write(&*api.store, TypedKey::Spec(app.name.clone()), &app.spec).await?;
    Ok(Json(scaled(&app)))
}

/// Checks that there is such a process type. Before the first push no type is known, and any may be
/// scaled ahead of it.
fn known_process(app: &ApplicationRecords, word: &str) -> Result<ProcessType, Problem> {
    let process: ProcessType = word.parse()?;
    let Some(release) = app.current().or(app.serving()) else {
        return Ok(process);
    };
    let known = &release.recipe.processes;
    if known.contains_key(&process) {
        return Ok(process);
    }
    let names: Vec<&str> = known.keys().map(ProcessType::as_str).collect();
    let hint = match names[..] {
        [] => "it has none: its files are served by the router itself".into(),
        _ => format!("it has: {}", names.join(", ")),
    };
    Err(Problem::invalid(
        "unknown_process",
        format!("{} has no process type '{process}'", app.name),
    )
    .hint(hint))
}

pub async fn restart(
    State(api): State<Shared>,
    Path(app): Path<String>,
) -> Result<Json<Scaled>, Problem> {
    let _changing = api.changes.lock().await;
    let mut app = records::require(&*api.store, &app).await?;
    if app.releases.is_empty() {
        return Err(Problem::conflict(
            "no_release",
            format!("{} has no release that could be restarted", app.name),
        )
        .hint(format!("push one with `cortex push -a {}`", app.name)));
    }
    app.spec.restart = app.spec.restart.wrapping_add(1);
    records::write(&*api.store, TypedKey::Spec(app.name.clone()), &app.spec).await?;
    Ok(Json(scaled(&app)))
}
