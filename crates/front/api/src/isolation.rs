//! The platform's default for the isolation of applications, who may go below it, and whether the
//! nodes can build walls at all. `mark`: what an owner wants around one application.

pub mod mark;

use access_core::{DefaultReason, Right, default_isolation, is_below_owner};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use model::people::Grant;
use model::record::{RECORD_VERSION, Unknown};
use model::{Isolation, IsolationDefault, Recipe, TypedKey, Wall};
use std::collections::BTreeSet;

use super::caller::Caller;
use super::json_body::JsonBody;
use super::problem::Problem;
use super::records::ApplicationRecords;
use super::{Api, Shared, records, users};
use api_types::people::{IsolationAsked, IsolationShown};
pub use mark::{mark_shown, remark};

/// The word by which the default follows from who the people of the platform are.
const AUTO: &str = "auto";

async fn set_by_owner(api: &Api) -> Result<Option<Isolation>, Problem> {
    let set: Option<IsolationDefault> =
        records::read(&*api.store, TypedKey::IsolationDefault).await?;
    Ok(set.map(|set| set.isolation))
}

/// Returns what applications get that say nothing, and why.
pub async fn of_platform(api: &Api) -> Result<(Isolation, DefaultReason), Problem> {
    Ok(default_isolation(set_by_owner(api).await?, &users::all(&api.store).await?))
}

/// Refuses a caller who is no owner what runs behind less of a wall than the platform wants: they
/// could read there what they have no right to.
pub async fn check(api: &Api, caller: &Caller, isolation: Isolation) -> Result<(), Problem> {
    if isolation == Isolation::Full || caller.may(Right::ManagePeople) {
        return Ok(());
    }
    let wanted = of_platform(api).await?.0;
    if isolation >= wanted {
        return Ok(());
    }
    let word = wanted.word();
    let detail = "on this platform an owner alone runs applications without a wall around them, or \
                  with less of one";
    Err(Problem::new(StatusCode::FORBIDDEN, "isolation_needed", detail).hint(format!(
        "leave isolation out of cortex.toml, or set it to \"{word}\", and push; or ask an owner"
    )))
}

/// Admits what somebody pushes, and puts it behind the mark of the application if it has one. It is
/// refused what `check` refuses, but where a mark is around it anyway: then it asks for as much as
/// it might without the mark, which may be taken away one day.
pub async fn admit(
    api: &Api,
    caller: &Caller,
    app: &ApplicationRecords,
    recipe: &mut Recipe,
) -> Result<(), Problem> {
    let mark = app.spec.isolation.as_ref();
    if mark.is_none() || caller.may(Right::ManagePeople) {
        check(api, caller, recipe.isolation).await?;
    } else if recipe.isolation != Isolation::Full {
        recipe.isolation = recipe.isolation.max(of_platform(api).await?.0);
    }
    recipe.put_behind(mark);
    Ok(())
}

/// Refuses a role below owner on a node that can build no wall, unless an owner has decided that
/// none is wanted.
pub async fn check_roles(api: &Api, grants: &BTreeSet<Grant>) -> Result<(), Problem> {
    if !is_below_owner(grants) || set_by_owner(api).await? == Some(Isolation::None) {
        return Ok(());
    }
    let Some(why) = obstacle(api, Wall::Standard).await else { return Ok(()) };
    let detail = format!(
        "this node can build no wall around what people push who are no owners, and they could read \
         all that it keeps: {why}"
    );
    Err(Problem::conflict("no_wall", detail).hint(format!(
        "{} and start the node again; or let everybody do so: `cortex isolation none`",
        shim::sandbox::attempt::remedy(Wall::Standard)
    )))
}

/// Returns why this node cannot build a wall, by trying; `None` if it can, or runs no applications.
pub async fn obstacle(api: &Api, wall: Wall) -> Option<String> {
    let agent = api.agent.as_ref()?;
    agent.launcher.try_wall(wall).await.err().map(|error| format!("{error:#}"))
}

/// Returns why this node cannot build the usual wall, and whether there is less; `None` if it can.
pub async fn obstacle_and_rest(api: &Api) -> Option<String> {
    let why = obstacle(api, Wall::Standard).await?;
    Some(match obstacle(api, Wall::Landlock).await {
        None => format!(
            "{why}; Landlock and the filter of calls alone are there (isolation = \"landlock\")"
        ),
        Some(_) => why,
    })
}

/// Returns whether an application asks for this wall.
pub async fn is_asked_for(api: &Api, wall: Wall) -> bool {
    for name in records::names(&*api.store).await.unwrap_or_default() {
        let app = records::find(&*api.store, &name).await.ok().flatten();
        let own = |app: &ApplicationRecords| app.wall_of(app.serving().or(app.current())?);
        if app.as_ref().and_then(own) == Some(wall) {
            return true;
        }
    }
    false
}

/// Returns the applications that run without a wall, in order.
pub async fn without(api: &Api) -> Result<Vec<String>, Problem> {
    let mut names = Vec::new();
    for name in records::names(&*api.store).await? {
        let app = records::find(&*api.store, &name).await?;
        let own = |app: &ApplicationRecords| Some(app.isolation_of(app.serving()?));
        if app.as_ref().and_then(own).is_some_and(|isolation| isolation.is_none()) {
            names.push(name.to_string());
        }
    }
    Ok(names)
}

/// Returns remarks for people if a change of the people made walls the default.
pub async fn remarks(api: &Api, before: Isolation) -> Result<Vec<String>, Problem> {
    if !before.is_none() || of_platform(api).await?.0.is_none() {
        return Ok(Vec::new());
    }
    let mut remarks = vec![
        "From now on, what is pushed and says nothing else runs behind a wall, since not everybody \
         is an owner; `cortex isolation` says more."
            .into(),
    ];
    let without = without(api).await?;
    if !without.is_empty() {
        let names = without.join(", ");
        remarks.push(format!("These run without one until they are pushed again: {names}."));
    }
    Ok(remarks)
}

async fn shown(api: &Api) -> Result<IsolationShown, Problem> {
    let set = set_by_owner(api).await?;
    let (default, reason) = of_platform(api).await?;
    let why = match reason {
        DefaultReason::Set => "an owner has set it".into(),
        DefaultReason::OwnersAlone => "everybody with a role is an owner".into(),
        DefaultReason::Person(name) => format!("{name} has a role and is no owner"),
    };
    Ok(IsolationShown {
        default: default.word().into(),
        set: set.map_or(AUTO, Isolation::word).into(),
        why,
        obstacle: obstacle_and_rest(api).await,
        without: without(api).await?,
    })
}

pub async fn show(State(api): State<Shared>) -> Result<Json<IsolationShown>, Problem> {
    Ok(Json(shown(&api).await?))
}

pub async fn change(
    State(api): State<Shared>,
    JsonBody(asked): JsonBody<IsolationAsked>,
) -> Result<Json<IsolationShown>, Problem> {
    let chosen = Isolation::ALL.into_iter().find(|isolation| isolation.word() == asked.default);
    let _changing = api.changes.lock().await;
    match chosen {
        Some(isolation) => {
            let (v, unknown) = (RECORD_VERSION, Unknown::new());
            let record = IsolationDefault { v, isolation, unknown };
            records::write(&*api.store, TypedKey::IsolationDefault, &record).await?;
        }
        None if asked.default == AUTO => {
            api.store.delete(TypedKey::IsolationDefault.key()).await?;
        }
        None => {
            let detail = format!("there is no isolation '{}'", asked.default.escape_debug());
            return Err(Problem::invalid("no_isolation", detail)
                .hint("choose full, standard, landlock, none or auto"));
        }
    }
    Ok(Json(shown(&api).await?))
}
