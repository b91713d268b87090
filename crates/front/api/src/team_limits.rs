//! What the applications of teams take together, and the refusal of what would be more than their
//! teams may. Every check is made by who holds `Api::changes`, so that two changes on this node do
//! not pass a limit together; two on nodes that do not see each other may.

use access_core::{INSTANCE_MEMORY_DEFAULT, TeamUse, check_limits};
use axum::http::StatusCode;
use model::application::Settings;
use model::node::NodeDisk;
use model::people::Team;
use model::{ApplicationName, NodeId, Recipe, TeamName, Timestamp, TypedKey};

use super::caller::Caller;
use super::problem::Problem;
use super::records::{self, ApplicationRecords};
use super::{Api, teams};

/// Returns what an application asks for.
pub fn used_by(app: &ApplicationRecords) -> TeamUse {
    match app.current().or(app.serving()) {
        Some(release) => used_with(app, &release.recipe, &release.settings),
        // It may be scaled ahead of its first release.
        None => TeamUse::of_application(
            app.spec.processes.values().map(|process| u64::from(process.count)).sum(),
            None,
        ),
    }
}

fn used_with(app: &ApplicationRecords, recipe: &Recipe, settings: &Settings) -> TeamUse {
    let instances = app.wanted_of(recipe).values().map(|count| u64::from(*count)).sum();
    TeamUse::of_application(instances, settings.limits.memory_bytes)
}

/// Returns what all applications of a team ask for.
pub async fn used_by_team(api: &Api, team: &Team) -> Result<TeamUse, Problem> {
    let mut used = TeamUse::default();
    for (name, created_at) in &team.applications {
        let app = records::find(&*api.store, name).await?;
        let app = app.filter(|app| app.spec.created_at == *created_at);
        used = app.iter().map(used_by).fold(used, TeamUse::and);
    }
    used.disk_bytes = disk_of(api, team).await?;
    Ok(used)
}

/// Returns what the files of a team's applications take on all nodes, as those measured it last.
async fn disk_of(api: &Api, team: &Team) -> Result<u64, Problem> {
    let named = |key| if let TypedKey::NodeDisk(node) = key { Some(node) } else { None };
    let disks: Vec<(NodeId, NodeDisk)> = records::of_nodes(&*api.store, named).await?;
    let all = disks.iter().flat_map(|(_, disk)| &disk.bytes);
    Ok(all.filter(|(name, _)| team.applications.contains_key(*name)).map(|(_, bytes)| bytes).sum())
}

/// Returns the teams with limits that have an application.
async fn limited(
    api: &Api,
    name: &ApplicationName,
    created_at: Timestamp,
) -> Result<Vec<(TeamName, Team)>, Problem> {
    let mut having = teams::all(&api.store).await?;
    having.retain(|_, team| {
        !team.limits.is_empty() && team.applications.get(name) == Some(&created_at)
    });
    Ok(having.into_iter().collect())
}

/// Returns the team with limits that would get an application which this caller makes.
async fn limited_for_new(api: &Api, caller: &Caller) -> Result<Vec<(TeamName, Team)>, Problem> {
    let Some((name, created_at)) = caller.team_for_new()? else { return Ok(Vec::new()) };
    let (name, team) = teams::require(&api.store, name.as_str()).await?;
    let counts = team.created_at == created_at && !team.limits.is_empty();
    Ok(if counts { vec![(name, team)] } else { Vec::new() })
}

/// Checks that what an application asks for may become something else.
async fn check(
    api: &Api,
    teams: &[(TeamName, Team)],
    before: TeamUse,
    after: TeamUse,
) -> Result<(), Problem> {
    for (name, team) in teams {
        let all = used_by_team(api, team).await?;
        let others = TeamUse {
            applications: all.applications.saturating_sub(before.applications),
            instances: all.instances.saturating_sub(before.instances),
            memory_bytes: all.memory_bytes.saturating_sub(before.memory_bytes),
            // A change says what it adds.
            disk_bytes: all.disk_bytes,
        };
        check_limits(&team.limits, all, others.and(after)).map_err(|exceeded| {
            let detail = format!("team {name} would take {exceeded}");
            Problem::new(StatusCode::FORBIDDEN, "team_limit", detail).hint(format!(
                "scale down or destroy what is not needed, or have an owner of the platform raise \
                 it: `cortex teams limit {name}`"
            ))
        })?;
    }
    Ok(())
}

/// Checks that this caller may make one more application.
pub async fn check_new(api: &Api, caller: &Caller) -> Result<(), Problem> {
    let teams = limited_for_new(api, caller).await?;
    check(api, &teams, TeamUse::default(), TeamUse::of_application(0, None)).await
}

/// Checks that a team may get an application that is there already.
pub async fn check_given(
    api: &Api,
    name: &TeamName,
    team: &Team,
    app: &ApplicationRecords,
) -> Result<(), Problem> {
    let is_given = team.applications.get(&app.name) == Some(&app.spec.created_at);
    if is_given || team.limits.is_empty() {
        return Ok(());
    }
    let teams = [(name.clone(), team.clone())];
    check(api, &teams, TeamUse::default(), used_by(app)).await
}

/// Checks that an application may be scaled to what its changed specification says.
pub async fn check_scale(
    api: &Api,
    before: TeamUse,
    app: &ApplicationRecords,
) -> Result<(), Problem> {
    let teams = limited(api, &app.name, app.spec.created_at).await?;
    check(api, &teams, before, used_by(app)).await
}

/// Checks a release that is to be made, of an application that `created` says is new and with
/// `new_bytes` that the nodes do not have yet, and limits the memory of its instances where the
/// team's is limited and nothing else is said; returns what the user should know of that.
pub async fn check_release(
    api: &Api,
    caller: &Caller,
    app: &ApplicationRecords,
    (created, new_bytes): (bool, u64),
    (recipe, settings): (&Recipe, &mut Settings),
) -> Result<Option<String>, Problem> {
    let (teams, before) = match created {
        true => (limited_for_new(api, caller).await?, TeamUse::default()),
        false => (limited(api, &app.name, app.spec.created_at).await?, used_by(app)),
    };
    let of_memory = teams.iter().find(|(_, team)| team.limits.memory_bytes.is_some());
    let mut said = None;
    if let Some((name, _)) = of_memory.filter(|_| settings.limits.memory_bytes.is_none()) {
        settings.limits.memory_bytes = Some(INSTANCE_MEMORY_DEFAULT);
        let mb = INSTANCE_MEMORY_DEFAULT / (1024 * 1024);
        said = Some(format!(
            "an instance may take {mb} MB, as the memory of team {name} is limited; `memory` in \
             cortex.toml says otherwise"
        ));
    }
    let after = TeamUse { disk_bytes: new_bytes, ..used_with(app, recipe, settings) };
    check(api, &teams, before, after).await?;
    Ok(said)
}
