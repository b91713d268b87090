//! `cortex teams`, `teams add|remove|give|take`: which applications are whose.

use clap::{Args, Subcommand};

use super::{Json, Session, output};
use api_types::people::{AddTeam, TeamChange, TeamRow};
use client::encode;

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
    output::list(json, &rows, none, &["TEAM", "APPLICATIONS", "PEOPLE"], |row| {
        vec![row.name.clone(), applications(row), row.people.join(", ")]
    })
}

fn applications(row: &TeamRow) -> String {
    match row.applications.is_empty() {
        true => "no applications".into(),
        false => row.applications.join(", "),
    }
}
