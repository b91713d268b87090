//! Copies of the cluster that are made by themselves: the schedule, the order to make one now, and
//! what became of them. `backup::schedule` makes them. The pass-phrase comes in and is never shown.

use ::backup::schedule::{daily, pass_phrase_fault};
use agent::scheduled::zone;
use axum::Json;
use axum::extract::State;
use model::backup::{BackupKey, BackupLog, BackupOrder, BackupPlace, BackupSettings};
use model::record::{RECORD_VERSION, Unknown};
use model::{NodeId, TypedKey};

use super::json_body::JsonBody;
use super::nodes::ClusterView;
use super::problem::Problem;
use super::records::{self, rfc3339};
use super::transfer::{keeps_store, seals};
use super::{Api, Shared};
use api_types::backup::{BackupAsked, BackupRow, BackupSchedule, BackupsShown};

/// The most copies that a directory keeps: a year of days.
const KEEP_MAX: u32 = 366;
/// The longest directory or command in bytes.
const PLACE_BYTES_MAX: usize = 4096;

pub async fn show(State(api): State<Shared>) -> Result<Json<BackupsShown>, Problem> {
    Ok(Json(shown(&api).await?))
}

/// Sets the schedule; one that was there is replaced.
pub async fn schedule(
    State(api): State<Shared>,
    JsonBody(asked): JsonBody<BackupAsked>,
) -> Result<Json<BackupsShown>, Problem> {
    keeps_store(&api)?;
    seals(&api).await?;
    let settings = settings(&api, asked).await?;
    {
        let _changing = api.changes.lock().await;
        records::write(&*api.store, TypedKey::Backup(BackupKey::Settings), &settings).await?;
    }
    Ok(Json(shown(&api).await?))
}

async fn settings(api: &Api, asked: BackupAsked) -> Result<BackupSettings, Problem> {
    let invalid = |what: String| Problem::invalid("invalid_backup", what);
    daily(&asked.at).map_err(|error| invalid(error.to_string()))?;
    zone(&asked.timezone).map_err(|error| invalid(format!("{error:#}")))?;
    if !(1..=KEEP_MAX).contains(&asked.keep) {
        return Err(invalid(format!("1 to {KEEP_MAX} copies are kept")));
    }
    if let Some(fault) = pass_phrase_fault(&asked.pass_phrase) {
        return Err(invalid(fault));
    }
    let node = match &asked.node {
        Some(node) => Some(ClusterView::read(api).await?.find(node)?),
        None => None,
    };
    let place = match (asked.directory, asked.hook) {
        (Some(directory), None) => {
            check_directory(api, node.as_ref(), &directory).map_err(invalid)?;
            BackupPlace::Directory(directory)
        }
        (None, Some(hook)) if !hook.trim().is_empty() && hook.len() <= PLACE_BYTES_MAX => {
            BackupPlace::Hook(hook)
        }
        _ => return Err(invalid("a back-up goes to a directory or to a hook, one of them".into())),
    };
    Ok(BackupSettings {
        v: RECORD_VERSION,
        at: asked.at,
        timezone: asked.timezone,
        place,
        node,
        keep: asked.keep,
        with_files: asked.with_files,
        pass_phrase: asked.pass_phrase,
        set_at: api.now(),
        unknown: Unknown::new(),
    })
}

/// Checks a directory, where this node can see it.
fn check_directory(api: &Api, node: Option<&NodeId>, directory: &str) -> Result<(), String> {
    let path = std::path::Path::new(directory);
    if !path.is_absolute() || directory.len() > PLACE_BYTES_MAX {
        return Err(format!("'{directory}' is no absolute path of a directory"));
    }
    if path.starts_with(api.layout.root()) {
        return Err(format!("{directory} is in the data directory, and would be lost with it"));
    }
    if node.is_none_or(|node| *node == api.node) && !path.is_dir() {
        return Err(format!("{directory} is no directory here: mount or make it"));
    }
    Ok(())
}

/// Ends the schedule. Copies that were made stay.
pub async fn unschedule(State(api): State<Shared>) -> Result<Json<BackupsShown>, Problem> {
    {
        let _changing = api.changes.lock().await;
        require(&api).await?;
        api.store.delete(TypedKey::Backup(BackupKey::Settings).key()).await?;
    }
    Ok(Json(shown(&api).await?))
}

/// Orders a copy now, as the schedule says.
pub async fn capture(State(api): State<Shared>) -> Result<Json<BackupsShown>, Problem> {
    require(&api).await?;
    let order = BackupOrder { v: RECORD_VERSION, asked_at: api.now(), unknown: Unknown::new() };
    records::write(&*api.store, TypedKey::Backup(BackupKey::Order), &order).await?;
    Ok(Json(BackupsShown { asked_ms: Some(order.asked_at.0), ..shown(&api).await? }))
}

async fn require(api: &Api) -> Result<BackupSettings, Problem> {
    let settings: Option<BackupSettings> =
        records::read(&*api.store, TypedKey::Backup(BackupKey::Settings)).await?;
    let what = "no back-ups are scheduled";
    settings.ok_or_else(|| {
        Problem::conflict("no_schedule", what)
            .hint("`cortex backups schedule --at 03:00 --to DIR`, or `cortex export FILE` for one")
    })
}

async fn shown(api: &Api) -> Result<BackupsShown, Problem> {
    let settings: Option<BackupSettings> =
        records::read(&*api.store, TypedKey::Backup(BackupKey::Settings)).await?;
    let log: Option<BackupLog> =
        records::read(&*api.store, TypedKey::Backup(BackupKey::Log)).await?;
    let log = log.unwrap_or_default();
    let problem = settings.as_ref().and_then(|settings| log.problem(settings, api.now()));
    let running = log.last.as_ref().filter(|last| last.ended_at.is_none());
    Ok(BackupsShown {
        running_since: running.map(|last| rfc3339(last.started_at)),
        schedule: settings.map(schedule_shown),
        backups: log.entries.into_iter().map(row).collect(),
        problem,
        asked_ms: None,
    })
}

fn schedule_shown(settings: BackupSettings) -> BackupSchedule {
    let (directory, hook) = match settings.place {
        BackupPlace::Directory(directory) => (Some(directory), None),
        BackupPlace::Hook(hook) => (None, Some(hook)),
    };
    BackupSchedule {
        at: settings.at,
        timezone: settings.timezone,
        directory,
        hook,
        node: settings.node.map(String::from),
        keep: settings.keep,
        with_files: settings.with_files,
        set_at: rfc3339(settings.set_at),
    }
}

fn row(entry: model::backup::BackupEntry) -> BackupRow {
    BackupRow {
        started_at: rfc3339(entry.started_at),
        started_ms: entry.started_at.0,
        ended_at: rfc3339(entry.ended_at),
        node: entry.node.to_string(),
        name: entry.name,
        bytes: entry.bytes,
        failure: entry.failure,
        without_files: entry.without_files,
    }
}

/// Says what is wrong with the copies, for `cortex status` and `cortex doctor`; `None` if nothing
/// is, and `Some(None)` if all is well with a schedule.
pub async fn standing(api: &Api) -> Option<Option<String>> {
    let shown = shown(api).await.ok()?;
    shown.schedule.as_ref()?;
    Some(shown.problem)
}
