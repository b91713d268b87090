//! Teams: which applications are whose.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use model::key::teams_prefix;
use model::people::{Scope, Team, TeamLimits};
use model::record::{RECORD_VERSION, Unknown};
use model::{ApplicationName, TeamName, Timestamp, TypedKey};
use store::SharedStore;

use super::caller::Caller;
use super::json_body::JsonBody;
use super::problem::Problem;
use super::{Api, Shared, records, team_limits, users};
use api_types::people::{AddTeam, TeamChange, TeamRow};

/// The most teams, all of which are read for a request with a token.
const TEAMS_MAX: usize = 200;
/// The most applications of a team, whose record stays below a megabyte.
const TEAM_APPLICATIONS_MAX: usize = 1000;

pub async fn all(store: &SharedStore) -> Result<BTreeMap<TeamName, Team>, Problem> {
    let named = |key| if let TypedKey::Team(name) = key { Some(name) } else { None };
    Ok(records::all(&**store, &teams_prefix(), named).await?.into_iter().collect())
}

/// Returns the teams that have the application of this name that was made at this time.
pub fn of_application(
    teams: &BTreeMap<TeamName, Team>,
    name: &ApplicationName,
    created_at: Timestamp,
) -> BTreeSet<(TeamName, Timestamp)> {
    let has = |team: &Team| team.applications.get(name) == Some(&created_at);
    let having = teams.iter().filter(|(_, team)| has(team));
    having.map(|(name, team)| (name.clone(), team.created_at)).collect()
}

pub async fn require(store: &SharedStore, name: &str) -> Result<(TeamName, Team), Problem> {
    let name: TeamName = name.parse()?;
    match records::read(&**store, TypedKey::Team(name.clone())).await? {
        Some(team) => Ok((name, team)),
        None => Err(Problem::missing("no_team", format!("there is no team '{name}'"))
            .hint("`cortex teams` lists all; `cortex teams add NAME` makes one")),
    }
}

/// Gives a team an application that was just made. The caller holds `Api::changes`.
pub async fn add_application(
    store: &SharedStore,
    team: &TeamName,
    created_at: Timestamp,
    application: &ApplicationName,
) -> Result<(), Problem> {
    let (team, mut record) = require(store, team.as_str()).await?;
    let made = records::created_at(&**store, application).await?;
    if let Some(made) = made.filter(|_| record.created_at == created_at) {
        insert(&team, &mut record, application.clone(), made)?;
        records::write(&**store, TypedKey::Team(team), &record).await?;
    }
    Ok(())
}

fn insert(
    name: &TeamName,
    team: &mut Team,
    application: ApplicationName,
    created_at: Timestamp,
) -> Result<(), Problem> {
    team.applications.insert(application, created_at);
    if team.applications.len() > TEAM_APPLICATIONS_MAX {
        let detail = format!("{name} has {TEAM_APPLICATIONS_MAX} applications, which is the most");
        return Err(Problem::conflict("too_many_applications", detail));
    }
    Ok(())
}

async fn row(api: &Api, name: &TeamName, team: &Team) -> Result<TeamRow, Problem> {
    let mut applications = Vec::new();
    for (application, created_at) in &team.applications {
        if records::created_at(&*api.store, application).await? == Some(*created_at) {
            applications.push(application.to_string());
        }
    }
    let on = Scope::Team { name: name.clone(), created_at: team.created_at };
    let mut people = Vec::new();
    for (user, record) in users::all(&api.store).await? {
        let held = record.grants.iter().filter(|grant| grant.on == on);
        people.extend(held.map(|grant| format!("{} {user}", grant.role)));
    }
    let used = team_limits::used_by_team(api, team).await?;
    Ok(TeamRow {
        name: name.to_string(),
        applications,
        used: api_types::people::TeamUsed {
            applications: used.applications,
            instances: used.instances,
            memory_bytes: used.memory_bytes,
            disk_bytes: used.disk_bytes,
        },
        limits: team.limits,
        people,
        created_at: records::rfc3339(team.created_at),
        created_by: team.created_by.clone(),
    })
}

pub async fn list(State(api): State<Shared>) -> Result<Json<Vec<TeamRow>>, Problem> {
    let mut rows = Vec::new();
    for (name, team) in &all(&api.store).await? {
        rows.push(row(&api, name, team).await?);
    }
    Ok(Json(rows))
}

pub async fn add(
    State(api): State<Shared>,
    Extension(caller): Extension<Caller>,
    JsonBody(asked): JsonBody<AddTeam>,
) -> Result<(StatusCode, Json<TeamRow>), Problem> {
    let name: TeamName = asked.name.parse()?;
    let _changing = api.changes.lock().await;
    let teams = all(&api.store).await?;
    if teams.contains_key(&name) {
        return Err(Problem::conflict("team_exists", format!("there is a team '{name}' already"))
            .hint("`cortex teams` lists all"));
    }
    if teams.len() >= TEAMS_MAX {
        let detail = format!("there are {TEAMS_MAX} teams, which is the most");
        return Err(Problem::conflict("too_many_teams", detail));
    }
    let team = Team {
        v: RECORD_VERSION,
        created_at: api.now(),
        created_by: caller.name(),
        applications: BTreeMap::new(),
        limits: TeamLimits::default(),
        unknown: Unknown::new(),
    };
    records::write(&*api.store, TypedKey::Team(name.clone()), &team).await?;
    Ok((StatusCode::CREATED, Json(row(&api, &name, &team).await?)))
}

/// Gives a team applications, takes others away, and sets its limits: all of it or nothing.
pub async fn change(
    State(api): State<Shared>,
    Path(name): Path<String>,
    JsonBody(asked): JsonBody<TeamChange>,
) -> Result<Json<TeamRow>, Problem> {
    let _changing = api.changes.lock().await;
    let (name, mut team) = require(&api.store, &name).await?;
    for application in &asked.remove {
        let application: ApplicationName = application.parse()?;
        if team.applications.remove(&application).is_none() {
            let detail = format!("team {name} has no application '{application}'");
            return Err(Problem::missing("no_application", detail)
                .hint("`cortex teams` lists what each has"));
        }
    }
    team.limits = asked.limits.unwrap_or(team.limits);
    for application in &asked.add {
        let app = records::require(&*api.store, application).await?;
        team_limits::check_given(&api, &name, &team, &app).await?;
        insert(&name, &mut team, app.name, app.spec.created_at)?;
    }
    records::write(&*api.store, TypedKey::Team(name.clone()), &team).await?;
    Ok(Json(row(&api, &name, &team).await?))
}

/// Removes a team; its applications stay, and roles in it mean nothing from then on.
pub async fn remove(
    State(api): State<Shared>,
    Path(name): Path<String>,
) -> Result<Json<TeamRow>, Problem> {
    let _changing = api.changes.lock().await;
    let (name, team) = require(&api.store, &name).await?;
    let removed = row(&api, &name, &team).await?;
    api.store.delete(TypedKey::Team(name).key()).await?;
    Ok(Json(removed))
}
