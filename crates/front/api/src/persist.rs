//! Persistent paths, which outlive releases: shows them, and adds to them. What a running release
//! has written at an added path is moved out of its tree by its node, while it runs.

use axum::extract::{Path, State};
use axum::{Extension, Json};
use model::change::ChangePart;
use model::{InstanceState, TypedKey};
use recipe_core::manifest::{LIST_LENGTH_MAX, add_persistent, is_persistent, persistent_path};
use schemars::JsonSchema;
use serde::Deserialize;

use super::audit::Underway;
use super::json_body::JsonBody;
use super::problem::Problem;
use super::records::{self, ApplicationRecords};
use super::releases::{self, Draft};
use super::{Api, Shared};
use api_types::PersistShown;

#[derive(Debug, Deserialize, JsonSchema)]
pub struct PathsAdded {
    path: Option<String>,
    #[serde(default)]
    paths: Vec<String>,
}

pub async fn show(
    State(api): State<Shared>,
    Path(app): Path<String>,
) -> Result<Json<PersistShown>, Problem> {
    let app = records::require(&*api.store, &app).await?;
    Ok(Json(shown(&api, &app)))
}

fn shown(api: &Api, app: &ApplicationRecords) -> PersistShown {
    let release = app.serving().or(app.current());
    let mut paths = release.map(|release| release.recipe.persist.clone()).unwrap_or_default();
    add_persistent(&mut paths, &app.spec.persist);
    PersistShown {
        application: app.name.to_string(),
        paths,
        place: match app.tied_to() {
            Some(holder) if *holder != api.node => format!("DATA/apps/{}/persist", app.name),
            _ => api.layout.persist(&app.name).display().to_string(),
        },
        holder: app.tied_to().map(ToString::to_string),
        released: None,
    }
}

pub async fn add(
    State(api): State<Shared>,
    Extension(entry): Extension<Underway>,
    Path(app): Path<String>,
    JsonBody(asked): JsonBody<PathsAdded>,
) -> Result<Json<PersistShown>, Problem> {
    let asked = asked.path.iter().chain(&asked.paths);
    let paths: Result<Vec<String>, String> = asked.map(|path| persistent_path(path)).collect();
    let mut paths = paths.map_err(|why| Problem::invalid("invalid_path", why))?;
    if paths.is_empty() {
        return Err(Problem::invalid("invalid_path", "no path was named")
            .hint("name one or several: {\"paths\": [\"uploads/\"]}"));
    }
    let _changing = api.changes.lock().await;
    let mut app = records::require(&*api.store, &app).await?;
    let before = shown(&api, &app);
    paths.retain(|path| !is_persistent(&before.paths, path));
    if paths.is_empty() {
        return Ok(Json(before));
    }
    if app.spec.persist.len() + paths.len() > LIST_LENGTH_MAX {
        let detail = format!("{} would keep more than {LIST_LENGTH_MAX} paths", app.name);
        return Err(Problem::invalid("too_many_paths", detail)
            .hint("keep a directory that holds several of them"));
    }
    runs_here(&api, &app)?;
    let part = ChangePart::Persist { paths: paths.clone() };
    entry.describe(&app, api.now(), vec![part]).await?;
    add_persistent(&mut app.spec.persist, &paths);
    records::write(&*api.store, TypedKey::Spec(app.name.clone()), &app.spec).await?;
    let Some(current) = app.serving().or(app.current()).cloned() else {
        return Ok(Json(shown(&api, &app)));
    };
    let config = records::config(&*api.store, &app.name).await?;
    let id = releases::next_id(&api, &app).await?;
    let note = format!("persist {}", paths.join(", "));
    let by = (note, entry.by());
    let draft = Draft::from_release(&current, id, current.build_id(), config, by);
    let release = releases::make(&api, &mut app, draft).await?;
    let released = Some(releases::released(&api, &app, &release));
    Ok(Json(PersistShown { released, ..shown(&api, &app) }))
}

/// Refuses if the application runs elsewhere: the files are where its instances run, and the node
/// that is asked becomes the one that has them.
fn runs_here(api: &Api, app: &ApplicationRecords) -> Result<(), Problem> {
    let ready = app.incarnations().filter(|(_, _, one)| one.state == InstanceState::Ready);
    let mut nodes: Vec<String> = ready.map(|(_, node, _)| node.to_string()).collect();
    let own = api.node.to_string();
    let there = match app.tied_to() {
        Some(holder) if *holder != api.node => holder.to_string(),
        Some(_) => return Ok(()),
        None if nodes.is_empty() || nodes.contains(&own) => return Ok(()),
        None => nodes.remove(0),
    };
    let detail = format!("{} runs on node {there}, and so do the files that it wrote", app.name);
    Err(Problem::conflict("files_elsewhere", detail)
        .hint(format!("give this command on node {there}; `cortex ps` shows what runs where")))
}
