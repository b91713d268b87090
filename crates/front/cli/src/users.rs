//! `cortex users`, `users add|remove|grant|revoke`: the people of the platform and their roles.

use clap::{Args, Subcommand};

use super::{Json, Session, output};
use api_types::login::{InviteUser, UserInvitation};
use api_types::people::{AddUser, GrantAsked, GrantRow, UserRow};
use client::{ClientError, encode};

#[derive(Debug, Args)]
pub struct Users {
    #[command(flatten)]
    json: Json,
    #[command(subcommand)]
    action: Option<Action>,
}

/// What a role is on: the platform, unless a team or an application is named.
#[derive(Clone, Debug, Args)]
pub struct On {
    /// The team in which the role is held [default: the platform]
    #[arg(long, value_name = "TEAM", conflicts_with = "app")]
    team: Option<String>,
    /// The application on which the role is held [default: the platform]
    #[arg(short = 'a', long = "app", value_name = "NAME")]
    app: Option<String>,
}

impl On {
    pub fn grant(self, role: String) -> GrantAsked {
        GrantAsked { role, team: self.team, application: self.app }
    }

    /// Returns what is asked for if a role is named; a place without a role is refused.
    pub fn with(self, role: Option<String>) -> anyhow::Result<Option<GrantAsked>> {
        let placed = self.team.is_some() || self.app.is_some();
        anyhow::ensure!(role.is_some() || !placed, "say which role there: --role ROLE");
        Ok(role.map(|role| self.grant(role)))
    }
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List all users with their roles
    List {
        #[command(flatten)]
        json: Json,
    },
    /// Add a person
    Add {
        name: String,
        /// viewer, developer, operator or owner; without one they may do nothing yet
        #[arg(long)]
        role: Option<String>,
        #[command(flatten)]
        on: On,
        #[command(flatten)]
        json: Json,
    },
    /// Invite a person to log in from their own computer; adds them if they are not there yet
    Invite {
        name: String,
        /// viewer, developer, operator or owner [default: the roles they have]
        #[arg(long)]
        role: Option<String>,
        #[command(flatten)]
        on: On,
        /// How many hours the invitation is good [default: 24]
        #[arg(long)]
        hours: Option<u32>,
        /// Where they find this node, as HOST:PORT; may be repeated [default: where other nodes do]
        #[arg(long = "address", value_name = "HOST:PORT")]
        addresses: Vec<String>,
        #[command(flatten)]
        json: Json,
    },
    /// Remove a person; their tokens end at once
    Remove { name: String },
    /// Give a role, in place of the one held there
    Grant {
        name: String,
        /// viewer, developer, operator or owner
        role: String,
        #[command(flatten)]
        on: On,
    },
    /// Take the role away that is held there
    Revoke {
        name: String,
        #[command(flatten)]
        on: On,
    },
}

impl Users {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        match self.action {
            None => list(session, self.json).await,
            Some(Action::List { json }) => list(session, json.or(self.json)).await,
            Some(Action::Add { name, role, on, json }) => {
                let asked = AddUser { grant: on.with(role)?, name };
                output::begin(&format!("Adding {}", asked.name));
                let row: UserRow = output::finish(session.client.post("/v1/users", &asked).await)?;
                output::say(&format!("done, {}", roles(&row)));
                if json.json {
                    return output::json(&row);
                }
                notes(&row);
                let name = &row.name;
                output::say(&format!(
                    "They log in with an invitation: `cortex users invite {name}`"
                ));
                Ok(())
            }
            Some(Action::Invite { name, role, on, hours, addresses, json }) => {
                let asked = AddUser { grant: on.with(role)?, name };
                invite(session, asked, InviteUser { hours, addresses }, json).await
            }
            Some(Action::Remove { name }) => {
                output::begin(&format!("Removing {name}"));
                let path = format!("/v1/users/{}", encode(&name));
                let row: UserRow = output::finish(session.client.delete(&path).await)?;
                let ended = output::count(row.tokens as u64, "token");
                output::say(&format!("done, {ended} ended"));
                Ok(())
            }
            Some(Action::Grant { name, role, on }) => {
                change(session, &name, "grant", &on.grant(role)).await
            }
            Some(Action::Revoke { name, on }) => {
                change(session, &name, "revoke", &on.grant(String::new())).await
            }
        }
    }
}

/// Adds the person or gives them the role, and prints the line that logs them in.
async fn invite(
    session: &Session,
    asked: AddUser,
    invite: InviteUser,
    json: Json,
) -> anyhow::Result<()> {
    let name = encode(&asked.name);
    match session.client.post::<_, UserRow>("/v1/users", &asked).await {
        Ok(row) => output::say(&format!("Added {}, {}.", row.name, roles(&row))),
        Err(error) if is_there_already(&error) => {
            if let Some(grant) = &asked.grant {
                change(session, &asked.name, "grant", grant).await?;
            }
        }
        Err(error) => return Err(error),
    }
    let path = format!("/v1/users/{name}/invitations");
    let made: UserInvitation = session.client.post(&path, &invite).await?;
    if json.json {
        return output::json(&made);
    }
    output::print(&format!("cortex login {}", made.line))?;
    output::say(&format!(
        "Whoever runs this line is {} here. It is good once, until {}.",
        made.user,
        output::time(&made.expires_at)
    ));
    Ok(())
}

fn is_there_already(error: &anyhow::Error) -> bool {
    let problem = error.downcast_ref::<ClientError>();
    matches!(problem, Some(ClientError::Problem(problem)) if problem.code == "user_exists")
}

async fn change(
    session: &Session,
    name: &str,
    what: &str,
    grant: &GrantAsked,
) -> anyhow::Result<()> {
    output::begin(&format!("Changing the roles of {name}"));
    let path = format!("/v1/users/{}/{what}", encode(name));
    let row: UserRow = output::finish(session.client.post(&path, grant).await)?;
    output::say(&format!("done, {}", roles(&row)));
    notes(&row);
    Ok(())
}

fn notes(row: &UserRow) {
    row.notes.iter().for_each(|note| output::say(note));
}

async fn list(session: &Session, json: Json) -> anyhow::Result<()> {
    let rows: Vec<UserRow> = session.client.get("/v1/users").await?;
    let none = "There are no users: the owner of the machine does everything. `cortex users add \
                NAME` adds one.";
    output::list(json, &rows, none, &["USER", "ROLES", "TOKENS", "SINCE", "BY"], |row| {
        let (name, since) = (row.name.clone(), output::time(&row.created_at));
        vec![name, roles(row), row.tokens.to_string(), since, row.created_by.clone()]
    })
}

fn roles(row: &UserRow) -> String {
    let roles: Vec<String> = row.grants.iter().map(role).collect();
    if roles.is_empty() { "no role yet".into() } else { roles.join(", ") }
}

/// Returns a role with its place, and whether that is there no more.
pub fn role(grant: &GrantRow) -> String {
    let gone = if grant.gone { " (gone)" } else { "" };
    format!("{} on {}{gone}", grant.role, grant.on)
}
