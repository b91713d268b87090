//! Users and their roles.

use std::collections::{BTreeMap, BTreeSet};

use access_core::loses_last_owner;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use model::change::ChangePart;
use model::key::users_prefix;
use model::people::{Grant, PersonRole, Scope, User};
use model::record::{RECORD_VERSION, Unknown};
use model::{ApplicationName, TeamName, TypedKey, UserName};
use store::SharedStore;

use super::audit::Underway;
use super::caller::Caller;
use super::json_body::JsonBody;
use super::problem::Problem;
use super::{Api, Shared, isolation, records, teams, tokens};
use api_types::people::{AddUser, GrantAsked, GrantRow, UserRow};

/// The most users; the records of all of them are read to list them.
const USERS_MAX: usize = 1000;
/// The most grants of a user, which are looked at for each request.
const GRANTS_MAX: usize = 256;

pub async fn all(store: &SharedStore) -> Result<BTreeMap<UserName, User>, Problem> {
    let named = |key| if let TypedKey::User(name) = key { Some(name) } else { None };
    Ok(records::all(&**store, &users_prefix(), named).await?.into_iter().collect())
}

pub async fn require(store: &SharedStore, name: &str) -> Result<(UserName, User), Problem> {
    let name: UserName = name.parse()?;
    match records::read(&**store, TypedKey::User(name.clone())).await? {
        Some(user) => Ok((name, user)),
        None => Err(no_user(&name)),
    }
}

/// Returns the answer for a user who is not there, or not for the caller.
pub fn no_user(name: &UserName) -> Problem {
    Problem::missing("no_user", format!("there is no user '{name}'"))
        .hint("`cortex users` lists all; `cortex users add NAME` makes one")
}

/// Finds what a grant is to be on, which has to be there.
pub async fn resolve(api: &Api, asked: &GrantAsked) -> Result<Grant, Problem> {
    let role: PersonRole = asked.role.parse().map_err(|error: model::people::NoSuchRole| {
        let words = PersonRole::ALL.map(PersonRole::word).join(", ");
        Problem::invalid("no_role", error.to_string()).hint(format!("the roles are {words}"))
    })?;
    let on = match (&asked.team, &asked.application) {
        (None, None) => Scope::Platform,
        (Some(team), None) => {
            let (name, team) = teams::require(&api.store, team).await?;
            Scope::Team { name, created_at: team.created_at }
        }
        (None, Some(application)) => {
            let app = records::require(&*api.store, application).await?;
            Scope::Application { name: app.name, created_at: app.spec.created_at }
        }
        (Some(_), Some(_)) => {
            let detail = "a grant is on a team or on an application, not on both";
            return Err(Problem::invalid("invalid_request", detail));
        }
    };
    Ok(Grant { role, on })
}

pub async fn grant_row(api: &Api, grant: &Grant) -> Result<GrantRow, Problem> {
    let there = match &grant.on {
        Scope::Platform => true,
        Scope::Team { name, created_at } => {
            let team: Option<model::people::Team> =
                records::read(&*api.store, TypedKey::Team(name.clone())).await?;
            team.is_some_and(|team| team.created_at == *created_at)
        }
        Scope::Application { name, created_at } => {
            records::created_at(&*api.store, name).await? == Some(*created_at)
        }
    };
    Ok(GrantRow { role: grant.role.to_string(), on: grant.on.to_string(), gone: !there })
}

async fn row(api: &Api, name: &UserName, user: &User) -> Result<UserRow, Problem> {
    let mut grants = Vec::new();
    for grant in &user.grants {
        grants.push(grant_row(api, grant).await?);
    }
    Ok(UserRow {
        name: name.to_string(),
        grants,
        tokens: tokens::valid_of(api, name, user).await?,
        created_at: records::rfc3339(user.created_at),
        created_by: user.created_by.clone(),
        notes: Vec::new(),
    })
}

pub async fn list(State(api): State<Shared>) -> Result<Json<Vec<UserRow>>, Problem> {
    let mut rows = Vec::new();
    for (name, user) in &all(&api.store).await? {
        rows.push(row(&api, name, user).await?);
    }
    Ok(Json(rows))
}

pub async fn add(
    State(api): State<Shared>,
    Extension(caller): Extension<Caller>,
    Extension(entry): Extension<Underway>,
    JsonBody(asked): JsonBody<AddUser>,
) -> Result<(StatusCode, Json<UserRow>), Problem> {
    let name: UserName = asked.name.parse()?;
    let _changing = api.changes.lock().await;
    let users = all(&api.store).await?;
    if users.contains_key(&name) {
        return Err(Problem::conflict("user_exists", format!("there is a user '{name}' already"))
            .hint(format!("give them a role with `cortex users grant {name} ROLE`")));
    }
    if users.len() >= USERS_MAX {
        let detail = format!("there are {USERS_MAX} users, which is the most");
        return Err(Problem::conflict("too_many_users", detail));
    }
    let mut grants = BTreeSet::new();
    if let Some(grant) = &asked.grant {
        grants.insert(resolve(&api, grant).await?);
    }
    isolation::check_roles(&api, &grants).await?;
    let before = isolation::of_platform(&api).await?.0;
    describe(&api, &entry, &name, &BTreeSet::new(), &grants).await?;
    let (v, created_at, created_by) = (RECORD_VERSION, api.now(), caller.name());
    let user = User { v, created_at, created_by, grants, unknown: Unknown::new() };
    records::write(&*api.store, TypedKey::User(name.clone()), &user).await?;
    let notes = isolation::remarks(&api, before).await?;
    Ok((StatusCode::CREATED, Json(UserRow { notes, ..row(&api, &name, &user).await? })))
}

pub async fn grant(
    State(api): State<Shared>,
    Extension(entry): Extension<Underway>,
    Path(name): Path<String>,
    JsonBody(asked): JsonBody<GrantAsked>,
) -> Result<Json<UserRow>, Problem> {
    let _changing = api.changes.lock().await;
    let (name, mut user) = require(&api.store, &name).await?;
    let grant = resolve(&api, &asked).await?;
    // One role for each place: a new one takes the place of the old one.
    let mut grants = user.grants.clone();
    grants.retain(|held| held.on != grant.on);
    grants.insert(grant);
    check_grants(&api, &name, &grants).await?;
    describe(&api, &entry, &name, &user.grants, &grants).await?;
    let before = isolation::of_platform(&api).await?.0;
    user.grants = grants;
    records::write(&*api.store, TypedKey::User(name.clone()), &user).await?;
    let notes = isolation::remarks(&api, before).await?;
    Ok(Json(UserRow { notes, ..row(&api, &name, &user).await? }))
}

/// Checks that a user may have these roles.
async fn check_grants(api: &Api, name: &UserName, grants: &BTreeSet<Grant>) -> Result<(), Problem> {
    check_owner(api, name, grants).await?;
    if grants.len() > GRANTS_MAX {
        let detail = format!("{name} would have more than {GRANTS_MAX} grants");
        return Err(Problem::conflict("too_many_grants", detail)
            .hint("put the applications into a team, and grant a role there"));
    }
    isolation::check_roles(api, grants).await
}

/// Writes down what a change of a user's roles is for the one application that it is about.
async fn describe(
    api: &Api,
    entry: &Underway,
    user: &UserName,
    before: &BTreeSet<Grant>,
    after: &BTreeSet<Grant>,
) -> Result<(), Problem> {
    for grant in before.symmetric_difference(after) {
        let Scope::Application { name, created_at } = &grant.on else { continue };
        let Some(app) = records::find(&*api.store, name).await? else { continue };
        if app.spec.created_at == *created_at {
            let (user, before) = (user.clone(), role_in(before, &grant.on));
            let part = ChangePart::Role { user, before, after: role_in(after, &grant.on) };
            return entry.describe(&app, api.now(), vec![part]).await;
        }
    }
    Ok(())
}

/// Returns the role that is held in this place and no other.
pub fn role_in(grants: &BTreeSet<Grant>, on: &Scope) -> Option<PersonRole> {
    grants.iter().find(|grant| grant.on == *on).map(|grant| grant.role)
}

/// Checks that the role of a user on an application can become this one, and returns what is to be
/// written then.
pub async fn with_role(
    api: &Api,
    name: &UserName,
    on: &Scope,
    role: Option<PersonRole>,
) -> Result<User, Problem> {
    let (name, mut user) = require(&api.store, name.as_str()).await?;
    user.grants.retain(|held| held.on != *on);
    user.grants.extend(role.map(|role| Grant { role, on: on.clone() }));
    check_grants(api, &name, &user.grants).await?;
    Ok(user)
}

/// Takes roles away by the names of what they are on, which may be gone.
pub async fn revoke(
    State(api): State<Shared>,
    Extension(entry): Extension<Underway>,
    Path(name): Path<String>,
    JsonBody(asked): JsonBody<GrantAsked>,
) -> Result<Json<UserRow>, Problem> {
    let team = asked.team.as_deref().map(str::parse::<TeamName>).transpose()?;
    let application =
        asked.application.as_deref().map(str::parse::<ApplicationName>).transpose()?;
    let is_meant = |scope: &Scope| match scope {
        Scope::Platform => team.is_none() && application.is_none(),
        Scope::Team { name, .. } => team.as_ref() == Some(name),
        Scope::Application { name, .. } => application.as_ref() == Some(name),
    };
    let _changing = api.changes.lock().await;
    let (name, mut user) = require(&api.store, &name).await?;
    let mut grants = user.grants.clone();
    grants.retain(|grant| !is_meant(&grant.on));
    if grants.len() == user.grants.len() {
        return Err(Problem::missing("no_grant", format!("{name} has no such role"))
            .hint("`cortex users` lists the roles of all"));
    }
    check_owner(&api, &name, &grants).await?;
    describe(&api, &entry, &name, &user.grants, &grants).await?;
    user.grants = grants;
    records::write(&*api.store, TypedKey::User(name.clone()), &user).await?;
    Ok(Json(row(&api, &name, &user).await?))
}

/// Removes a user; their tokens are good for nothing from then on.
pub async fn remove(
    State(api): State<Shared>,
    Path(name): Path<String>,
) -> Result<Json<UserRow>, Problem> {
    let _changing = api.changes.lock().await;
    let (name, user) = require(&api.store, &name).await?;
    check_owner(&api, &name, &BTreeSet::new()).await?;
    let removed = row(&api, &name, &user).await?;
    api.store.delete(TypedKey::User(name).key()).await?;
    Ok(Json(removed))
}

async fn check_owner(api: &Api, name: &UserName, grants: &BTreeSet<Grant>) -> Result<(), Problem> {
    if !loses_last_owner(&all(&api.store).await?, name, grants) {
        return Ok(());
    }
    Err(Problem::conflict("last_owner", format!("{name} is the last owner of the platform"))
        .hint("make somebody else an owner first: `cortex users grant NAME owner`"))
}
