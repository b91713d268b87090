//! `cortex teams`, `teams add|remove|give|take|limit`: which applications are whose, and what those
//! of a team may take together.

use clap::{Args, Subcommand};

use model::people::TeamLimits;

use super::{Json, Session, output};
use api_types::people::{AddTeam, TeamChange, TeamRow};
use client::encode;
use recipe_core::manifest::size;

#[derive(Debug, Args)]
pub struct Teams {
    #[command(flatten)]
    json: Json,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List all teams with their applications and people
    List {
        #[command(flatten)]
        json: Json,
    },
    /// Add a team; people join with `cortex users grant USER ROLE --team TEAM`
    Add { name: String },
    /// Remove a team; its applications stay
    Remove { name: String },
    /// Give applications to a team
    Give {
        team: String,
        #[arg(required = true, value_name = "APP")]
        applications: Vec<String>,
    },
    /// Take applications from a team
    Take {
        team: String,
        #[arg(required = true, value_name = "APP")]
        applications: Vec<String>,
    },
    /// Limit what a team's applications may take together, or show it
    Limit {
        team: String,
        /// The most applications, or `none`
        #[arg(long, value_name = "N", value_parser = count)]
        applications: Option<Limit>,
        /// The most instances of all of them, or `none`
        #[arg(long, value_name = "N", value_parser = count)]
        instances: Option<Limit>,
        /// The memory that all instances may grow to, such as 4GB, or `none`
        #[arg(long, value_name = "SIZE", value_parser = bytes)]
        memory: Option<Limit>,
        /// The disk of all nodes that their files take before a push is refused, such as 20GB, or
        /// `none`
        #[arg(long, value_name = "SIZE", value_parser = bytes)]
        disk: Option<Limit>,
    },
}

/// A limit as it is asked for: none, or so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit(Option<u64>);

const NO_LIMIT: &str = "none";

fn count(text: &str) -> Result<Limit, String> {
    let number = text.parse().map(|number| Limit(Some(number)));
    match text == NO_LIMIT {
        true => Ok(Limit(None)),
        false => number.map_err(|_| "write a number, or 'none'".into()),
    }
}

fn bytes(text: &str) -> Result<Limit, String> {
    match (text == NO_LIMIT, size(text)) {
        (true, _) => Ok(Limit(None)),
        (false, Some(bytes)) if bytes > 0 => Ok(Limit(Some(bytes))),
        _ => Err("write a size such as 512MB or 4GB, or 'none'".into()),
    }
}

impl Teams {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let path = |team: &str| format!("/v1/teams/{}", encode(team));
        let (what, asked): (String, anyhow::Result<TeamRow>) = match self.action {
            None => return list(session, self.json).await,
            Some(Action::List { json }) => {
                return list(session, json.or(self.json)).await;
            }
            Some(Action::Add { name }) => {
                let asked = AddTeam { name };
                let what = format!("Adding team {}", asked.name);
                (what, session.client.post("/v1/teams", &asked).await)
            }
            Some(Action::Remove { name }) => {
                let what = format!("Removing team {name}");
                (what, session.client.delete(&path(&name)).await)
            }
            Some(Action::Give { team, applications: add }) => {
                let what = format!("Giving {} to team {team}", add.join(", "));
                let change = TeamChange { add, ..TeamChange::default() };
                (what, session.client.post(&path(&team), &change).await)
            }
            Some(Action::Take { team, applications: remove }) => {
                let what = format!("Taking {} from team {team}", remove.join(", "));
                let change = TeamChange { remove, ..TeamChange::default() };
                (what, session.client.post(&path(&team), &change).await)
            }
            Some(Action::Limit { team, applications, instances, memory, disk }) => {
                let rows: Vec<TeamRow> = session.client.get("/v1/teams").await?;
                let before = rows.iter().find(|row| row.name == team).map(|row| row.limits);
                let limits = TeamLimits {
                    applications: chosen(applications, before, |limits| limits.applications),
                    instances: chosen(instances, before, |limits| limits.instances),
                    memory_bytes: chosen(memory, before, |limits| limits.memory_bytes),
                    disk_bytes: chosen(disk, before, |limits| limits.disk_bytes),
                };
                let change = TeamChange { limits: Some(limits), ..TeamChange::default() };
                if before == Some(limits) {
                    output::say(&taken(rows.iter().find(|row| row.name == team)));
                    return Ok(());
                }
                output::begin(&format!("Limiting team {team}"));
                let row = output::finish(session.client.post(&path(&team), &change).await)?;
                output::say(&taken(Some(&row)));
                return Ok(());
            }
        };
        output::begin(&what);
        let row = output::finish(asked)?;
        output::say(&format!("done, {}", applications(&row)));
        Ok(())
    }
}

async fn list(session: &Session, json: Json) -> anyhow::Result<()> {
    let rows: Vec<TeamRow> = session.client.get("/v1/teams").await?;
    let none = "There are no teams. `cortex teams add NAME` adds one.";
    output::list(json, &rows, none, &["TEAM", "APPLICATIONS", "PEOPLE", "IN USE"], |row| {
        vec![row.name.clone(), applications(row), row.people.join(", "), taken(Some(row))]
    })
}

/// Returns the limit that is asked for, else the one that is there.
fn chosen(
    asked: Option<Limit>,
    before: Option<TeamLimits>,
    field: impl Fn(TeamLimits) -> Option<u64>,
) -> Option<u64> {
    asked.map_or_else(|| before.and_then(field), |Limit(limit)| limit)
}

/// Returns what a team's applications take, and of how much.
fn taken(row: Option<&TeamRow>) -> String {
    let Some(TeamRow { used, limits, .. }) = row else { return String::new() };
    let of = |used: u64, most: Option<u64>, said: &dyn Fn(u64) -> String| match most {
        Some(most) => format!("{} of {}", said(used), said(most)),
        None => said(used),
    };
    let number = |amount: u64| amount.to_string();
    let size = |amount: u64| format!("{} MB", amount.div_ceil(1 << 20));
    format!(
        "{} {}, {} {}, {} of memory, {} of disk",
        of(used.applications, limits.applications, &number),
        plural(limits.applications.unwrap_or(used.applications), "application"),
        of(used.instances, limits.instances, &number),
        plural(limits.instances.unwrap_or(used.instances), "instance"),
        of(used.memory_bytes, limits.memory_bytes, &size),
        of(used.disk_bytes, limits.disk_bytes, &size)
    )
}

fn plural(amount: u64, of: &str) -> String {
    if amount == 1 { of.into() } else { format!("{of}s") }
}

fn applications(row: &TeamRow) -> String {
    match row.applications.is_empty() {
        true => "no applications".into(),
        false => row.applications.join(", "),
    }
}
