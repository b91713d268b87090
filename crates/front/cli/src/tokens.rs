//! `cortex tokens`, `tokens create|revoke`: what a person or a program shows instead of a password.

use clap::{Args, Subcommand};

use super::users::{On, role};
use super::{Json, Session, output};
use api_types::people::{CreateToken, TokenCreated, TokenRow};
use client::encode;

#[derive(Debug, Args)]
pub struct Tokens {
    #[command(flatten)]
    json: Json,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List tokens, with the hour of their last use
    List {
        #[command(flatten)]
        json: Json,
    },
    /// Make a token and print it, once
    Create {
        /// Where it will be used, for example `laptop` or `ci`
        name: String,
        /// The user whose it is [default: the user who asks]
        #[arg(long)]
        user: Option<String>,
        /// The most that it may do [default: all that its user may]
        #[arg(long)]
        role: Option<String>,
        #[command(flatten)]
        on: On,
        /// How many days it is good [default: 90]
        #[arg(long)]
        days: Option<u32>,
        #[command(flatten)]
        json: Json,
    },
    /// End a token at once
    Revoke { user: String, name: String },
}

impl Tokens {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        match self.action {
            None => list(session, self.json).await,
            Some(Action::List { json }) => list(session, json.or(self.json)).await,
            Some(Action::Create { name, user, role, on, days, json }) => {
                let asked = CreateToken { name, user, limit: on.with(role)?, days };
                let made: TokenCreated = session.client.post("/v1/tokens", &asked).await?;
                if json.json {
                    return output::json(&made);
                }
                output::print(&made.token)?;
                let (user, until) = (&made.row.user, output::time(&made.row.expires_at));
                output::say(&format!(
                    "This token of {user} is good until {until} and is not shown again. Commands \
                     take it from CORTEX_TOKEN."
                ));
                Ok(())
            }
            Some(Action::Revoke { user, name }) => {
                output::begin(&format!("Revoking {name} of {user}"));
                let path = format!("/v1/tokens/{}/{}", encode(&user), encode(&name));
                let _: TokenRow = output::finish(session.client.delete(&path).await)?;
                output::say("done");
                Ok(())
            }
        }
    }
}

async fn list(session: &Session, json: Json) -> anyhow::Result<()> {
    let rows: Vec<TokenRow> = session.client.get("/v1/tokens").await?;
    let none = "There are no tokens. `cortex tokens create NAME --user USER` makes one.";
    let head = ["USER", "TOKEN", "STATE", "LIMITED TO", "EXPIRES", "LAST USED"];
    output::list(json, &rows, none, &head, |row| {
        vec![
            row.user.clone(),
            row.name.clone(),
            row.state.clone(),
            row.limit.as_ref().map_or_else(|| "-".into(), role),
            output::time(&row.expires_at),
            row.last_used_at.as_deref().map_or_else(|| "never".into(), output::time),
        ]
    })
}
