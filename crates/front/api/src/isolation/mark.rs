//! The mark of an owner on an application that is not trusted: the least wall around it, whatever
//! is pushed to it. Takes effect by a restart and by a release, since what was built outside may
//! share files with what is built for others.

use axum::extract::{Path, State};
use axum::{Extension, Json};
use model::node::Feature;
use model::record::Unknown;
use model::{AskedIsolation, Egress, Isolation, IsolationMark, Release, TypedKey, Wall};

use super::super::audit::{By, Underway};
use super::super::builds::{self, RebuildWhen};
use super::super::caller::Caller;
use super::super::json_body::JsonBody;
use super::super::problem::Problem;
use super::super::records::{self, ApplicationRecords};
use super::super::releases::{self, Draft};
use super::super::{Api, Shared, nodes};
use api_types::Released;
use api_types::people::{ApplicationIsolation, IsolationMarkAsked, IsolationMarkShown};

/// The word by which an application gets what its releases ask for.
const DEFAULT: &str = "default";

pub async fn show(
    State(api): State<Shared>,
    Path(app): Path<String>,
) -> Result<Json<ApplicationIsolation>, Problem> {
    Ok(Json(shown(&records::require(&*api.store, &app).await?, None)))
}

/// Changes what an owner wants around an application.
pub async fn change(
    State(api): State<Shared>,
    Extension(caller): Extension<Caller>,
    Extension(entry): Extension<Underway>,
    Path(app): Path<String>,
    JsonBody(asked): JsonBody<IsolationMarkAsked>,
) -> Result<Json<ApplicationIsolation>, Problem> {
    let least = least(&asked)?;
    let known = records::require(&*api.store, &app).await?;
    if least.is_some() {
        let harm = format!("would run '{}' behind less of a wall", known.name);
        nodes::check_all_know(&api, Feature::IsolationMarks, &harm, "nothing was changed").await?;
    }
    let _changing = api.changes.lock().await;
    let mut app = records::require(&*api.store, &app).await?;
    if app.spec.isolation.as_ref().map(|mark| mark.least) == least {
        return Ok(Json(shown(&app, None)));
    }
    let known = app.serving().map(|serving| app.wall_of(serving));
    let (by, since, restart) = (caller.name(), api.now(), app.spec.restart);
    let unknown = Unknown::new();
    app.spec.isolation = least.map(|least| IsolationMark { least, by, since, restart, unknown });
    let Some(current) = app.current().or(app.serving()).cloned() else {
        write(&api, &app).await?;
        return Ok(Json(shown(&app, None)));
    };
    // What cannot be built anywhere is refused before anything is written.
    let wall = app.wall_of(&current);
    nodes::coordinator(&api, wall).await?;
    let differs = known != app.serving().map(|serving| app.wall_of(serving));
    if let Some(mark) = app.spec.isolation.as_mut().filter(|_| differs) {
        // What runs does not wait for a build that may fail.
        app.spec.restart = app.spec.restart.wrapping_add(1);
        mark.restart = app.spec.restart;
    }
    write(&api, &app).await?;
    let released = match current.recipe.wall() != wall {
        true => Some(release(&api, &mut app, &current, entry.by()).await?),
        false => None,
    };
    Ok(Json(shown(&app, released)))
}

fn least(asked: &IsolationMarkAsked) -> Result<Option<AskedIsolation>, Problem> {
    let isolation = match asked.isolation.as_str() {
        DEFAULT => None,
        "standard" => Some(Isolation::Standard),
        "full" => Some(Isolation::Full),
        other => {
            let detail = format!("an application cannot be marked with '{}'", other.escape_debug());
            return Err(Problem::invalid("no_isolation", detail).hint(
                "choose full, standard, or default, which gives it what its releases ask for",
            ));
        }
    };
    let egress = match asked.egress.as_deref() {
        None => None,
        Some("none") => Some(Egress::None),
        Some("all") => Some(Egress::All),
        Some(other) => {
            let detail = format!("there is no egress '{}'", other.escape_debug());
            return Err(Problem::invalid("no_egress", detail).hint("choose none or all"));
        }
    };
    if egress.is_some() && isolation != Some(Isolation::Full) {
        let detail = "egress: only isolation full has a network of its own";
        return Err(Problem::invalid("no_egress", detail).hint("leave one out"));
    }
    let egress = egress.unwrap_or_default();
    Ok(isolation.map(|isolation| AskedIsolation { isolation, egress }))
}

async fn write(api: &Api, app: &ApplicationRecords) -> Result<(), Problem> {
    records::write(&*api.store, TypedKey::Spec(app.name.clone()), &app.spec).await
}

/// Makes a release of the same code, which is built behind the wall.
async fn release(
    api: &Api,
    app: &mut ApplicationRecords,
    current: &Release,
    by: By,
) -> Result<Released, Problem> {
    let config = records::config(&*api.store, &app.name).await?;
    let id = releases::next_id(api, app).await?;
    let (source, recipe) = (current.source, app.recipe_of(current));
    let build = builds::choose(api, app, source, &recipe, &config, RebuildWhen::Never).await?;
    let note = match &app.spec.isolation {
        Some(mark) => format!("isolation {}", words(mark.least)),
        None => "isolation as it is asked for".into(),
    };
    let draft = Draft::from_release(current, id, build.id, config, (note, by));
    let release = releases::make(api, app, draft).await?;
    Ok(releases::released(api, app, &release))
}

/// Returns a remark for somebody who pushed what asks for another wall than it gets.
pub fn remark(app: &ApplicationRecords, release: &Release) -> Option<String> {
    let mark = app.spec.isolation.as_ref().filter(|_| release.recipe.isolation_asked.is_some())?;
    let recipe = &release.recipe;
    let (isolation, egress) = (recipe.isolation, recipe.egress);
    let given = words(AskedIsolation { isolation, egress });
    let marked = words(mark.least);
    Some(format!(
        "{} marked {} with isolation {marked}: it runs behind {given}, whatever its files ask for",
        mark.by, app.name
    ))
}

fn words(asked: AskedIsolation) -> String {
    match Wall::of(asked.isolation, asked.egress) {
        Some(Wall::FullEgress) => "full with egress all".into(),
        _ => asked.isolation.word().into(),
    }
}

pub fn mark_shown(mark: &IsolationMark) -> IsolationMarkShown {
    IsolationMarkShown {
        isolation: mark.least.isolation.word().into(),
        egress: egress_shown(mark.least),
        by: mark.by.clone(),
        since: records::rfc3339(mark.since),
    }
}

fn egress_shown(asked: AskedIsolation) -> Option<String> {
    let own = asked.isolation == Isolation::Full;
    own.then(|| asked.egress.word().to_owned())
}

fn shown(app: &ApplicationRecords, released: Option<Released>) -> ApplicationIsolation {
    let recipe = app.serving().or(app.current()).map(|release| app.recipe_of(release));
    let asked = recipe.as_ref().map(|recipe| recipe.asked());
    let given = recipe.map(|recipe| {
        let (isolation, egress) = (recipe.isolation, recipe.egress);
        AskedIsolation { isolation, egress }
    });
    ApplicationIsolation {
        application: app.name.to_string(),
        isolation: given.map(|given| given.isolation.word().into()),
        egress: given.and_then(egress_shown),
        asked: asked.map(|asked| asked.isolation.word().into()),
        asked_egress: asked.and_then(egress_shown),
        mark: app.spec.isolation.as_ref().map(mark_shown),
        released,
    }
}
