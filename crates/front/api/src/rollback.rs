//! Rollback: makes a new release of an old one's code and variables.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use model::{Release, ReleaseId, RolloutPhase, TypedKey};

use super::audit::{By, Underway};
use super::builds::{self, RebuildWhen};
use super::caller::Caller;
use super::json_body::JsonBody;
use super::problem::Problem;
use super::records::{self, ApplicationRecords, ConfigVariables};
use super::releases::{self, Draft};
use super::{Api, Shared, isolation, ports, team_limits};
use api_types::{Released, Rollback};

pub async fn rollback(
    State(api): State<Shared>,
    Extension(caller): Extension<Caller>,
    Extension(entry): Extension<Underway>,
    Path(name): Path<String>,
    JsonBody(asked): JsonBody<Rollback>,
) -> Result<(StatusCode, Json<Released>), Problem> {
    let _changing = api.changes.lock().await;
    let mut app = records::require(&*api.store, &name).await?;
    let old = match &asked.to {
        Some(text) => releases::resolve(&app, text)?,
        None => previous(&app)?,
    };
    let (old, id) = (old.clone(), releases::next_id(&api, &app).await?);
    let note = format!("rollback to {}", app.label(&old.id));
    let (config, mut draft) = draft(&api, &app, &old, id, (note, entry.by())).await?;
    let limited = check(&api, &caller, &app, &mut draft).await?;
    entry.describe(&app, api.now(), vec![app.change_to(&draft.id, &draft.note)]).await?;
    records::write(&*api.store, TypedKey::Config(app.name.clone()), &config).await?;
    let release = releases::make(&api, &mut app, draft).await?;
    let mut answer = releases::released(&api, &app, &release);
    answer.notes.extend(limited);
    Ok((StatusCode::CREATED, Json(answer)))
}

/// Returns a draft of an old release's code and variables, with those.
pub async fn draft(
    api: &Api,
    app: &ApplicationRecords,
    old: &Release,
    id: ReleaseId,
    by: (String, By),
) -> Result<(ConfigVariables, Draft), Problem> {
    let store = &*api.store;
    let at = TypedKey::ConfigAt(app.name.clone(), old.id.clone());
    let config: ConfigVariables = match records::read(store, at).await? {
        Some(config) => config,
        None => records::config(store, &app.name).await?,
    };
    let mut draft = Draft::from_release(old, id, old.build_id(), config.clone(), by);
    draft.recipe.put_behind(app.spec.isolation.as_ref());
    if draft.recipe.wall() != old.recipe.wall() {
        // What was built behind another wall is built again.
        let never = RebuildWhen::Never;
        let build = builds::choose(api, app, old.source, &draft.recipe, &config, never).await?;
        draft.build = build.id;
    }
    Ok((config, draft))
}

/// Checks that a release may be made again by whoever asks, and limits it as their team is; returns
/// what was limited.
pub async fn check(
    api: &Api,
    caller: &Caller,
    app: &ApplicationRecords,
    draft: &mut Draft,
) -> Result<Option<String>, Problem> {
    isolation::check(api, caller, draft.recipe.asked().isolation).await?;
    let planned = (&draft.recipe, &mut draft.settings);
    let limited = team_limits::check_release(api, caller, app, (false, 0), planned).await?;
    let http = app.spec.port_with(Some(&draft.settings));
    ports::check_http(api, app, http).await?;
    ports::check_services(api, app, &draft.recipe.ports, http).await?;
    Ok(limited)
}

/// Returns the release that served before the serving one. While a newer release is on its way it
/// is the serving one, since the newer one is to be taken back.
fn previous(app: &ApplicationRecords) -> Result<&Release, Problem> {
    let nothing = |why: String| {
        Problem::conflict("nothing_before", why)
            .hint(format!("`cortex releases -a {}` lists all; name one to go to it", app.name))
    };
    let serving =
        app.serving().ok_or_else(|| nothing(format!("no release of {} serves yet", app.name)))?;
    let under_way = app.rollout.as_ref().is_some_and(|rollout| {
        !matches!(rollout.phase, RolloutPhase::Done | RolloutPhase::Failed)
            && rollout.target.as_ref().is_some_and(|target| *target > serving.id)
    });
    if under_way {
        return Ok(serving);
    }
    serving.replaces.as_ref().and_then(|id| app.release(id)).ok_or_else(|| {
        nothing(format!("nothing served before {} of {}", app.label(&serving.id), app.name))
    })
}
