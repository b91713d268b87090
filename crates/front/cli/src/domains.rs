//! `cortex domains`, `domains add`, `domains remove`, `domains reset`.

use clap::{Args, Subcommand};

use super::{App, Json, Session, output};
use api_types::{DomainsChange, DomainsShown};
use client::encode;

#[derive(Debug, Args)]
pub struct Domains {
    #[command(flatten)]
    app: App,
    #[command(flatten)]
    json: Json,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Let host names lead to an application; from then on commands decide which ones do, and
    /// cortex.toml does not
    Add {
        /// `shop.example.org`, or `*.example.org` for every name below
        #[arg(required = true, value_name = "DOMAIN")]
        domains: Vec<String>,
        #[command(flatten)]
        app: App,
    },
    /// Take host names from an application, so that others can have them
    Remove {
        #[arg(required = true, value_name = "DOMAIN")]
        domains: Vec<String>,
        #[command(flatten)]
        app: App,
    },
    /// Leave the host names to cortex.toml again, from the next push on
    Reset {
        #[command(flatten)]
        app: App,
    },
    /// List the host names besides NAME.localhost
    List {
        #[command(flatten)]
        app: App,
        #[command(flatten)]
        json: Json,
    },
}

impl Domains {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let outer = self.app;
        let (app, verb, change) = match self.action {
            None => return list(session, &outer, self.json).await,
            Some(Action::List { app, json }) => {
                let json = json.or(self.json);
                return list(session, &app.or(outer), json).await;
            }
            Some(Action::Add { domains: add, app }) => {
                (app, "Adding", DomainsChange { add, ..DomainsChange::default() })
            }
            Some(Action::Remove { domains: remove, app }) => {
                (app, "Removing", DomainsChange { remove, ..DomainsChange::default() })
            }
            Some(Action::Reset { app }) => {
                (app, "Resetting", DomainsChange { reset: true, ..DomainsChange::default() })
            }
        };
        apply(session, &app.or(outer), verb, &change).await
    }
}

fn path(name: &model::ApplicationName) -> String {
    format!("/v1/apps/{}/domains", encode(name.as_str()))
}

async fn list(session: &Session, app: &App, json: Json) -> anyhow::Result<()> {
    let shown: DomainsShown = session.client.get(&path(&app.name()?)).await?;
    if json.json {
        return output::json(&shown);
    }
    if shown.domains.is_empty() {
        let name = &shown.application;
        output::say(&format!("{name} has no domains beside {name}.localhost."));
    }
    print(&shown)
}

async fn apply(
    session: &Session,
    app: &App,
    verb: &str,
    change: &DomainsChange,
) -> anyhow::Result<()> {
    let name = app.name()?;
    let all: Vec<&str> = change.add.iter().chain(&change.remove).map(String::as_str).collect();
    let what = if all.is_empty() { "domains".into() } else { all.join(", ") };
    output::begin(&format!("{verb} {what} of {name}"));
    let shown: DomainsShown = output::finish(session.client.post(&path(&name), change).await)?;
    output::say("done");
    shown.notes.iter().for_each(|note| output::say(note));
    print(&shown)
}

fn print(shown: &DomainsShown) -> anyhow::Result<()> {
    for row in &shown.domains {
        output::print(&row.domain)?;
        row.clash.iter().for_each(|clash| output::say(&format!("  {clash}")));
    }
    Ok(())
}
