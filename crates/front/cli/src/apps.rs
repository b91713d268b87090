//! `cortex apps`, `apps create`, `apps destroy`.

use std::io::IsTerminal;

use anyhow::{bail, ensure};
use clap::{Args, Subcommand};

use super::{Json, Session, output};
use api_types::maintenance::{KeptRow, Restored};
use api_types::{ApplicationRow, CreateApplication, Destroyed};
use client::encode;

#[derive(Debug, Args)]
pub struct Apps {
    /// List those that were destroyed and can be brought back
    #[arg(long)]
    destroyed: bool,
    #[command(flatten)]
    json: Json,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create an application to be pushed to later
    Create {
        name: String,
        /// Its framework, where detection should not decide
        #[arg(long = "type", value_name = "TYPE")]
        framework: Option<String>,
        /// Its public port [default: the first free one from 8000 on]
        #[arg(long)]
        port: Option<u16>,
        #[command(flatten)]
        json: Json,
    },
    /// Stop an application and remove it; for seven days it can be brought back
    Destroy {
        name: String,
        /// Keep nothing of it: releases, variables and stored files are lost at once
        #[arg(long, visible_alias = "purge")]
        now: bool,
        /// The name once more, which --now asks for where there is no terminal
        #[arg(long, value_name = "NAME", requires = "now")]
        confirm: Option<String>,
        /// Accepted for scripts: naming the application is the confirmation
        #[arg(long, hide = true)]
        yes: bool,
    },
    /// Bring an application back that was destroyed
    Restore {
        name: String,
        #[command(flatten)]
        json: Json,
    },
    /// List all applications
    List {
        #[command(flatten)]
        json: Json,
    },
}

impl Apps {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        match self.action {
            None if self.destroyed => list_destroyed(session, self.json).await,
            None => list(session, self.json).await,
            Some(Action::List { json }) => list(session, json).await,
            Some(Action::Create { name, framework, port, json }) => {
                create(session, CreateApplication { name, framework, port }, json).await
            }
            Some(Action::Destroy { name, now, confirm, yes: _ }) => {
                if now {
                    check_confirmed(&name, confirm.as_deref())?;
                }
                destroy(session, &name, now).await
            }
            Some(Action::Restore { name, json }) => restore(session, &name, json).await,
        }
    }
}

async fn list(session: &Session, json: Json) -> anyhow::Result<()> {
    let rows: Vec<ApplicationRow> = session.client.get("/v1/apps").await?;
    if json.json {
        return output::json(&rows);
    }
    if rows.is_empty() {
        output::say("There are no applications deployed. `cortex push DIR` deploys one.");
        return Ok(());
    }
    print(&rows)
}

pub fn print(rows: &[ApplicationRow]) -> anyhow::Result<()> {
    let cells = rows.iter().map(|row| {
        let cell = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
        let instances = format!("{}/{}", row.ready, row.wanted);
        vec![
            row.name.clone(),
            cell(&row.framework),
            cell(&row.release),
            state(row),
            instances,
            cell(&row.url),
        ]
    });
    let cells: Vec<Vec<String>> = cells.collect();
    output::table(&["NAME", "TYPE", "RELEASE", "STATE", "READY", "URL"], &cells)
}

/// Returns the state in words; one that is closed may run all the same.
pub fn state(row: &ApplicationRow) -> String {
    let closed = row.maintenance_since.as_ref().map(|_| ", in maintenance");
    let asks = row.password_since.as_ref().map(|_| ", asks for a password");
    format!("{}{}{}", row.state, closed.unwrap_or_default(), asks.unwrap_or_default())
}

async fn create(session: &Session, asked: CreateApplication, json: Json) -> anyhow::Result<()> {
    output::begin(&format!("Creating {}", asked.name));
    let row: ApplicationRow = output::finish(session.client.post("/v1/apps", &asked).await)?;
    output::say("done");
    if json.json {
        return output::json(&row);
    }
    output::say(&format!("Push to it with `cortex push DIR -a {}`", row.name));
    let port = row.port.map(|port| format!("\t{port}")).unwrap_or_default();
    output::print(&format!("{}{port}", row.name))
}

/// Asks for the name once more before everything is lost.
fn check_confirmed(name: &str, said: Option<&str>) -> anyhow::Result<()> {
    let typed = match said {
        Some(said) => said.to_owned(),
        None if std::io::stdin().is_terminal() => {
            output::say(&format!("Everything of {name} will be lost, with the files it stored."));
            output::say("Type its name to go on:");
            let mut line = String::new();
            std::io::stdin().read_line(&mut line)?;
            line
        }
        None => bail!("everything of {name} would be lost: confirm it with --confirm {name}"),
    };
    ensure!(typed.trim() == name, "'{}' is not {name}: nothing was done", typed.trim());
    Ok(())
}

async fn destroy(session: &Session, name: &str, now: bool) -> anyhow::Result<()> {
    output::begin(&format!("Destroying {name}"));
    let query = if now { "?now=true" } else { "" };
    let path = format!("/v1/apps/{}{query}", encode(name));
    let gone: Destroyed = output::finish(session.client.delete(&path).await)?;
    output::say("done");
    if !gone.stopped {
        output::say("Some of its processes are still stopping: `cortex ps` shows them");
    }
    match gone.until {
        Some(until) => output::say(&format!(
            "Its releases, variables and stored files are kept until {}: \
             `cortex apps restore {name}` brings it back",
            output::time(&until)
        )),
        None => output::say("Nothing of it is kept."),
    }
    Ok(())
}

async fn restore(session: &Session, name: &str, json: Json) -> anyhow::Result<()> {
    output::begin(&format!("Bringing {name} back"));
    let path = format!("/v1/apps/{}/restore", encode(name));
    let restored: Restored =
        output::finish(session.client.post(&path, &serde_json::json!({})).await)?;
    output::say("done");
    for note in &restored.notes {
        output::say(&format!("Note: {}", output::plain(note)));
    }
    if json.json {
        return output::json(&restored);
    }
    output::say(&format!("It is started as it was: `cortex ps -a {name}` shows how far it is."));
    match &restored.row.url {
        Some(url) => output::print(url),
        None => Ok(()),
    }
}

async fn list_destroyed(session: &Session, json: Json) -> anyhow::Result<()> {
    let rows: Vec<KeptRow> = session.client.get("/v1/destroyed").await?;
    let none = "No application was destroyed that can be brought back.";
    output::list(json, &rows, none, &["NAME", "DESTROYED", "BY", "KEPT UNTIL", "DOMAINS"], |row| {
        vec![
            row.name.clone(),
            output::time(&row.destroyed_at),
            row.by.clone(),
            output::time(&row.until),
            row.domains.join(", "),
        ]
    })
}
